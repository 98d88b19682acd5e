"""What a party has helped to unmask. Two sums over almost the same parties differ by what a few of them sent, so the
lists of parties may only differ by groups of at least three (the long-term privacy of So et al., AAAI 2023)."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence

from fedalc.secure_sums.messages import LEAST_PARTIES
from fedalc.secure_sums.refusals import Refused

Lists = Sequence[Sequence[str]]


def groups_of(lists: Lists, others: Iterable[str] = ()) -> list[tuple[bool, set[str]]]:
    """Return the parties in groups that no list tells apart, and of each whether it was in any list. Every combination
    of the lists' sums weighs all parties of a group alike.

    >>> [sorted(group) for _, group in groups_of([["a", "b", "c", "d"], ["c", "d", "e"]])]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    sets = [set(each) for each in lists]
    groups: dict[tuple[bool, ...], set[str]] = {}
    for name in sorted(set(others).union(*sets)):
        groups.setdefault(tuple(name in each for each in sets), set()).add(name)
    return [(any(where), group) for where, group in groups.items()]


def singled_out(lists: Lists, new: Iterable[str]) -> list[str]:
    """Return the parties, fewer than three together, that a sum over the `new` list shows beside sums over the others.

    >>> singled_out([["a", "b", "c", "d"]], ["a", "b", "c"]), singled_out([["a", "b", "c"]], ["a", "b", "c"])
    (['d'], [])
    """
    listed: set[str] = set(new)
    parts: list[set[str]] = []
    for known, group in groups_of(lists, listed):
        inside, outside = group & listed, group - listed
        if not known or (inside and outside):
            parts += [inside, outside]
    return sorted(name for part in parts if len(part) < LEAST_PARTIES for name in part)


def allowed_part(lists: Lists, present: Iterable[str]) -> list[str]:
    """Return the largest list of these parties that singles nobody out: of a group, all, or all but at least three.

    >>> allowed_part([list("abcdef")], "abcde"), allowed_part([list("abcdef")], "abcdefg")
    (['a', 'b', 'c'], ['a', 'b', 'c', 'd', 'e', 'f'])
    """
    here, allowed = set(present), set[str]()
    for known, group in groups_of(lists, here):
        inside, lost = sorted(group & here), len(group - here)
        more = max(LEAST_PARTIES - lost, 0) if known and lost else 0  # to leave out with those that are lost
        kept = inside[: max(len(inside) - more, 0)]
        if len(kept) >= LEAST_PARTIES or (known and not lost):
            allowed.update(kept)
    return sorted(allowed)


class Disclosures:
    """`known`: for each kind of vector, the lists of parties whose sum was unmasked. The caller keeps it. `most_lists`:
    a list that singles out fewer than three parties is refused if there are this many already."""

    def __init__(self, known: MutableMapping[str, list[list[str]]], most_lists: int = 1) -> None:
        self.known = known
        self.most_lists = most_lists

    def check(self, kind: str, survivors: Sequence[str], once: bool = False) -> None:
        """Refuse a list of parties that, with earlier ones of this kind, shows what fewer than three of them sent.
        `once`: refuse every list but the first, since each has noise of its own."""
        lists = self.known.get(kind, [])
        if sorted(survivors) in lists or not lists:
            return
        if once:
            raise Refused("asks to unmask a question again over other parties than before, with other noise")
        few = singled_out(lists, survivors)
        if few and len(lists) >= self.most_lists:
            raise Refused(
                f"asks to unmask a sum over other parties than before: the two sums together show what "
                f"{' and '.join(few)} sent. To allow it, start this party with --allow sum_lists={len(lists) + 1}"
            )

    def note(self, kind: str, survivors: Sequence[str], once: bool = False) -> None:
        """Record it, before any share leaves the party."""
        self.check(kind, survivors, once)
        if sorted(survivors) not in self.known.setdefault(kind, []):
            self.known[kind].append(sorted(survivors))
