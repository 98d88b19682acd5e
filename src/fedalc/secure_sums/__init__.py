"""Sums that the server cannot look into: it learns the sum of at least three parties' vectors, and no single vector.

The protocol alone, without a network and without tensors (docs/secure-sums.md). `PartySum` is a party's side of one
sum, `ServerSum` the server's. Each is a small state machine: messages go in and out as bytes.
"""

from __future__ import annotations

from fedalc.secure_sums.disclosures import Disclosures
from fedalc.secure_sums.fixed_point import decoded, encoded, largest
from fedalc.secure_sums.in_process import InProcess
from fedalc.secure_sums.party import Identity, PartySum, Question, question_digest
from fedalc.secure_sums.primitives import check_installed
from fedalc.secure_sums.refusals import NotEnough, Overflow, Refused
from fedalc.secure_sums.server import ServerSum, default_threshold

__all__ = [
    "Disclosures",
    "Identity",
    "InProcess",
    "NotEnough",
    "Overflow",
    "PartySum",
    "Question",
    "Refused",
    "ServerSum",
    "check_installed",
    "decoded",
    "default_threshold",
    "encoded",
    "largest",
    "question_digest",
]
