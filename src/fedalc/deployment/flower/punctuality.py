"""Late parties: they get a shorter wait, then skip rounds.

A party that does not answer within the whole wait of a round is late. In the next round the wait for it is shorter
(`fair_wait`). If it is late again, it skips one round, then 2, 4, … up to 16, with one short wait after each. An answer
in time resets this. A resumed run starts with a clean record.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

TRAIN = "train"
FACTOR = 2.0  # times what the others took, or the party itself when it was last in time
LEAST = 0.1  # of the whole wait
LONGEST_REST = 16  # rounds


@dataclass
class _Record:
    """Of one party and one kind of question."""

    late: int = 0  # times in a row
    round: int = 0  # in which it was last late
    took: float = 0.0  # seconds, when it was last in time

    @property
    def next_round(self) -> int:
        """The first round in which it is asked again."""
        return self.round + 1 + (min(2 ** (self.late - 2), LONGEST_REST) if self.late >= 2 else 0)


class Punctuality:
    """A party that is late in training also gets shorter waits in evaluation, but not the reverse."""

    def __init__(self) -> None:
        self._records: defaultdict[tuple[int, str], _Record] = defaultdict(_Record)

    def _concerning(self, party: int, kind: str) -> list[_Record]:
        return [self._records[party, each] for each in {TRAIN, kind}]

    def rests_until(self, party: int, kind: str, round_number: int) -> int:
        """Return the round in which the party is asked again, or 0 if it is asked in this one."""
        records = [r for r in self._concerning(party, kind) if r.late and r.round < round_number < r.next_round]
        return max((record.next_round for record in records), default=0)

    def is_hurried(self, party: int, kind: str, round_number: int) -> bool:
        """Return whether the party gets a shorter wait. Not in the round in which it was late: if that round is asked
        again, too few answered."""
        return any(record.late and record.round < round_number for record in self._concerning(party, kind))

    def fair_wait(self, party: int, kind: str, others: float, whole: float) -> float:
        """Return the seconds to wait for a party that was late, if the slowest of the others took `others`."""
        last_time = self._records[party, kind].took
        return min(whole, max(LEAST * whole, FACTOR * others, FACTOR * last_time))

    def was_late(self, party: int, kind: str, round_number: int) -> str:
        """Return the consequence, for the log. Counts once per round; "" if it is counted already."""
        record = self._records[party, kind]
        if record.late and record.round == round_number:
            return ""
        record.late, record.round = record.late + 1, round_number
        if record.late == 1:
            return "the next wait for it is shorter"
        return f"{record.late} times in a row; it is asked again in round {record.next_round}"

    def was_in_time(self, party: int, kind: str, seconds: float) -> bool:
        """Return whether it was late before."""
        record = self._records[party, kind]
        before, record.late, record.took = record.late, 0, seconds
        return before > 0
