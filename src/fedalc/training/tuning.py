"""Chooses the loss, penalty, label power, features and D of the exact methods on held-out records (docs/tuning.md).

The search is small. For each kind of features it solves the square loss for a few penalties: all follow from the
same sums of the clients, and so do all label powers, as a power only scales a label's scores. Then it tries the squared
hinge and the logistic loss by Newton steps, and drops one that is clearly behind. A penalty is halved or doubled as
long as that helps. If labels are too many for an axis each, it tries a tree of labels first, on a part of train.

Settings are judged by `selection.metric` (P@k or nDCG@k) on held-out records; features of pictures by mAP, in a
simulation. Positive-only parties can count the former exactly: each ranks all labels for its own held-out records and
counts the hits of its own labels.

`Search` has the rules. A `Part` says where its trials run: on a split of train in this process (`SplitPart`), or with
real parties and their own held-out records (`deployment.flower.search`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import FROZEN, experiment, for_labels
from fedalc.core.interrupt import Interrupt
from fedalc.core.seeds import numpy_generator
from fedalc.data.dataset import Dataset
from fedalc.data.records import record_numbers
from fedalc.engines.sums import Sums
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError, Interrupted
from fedalc.models.encoders import scale_rows
from fedalc.training.callbacks import Callback
from fedalc.training.federated import FederatedTraining
from fedalc.training.search_parts import Part, SplitPart
from fedalc.training.settings_for_data import LARGEST_MATRIX, can_solve, is_large, with_axes

Loss = Literal["square", "squared-hinge", "logistic"]

POWERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ONE_POWER = 0.2  # if labels share axes
FIRST_PENALTY: dict[Loss, float] = {"square": 1.0, "squared-hinge": 0.5, "logistic": 0.05}
SEARCHING = "search"  # how the name of a phase of the search begins
MOST_PENALTIES = 4  # tried in each direction, each half or twice the one before
BEHIND = 1.5  # a loss or kind of features is dropped if its first penalty is this many points behind
JUDGED_ROUNDS = (5, 10, 15, 20, 25)  # after which a training is judged, if it takes several
GAIN = 0.05  # points that the next penalty, or five more rounds, must bring for the search to go on
RANDOM_FEATURES_UP_TO = 2000  # features; data with more of them is sparse text, which gains little
HELD_OUT, ENOUGH, MOST = 0.2, 3000, 10_000  # share of train, and bounds for the number of held-out records
TREE: Final = "fedalc-tree"
TREE_PENALTY = 0.5
MOST_LABELS = 2**16  # of a tree: its last clusters become large
SAMPLE = 100_000  # records that settings are tried on, held-out ones included, if labels are too many for an axis each
FEWEST = 10  # records with labels that a search needs


class Trial(BaseModel):
    """One loss, kind of features and penalty, with the label power or number of rounds that was best for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: Loss
    method: Literal["fedalc-tree"] | None = None  # None: the loss and rounds say whether fedalc-oneshot or -exact
    features: dict[str, str | FiniteFloat]
    penalty: Annotated[FiniteFloat, Field(gt=0)]
    value: FiniteFloat = 0.0  # of the metric on held-out records, in percent
    metrics: dict[str, FiniteFloat] = {}
    rounds: PositiveInt = 1
    label_power: Annotated[float, Field(ge=0, lt=1)] = 0.0
    also: dict[str, FiniteFloat] = {}  # the value with other powers or rounds
    on_first_part: FiniteFloat = 0.0  # the best value on the first part of the data, for losses tried later
    seconds: FiniteFloat = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def key(self) -> str:
        return _key(self.loss, self.features, self.penalty, self.method)

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that this trial stands for."""
        if self.method is not None:
            client = {"loss": self.loss, "label_power": self.label_power}
            return {"method": self.method, "encoder": {}, "client": client, "server": {"ridge": self.penalty}}
        square = self.loss == "square"
        return {
            "method": "fedalc-oneshot" if square and self.rounds == 1 else "fedalc-exact",
            "rounds": self.rounds,
            "encoder": dict(self.features),
            "client": {"loss": self.loss, "label_power": self.label_power},
            "server": {"optimizer": "cg" if square else "newton", "ridge": self.penalty},
        }


def changed(settings: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the settings with these changes, and everything that follows from them."""
    kept = settings.to_dict()
    values = {name: kept[name] for name in ("name", "dataset", "preset", "engine", "seed", "device", "dtype")}
    values |= {name: kept[name] for name in ("block_rows", "memory_budget", "collection", "selection")}
    values |= {name: kept[name] for name in ("clients", "table", "text", "secure_sums")}
    values["encoder"] = {name: kept["encoder"][name] for name in ("dim", "features")}
    if settings.encoder.frozen:
        values["images"] = kept["images"]
        values["encoder"] |= {name: kept["encoder"][name] for name in FROZEN}
    values["client"] = {name: kept["client"][name] for name in ("set_size", "label_offset")}
    for name, value in changes.items():
        values[name] = {**values.get(name, {}), **value} if isinstance(value, Mapping) else value
    return experiment({name: value for name, value in values.items() if value is not None})


class Search:
    """Tries settings and keeps what came of it. `known`: trials of an interrupted search, which are not run again.
    `record` is called with each new trial. `parts`: where trials run, by default on splits of train.

    Memory: for each kind of features its equations (`settings_for_data`) and features × labels numbers, θ a few times,
    and a block of scores.
    """

    def __init__(
        self,
        settings: Experiment,
        data: Dataset,
        interrupt: Interrupt,
        callbacks: Sequence[Callback] = (),
        known: Sequence[Trial] = (),
        record: Callable[[Trial], None] = lambda trial: None,
        parts: Sequence[Part] = (),
    ) -> None:
        self.settings = with_axes(settings, data)
        self.data = data
        self.interrupt = interrupt
        self.callbacks = callbacks
        self.record = record
        self.given_parts = parts
        self.metric = settings.selection.metric
        self.known = {trial.key: trial for trial in known}
        self.trials: list[Trial] = []

    def run(self) -> Trial:
        """Return the best trial."""
        if not self._has_axes and tree_fits(self.settings, self.data):
            self._try("square", {"name": "linear"}, TREE_PENALTY, TREE)
        for features in self._kinds_of_features():
            self._climb("square", features)
        if self._has_axes:  # otherwise a pass over all labels is too slow
            constant: dict[str, Any] = {"name": "linear", "constant": 1.0}
            self._climb("squared-hinge", constant)
            self._climb("logistic", constant)
        return self.best

    @property
    def held_out(self) -> int | None:
        """The number of records that settings are judged on. None with real parties, who keep it to themselves."""
        parts = [part for part in self._parts if isinstance(part, SplitPart)]
        return sum(len(part.held_out) for part in parts) if len(parts) == len(self._parts) else None

    @property
    def _has_axes(self) -> bool:
        return self.settings.encoder.dim >= self.data.label_count

    @property
    def _powers(self) -> tuple[float, ...]:
        """The label powers to try. Without an axis per label a power does more than to scale scores: only one."""
        return POWERS if self._has_axes else (ONE_POWER,)

    @property
    def _is_large(self) -> bool:
        """Whether each loss gets one penalty by Newton steps, and the data is split at most twice."""
        return is_large(self.settings, self.data)

    @property
    def best(self) -> Trial:
        return max(self.trials, key=lambda trial: trial.value)

    def _kinds_of_features(self) -> Iterator[dict[str, Any]]:
        yield {"name": "linear"}
        if self.data.feature_count <= RANDOM_FEATURES_UP_TO:
            yield {"name": "random-features", "constant": 1.0}

    def _climb(self, loss: Loss, features: dict[str, Any]) -> None:
        """Try a penalty, then double or halve it as long as that helps."""
        first = self._try(loss, features, FIRST_PENALTY[loss])
        if first < self.best.value - BEHIND or (loss != "square" and self._is_large):
            return
        for factor in (2.0, 0.5):
            best, penalty = first, FIRST_PENALTY[loss]
            for _ in range(MOST_PENALTIES):
                penalty *= factor
                value = self._try(loss, features, penalty)
                if value < best + GAIN:
                    break
                best = value
            if best > first:
                return  # the other direction leads away from it

    def _try(
        self, loss: Loss, features: dict[str, Any], penalty: float, method: Literal["fedalc-tree"] | None = None
    ) -> float:
        trial = self.known.get(_key(loss, features, penalty, method))
        if trial is None:
            for callback in self.callbacks:
                callback.phase(f"{SEARCHING}: {method or loss}, {features['name']}, penalty {penalty:g}", 1, 0)
            solved = loss == "square" and method is None and can_solve(self.settings, self.data)
            trial = self._solved(features, penalty) if solved else self._by_rounds(loss, features, penalty, method)
            self.record(trial)
            for callback in self.callbacks:
                callback.step(1, f"{self.metric} {trial.value:.2f}")
        self.trials.append(trial)
        return trial.value

    # --- the square loss: all penalties and powers from the same sums ---

    def _solved(self, features: dict[str, Any], penalty: float) -> Trial:
        began, traffic = time.perf_counter(), Ledger()
        outcomes = []
        for number, part in enumerate(self._parts, 1):
            training, sums = self._sums(part, features, traffic)
            (theta,) = training.model.theta
            with torch.no_grad():
                theta.copy_(sums.solve(penalty))
            outcomes.append(part.judge(training, self._weighed_powers, traffic))
            self._done(number, len(self._parts), "parts of the data")
        powers = self._powers
        means = [_mean([outcome[at] for outcome in outcomes]) for at in range(len(powers))]
        at = self._best_of(means)
        also = {f"label_power {power:g}": mean[self.metric] for power, mean in zip(powers, means, strict=True)}
        return self._trial(
            ("square", features, penalty), means[at], also, began, traffic, outcomes[0], label_power=powers[at]
        )

    def _sums(self, part: Part, features: dict[str, Any], traffic: Ledger) -> tuple[FederatedTraining, Sums]:
        """Return the clients' sums for these features. They are sent once."""
        if repr(features) not in part.sums:
            training = self._training(part, Trial(loss="square", features=features, penalty=1.0), traffic)
            sums = training.engine.sums(training.model, training.federation.clients)
            traffic.add(sums.traffic)
            part.sums[repr(features)] = training, sums
        return part.sums[repr(features)]

    # --- other losses, by Newton steps, the square loss by conjugate gradients if it has too many equations, trees ---

    def _by_rounds(
        self, loss: Loss, features: dict[str, Any], penalty: float, method: Literal["fedalc-tree"] | None = None
    ) -> Trial:
        began, traffic = time.perf_counter(), Ledger()
        # The first part of the data decides how far to go.
        judged: tuple[int, ...] = JUDGED_ROUNDS if method is None else (1,)
        powers = self._powers if loss == "square" else (0.0,)
        outcomes = []
        for number, part in enumerate(self._parts):
            part.sums.clear()  # large, and no longer needed
            trial = Trial(loss=loss, method=method, features=features, penalty=penalty, rounds=judged[-1])
            training = self._training(part, trial, traffic)
            by_round: list[dict[str, float]] = []  # for each round that is judged, a value for each power
            for round_number in range(1, judged[-1] + 1):
                training.run_round()
                self._done(number * judged[-1] + round_number, judged[-1] * len(self._parts), "rounds")
                if round_number in judged:
                    weighed = self._weighed_powers if loss == "square" else None
                    by_round += part.judge(training, weighed, traffic)
                    values = [found[self.metric] for found in by_round]
                    best = [max(values[at : at + len(powers)]) for at in range(0, len(values), len(powers))]
                    if number == 0 and self._goes_nowhere(best):
                        judged = judged[: len(best)]
                        break
            traffic.add(training.ledger)
            outcomes.append(by_round)
        choices = [(rounds, power) for rounds in judged for power in powers]
        means = [_mean([outcome[at] for outcome in outcomes]) for at in range(len(choices))]
        at = self._best_of(means)
        also = {
            f"rounds {rounds}" + (f", label_power {power:g}" if len(powers) > 1 else ""): mean[self.metric]
            for (rounds, power), mean in zip(choices, means, strict=True)
        }
        rounds, power = choices[at]
        what = (loss, features, penalty)
        chosen = {"rounds": rounds, "label_power": power, "method": method}
        return self._trial(what, means[at], also, began, traffic, outcomes[0], **chosen)

    def _goes_nowhere(self, values: Sequence[float]) -> bool:
        """Whether a training stops improving, or is clearly behind other settings on the first part."""
        behind = max((trial.on_first_part for trial in self.trials), default=0.0) - values[-1]
        if len(values) == 1:
            return behind > 2 * BEHIND
        return values[-1] < values[-2] + GAIN or behind > BEHIND

    def _best_of(self, outcomes: Sequence[Mapping[str, float]]) -> int:
        return max(range(len(outcomes)), key=lambda at: outcomes[at][self.metric])

    def _trial(
        self,
        what: tuple[Loss, dict[str, Any], float],
        metrics: dict[str, float],
        also: dict[str, float],
        began: float,
        traffic: Ledger,
        on_first_part: Sequence[Mapping[str, float]],
        **chosen: Any,
    ) -> Trial:
        loss, features, penalty = what
        return Trial(
            loss=loss,
            features=features,
            penalty=penalty,
            value=metrics[self.metric],
            metrics=metrics,
            also=also,
            on_first_part=max(outcome[self.metric] for outcome in on_first_part),
            seconds=time.perf_counter() - began,
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            **chosen,
        )

    # --- what both need ---

    @cached_property
    def _parts(self) -> Sequence[Part]:
        """Those given, the data's own validation data, or splits of train: as many as it takes for `ENOUGH` held-out
        records."""
        return self.given_parts or self._splits()

    def _splits(self) -> list[Part]:
        names, train, how = self.data.label_names, self.data.train, self.settings.encoder.features
        train = replace(train, features=scale_rows(train.features, how))
        if self.data.validation is not None:
            held_out = self.data.validation
            return [SplitPart(train, replace(held_out, features=scale_rows(held_out.features, how)), names)]
        record = np.arange(len(train)) if train.parties is None else record_numbers(train.features)
        labelled = np.unique(record[train.labels.getnnz(axis=1) > 0])
        size = min(round(HELD_OUT * len(labelled)), MOST)
        order = labelled[numpy_generator(self.settings.seed, "tuning").permutation(len(labelled))]
        count = min(2 if self._is_large else int(1 / HELD_OUT), -(-ENOUGH // size))
        tried = np.ones(len(train), dtype=bool) if self._has_axes else np.isin(record, order[:SAMPLE])
        parts = [np.isin(record, order[number * size : (number + 1) * size]) for number in range(count)]
        return [SplitPart(train.rows(tried & ~part), train.rows(part).in_one_place, names) for part in parts]

    def _training(self, part: Part, trial: Trial, traffic: Ledger) -> FederatedTraining:
        power = 0.0 if self._has_axes else ONE_POWER  # with axes, powers scale the scores afterwards
        settings = changed(self.settings, {**trial.changes, "client": {"loss": trial.loss, "label_power": power}})
        return part.begin(settings, traffic)

    @property
    def _weighed_powers(self) -> tuple[float, ...] | None:
        """The label powers that weigh scores after the training. None: without axes there are none."""
        return self._powers if self._has_axes else None

    def _done(self, number: int, total: int, what: str) -> None:
        for callback in self.callbacks:
            callback.part(what, number, total)
        if self.interrupt.asked:
            raise Interrupted("during the search for settings")


def _key(loss: Loss, features: Mapping[str, Any], penalty: float, method: str | None) -> str:
    return repr((loss, features, penalty) if method is None else (loss, features, penalty, method))


def tree_fits(settings: Experiment, data: Dataset) -> bool:
    """Whether a tree of labels can be trained with these settings, and its model is of moderate size."""
    try:
        tree = for_labels(changed(settings, {"method": TREE}), data.label_count)
    except ConfigError:
        return False
    largest = max(data.feature_count, data.label_count) * tree.encoder.dim
    return largest <= LARGEST_MATRIX and data.label_count <= MOST_LABELS


def _mean(outcomes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([outcome[name] for outcome in outcomes])) for name in outcomes[0]}
