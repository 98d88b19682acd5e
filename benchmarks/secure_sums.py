"""What secure sums cost a party and the server: processor seconds and bytes of one sum, against the plain change of θ.

One party and the server do all of their work. The other parties make real keys and shares, but send zeros in place of a
masked vector (the same work for the server), because a hundred parties on one machine would measure the machine. So the
sum comes out as noise here; that it is right is tested in tests/secure_sums. `--check` does the whole sum for the small
cases and compares it. Writes docs/results/secure_sums.md.

    python benchmarks/secure_sums.py [--check]
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedalc.core.atomic_files import write_text
from fedalc.secure_sums import Disclosures, Identity, InProcess, PartySum, Question, Refused, ServerSum, encoded
from fedalc.secure_sums.messages import Parties
from fedalc.secure_sums.party import CHECKS

PARTIES, LENGTHS = (3, 10, 30, 100), (1_000_000, 25_000_000)
BITS = 40
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "secure_sums.md"


class Clock:
    """Processor seconds, by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, step: str, do: Any, *arguments: Any) -> Any:
        began = time.process_time()
        try:
            return do(*arguments)
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.process_time() - began


def measured(count: int, length: int) -> dict[str, Any]:
    names = [f"party {number:03}" for number in range(count)]
    parties = {name: PartySum(Identity(name, "bench", bytes(64)), 1) for name in names}
    server, first, party, at_server = ServerSum("bench", 1), names[count // 2], Clock(), Clock()
    up, down, known = 0, 0, {name: Disclosures({}) for name in names}

    def each(step: str, ask: Any, add: Any) -> int:
        """Do a step with every party; only the first one's time is counted. Return the bytes of its answer."""
        size = 0
        for name in names:
            answer = party(step, ask, name) if name == first else ask(name)
            at_server(step, add, name, answer)
            size = len(answer) if name == first else size
        return size

    up += each("keys", lambda name: parties[name].make_keys(known[name]), server.add_keys)
    roster = server.roster()
    up += each("shares", lambda name: parties[name].deal_shares(roster), server.add_deal)
    question = Question(b"theta", b"theta", length, BITS)
    server.begin_masking(question)
    vector, nothing = np.random.default_rng(0).normal(size=length) / 1000, np.zeros(length + CHECKS, np.uint64)
    for name in names:
        dealt = at_server("masked", server.dealt_to, name)
        if name == first:
            masked, complaints = party("masked", parties[name].mask, dealt, question, vector, known[name])
            up, down = up + masked.nbytes + len(complaints), down + len(dealt)
            at_server("masked", server.add_masked, name, masked, complaints)
        else:  # the others open their shares as they should, and mask nothing
            parties[name].mask(dealt, Question(b"theta", b"theta", 0, BITS), np.zeros(0), known[name])
            parties[name]._question = question.digest
            at_server("masked", server.add_masked, name, nothing, Parties(()).to_bytes())
    survivors = server.survivors()
    up += each("agree", lambda name: parties[name].agree(survivors, known[name]), server.add_agreement)
    agreements = server.agreements()
    up += each("unmask", lambda name: parties[name].reveal(agreements, known[name]), server.add_shares)
    with suppress(Refused):  # the masks do not cancel, as most are missing
        at_server("unmask", server.total)
    down += len(roster) + len(survivors) + len(agreements)
    return {
        "parties": count,
        "numbers": f"{length:,}",
        "party, s": f"{sum(party.seconds.values()):.2f}",
        "of it masks, s": f"{party.seconds['masked']:.2f}",
        "server, s": f"{sum(at_server.seconds.values()):.2f}",
        "up, MB": f"{up / 1e6:.3f}",
        "down, MB": f"{(down + 4 * length) / 1e6:.3f}",
        "plain up and down, MB": f"{8 * length / 1e6:.3f}",
        "times the bytes": f"{(up + down + 4 * length) / (8 * length):.4f}",
    }


def check(count: int, length: int) -> None:
    """Do a whole sum, and compare it with the plain one."""
    names = [f"party {number:03}" for number in range(count)]
    draw = np.random.default_rng(1)
    vectors = {name: draw.normal(size=length) for name in names}
    parties = {name: PartySum(Identity(name, "bench", bytes(64)), 1) for name in names}
    exchange = InProcess(ServerSum("bench", 1), parties, {name: Disclosures({}) for name in names})
    total = exchange.total(Question(b"theta", b"theta", length, BITS), vectors.__getitem__)
    plain = np.sum([encoded(vector, BITS) for vector in vectors.values()], axis=0, dtype=np.uint64)
    assert np.array_equal(total, plain)
    print(f"{count} parties, {length:,} numbers: equal to the plain sum, bit for bit")


def main() -> None:
    if "--check" in sys.argv:
        for count in (3, 10):
            check(count, LENGTHS[0])
        return
    rows = []
    for length in LENGTHS:
        for count in PARTIES:
            rows.append(measured(count, length))
            print(rows[-1], flush=True)
    lines = [list(rows[0]), ["---:"] * len(rows[0]), *(list(map(str, row.values())) for row in rows)]
    write_text(OUT, PAGE.format(table="\n".join(f"| {' | '.join(line)} |" for line in lines)))


PAGE = """# What secure sums cost

    python benchmarks/secure_sums.py

Processor seconds (one core) and bytes of one sum, for one party and for the server. The plain run sends θ and takes a
change, both in single precision: 8 bytes a number. A secure sum sends θ and takes 8 bytes for each number of the
change, and some kilobytes of keys, shares and tags, which grow with the number of parties. "party, s" is all that a
party does beside computing its change; "of it masks" is fixed point and masks.

{table}

A party's masks take parties × numbers steps of AES; the server's time is one mask for each party, and Shamir's scheme
(pycryptodome, in Python), whose time grows with the cube of the number of parties and not with θ. Each party that is
lost after the shares costs the server one more mask for each survivor.
"""

if __name__ == "__main__":
    main()
