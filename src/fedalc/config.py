"""The settings of an experiment: what there is to set, what is allowed, and how it is written as TOML.

`fedalc.resolution` puts an `Experiment` together from preset, file and command line.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedalc.errors import ConfigError

MethodName = Literal[
    "fedavg", "fedavg-fixed", "flag", "fedmlh", "fedaws", "fedalc", "fedalc-fixed", "fedalc-exact", "fedalc-oneshot",
    "sleec", "ovr",
]  # fmt: skip
PresetName = Literal["strong", "paper", "demo"]
Weighting = Literal["sigma", "gamma", "conditional", "counts"]  # of pairs of labels: see correlations.py
Algorithm = Literal["hmac-sha256", "hmac-sha512", "hmac-md5", "sha256", "sha512", "md5"]  # the last three: no key
Identity = Literal["record", "content", "embedding"]  # what makes two parties' instances the same: docs/privacy.md


def is_keyed(algorithm: str) -> bool:
    return algorithm.startswith("hmac-")


METHODS: tuple[str, ...] = get_args(MethodName)
ORACLES = ("sleec", "ovr")  # centralised: they see all data in one place, and are there to compare with
FEDERATED = tuple(method for method in METHODS if method not in ORACLES)
PRESETS: tuple[str, ...] = get_args(PresetName)
SQUARE_ONLY = ("fedalc-exact", "fedalc-oneshot")
FIXED_ROWS = ("fedavg-fixed", "flag", "fedmlh", "fedalc-fixed", *SQUARE_ONLY)
NONE = "none"  # TOML has no word for it

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Margin = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]


class Settings(BaseModel):
    """Unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: None if isinstance(value, str) and value == NONE else value for key, value in values.items()}


class EncoderSettings(Settings):
    """g_θ: sparse features or a picture in, `dim` numbers out."""

    name: Literal["mlp", "linear", "resnet50", "resnet18", "resnet-small"] = "mlp"
    dim: Count = 512
    embedding: Count = 512  # mlp only: what the sparse features are embedded into
    hidden: Annotated[tuple[Count, ...], Field(max_length=32)] = (1024, 1024)  # mlp only
    start: Literal["he", "framework", "zero"] = "he"  # zero: linear only
    output: Literal["unit", "raw"] = "unit"  # raw: not scaled to length 1, as the square loss wants it
    features: Literal["unit", "mean", "raw"] = "unit"  # row scaling: length 1, average of the rows used, or as they are
    dropout: Share = 0.0
    shortcut: bool = False  # mlp only: a linear map beside it; the mlp's part then starts at zero
    precision: Literal["full", "mixed"] = "full"  # mixed: dense layers multiply in bfloat16; weights stay as they are
    norm: Literal["group", "frozen", "batch"] = "group"  # of a resnet: see encoders/image.py
    pretrained: str | None = None  # a resnet's weights to start from: a name on the hub, or a folder

    @property
    def is_image(self) -> bool:
        return self.name.startswith("resnet")


class ImageSettings(Settings):
    """How pictures are read (docs/images.md)."""

    size: Annotated[int, Field(ge=8, le=1024)] = 96  # pixels of a side, to which all are brought
    difficult: bool = False  # VOC: whether objects marked as difficult count as labels
    broken: Literal["refuse", "skip"] = "refuse"  # what to do with pictures that cannot be read
    augment: Literal["off", "mirror", "mirror-shift"] = "off"  # in training, drawn anew for each round


class ClientSettings(Settings):
    """The local work of one client in one round. The defaults are the paper's: one full-batch step of rate 0.1."""

    epochs: Count = 1
    batch_size: Count | None = None  # None: the whole client
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of its instances that a client's step is taken on
    learning_rate: Positive = 0.1
    row_learning_rate: NotNegative | None = None  # for the client's own row; None: the same
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0
    loss: Literal["hinge", "square"] = "hinge"  # of a positive pair; square: docs/exact.md
    margin: Annotated[float, Field(gt=-1, le=1, allow_inf_nan=False)] = 0.9  # hinge: the score a pair has to reach
    set_size: Literal["exact", "expected", "ignored"] = "exact"  # square: what a client knows of m, see docs/exact.md
    label_power: Share = 0.0  # square: label u counts (n_u + label_offset)^-label_power, over the largest of these
    label_offset: NotNegative = 30.0

    @property
    def row_rate(self) -> float:
        return self.learning_rate if self.row_learning_rate is None else self.row_learning_rate


class ServerSettings(Settings):
    """Who takes part, how clients are weighted, and the optimiser that applies the averaged change of θ."""

    optimizer: Literal["sgd", "momentum", "adam", "adagrad", "cg"] = "sgd"  # cg: conjugate gradients
    learning_rate: Positive = 1.0
    momentum: Share = 0.9  # `momentum`, and adam's first moment
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.0  # decoupled: θ shrinks by rate × decay each round
    solve_rounds: Count = 15  # cg with a shortcut: rounds for the linear map; then it is kept, and adam trains the mlp
    ridge: NotNegative = 1.0  # cg and fedalc-oneshot: penalty ridge·‖θ‖² beside the sum over instances
    ema: Share = 0.0  # averaged weights, used for evaluation and in the saved model
    weights: Literal["uniform", "samples"] = "samples"  # p_u = 1/C, or n_u/Σn
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0


class EmbeddingSettings(Settings):
    """How the class embeddings W start."""

    start: Literal["orthogonal", "random", "by-frequency"] = "orthogonal"  # by-frequency: see geometry.frequency_rows


class HashingSettings(Settings):
    """fedmlh: `tables` sub-models, in each of which the labels share `buckets` class embeddings."""

    tables: Annotated[int, Field(ge=1, le=256)] = 4
    buckets: Count = 500


class RegularizerSettings(Settings):
    """The server's step on W in each round (fedaws, fedalc): W ← unit(W - lambda·rate·∇reg)."""

    lambda_: NotNegative = Field(default=10.0, alias="lambda")
    rate: Positive = 1e-4
    form: Literal["mined", "full"] = "mined"
    neighbours: Count = 5  # K, mined only
    candidates: Count | None = None  # mined only: look for neighbours in a sampled subset of this many classes
    margin: Margin | Literal["adaptive"] = 1.0  # ν; adaptive: the distance to the (K+1)-th nearest class
    weighting: Weighting = "sigma"  # fedalc only


class FixedSettings(Settings):
    """What fedalc-fixed does before round 1: `steps` steps on α·(c/N)·d² + β·σ·max(0, ν - d)², σ as weighted."""

    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    margin: Margin = 1.0
    rate: Positive = 1.0
    steps: Annotated[int, Field(ge=0)] = 200
    weighting: Weighting = "sigma"


class CollectionSettings(Settings):
    """How the server learns which labels occur together: keyed digests of instances, joined (docs/privacy.md)."""

    algorithm: Algorithm = "hmac-sha256"
    digest_bytes: Annotated[int, Field(ge=8, le=64)] = 16
    identity: Identity = "record"  # a simulation's records are its rows; parties with files of their own use `content`
    quantum: NotNegative = 1e-3  # embedding only: coordinates are rounded to multiples of it; 0: raw, as in the paper
    key: str | None = None  # the clients' key file; None: a fresh key, forgotten with the process
    correlations: str | None = None  # a file made by `fedalc collect server`, instead of collecting; needs its key


class PrivacySettings(Settings):
    """Differential privacy of one instance's label set in what the server takes from label correlations.

    counts: n and c are noised once. gradients: as in the paper, each step on W is clipped per instance and noised.
    """

    mechanism: Literal["counts", "gradients"] | None = None
    epsilon: Annotated[float, Field(gt=0, le=1000)] = 1.0  # for the whole run, all phases and steps together
    delta: Annotated[float, Field(ge=1e-15, le=0.1)] = 1e-5
    labels_per_instance: Count = 3  # counts only: an instance with more counts with this many, chosen at random
    clip: Positive = 1.0  # gradients only: the longest gradient an instance may have
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0  # gradients only: share of instances taken in each step
    noise: Literal["system", "seeded"] = "system"  # seeded: repeatable, for experiments; who knows the seed knows all


class SelectionSettings(Settings):
    """Choice of the round to keep, on validation data only; the test set is looked at once, at the end."""

    validation: Share = 0.1  # share of train held out (unless the dataset ships its own); 0: keep the last round
    metric: Literal["P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "mAP"] = "P@1"
    every: Count = 5  # evaluate after each this many rounds
    patience: Count | None = None  # stop after this many evaluations without gain (with keep = "best")
    keep: Literal["best", "last"] = "best"  # last: validation is for the curves only
    refit: bool = True  # then train again on all of train for the chosen number of rounds
    test_curve: bool = False  # with validation = 0, where nothing is chosen: evaluate on test, as papers' curves do


class OvrSettings(Settings):
    """One-vs-rest (centralised): a linear regression of each label on all instances. docs/oracles.md."""

    loss: Literal["ridge", "logistic"] = (
        "ridge"  # Σ(xᵀv - y)² + λ‖v‖², or Σ log(1 + e^∓xᵀv) + λ/2‖v‖² with an intercept
    )
    penalties: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None  # λ: the best on validation is taken
    block_labels: Count = 256  # labels solved for at a time; bounds memory, changes no result but rounding

    @property
    def grid(self) -> tuple[float, ...]:
        """The penalties to try; the two losses have theirs on different scales."""
        ridge, logistic = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0), (0.0125, 0.025, 0.05, 0.1, 0.2)
        return self.penalties or (ridge if self.loss == "ridge" else logistic)


class SleecSettings(Settings):
    """SLEEC (centralised): neighbours in learned embeddings. The defaults are those published for Bibtex."""

    learners: Count = 1  # each with clusters of its own; their neighbours' labels are counted together
    clusters: Count | None = None  # None: one for each 6,000 instances
    neighbours: Count = 250  # n̄: how many of the most similar label sets an instance's embedding has to keep
    dim: Count = 100  # L̂
    steps: Annotated[int, Field(ge=0)] = 200  # at most, of the embeddings' refinement
    tolerance: Share = 0.001  # stop where a step makes the misfit smaller by less than this share of it
    cost: Positive = 0.2  # c of ½‖W‖² + c‖XW - Z‖², the regression of embeddings on features: ridge with 1/(2c)
    threshold: Share = 0.01  # share of its weights, the smallest, that are set to zero
    nearest: Count = 25  # NN: whose labels are counted


class Experiment(Settings):
    """Everything a run depends on, apart from the data itself."""

    name: Annotated[str, Field(pattern=r"^[^/\\]+$")] | None = None  # of the run folder
    dataset: str = "demo"
    method: MethodName = "fedalc"
    preset: PresetName = "strong"
    engine: Literal["fused", "clients", "flower"] = "fused"  # flower: real parties, see docs/deployment.md
    clients: Literal["labels", "users"] = "labels"  # users: one for each label of each user, where a dataset knows them
    rounds: Count = 100
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    block_rows: Count = 2048  # instances encoded at a time; bounds memory, changes no result but rounding
    images: ImageSettings = ImageSettings()
    encoder: EncoderSettings = EncoderSettings()
    client: ClientSettings = ClientSettings()
    server: ServerSettings = ServerSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    hashing: HashingSettings = HashingSettings()
    regularizer: RegularizerSettings = RegularizerSettings()
    fixed: FixedSettings = FixedSettings()
    collection: CollectionSettings = CollectionSettings()
    privacy: PrivacySettings = PrivacySettings()
    selection: SelectionSettings = SelectionSettings()
    ovr: OvrSettings = OvrSettings()
    sleec: SleecSettings = SleecSettings()

    @model_validator(mode="after")
    def _settings_agree(self) -> Experiment:
        if self.method in ORACLES:
            self._oracle_agrees()
            return self
        if self.engine == "fused":
            for key, expressible in (
                ("epochs", self.client.epochs == 1),
                ("batch_size", self.client.batch_size is None),
            ):
                if not expressible:
                    raise ConfigError(
                        f"engine 'fused' is the exact algebra of one full-batch step per client, so it cannot express "
                        f'{key} = {getattr(self.client, key)}; use engine = "clients" or leave it out',
                        f"client.{key}",
                    )
        if self.engine == "flower" and self.clients != "labels":
            raise ConfigError(
                "real parties have the labels they have, whoever's the instances are: leave it out, or use engine "
                '"fused" or "clients"',
                "clients",
            )
        if self.method == "fedmlh" and self.embeddings.start == "by-frequency":
            raise ConfigError(
                "fedmlh's class embeddings are buckets', which no label's frequency fits; use orthogonal or random",
                "embeddings.start",
            )
        self._encoder_agrees()
        if self.encoder.name == "linear" and self.encoder.dropout:
            raise ConfigError("the linear encoder has no hidden layer to drop from; use 0, or mlp", "encoder.dropout")
        shrinkage = self.server.learning_rate * self.server.weight_decay
        if shrinkage >= 1:
            raise ConfigError(
                f"times server.learning_rate is {shrinkage:g}: at 1 and above θ would not shrink but turn around",
                "server.weight_decay",
            )
        if self.regularizer.margin == "adaptive" and self.regularizer.form == "full":
            raise ConfigError(
                'an adaptive margin is the distance to the (K+1)-th nearest class, so it needs form = "mined"',
                "regularizer.margin",
            )
        self._square_agrees()
        self._sample_agrees()
        self._collection_agrees()
        return self

    def _sample_agrees(self) -> None:
        if self.client.sample == 1:
            return
        if self.client.epochs > 1 or self.client.batch_size is not None:
            raise ConfigError(
                "is for the one step of a round; batches go through all instances, so leave one of the two out",
                "client.sample",
            )
        if self.method == "fedalc-oneshot" or self.server.optimizer == "cg":
            raise ConfigError("an exact solution is of all instances, and not of a sample of them", "client.sample")

    def _encoder_agrees(self) -> None:
        encoder = self.encoder
        if encoder.precision == "mixed" and (encoder.name == "linear" or self.dtype == "float64"):
            raise ConfigError("is for the dense layers of an mlp or a resnet in float32", "encoder.precision")
        if encoder.is_image:
            if self.method == "fedalc-oneshot":
                raise ConfigError(
                    f"solves for a linear encoder, and a {encoder.name} is none; use fedalc-exact", "method"
                )
            for asked, field in ((encoder.shortcut, "shortcut"), (encoder.start == "zero", "start")):
                if asked:
                    raise ConfigError(
                        f"a {encoder.name} has neither a shortcut nor a start at zero", f"encoder.{field}"
                    )
            if encoder.norm == "batch" and self.engine == "fused":
                raise ConfigError(
                    "batch normalisation makes an instance's embedding depend on the others in its client's batch, so "
                    'no fused step can express it; use norm = "group" or "frozen", or engine = "clients"',
                    "encoder.norm",
                )
            if encoder.norm == "batch" and self.engine == "flower":
                raise ConfigError(
                    'what parties observe for batch normalisation does not travel; use norm = "group" or "frozen"',
                    "encoder.norm",
                )
            if encoder.norm == "frozen" and encoder.pretrained is None:
                raise ConfigError(
                    "there are no statistics to keep without pretrained weights; use group", "encoder.norm"
                )
        elif encoder.pretrained is not None:
            raise ConfigError(f"there are no pretrained weights for {encoder.name}; use a resnet", "encoder.pretrained")

    def _oracle_agrees(self) -> None:
        """An oracle has no clients: their settings are ignored, apart from those that promise something."""
        asked = {
            "privacy.mechanism": self.privacy.mechanism,
            "collection.correlations": self.collection.correlations,
        }
        for field, given in asked.items():
            if given is not None:
                raise ConfigError(
                    f"{self.method} is centralised: it reads all features and labels as they are, and this would "
                    "protect or change nothing; leave it out, or choose a federated method",
                    field,
                )
        if self.method == "ovr" and len(self.ovr.grid) > 1 and self.selection.validation == 0:
            raise ConfigError(
                "several are to be tried, and there is no validation data to choose one on: give a single one, "
                "or set selection.validation",
                "ovr.penalties",
            )

    def _square_agrees(self) -> None:
        """What the square loss, and what solves it, can and cannot be put together with."""
        square = self.client.loss == "square"
        if self.method in SQUARE_ONLY and not square:
            raise ConfigError(f"{self.method} is the method of the square loss", "client.loss")
        solves = "method" if self.method == "fedalc-oneshot" else "server.optimizer"
        if self.encoder.shortcut and self.encoder.name == "linear":
            raise ConfigError("the linear encoder is the shortcut itself", "encoder.shortcut")
        one_round = self.method == "fedalc-oneshot"
        linear = self.encoder.name == "linear" or (self.encoder.shortcut and not one_round)
        if self.server.optimizer == "cg" and not one_round and self.rounds < 2:
            raise ConfigError("cg asks in round 1 and steps from round 2 on: at least 2", "rounds")
        if self.server.optimizer == "cg" or one_round:
            for possible, need in (
                (square, 'client.loss = "square"'),
                (linear, 'encoder.name = "linear"' + ("" if one_round else ", or an mlp with encoder.shortcut")),
                (self.encoder.output == "raw", 'encoder.output = "raw"'),
                (self.method in FIXED_ROWS, "a method with fixed class embeddings"),
                (self.method not in ("flag", "fedmlh"), "clients weighted by their instances, and one encoder"),
                (self.server.weights == "samples", 'server.weights = "samples"'),
                (self.server.participation == 1, "server.participation = 1"),
                (self.client.epochs == 1 and self.client.batch_size is None, "one full-batch step a client"),
                (self.client.momentum == 0 and self.client.weight_decay == 0, "no momentum or decay at the client"),
                (self.server.ema == 0, "server.ema = 0"),
            ):
                if not possible:
                    raise ConfigError(f"the objective is a quadratic only with {need}", solves)
        if self.encoder.start == "zero" and self.encoder.name != "linear":
            raise ConfigError("an mlp that starts at zero stays there; use he", "encoder.start")
        if self.encoder.output == "unit" and (self.encoder.start == "zero" or self.encoder.shortcut):
            raise ConfigError("an output that starts at zero has no direction to scale: use raw", "encoder.output")

    @property
    def uses_labels(self) -> bool:
        """Whether label sets are collected: the method learns from them, or the loss or W's start needs counts."""
        return self.method in ("fedalc", "fedalc-fixed") or self._needs_counts

    @property
    def _needs_counts(self) -> bool:
        sizes = self.client.set_size != "ignored" or self.client.label_power > 0
        by_counts = (self.client.loss == "square" and sizes) or self.embeddings.start == "by-frequency"
        return by_counts

    def _collection_agrees(self) -> None:
        collection, privacy = self.collection, self.privacy
        asked = {"privacy.mechanism": privacy.mechanism, "collection.correlations": collection.correlations}
        for field, given in asked.items():
            if given is not None and not self.uses_labels:
                raise ConfigError(
                    f"{self.method} with these settings does not look at label sets, so this would do nothing; leave "
                    "it out, or choose another method (fedalc, fedalc-fixed)",
                    field,
                )
        keyed = is_keyed(collection.algorithm)
        if collection.key is not None and not keyed:
            raise ConfigError(f"{collection.algorithm} has no use for a key", "collection.key")
        if collection.correlations is not None and keyed and collection.key is None:
            raise ConfigError(
                "the labels' pseudonyms in this file are keyed: give the key file it was collected with (--key)",
                "collection.correlations",
            )
        if privacy.mechanism is not None and collection.correlations is not None:
            raise ConfigError(
                "correlations from a file are used as they are; noise is added where they are made: "
                "fedalc collect server --epsilon",
                "privacy.mechanism",
            )
        weighting = {"fedalc": self.regularizer.weighting, "fedalc-fixed": self.fixed.weighting}.get(self.method)
        told_sizes = self.client.loss == "square" and self.client.set_size == "exact"
        if told_sizes and (privacy.mechanism is not None or collection.correlations is not None):
            raise ConfigError(
                "the size of each instance's label set is neither in a file of counts nor covered by noise on them; "
                'use "expected", which follows from the counts',
                "client.set_size",
            )
        if privacy.mechanism == "gradients" and self._needs_counts:
            raise ConfigError('these settings need counts of labels: use "counts"', "privacy.mechanism")
        if privacy.mechanism == "gradients" and weighting in ("gamma", "conditional"):
            raise ConfigError(
                f"the gradient of one instance needs weighting 'sigma' or 'counts': {weighting!r} divides by counts "
                "that are private themselves; set regularizer.weighting (fedalc) or fixed.weighting (fedalc-fixed)",
                "privacy.mechanism",
            )

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def to_toml(self) -> str:
        values = self.to_dict()
        lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for section, table in values.items():
            if isinstance(table, dict):
                lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # strings, integers and booleans read the same in TOML
