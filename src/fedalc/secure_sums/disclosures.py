"""What was unmasked. Two sums over almost the same parties differ by what a few of them sent, so the lists of parties
may only differ by groups of at least three (the long-term privacy of So et al., AAAI 2023).

A party has to know all lists, also those that it was not in. So in each sum the parties tell each other, under their
key, which lists they know, and remember what they hear. And a list has to have more than half of every earlier list
that it shares a party with: then any two lists that matter to each other have a party in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence

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


def minority_of(lists: Lists, new: Iterable[str]) -> Sequence[str] | None:
    """Return a list of which the `new` one has some parties, but not more than half.

    Any two lists with more than half of a third one have a party in common, which knows both. Without this rule,
    parties could be split into lists that nobody compares.

    >>> minority_of([["a", "b", "c", "d"]], ["c", "d", "e"]), minority_of([["a", "b"]], ["c", "d"])
    (['a', 'b', 'c', 'd'], None)
    """
    listed = set(new)
    return next((each for each in lists if 0 < 2 * len(listed & set(each)) <= len(each)), None)


Known = dict[str, list[list[str]]]
"""For each kind of vector, the lists of parties whose sum was unmasked; after MASKED, those that vectors were masked
for."""
MASKED = "masked "
NOISED = "noised "


def together(histories: Iterable[Mapping[str, Lists]]) -> Known:
    """Return all lists that several parties know."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for history in histories:
        for kind, lists in history.items():
            found.setdefault(kind, set()).update(tuple(sorted(each)) for each in lists)
    return {kind: [list(each) for each in sorted(lists)] for kind, lists in sorted(found.items())}


class Disclosures:
    """What a party remembers. `known`: see `Known`; the caller keeps it. `most_lists`: with fewer lists than this, any
    new one is accepted."""

    def __init__(self, known: MutableMapping[str, list[list[str]]], most_lists: int = 1) -> None:
        self.known = known
        self.most_lists = most_lists

    def history(self) -> Known:
        """Return what others have to know: all lists but those of noised sums, which a party checks for itself."""
        return together([{kind: lists for kind, lists in self.known.items() if not kind.startswith(NOISED)}])

    def before_masking(self, kind: str, dealers: Sequence[str], others: Mapping[str, Lists], once: bool) -> None:
        """Check the list that a vector is to be masked for, and record it before the vector leaves the party. `others`:
        what all parties of this sum know together. `once`: every list but the first is refused, since each has noise of
        its own."""
        if once:
            known = self.known.setdefault(kind, [])
            if known and sorted(dealers) not in known:
                raise Refused("asks the same noised question of other parties than before, with other noise")
            known[:] = [sorted(dealers)]
            return
        self._refuse_overtaken(kind, others)
        for each_kind, lists in others.items():
            for each in lists:
                self._add(each_kind, each)
        self._check_majority(kind, dealers)
        self._add(MASKED + kind, dealers)

    def before_unmasking(
        self, kind: str, dealers: Sequence[str], survivors: Sequence[str], others: Mapping[str, Lists]
    ) -> None:
        """Refuse a list of parties that, with earlier ones of this kind, shows what fewer than three of them sent.
        Record it before this party agrees to it."""
        self._refuse_overtaken(kind, together([others, {MASKED + kind: [dealers]}]))
        lists = self.known.get(kind, [])
        if sorted(survivors) in lists:
            return
        few = singled_out(lists, survivors) if lists else []
        if few and not self._may_be_new(kind):
            raise Refused(
                f"asks to unmask a sum over other parties than before: the two sums together show what "
                f"{' and '.join(few)} sent. To allow it, start this party with --allow sum_lists={len(lists) + 1}"
            )
        self._check_majority(kind, survivors)
        self._add(kind, survivors)

    def enough_know(self, kind: str, survivors: Sequence[str], agreeing: Iterable[str]) -> bool:
        """Return whether more than half of every earlier list will know of this one, if they are all who agree."""
        lists = [each for each in self._lists(kind) if set(each) & set(survivors)]
        here = set(agreeing)
        return self._may_be_new(kind) or all(2 * len(here & set(each)) > len(each) for each in lists)

    def _check_majority(self, kind: str, new: Sequence[str]) -> None:
        other = None if self._may_be_new(kind) else minority_of(self._lists(kind), new)
        if other is not None:
            raise Refused(
                f"asks for a sum over {len(set(new) & set(other))} of {len(other)} parties that a sum was over before: "
                "without more than half of them, nobody could compare all sums. To allow it, start this party with "
                f"--allow sum_lists={max(len(self.known.get(kind, [])) + 1, 2)}"
            )

    def _may_be_new(self, kind: str) -> bool:
        return 1 < self.most_lists > len(self.known.get(kind, []))

    def _lists(self, kind: str) -> list[list[str]]:
        return [*self.known.get(kind, []), *self.known.get(MASKED + kind, [])]

    def _refuse_overtaken(self, kind: str, others: Mapping[str, Lists]) -> None:
        """Refuse to go on with a sum after a later one: its parties do not know the later one's list."""
        for each in (kind, MASKED + kind):
            if not all(known in others.get(each, ()) for known in self.known.get(each, [])):
                raise Refused("goes on with a sum that began before another one ended")

    def _add(self, kind: str, parties: Sequence[str]) -> None:
        if sorted(parties) not in self.known.setdefault(kind, []):
            self.known[kind].append(sorted(parties))
