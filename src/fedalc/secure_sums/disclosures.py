"""What a party has helped to unmask in a run. Two sums over almost the same parties differ by one party's vector."""

from __future__ import annotations

from collections.abc import MutableMapping

from fedalc.secure_sums.refusals import Refused

MOST_LISTS = 100


class Disclosures:
    """`known`: for each subject of a sum (what was asked), the parties whose sum was unmasked. The caller keeps it for
    the whole run. `most_lists`: how many different lists of parties a run may have."""

    def __init__(self, known: MutableMapping[str, str], most_lists: int = MOST_LISTS) -> None:
        self.known = known
        self.most_lists = most_lists

    def check(self, subject: bytes, survivors: bytes) -> None:
        """Refuse to unmask a second sum about the same subject over other parties. Both are digests."""
        before = self.known.get(subject.hex())
        if before is not None and before != survivors.hex():
            raise Refused(
                "asks to unmask a question again over other parties than before: the two sums would differ by single "
                "parties' vectors"
            )
        lists = {*self.known.values(), survivors.hex()}
        if len(lists) > self.most_lists:
            raise Refused(
                f"this is list {len(lists)} of parties to unmask in this run, more than the {self.most_lists} that "
                "this party accepts: sums over other parties differ by single parties' vectors"
            )

    def note(self, subject: bytes, survivors: bytes) -> None:
        """Record it, before any share leaves the party."""
        self.check(subject, survivors)
        self.known[subject.hex()] = survivors.hex()
