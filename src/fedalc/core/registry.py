"""Names for methods, encoders, file formats, metrics and callbacks: the built-in ones, those of installed packages, and
those that a user registers. A name is known without importing what it stands for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from fedalc.errors import ConfigError, FedalcError, either

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z][\w@.-]*")


class Registry(Mapping[str, Any]):
    """A mapping from names to classes or functions. Iterating gives the names; `registry[name]` imports on first use.

    Packages add names with an entry point in the group `fedalc.methods`, `fedalc.encoders`, …
    """

    def __init__(self, kind: str, builtin: Mapping[str, str], accept: str, reserved: Collection[str] = ()) -> None:
        """`accept`: "module:function" that refuses what cannot be one, and returns what the name stands for.
        `reserved`: names that another registry has."""
        self.kind = kind
        self.accept = accept
        self.reserved = reserved
        self.group = f"fedalc.{kind}s"
        self._builtin = dict(builtin)  # name: "module:attribute"
        self._registered: dict[str, Any] = {}

    def check_name(self, name: Any) -> None:
        """Refuse what cannot be a name, also a class: a decorator without its parentheses."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            hint = f'; write @register_{self.kind}("name") above the definition' if callable(name) else ""
            raise ConfigError(
                f"{name!r:.60} cannot be the name of a {self.kind}: use letters, digits and hyphens{hint}"
            )

    def register(self, name: str, item: T) -> T:
        """Add a name. Running the same definition again, as in a notebook, replaces it."""
        self.check_name(name)
        if (name in self._builtin and not self._is_builtin(name, item)) or name in self.reserved:
            raise ConfigError(f"fedalc has its own {name!r}: choose another name for your {self.kind}")
        accepted = imported(self.accept)(item)
        known = self._registered.get(name)
        if known is not None and _origin(known) != _origin(accepted):
            raise ConfigError(f"{_origin(known)} is registered as the {self.kind} {name!r}: choose another name")
        self._registered[name] = accepted
        return item

    def __getitem__(self, name: str) -> Any:
        if name not in self._registered:
            self._registered[name] = self._load(name)
        return self._registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._builtin, *self._entry_points, *self._registered]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._registered or name in self._entry_points

    @property
    def loadable(self) -> list[str]:
        """The built-in and registered names, without those of installed packages that nobody used so far."""
        return list(dict.fromkeys([*self._builtin, *self._registered]))

    def problem(self, name: Any) -> str | None:
        """Return what is wrong with a name that a user gave. None if it is known, here or in `reserved`."""
        known = [*self, *self.reserved]
        if isinstance(name, str) and name in known:
            return None
        plain = {_plain(one): one for one in known}
        close = difflib.get_close_matches(_plain(str(name)), plain, n=1)
        hint = f" (did you mean {plain[close[0]]!r}?)" if close else ""
        own = f"One of your own: {either('--plugin FILE', 'import the module that registers it')}"
        return f"unknown {self.kind} {name!r:.60}{hint}; there are {', '.join(known) or 'none'}. {own}"

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        taken, points = {*self._builtin, *self.reserved}, entry_points(group=self.group)
        return {point.name: point for point in points if point.name not in taken and NAME.fullmatch(point.name)}

    def _load(self, name: str) -> Any:
        if name in self._builtin:
            return imported(self._builtin[name])
        if name not in self._entry_points:
            raise KeyError(name)
        point = self._entry_points[name]
        try:
            return imported(self.accept)(point.load())
        except Exception as error:
            raise FedalcError(f"the {self.kind} {name!r} of {point.value!r} cannot be loaded: {error}") from error

    def _is_builtin(self, name: str, item: Any) -> bool:
        return _origin(item) == self._builtin[name].replace(":", ".")


def _plain(name: str) -> str:
    """Return a name in small letters and with hyphens, to compare."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _origin(item: Any) -> str:
    """Where something was defined: two definitions of one origin are the same thing, made again."""
    item = getattr(item, "origin", None) or item
    kind = item if hasattr(item, "__qualname__") else type(item)
    return f"{kind.__module__}.{kind.__qualname__}"


def imported(home: str) -> Any:
    """Return what "module:attribute" names."""
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def registering(registry: Registry) -> Callable[[str], Callable[[T], T]]:
    """Return the decorator `@register_…("name")` of a registry."""

    def decorator(name: str) -> Callable[[T], T]:
        registry.check_name(name)
        return lambda item: registry.register(name, item)

    return decorator


# Centralised: they see all data in one place, and are there to compare with.
ORACLES = Registry(
    "oracle",
    {
        "sleec": "fedalc.oracles.sleec:Sleec",
        "ovr": "fedalc.oracles.one_vs_rest:OneVsRest",
        "mlp": "fedalc.oracles.mlp:MLP",
        "omikuji": "fedalc.oracles.omikuji:Omikuji",
        "napkinxc": "fedalc.oracles.napkinxc:NapkinXC",
    },
    "fedalc.oracles:check_oracle_class",
)
METHODS = Registry(
    "method",
    {
        "fedavg": "fedalc.methods.fedavg:FedAvg",
        "fedavg-fixed": "fedalc.methods.fedavg:FedAvgFixed",
        "flag": "fedalc.methods.flag:FLAG",
        "fedmlh": "fedalc.methods.fedmlh:FedMLH",
        "fedaws": "fedalc.methods.fedaws:FedAwS",
        "fedalc": "fedalc.methods.fedalc:FedALC",
        "fedalc-fixed": "fedalc.methods.fedalc_fixed:FedALCFixed",
        "fedalc-exact": "fedalc.methods.fedalc_exact:FedALCExact",
        "fedalc-oneshot": "fedalc.methods.fedalc_oneshot:FedALCOneshot",
        "fedalc-tree": "fedalc.methods.fedalc_tree:FedALCTree",
        "fedalc-columns": "fedalc.methods.fedalc_tree:FedALCColumns",
        "fedalc-plda": "fedalc.methods.fedalc_plda:FedALCPlda",
        "fedncm": "fedalc.methods.fedncm:FedNCM",
        "fed3r": "fedalc.methods.fed3r:Fed3R",
        "fedetf": "fedalc.methods.fedetf:FedETF",
        "feduv": "fedalc.methods.feduv:FedUV",
    },
    "fedalc.methods:check_method_class",
    reserved=ORACLES,
)
ENCODERS = Registry(
    "encoder",
    {
        "mlp": "fedalc.models.encoders.text:MLP",
        "linear": "fedalc.models.encoders.text:Linear",
        "random-features": "fedalc.models.encoders.random_features:RandomFeatures",
        "squares": "fedalc.models.encoders.squares:Squares",
        "resnet50": "fedalc.models.encoders.image:ResNet50",
        "resnet18": "fedalc.models.encoders.image:ResNet18",
        "resnet-small": "fedalc.models.encoders.image:ResNetSmall",
    },
    "fedalc.models.encoders.base:as_encoder_class",
)
# Asked in the reverse order: XML-repository text takes any text file that no other format recognises, and `csv-table`
# every train.csv that does not list pictures.
FORMATS = Registry(
    "format",
    {
        "xmlc": "fedalc.data.formats.xmlc:Xmlc",
        "svmlight-text": "fedalc.data.formats.svmlight:Svmlight",
        "arff": "fedalc.data.formats.arff:Arff",
        "text-folder": "fedalc.data.formats.text_folder:TextFolder",
        "saved-dataset": "fedalc.data.formats.parquet:SavedDataset",
        "numpy-arrays": "fedalc.data.formats.arrays:Arrays",
        "parquet-table": "fedalc.data.formats.parquet:Parquet",
        "json-lines": "fedalc.data.formats.json_lines:JsonLines",
        "csv-table": "fedalc.data.formats.csv_table:Csv",
        "pictures": "fedalc.data.formats.image_list:ImageList",
    },
    "fedalc.data.formats:check_format_class",
)
METRICS = Registry(
    "metric",
    {
        "P@1": "fedalc.evaluation.metrics:P1",
        "P@3": "fedalc.evaluation.metrics:P3",
        "P@5": "fedalc.evaluation.metrics:P5",
        "nDCG@1": "fedalc.evaluation.metrics:NDCG1",
        "nDCG@3": "fedalc.evaluation.metrics:NDCG3",
        "nDCG@5": "fedalc.evaluation.metrics:NDCG5",
        "PSP@1": "fedalc.evaluation.metrics:PSP1",
        "PSP@3": "fedalc.evaluation.metrics:PSP3",
        "PSP@5": "fedalc.evaluation.metrics:PSP5",
        "mAP": "fedalc.evaluation.metrics:MAP",
        "R@1": "fedalc.evaluation.metrics:R1",
        "R@3": "fedalc.evaluation.metrics:R3",
        "R@5": "fedalc.evaluation.metrics:R5",
        "micro-F1": "fedalc.evaluation.metrics:MICRO_F1",
        "macro-F1": "fedalc.evaluation.metrics:MACRO_F1",
        "EER": "fedalc.evaluation.verification:EER",
        "EER-others": "fedalc.evaluation.verification:EER_OTHERS",
        "EER-strangers": "fedalc.evaluation.verification:EER_STRANGERS",
        "TPR@FAR0.01": "fedalc.evaluation.verification:TPR_1",
        "TPR@FAR0.01-others": "fedalc.evaluation.verification:TPR_1_OTHERS",
        "TPR@FAR0.01-strangers": "fedalc.evaluation.verification:TPR_1_STRANGERS",
        "TPR@FAR0.001": "fedalc.evaluation.verification:TPR_01",
        "TPR@FAR0.001-others": "fedalc.evaluation.verification:TPR_01_OTHERS",
        "TPR@FAR0.001-strangers": "fedalc.evaluation.verification:TPR_01_STRANGERS",
        "TPR@FAR0.0001": "fedalc.evaluation.verification:TPR_001",
        "TPR@FAR0.0001-others": "fedalc.evaluation.verification:TPR_001_OTHERS",
        "TPR@FAR0.0001-strangers": "fedalc.evaluation.verification:TPR_001_STRANGERS",
    },
    "fedalc.evaluation.metrics:as_metric",
)
CALLBACKS = Registry(
    "callback",
    {
        "tensorboard": "fedalc.training.callbacks.tensorboard:TensorBoard",
        "mlflow": "fedalc.training.callbacks.mlflow:MLflow",
        "wandb": "fedalc.training.callbacks.wandb:WandB",
    },
    "fedalc.training.callbacks:check_callback_class",
)
