"""All settings, section by section, with the values they may have. `compatibility` checks that they go together."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from fedalc.config.facts import encoder_facts, known_encoder, known_method, known_metric
from fedalc.core.picture_sides import LARGEST_SIDE, SMALLEST_SIDE
from fedalc.core.settings import NONE, Count, NotNegative, Positive, Settings, Share
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.text.settings import TextSettings

# Of other modules, re-exported.
__all__ = ["NONE", "Count", "NotNegative", "Positive", "Settings", "Share", "TableSettings", "TextSettings"]

MethodName = Annotated[str, AfterValidator(known_method)]
EncoderName = Annotated[str, AfterValidator(known_encoder)]
AggregationName = Literal["mean", "clip", "median", "trimmed-mean", "multi-krum"]
PresetName = Literal["strong", "mlp", "paper", "demo"]
Weighting = Literal["sigma", "gamma", "conditional", "counts"]  # of a pair of labels: labels/correlations.py
Algorithm = Literal["hmac-sha256", "hmac-sha512", "hmac-md5", "sha256", "sha512", "md5"]  # the last three take no key
LossName = Literal["hinge", "square", "logistic", "squared-hinge", "softmax", "softmax-per-label"]
Identity = Literal["record", "content", "embedding"]  # how parties recognise the same instance: docs/privacy.md


def is_keyed(algorithm: str) -> bool:
    return algorithm.startswith("hmac-")


PRESETS: tuple[str, ...] = get_args(PresetName)
MOST_LABELS_PER_PARTY = 10_000  # a party may claim, unless the server allows more
PRIVACY_LEDGER = "privacy-ledger.jsonl"  # the file: fedalc.labels.privacy.ledger

ShareOfLiars = Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)]  # no rule withstands half of the parties
Margin = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]


class EncoderSettings(Settings):
    """g_θ: sparse features or a picture in, `dim` numbers out."""

    name: EncoderName = "mlp"
    dim: Count = 512
    embedding: Count | None = 512  # mlp only: width of the first layer, which has no ReLU; None: no such layer
    hidden: Annotated[tuple[Count, ...], Field(max_length=32)] = (1024, 1024)  # mlp only: widths of the next layers
    start: Literal["he", "framework", "zero"] = "he"  # zero: linear only
    output: Literal["unit", "raw"] = "unit"  # raw: not scaled to length 1, for the square loss
    features: Literal["unit", "mean", "raw"] = "unit"  # how rows are scaled: to length 1, to a mean, or not
    dropout: Share = 0.0  # of units
    input_dropout: Share = 0.0  # mlp only: of features
    shortcut: bool = False  # mlp only: add a linear map; the mlp then starts at zero
    precision: Literal["full", "mixed"] = "full"  # mixed: dense layers multiply in bfloat16
    norm: Literal["group", "frozen", "batch"] = "group"  # of a ResNet: docs/images.md
    pretrained: str | None = None  # weights to start a ResNet from: a name on the hub, or a folder
    constant: NotNegative = 0.0  # linear and random-features: the value of one more column, an intercept; 0: none
    # random-features only: [x, √(2/M) f(Rx)], R drawn from the run's seed (docs/exact.md).
    random_features: Count = 2048  # M
    activation: Literal["relu", "cosine"] = "relu"  # f; cosine: cos(Rx + b)
    scale: Positive = 1.0  # R's entries are standard normal, times this
    linear_part: bool = True  # keep x itself beside the random features

    @property
    def is_image(self) -> bool:
        """Whether it takes pictures."""
        return encoder_facts(self.name).pictures


class ImageSettings(Settings):
    """How pictures are read (docs/images.md)."""

    size: Annotated[int, Field(ge=SMALLEST_SIDE, le=LARGEST_SIDE)] = (
        96  # pixels per side; all pictures are scaled to it
    )
    difficult: bool = False  # VOC: count objects marked as difficult as labels
    broken: Literal["refuse", "skip"] = "refuse"  # pictures that cannot be read
    augment: Literal["off", "mirror", "mirror-shift"] = "off"  # in training, drawn for each round


class ClientSettings(Settings):
    """A client's local work in one round. The defaults are the paper's: one full-batch step of rate 0.1."""

    epochs: Count = 1
    batch_size: Count | None = None  # None: all instances of the client
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of its instances that a client uses in a round
    learning_rate: Positive = 0.1
    row_learning_rate: NotNegative | None = None  # for the client's row of W; None: the same
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0
    # hinge: max(0, margin - s)², of the own label only. The others are of all labels: docs/exact.md.
    loss: LossName = "hinge"
    negatives: Count | None = None  # logistic, squared-hinge: compare with this many random labels in each round
    margin: Annotated[float, Field(gt=-1, le=1, allow_inf_nan=False)] = 0.9  # hinge: the score that a pair should reach
    set_size: Literal["exact", "expected", "ignored"] = "exact"  # what a client knows of m (docs/exact.md)
    label_power: Share = 0.0  # square: label u has weight (n_u + label_offset)^-label_power, largest 1
    label_offset: NotNegative = 30.0

    @property
    def row_rate(self) -> float:
        return self.learning_rate if self.row_learning_rate is None else self.row_learning_rate


class ServerSettings(Settings):
    """Who takes part, how clients are weighted, and the optimiser that applies their averaged change of θ."""

    # cg: conjugate gradients, for the square loss; newton: Newton steps by conjugate gradients, for every convex loss
    optimizer: Literal["sgd", "momentum", "adam", "adagrad", "cg", "newton"] = "sgd"
    learning_rate: Positive = 1.0
    momentum: Share = 0.9  # for `momentum`, and for adam's first moment
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.0  # decoupled: θ shrinks by rate × decay in each round
    solve_rounds: Count = 15  # cg with a shortcut: rounds for the linear map; then adam trains the mlp
    newton_rounds: Count = 5  # newton: at most this many conjugate gradients for a Newton step
    ridge: NotNegative = 1.0  # cg, newton, fedalc-oneshot and fed3r: penalty ridge·‖θ‖²
    ema: Share = 0.0  # moving average of the weights, for evaluation and the saved model
    weights: Literal["uniform", "samples"] = "samples"  # p_u = 1/C, or n_u/Σn
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    # How the server combines changes: docs/robust.md. If not set, or "auto": clip with real parties, else mean.
    aggregation: AggregationName = "mean"
    trim: ShareOfLiars = 0.3  # trimmed-mean: share of parties left out at each end
    byzantine: ShareOfLiars = 0.3  # multi-krum: the share of parties that may lie


class EmbeddingSettings(Settings):
    """How the class embeddings W start."""

    # by-frequency: docs/exact.md; simplex and codewords: fedetf and feduv in docs/method.md
    start: Literal["orthogonal", "random", "by-frequency", "simplex", "codewords"] = "orthogonal"


class HashingSettings(Settings):
    """fedmlh: `tables` sub-models; in each, all labels share `buckets` class embeddings."""

    tables: Annotated[int, Field(ge=1, le=256)] = 4
    buckets: Count = 500


class RegularizerSettings(Settings):
    """The server's step on W in each round (fedaws, fedalc): W ← unit(W - lambda·rate·∇reg)."""

    lambda_: NotNegative = Field(default=10.0, alias="lambda")
    rate: Positive = 1e-4
    form: Literal["mined", "full"] = "mined"
    neighbours: Count = 5  # K, mined only
    candidates: Count | None = None  # mined only: search a sample of this many classes
    search: Literal["auto", "exact", "index"] = "auto"  # how to find neighbours: docs/scale.md
    rows: Literal["all", "participants"] = "all"  # mined only: whose neighbours are pushed away
    margin: Margin | Literal["adaptive"] = 1.0  # ν; adaptive: distance to the (K+1)-th nearest class
    weighting: Weighting = "sigma"  # fedalc only


class FixedSettings(Settings):
    """fedalc-fixed, before round 1: `steps` steps on α·(c/N)·d² + β·σ·max(0, ν - d)², σ as `weighting` says."""

    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    margin: Margin = 1.0
    rate: Positive = 1.0
    steps: Annotated[int, Field(ge=0)] = 200
    weighting: Weighting = "sigma"
    form: Literal["full", "mined"] = "full"  # mined: the second sum over the K nearest classes only
    neighbours: Count = 50  # K, mined only
    search: Literal["auto", "exact", "index"] = "auto"  # as in [regularizer]


class CollectionSettings(Settings):
    """How the server learns which labels occur together: keyed digests of instances, joined (docs/privacy.md)."""

    algorithm: Algorithm = "hmac-sha256"
    digest_bytes: Annotated[int, Field(ge=8, le=64)] = 16
    identity: Identity = "record"  # in a simulation, rows; parties with files use `content`
    quantum: NotNegative = 1e-3  # embedding only: round coordinates to multiples of it; 0: raw, as in the paper
    key: str | None = None  # the clients' key file; None: a new key for this process
    correlations: str | None = None  # a file of `fedalc collect server`, instead of collecting; needs its key
    missing_labels: Literal["refuse", "allow"] = "refuse"  # if that file lacks labels of the data


class PrivacySettings(Settings):
    """Differential privacy of one instance's label set in the label correlations.

    counts: n and c are noised once. gradients: as in the paper, each step on W is clipped per instance and noised.
    """

    mechanism: Literal["counts", "gradients"] | None = None
    epsilon: Annotated[float, Field(gt=0, le=1000)] = 1.0  # for the whole run, all phases and steps
    delta: Annotated[float, Field(ge=1e-15, le=0.1)] = 1e-5
    labels_per_instance: Count = 3  # counts only: use at most this many labels of an instance, drawn at random
    clip: Positive = 1.0  # gradients only: clip the gradient of an instance to this length
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0  # gradients only: share of instances in each step
    noise: Literal["system", "seeded"] = "system"  # seeded: repeatable, for experiments; not private


class SelectionSettings(Settings):
    """Which round to keep, chosen on validation data. The test set is used once, at the end."""

    validation: Share = 0.1  # share of train, if the dataset has no validation data; 0: keep the last round
    metric: Annotated[str, AfterValidator(known_metric)] = "P@1"
    every: Count = 5  # rounds between evaluations
    patience: Count | None = None  # stop after this many evaluations without gain (with keep = "best")
    keep: Literal["best", "last"] = "best"  # last: validation only draws curves
    refit: bool = True  # then train on all of train for the chosen number of rounds
    test_curve: bool = False  # with validation = 0: draw curves on the test set


class TuningSettings(Settings):
    """How a run chooses settings by itself (docs/tuning.md). config.toml has what was chosen, and all of these off."""

    search: bool = False  # choose loss, penalty, label power, features and D on held-out records
    axes: bool = False  # without a search: an axis for each label (D = C), if that fits
    batch: Count | None = None  # a round samples about this many records: sets client.sample and rounds (docs/exact.md)
    epochs: Count = 20  # with batch: rounds that add up to this many passes over train; each pass is validated


class OvrSettings(Settings):
    """One-vs-rest (centralised): a linear regression per label on all instances. docs/oracles.md."""

    loss: Literal["ridge", "logistic"] = (
        "ridge"  # Σ(xᵀv - y)² + λ‖v‖², or Σ log(1 + e^∓xᵀv) + λ/2‖v‖² with an intercept
    )
    penalties: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None  # λ: validation chooses the best
    block_labels: Count = 256  # labels solved at a time; limits memory, changes rounding only

    @property
    def grid(self) -> tuple[float, ...]:
        """The penalties to try. The scales of the two losses differ."""
        ridge, logistic = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0), (0.0125, 0.025, 0.05, 0.1, 0.2)
        return self.penalties or (ridge if self.loss == "ridge" else logistic)


class SleecSettings(Settings):
    """SLEEC (centralised): neighbours in learned embeddings. The defaults are those published for Bibtex."""

    learners: Count = 1  # each with its own clusters; they vote together
    clusters: Count | None = None  # None: one per 6,000 instances
    neighbours: Count = 250  # n̄: nearest label sets that an embedding keeps near
    dim: Count = 100  # L̂
    steps: Annotated[int, Field(ge=0)] = 200  # at most, to refine the embeddings
    tolerance: Share = 0.001  # stop if a step reduces the misfit by less than this share
    cost: Positive = 0.2  # c of ½‖W‖² + c‖XW - Z‖², the regression of embeddings on features: ridge with 1/(2c)
    threshold: Share = 0.01  # share of the weights, the smallest, set to zero
    nearest: Count = 25  # NN: neighbours whose labels count


class MlpSettings(Settings):
    """An mlp with one hidden layer (centralised): Adam on minibatches. docs/oracles.md."""

    loss: Literal["square", "logistic"] = "square"
    hidden: Count = 1024
    input_dropout: Share = 0.2  # of features
    dropout: Share = 0.5  # of hidden units
    batch_size: Count = 256
    learning_rate: Positive = 3e-3
    weight_decay: NotNegative = 1.0  # decoupled, as server.weight_decay
    epochs: Count = 20  # at most: validation chooses the number


class OmikujiSettings(Settings):
    """The package omikuji (centralised), with its default settings. docs/oracles.md."""

    model: Literal["parabel", "bonsai"] = "parabel"


class NapkinxcSettings(Settings):
    """The package napkinXC (centralised), with its default settings. docs/oracles.md."""

    model: Literal["plt", "br"] = "plt"  # a probabilistic label tree, or one-vs-rest
