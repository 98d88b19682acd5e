"""What the estimators share: parameters, the checks of X and y, and the training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedalc.config.experiment import Experiment
from fedalc.config.facts import method_facts
from fedalc.config.resolve import default_choice, experiment
from fedalc.config.unused import names_of, note_without_effect
from fedalc.core.arguments import as_flag
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Dataset, Split
from fedalc.data.matrices import ONE_COLUMN
from fedalc.data.tables.cells import is_missing
from fedalc.data.text.features import TextFeatures, fit_text
from fedalc.errors import ConfigError, DataError
from fedalc.estimators.targets import Target, read_target
from fedalc.models.text_parts import are_rows, are_texts, as_texts
from fedalc.workflows.train import register_own_encoder, train_on

NAME = "X"  # of the dataset


class InputError(DataError, ValueError):
    """Data that an estimator refuses. scikit-learn expects a ValueError."""


class ParameterError(ConfigError, ValueError):
    """A parameter that an estimator refuses. scikit-learn expects a ValueError."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Raise errors of the library, and of scikit-learn's checks, so that both find the class that they look for."""
    try:
        yield
    except (InputError, ParameterError):
        raise
    except ConfigError as error:
        raise ParameterError(str(error)) from None
    except (DataError, ValueError) as error:
        raise InputError(str(error)) from None


class FederatedEstimator(BaseEstimator):
    """Trains on records in memory: each label is a client that has the records with this label, and no others."""

    _gives_probabilities = True

    def __init__(
        self,
        method: str | None = None,
        *,
        ridge: float | None = None,
        dim: int | None = None,
        rounds: int | None = None,
        tune: bool = False,
        preset: str = "strong",
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.ridge = ridge
        self.dim = dim
        self.rounds = rounds
        self.tune = tune
        self.preset = preset
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True  # texts
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = tags.target_tags.two_d_labels = True
        tags.non_deterministic = False
        return tags

    def _train(self, X: Any, y: Any, parties: Any) -> tuple[Target, Dataset]:
        """Check and train, and keep what all estimators have after a fit."""
        with value_errors():
            names = _names(parties)
            text = self._fit_text(X) if are_texts(X) else None
            features = self._features(X, reset=True) if text is None else text.transform(list(X))
            target, labels = read_target(y)
            if features.shape[0] != labels.shape[0]:
                raise DataError(
                    f"Found input variables with inconsistent numbers of samples: [{features.shape[0]}, "
                    f"{labels.shape[0]}]"
                )
            data = Dataset(NAME, Split(features, labels, parties=names), label_names=target.names, text=text)
            run = train_on(data, self._experiment(data), self.verbose)
        self.run_, self.settings_ = run, run.settings
        self.model_: Any = run.model
        return target, data

    def _fit_text(self, texts: Any) -> TextFeatures:
        """Learn from raw texts how to turn texts into features."""
        section = (self.settings or {}).get("text", {}) if isinstance(self.settings, Mapping | None) else {}
        return fit_text(list(texts), experiment({"text": section}).text)

    def _features(self, X: Any, reset: bool = False) -> csr_matrix | np.ndarray:
        """Return X as numbers, after scikit-learn's checks of shape, names and finite values."""
        with value_errors():
            try:
                return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=(np.float32, np.float64))
            except ValueError as error:
                if "could not convert string" in str(error):
                    raise DataError(f"X: expected numbers, found texts. {ONE_COLUMN}") from None
                raise

    def _experiment(self, data: Dataset) -> Experiment:
        as_flag(self.tune, "tune")
        if self.settings is not None and not isinstance(self.settings, Mapping):
            raise ConfigError(f"expected a dict of settings, found {self.settings!r:.60}", "settings")
        keys: dict[str, Any] = {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in (self.settings or {}).items()
        }
        own = {"method": self.method, "rounds": self.rounds, "encoder.dim": self.dim, "server.ridge": self.ridge}
        for name, value in own.items():
            if value is not None:
                _put(keys, name, value)
        register_own_encoder(keys)
        given = names_of(keys)
        keys |= {"dataset": data.name, "seed": self._seed(), "device": self.device}
        if self.preset != "strong":
            keys["preset"] = self.preset
        if data.train.parties is not None:
            keys["clients"] = "parties"
        defaults = default_choice(keys, tune=True if self.tune else None if "method" in keys else False)
        if data.text is None:
            self._take_rows_as_they_are(keys, defaults)
        self._do_not_choose_one_round(keys, defaults)
        if not self._gives_probabilities:
            _put(defaults, "selection.calibrate", False)
        settings = experiment(keys, defaults=defaults)
        note_without_effect([settings], given)
        return settings

    def _take_rows_as_they_are(self, keys: Mapping[str, Any], defaults: dict[str, Any]) -> None:
        """For the exact methods: do not scale rows to length 1, and fit an intercept. (scikit-learn's users scale in a
        step of the pipeline.)"""
        method = keys.get("method", defaults.get("method"))
        if method not in METHODS or not (method == "fedalc-exact" or method_facts(method).one_round):
            return
        _put(defaults, "encoder.features", "raw")
        encoder = keys.get("encoder", {}).get("name", "linear")
        if not self.tune and encoder in ("linear", "random-features"):
            _put(defaults, "encoder.constant", 1.0)

    def _do_not_choose_one_round(self, keys: Mapping[str, Any], defaults: dict[str, Any]) -> None:
        """Train on all records at once if there is only one round."""
        method = keys.get("method", defaults.get("method"))
        if not self.tune and method in METHODS and method_facts(method).one_round:
            _put(defaults, "selection.validation", 0.0)

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _fitted(self, X: Any) -> Any:
        check_is_fitted(self, "run_")
        if self.model_.text is None:
            return self._features(X)
        if are_rows(X):
            raise InputError(f"expected a list of texts, as in fit, found a table. {ONE_COLUMN}")
        with value_errors():
            texts = as_texts(X)
        if not texts:
            raise InputError("expected at least one text, found an empty list")
        return texts


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    section, _, field = name.rpartition(".")
    if not section:
        table[name] = value
        return
    inside = table.setdefault(section, {})
    if not isinstance(inside, dict):
        raise ConfigError(f"give {name} here or the whole section in settings, not both", name)
    inside[field] = value


def _names(parties: Any) -> tuple[str, ...] | None:
    if parties is None:
        return None
    if isinstance(parties, str) or np.ndim(parties) != 1:
        raise DataError(f"parties should name the party of each record, found {parties!r:.60}")
    for record, party in enumerate(parties):
        if is_missing(party):
            raise DataError(f"parties: record {record} has no party ({party!r:.20}); name the party of each record")
    return tuple(map(str, parties))
