"""Who answers late, and what comes of it: a shorter wait, then rounds without being asked.

A party that has not answered within the whole wait of a round is late. In the next round it is waited for only as long
as is fair (`fair_wait`). Late again, it is not asked for one round, then for 2, 4, … up to 16, with one short wait
after each. An answer in time ends all this. A resumed run starts without any of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

TRAIN = "train"
FACTOR = 2.0  # of what the others took, or the party itself when it was in time last
LEAST = 0.1  # of the whole wait
LONGEST_REST = 16  # rounds


@dataclass
class _Record:
    """Of one party and kind of question."""

    late: int = 0  # times in a row
    round: int = 0  # of the last time
    took: float = 0.0  # seconds, when it was in time last

    @property
    def next_round(self) -> int:
        """The first in which it is asked again."""
        return self.round + 1 + (min(2 ** (self.late - 2), LONGEST_REST) if self.late >= 2 else 0)


class Punctuality:
    """By party. Who is late in training is not waited for in evaluation either; the reverse does not hold."""

    def __init__(self) -> None:
        self._records: defaultdict[tuple[int, str], _Record] = defaultdict(_Record)

    def _concerning(self, party: int, kind: str) -> list[_Record]:
        return [self._records[party, each] for each in {TRAIN, kind}]

    def rests_until(self, party: int, kind: str, round_number: int) -> int:
        """The round in which it is asked again, or 0: it is asked in this one."""
        records = [r for r in self._concerning(party, kind) if r.late and r.round < round_number < r.next_round]
        return max((record.next_round for record in records), default=0)

    def is_hurried(self, party: int, kind: str, round_number: int) -> bool:
        """Not in the round in which it is late: that is asked for again only if too few have answered."""
        return any(record.late and record.round < round_number for record in self._concerning(party, kind))

    def fair_wait(self, party: int, kind: str, others: float, whole: float) -> float:
        """Seconds for a party that was late, where the slowest of the others took `others`."""
        own = self._records[party, kind].took
        return min(whole, max(LEAST * whole, FACTOR * others, FACTOR * own))

    def was_late(self, party: int, kind: str, round_number: int) -> str:
        """What comes of it. Counted once in a round, however often it is asked."""
        record = self._records[party, kind]
        if record.late and record.round == round_number:
            return ""
        record.late, record.round = record.late + 1, round_number
        if record.late == 1:
            return "the next wait for it is shorter"
        return f"{record.late} times in a row; it is asked again in round {record.next_round}"

    def was_in_time(self, party: int, kind: str, seconds: float) -> bool:
        """Whether it had been late before."""
        record = self._records[party, kind]
        before, record.late, record.took = record.late, 0, seconds
        return before > 0
