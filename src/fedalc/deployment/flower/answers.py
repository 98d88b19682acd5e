"""What every answer has in common: it names its question, and brings what was asked for and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedalc.deployment.flower.wire import BadMessage, config

RECORD = "answer"
_DIGEST = 16  # bytes
_REFUSED_NAMES = 5  # of records, in an error


def sign_off(content: RecordDict, question: Message) -> RecordDict:
    """At the party: the answer, with the question it is for. The question's id is a hash of all that is in it: run,
    round, settings and θ."""
    said = question.metadata
    content[RECORD] = ConfigRecord(
        {"kind": said.message_type, "round": said.group_id, "question": said.message_id or ""}
    )
    return content


def check_question(content: RecordDict, kind: str, round_: str, question: str) -> None:
    """At the server: that it is the answer to this question. What names the question is taken out."""
    if RECORD not in content:
        raise BadMessage("does not say which question it answers")
    said = config(content, RECORD, {"kind": str, "round": str, "question": str})
    if (said["kind"], said["round"]) != (kind, round_):
        raise BadMessage(
            f"answers {said['kind'][:30]!r} of round {said['round'][:10]!r}, and was asked {kind!r} of round {round_!r}"
        )
    if said["question"] != question:
        raise BadMessage("answers another question than it was asked")
    exactly({RECORD: content.pop(RECORD)}, {RECORD: said})


def exactly(content: Mapping[str, object], wanted: Mapping[str, Collection[str] | None]) -> None:
    """Refuses a reply that has more than the wanted records, or less. For records of single values, what these are
    called is in `wanted` too; arrays are compared where they are read."""
    missing, extra = set(wanted) - set(content), set(content) - set(wanted)
    if missing:
        raise BadMessage("there is " + ", ".join(f"no {name}" for name in sorted(missing)))
    if extra:
        raise BadMessage(f"brings what nobody asked for: {_few(extra)}")
    for record, names in wanted.items():
        values = content[record]
        if names is not None and isinstance(values, Mapping) and set(values) - set(names):
            raise BadMessage(f"{record} has what nobody asked for: {_few(set(values) - set(names))}")


def _few(names: Iterable[str]) -> str:
    listed = sorted(str(name)[:30] for name in names)
    return ", ".join(listed[:_REFUSED_NAMES]) + (" …" if len(listed) > _REFUSED_NAMES else "")


class Repeats:
    """Refuses a change of θ that was sent before, by the same party or another, about another θ.

    The same question asked again (too few had answered) may well have the same answer. A change that is zero says
    nothing, and may come as often as it likes. The loss counts as part of the answer: far from the margins of a linear
    encoder the gradient does not depend on θ, and honest changes repeat, with another loss.
    Kept: a digest of each answer and of its θ, for the length of the run; they are in the checkpoint.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[int, bytes]] = {}  # an answer → whose it is, and about which θ
        self._theta = b""

    def about(self, theta: Iterable[Tensor]) -> None:
        """What the answers from now on are about."""
        self._theta = _digest(theta)

    def check(self, party: int, change: Iterable[Tensor], rows: Tensor | None, loss: float) -> None:
        tensors = list(change)
        if not any(bool(tensor.any()) for tensor in tensors):
            return
        answer = _digest([*tensors, *([] if rows is None else [rows])], repr(loss).encode())
        first, theta = self._seen.setdefault(answer, (party, self._theta))
        if first != party:
            raise BadMessage("its change is the one that another party sent")
        if theta != self._theta:
            raise BadMessage("its change is the one that it sent in an earlier round")

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            "answers.digest": _matrix(self._seen),
            "answers.theta": _matrix(theta for _, theta in self._seen.values()),
            "answers.party": torch.tensor([party for party, _ in self._seen.values()], dtype=torch.int64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Checkpoints of earlier versions have none of this."""
        if "answers.digest" in tensors:
            digests, thetas = (tensors[f"answers.{name}"].numpy() for name in ("digest", "theta"))
            whose = zip(tensors["answers.party"].tolist(), (theta.tobytes() for theta in thetas), strict=True)
            self._seen = dict(zip((digest.tobytes() for digest in digests), whose, strict=True))


def _digest(tensors: Iterable[Tensor], more: bytes = b"") -> bytes:
    found = hashlib.sha256(more)
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.digest()[:_DIGEST]


def _matrix(digests: Iterable[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST).copy())
