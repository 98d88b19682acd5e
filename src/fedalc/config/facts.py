"""The facts that methods and encoders declare as class attributes. Settings, checks, warnings, help and plots read
them, so that no other file keeps a list of methods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ValidationError

from fedalc.core.explain import explained
from fedalc.core.registry import ENCODERS, METHODS, METRICS, ORACLES, Registry
from fedalc.errors import ConfigError

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment
    from fedalc.config.schema import Settings


class MethodFacts:
    """The facts of a method (`fedalc.methods`) or a centralised oracle (`fedalc.oracles`)."""

    #: One line for `fedalc list` and `fedalc methods`.
    help: ClassVar[str] = ""
    #: When to use it: one short sentence for `fedalc methods`. Not inherited.
    use_when: ClassVar[str] = ""
    #: Its group in `fedalc methods`, for built-in methods: of fedalc, of the FedALC paper, or to compare with.
    family: ClassVar[Literal["ours", "paper", "baseline"]] = "baseline"
    #: The colour of its curves in every plot, such as "#0072B2". None: the next free one.
    colour: ClassVar[str | None] = None
    #: Does it see all data in one place? Then it has no clients and serves as a reference.
    centralised: ClassVar[bool] = False
    #: Do clients train their rows of W? Then rows travel with θ in every round; otherwise once, before round 1.
    trains_rows: ClassVar[bool] = False
    #: Are the rows of W to be kept from other clients, although they are fixed?
    secret_rows: ClassVar[bool] = False
    #: Does it solve for the model in one round, from the clients' sums?
    one_round: ClassVar[bool] = False
    #: Of a method of one round: do clients send Σ x xᵀ/m beside Σ x?
    sends_gram: ClassVar[bool] = True
    #: Of a method of one round: does it ask for the sums of clusters of labels, over their own records?
    sums_by_cluster: ClassVar[bool] = False
    #: Do the rows of W have length 1?
    unit_rows: ClassVar[bool] = True
    #: The only encoders that it can be used with, if it cannot be used with all.
    encoders: ClassVar[tuple[str, ...]] = ()
    #: The most features that it can be used with. None: any number.
    widest: ClassVar[int | None] = None
    #: In verification: fewer persons give a warning that recommends another method.
    enough_persons: ClassVar[int] = 0
    #: Does every label need an axis of its own? Then encoder.dim is the number of labels, whatever the settings say.
    axis_per_label: ClassVar[bool] = False
    #: Does the server learn from label correlations? (The square loss and W's start may need label counts as well.)
    uses_labels: ClassVar[bool] = False
    #: The sections of METHOD_SECTIONS that act on this method. All other sections act on every method.
    sections: ClassVar[tuple[str, ...]] = ()
    #: Settings that this method ignores, each with the values of other settings that make it act nevertheless.
    ignores: ClassVar[Mapping[str, Mapping[str, tuple[object, ...]]]] = {}
    #: The section that configures how the server compares class embeddings: form, neighbours, search.
    compares_classes: ClassVar[str | None] = None
    #: Can each of several processes hold a part of W's rows?
    shards_rows: ClassVar[bool] = False
    #: Settings that override a preset's settings for all methods, such as {"client": {"loss": "square"}}.
    defaults: ClassVar[Mapping[str, Any]] = {}
    #: The method's own settings, if it has any: a class that extends `fedalc.Settings`. They are read from [options].
    Options: ClassVar[type[Settings] | None] = None

    @classmethod
    def check(cls, settings: Experiment) -> None:
        """Raise ConfigError if the method does not support these settings."""

    @classmethod
    def dim_for(cls, settings: Experiment, labels: int) -> int:
        """Return D for data with this many labels."""
        return labels if cls.axis_per_label else settings.encoder.dim

    @classmethod
    def sub_models(cls, settings: Experiment) -> int:
        """Return the number of encoders. Each has its own part of W's columns."""
        return 1

    @classmethod
    def looks_at_labels(cls, settings: Experiment) -> int:
        """Return the maximum number of training steps that look at the labels. It divides the privacy budget."""
        return 1


#: Sections that act only on the methods that name them in `sections`.
METHOD_SECTIONS = ("hashing", "regularizer", "fixed", "options", "ovr", "sleec", "mlp", "omikuji", "napkinxc")


def check_declared(method: type[MethodFacts]) -> None:
    """Refuse facts that others could not read."""
    problem = None
    if not isinstance(method.help, str):
        problem = f"help is {method.help!r:.60}, and should be a line of text"
    elif not isinstance(method.use_when, str):
        problem = f"use_when is {method.use_when!r:.60}, and should be a line of text"
    elif method.colour is not None and not re.fullmatch("#[0-9A-Fa-f]{6}", str(method.colour)):
        problem = f"colour is {method.colour!r:.60}, and should be like #0072B2"
    elif not isinstance(method.sections, tuple) or set(method.sections) - set(METHOD_SECTIONS):
        problem = f"sections is {method.sections!r:.60}, and should be a tuple of {', '.join(METHOD_SECTIONS)}"
    elif not isinstance(method.ignores, Mapping) or not all(isinstance(v, Mapping) for v in method.ignores.values()):
        problem = f'ignores is {method.ignores!r:.60}, and should be like {{"server.weights": {{}}}}'
    elif method.compares_classes not in (None, "regularizer", "fixed"):
        problem = f"compares_classes is {method.compares_classes!r:.60}, and should be regularizer, fixed or None"
    elif not isinstance(method.defaults, Mapping):
        problem = f"defaults is {method.defaults!r:.60}, and should be a dict of settings"
    if problem is not None:
        raise ConfigError(f"the method {method.__name__} declares wrong facts: {problem}")


#: Settings of [encoder] for the encoder random-features alone.
OF_RANDOM_FEATURES = ("random_features", "activation", "scale", "linear_part")


class EncoderFacts:
    """The facts of an encoder (`fedalc.models.encoders`)."""

    #: One line for `fedalc list`.
    help: ClassVar[str] = ""
    #: Does it take pictures? Otherwise it takes rows of features.
    pictures: ClassVar[bool] = False
    #: Is it one matrix θ, times what `Encoder.design` returns? Then conjugate gradients and fedalc-oneshot can solve
    #: for it.
    linear: ClassVar[bool] = False
    #: Settings of [encoder] that it ignores.
    ignores: ClassVar[tuple[str, ...]] = ()
    #: Settings of [encoder] with the only values that it accepts.
    only: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    #: A second name under which presets have settings for it.
    family: ClassVar[str | None] = None
    #: Can real parties train it? Their check against too few contributors must know its layers.
    for_parties: ClassVar[bool] = False


def method_facts(name: str) -> type[MethodFacts]:
    """Return the class of a method or oracle. Imports it, and so torch."""
    facts: type[MethodFacts] = (ORACLES if name in ORACLES else METHODS)[name]
    return facts


def encoder_facts(name: str) -> type[EncoderFacts]:
    """Return the class that declares the facts of an encoder. Imports the encoder, and so torch."""
    facts: type[EncoderFacts] = ENCODERS[name]
    return facts


def solves_one_objective(method: str, optimizer: str | None) -> bool:
    """Return whether training solves the sum over all parties and instances exactly instead of by gradient steps."""
    return optimizer in ("cg", "newton") or method_facts(method).one_round


def leaves_out_features(settings: Experiment) -> bool:
    """Return whether features that few parties have are left out."""
    return settings.server.least_holders > 1 and method_facts(settings.method).one_round


def known_method(name: Any) -> str:
    """Check the name of a method or oracle without importing it."""
    return _known(METHODS, name)


def known_encoder(name: Any) -> str:
    """Check the name of an encoder without importing it."""
    return _known(ENCODERS, name)


def known_metric(name: Any) -> str:
    """Check the name of a metric for validation data, which has no propensities."""
    needs = getattr(METRICS[_known(METRICS, name)], "needs", "top")
    if needs == "propensities":
        raise ValueError(f"{name} is for the test set: validation data has no propensities")
    if needs == "sets":
        raise ValueError(f"{name} needs thresholds, which are chosen after training: choose by P@k, R@k, nDCG@k or mAP")
    return str(name)


def _known(registry: Registry, name: Any) -> str:
    if problem := registry.problem(name):
        raise ValueError(problem)
    return str(name)


def parsed_options(settings: Experiment) -> Settings | None:
    """Validate and return the method's own settings from [options]. None if it has none."""
    kind = method_facts(settings.method).Options
    return None if kind is None else checked_options(kind, settings.options)


def checked_options(kind: type[Settings], options: Any) -> Settings:
    """Validate options as the settings of class `kind`."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        raise explained(error, kind, section="options") from None
