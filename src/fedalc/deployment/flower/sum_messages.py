"""Messages of secure sums (`fedalc.secure_sums`) on the wire, and what is the same for all parties in a question."""

from __future__ import annotations

import json

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.wire import BadMessage, config, few, pack, read_json
from fedalc.secure_sums import Question, question_digest

STEP = "query.sum"
RECORD = "sum"  # of a step, and of a question whose answer is masked
MASKED = "masked"
NOISED = "train.noised"  # the question whose answers are whole numbers with noise
EVERY_ROW = "every-row"  # all rows of W, to which the party's own must belong
COUNTING = "counting"  # what whole numbers count, in a question before round 1
BUCKET_SUMS = "bucket-sums"  # sums that all parties get; each looks up its own records there
FEATURES = "train.feature_holders"  # the question which features a party has
FEATURE_HOLDERS = "feature-holders"  # what all parties get of the answers
WEIGHTS = "weights"  # of the labels' scores, in a search: the record, and its array
LABEL_WEIGHTS = "label-weights"  # a_u of all labels, if parties share labels
LABELS = "labels"  # the pseudonyms of all labels in the order of their numbers, if parties share labels
# In a task: n of the rarest label, 1/m for the mean set size m, if parties get only that, and the label powers by which
# a search weighs scores.
RAREST, MEAN_SHARE, POWERS = "rarest", "mean-share", "powers"
_RECORDS = (
    *("theta", "statistics", "direction", "all-rows", EVERY_ROW, "absent"),
    *(WEIGHTS, LABEL_WEIGHTS, LABELS, BUCKET_SUMS, FEATURE_HOLDERS),
)
_TASK = (
    *("version", "run", "settings", "share", "search", "round", "label-count", "what"),
    *(RAREST, MEAN_SHARE, POWERS),
)
_OWN = ("told", "holders", "rows", "sizes")  # records that are each party's own
_OWN_TASK = ("labels", "numbers")
_NOT_THE_SUBJECT = ("round",)
TRAINING, RANKING = "training", "ranking"
_OF_TRAINING = ("train", "curvature", "sums", "feature_holders", "document_counts")
_KINDS = dict.fromkeys(_OF_TRAINING, TRAINING) | {"rank": RANKING}
"""Vectors that can be compared: a gradient at another θ, curvature, sums and numbers of documents tell of the same
records."""
_COUNTED = {"bucket_counts": ("what", "held-out")}
"""Counts before round 1, with the values of `COUNTING` by which their kinds differ: tables of other sizes show the
same."""
_SEALED = ("bucket_counts", "feature_holders", "document_counts")  # they use all 64 bits


def all_labels(settings: Experiment, pseudonyms: np.ndarray) -> dict[str, ArrayRecord]:
    """Return what tells all parties which label has which number. Not needed if each label is at one party."""
    return {LABELS: pack({"labels": pseudonyms})} if settings.clients == "parties" else {}


def question_of(kind: str, content: RecordDict, length: int, bits: int) -> Question:
    """Return what the parties are asked. Everything in it is the same for all of them, or their masks do not cancel."""
    noised = kind == NOISED.rpartition(".")[2]
    divisor = config(content, RECORD, {"divisor": float})["divisor"]
    _check_known(content)
    task = content["task"]
    told = {name: repr(task[name]) for name in _TASK if name in task} | {"divisor": repr(divisor)}
    for name in ("settings", "search"):  # by what they say, in whatever bytes
        if name in told:
            told[name] = json.dumps(read_json(str(task[name]), f"the {name}"), sort_keys=True)
    counting = content.get(COUNTING, ConfigRecord())
    told |= {f"{COUNTING} {name}": repr(counting[name]) for name in sorted(counting)}
    records = [part for name in _RECORDS if name in content for part in _parts(content, name)]
    whole = [f"{name}={value}".encode() for name, value in told.items()]
    alike = [f"{name}={value}".encode() for name, value in told.items() if name not in _NOT_THE_SUBJECT]
    subject = question_digest(kind, *alike, b"", *records)
    asked = question_digest(kind, *whole, b"", *records)
    compared = " ".join([_KINDS.get(kind, kind), *(repr(counting[name]) for name in _COUNTED.get(kind, ()))])
    return Question(asked, subject, length, 0 if noised else bits, noised, compared, kind in _SEALED, kind in _SEALED)


def _check_known(content: RecordDict) -> None:
    """Refuse what no question has: it would make another question of the same one."""
    unknown = set(content) - {"task", RECORD, COUNTING, *_RECORDS, *_OWN}
    unknown |= set(content["task"]) - {*_TASK, *_OWN_TASK}
    if unknown:
        raise BadMessage(f"a question with {few(unknown)}, which no question of a secure sum has")


def _parts(content: RecordDict, name: str) -> list[bytes]:
    record = content[name]
    if not isinstance(record, ArrayRecord):
        raise BadMessage(f"there are no {name}")
    parts = [name.encode()]
    for key in sorted(record):
        array = record[key]
        parts += [key.encode(), array.dtype.encode(), repr(tuple(array.shape)).encode(), array.data]
    return parts
