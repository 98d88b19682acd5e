"""At a party: the rows of W that a loss over all labels compares with, as the server sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord
from torch import Tensor

from fedalc.deployment.flower.limits import check_memory
from fedalc.deployment.flower.party_memory import check_unchanged, fingerprint
from fedalc.deployment.flower.wire import unpack_all_rows, unpack_axes

if TYPE_CHECKING:
    from fedalc.deployment.flower.work import Work

RECORD = "all-rows"
COPIES = 4  # of the scores of a block: the scores, their loss, and the derivatives of both

_OTHER_ROWS = "sends other rows of W, or another number of labels, than before in this run"


@dataclass(frozen=True)
class ComparedRows:
    """A matrix of rows or, if each row is an axis, the axis of each label."""

    rows: Tensor | None = None
    axes: Tensor | None = None

    def scores(self, g: Tensor) -> Tensor:
        """Return the encoder's outputs g times the rows: instances × labels."""
        if self.axes is not None:
            return g[:, self.axes]
        assert self.rows is not None
        return g @ self.rows.T


def read_compared_rows(work: Work, round_number: int) -> ComparedRows:
    """Return the rows that were sent, if they fit: those of all labels, or of the round's sample.

    W is fixed, so the party's own rows and, without a sample, all of them may not change during a run."""
    sample, _ = work.method.compared_labels(round_number)
    labels, width, device = work.all_label_count if sample is None else len(sample), work.width, work.settings.device
    at_once = min(work.settings.block_rows, int(work.federation.counts.max()))
    check_memory(labels * (2 * width + COPIES * at_once) * work.dtype.itemsize)
    secret = work.settings.embeddings.secret  # turned axes are axes no longer
    axes = None if secret else unpack_axes(work.message.content, RECORD, labels, width)
    rows = None
    if axes is None:
        sent = unpack_all_rows(work.message.content, RECORD, work.settings.dtype, labels, width)
        rows = work.turned(sent).to(device)
    _check_fixed(work, all_of_them=sample is None)
    return ComparedRows(rows, None if axes is None else axes.to(device))


def check_own_rows(work: Work) -> None:
    """Refuse other rows of the party's labels than before in this run: from two answers at one θ the server could
    subtract what all others sent."""
    question = work.question
    numbers = zip(question["labels"], question["numbers"], work.own_rows(), strict=True)
    facts = {
        f"row {label.hex()}": fingerprint(str(number).encode(), row.numpy().tobytes()) for label, number, row in numbers
    }
    check_unchanged(work.context, question["run"], facts, _OTHER_ROWS)


def _check_fixed(work: Work, all_of_them: bool) -> None:
    check_own_rows(work)
    content, question = work.message.content, work.question
    facts = {"label count": str(question["label-count"])}
    if all_of_them:
        record = content[RECORD]
        assert isinstance(record, ArrayRecord)
        facts["all rows"] = fingerprint(*(array.data for array in record.values()))
    check_unchanged(work.context, question["run"], facts, _OTHER_ROWS)
