"""Checks of every answer: it names its question, has exactly the requested records, and repeats no earlier change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedalc.deployment.flower.wire import BadMessage, config, few

RECORD = "answer"
_DIGEST = 16  # bytes


def sign_off(content: RecordDict, question: Message) -> RecordDict:
    """At the party: add which question this answers. The question's id is a hash of its run, round, settings and θ."""
    about = question.metadata
    content[RECORD] = ConfigRecord(
        {"kind": about.message_type, "round": about.group_id, "question": about.message_id or ""}
    )
    return content


def check_question(content: RecordDict, kind: str, round_: str, question: str) -> None:
    """At the server: check that this answers the question, and remove the record that says so."""
    if RECORD not in content:
        raise BadMessage("does not say which question it answers")
    said = config(content, RECORD, {"kind": str, "round": str, "question": str})
    if (said["kind"], said["round"]) != (kind, round_):
        raise BadMessage(
            f"answers {said['kind'][:30]!r} of round {said['round'][:10]!r}, and was asked {kind!r} of round {round_!r}"
        )
    if said["question"] != question:
        raise BadMessage("answers another question")
    exactly({RECORD: content.pop(RECORD)}, {RECORD: said})


def exactly(content: Mapping[str, object], wanted: Mapping[str, Collection[str] | None]) -> None:
    """Refuse a reply unless it has exactly the `wanted` records. For records of single values, `wanted` also has the
    names of the values; arrays are checked when they are read."""
    missing, extra = set(wanted) - set(content), set(content) - set(wanted)
    if missing:
        raise BadMessage("there is " + ", ".join(f"no {name}" for name in sorted(missing)))
    if extra:
        raise BadMessage(f"has records that were not requested: {few(extra)}")
    for record, names in wanted.items():
        values = content[record]
        if names is not None and isinstance(values, Mapping) and set(values) - set(names):
            raise BadMessage(f"{record} has values that were not requested: {few(set(values) - set(names))}")


class Repeats:
    """Refuses a change of θ that another party sent before, or the same party for another θ.

    A question that is asked again (because too few answered) may get the same answer. A zero change may repeat any
    number of times. The loss is part of the answer: far from the margins of a linear encoder the gradient does not
    depend on θ, so honest changes repeat, with another loss.
    Keeps a digest of each answer and of its θ for the whole run; they are part of the checkpoint.
    """

    def __init__(self, are_alike: Callable[[int, int], bool] = lambda first, second: False) -> None:
        """`are_alike`: whether two parties may have the same data, and so send the same change."""
        self._are_alike = are_alike
        self._seen: dict[bytes, tuple[int, bytes]] = {}  # answer → its party and θ
        self._theta = b""

    def about(self, theta: Iterable[Tensor]) -> None:
        """Set θ that the following answers are about."""
        self._theta = _digest(theta)

    def check(self, party: int, change: Iterable[Tensor], rows: Tensor | None, loss: float) -> None:
        tensors = list(change)
        if not any(bool(tensor.any()) for tensor in tensors):
            return
        answer = _digest([*tensors, *([] if rows is None else [rows])], repr(loss).encode())
        first, theta = self._seen.setdefault(answer, (party, self._theta))
        if first != party and not self._are_alike(first, party):
            raise BadMessage("its change is the one that another party sent")
        if theta != self._theta:
            raise BadMessage("its change is the one that it sent in an earlier round")

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {
            "answers.digest": _matrix(self._seen),
            "answers.theta": _matrix(theta for _, theta in self._seen.values()),
            "answers.party": torch.tensor([party for party, _ in self._seen.values()], dtype=torch.int64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state, if it is there: checkpoints of early versions do not have it."""
        if "answers.digest" in tensors:
            digests, thetas = (tensors[f"answers.{name}"].numpy() for name in ("digest", "theta"))
            sources = zip(tensors["answers.party"].tolist(), (theta.tobytes() for theta in thetas), strict=True)
            self._seen = dict(zip((digest.tobytes() for digest in digests), sources, strict=True))


def _digest(tensors: Iterable[Tensor], more: bytes = b"") -> bytes:
    digest = hashlib.sha256(more)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()[:_DIGEST]


def _matrix(digests: Iterable[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST).copy())
