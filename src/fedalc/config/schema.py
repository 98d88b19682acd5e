"""All settings, section by section, with the values they may have. `compatibility` checks that they go together."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from fedalc.config.facts import encoder_facts, known_encoder, known_method, known_metric
from fedalc.core.picture_sides import LARGEST_SIDE, SMALLEST_SIDE
from fedalc.core.settings import NONE, Count, NotNegative, Positive, Settings, Share
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.pretrained.view_names import ViewName
from fedalc.data.text.settings import TextSettings

# Of other modules, re-exported.
__all__ = ["NONE", "Count", "NotNegative", "Positive", "Settings", "Share", "TableSettings", "TextSettings"]

MethodName = Annotated[str, AfterValidator(known_method)]
EncoderName = Annotated[str, AfterValidator(known_encoder)]
AggregationName = Literal["mean", "clip", "median", "trimmed-mean", "multi-krum"]
PresetName = Literal["strong", "mlp", "paper", "demo"]
Weighting = Literal["sigma", "gamma", "conditional", "counts"]  # of a pair of labels: labels/correlations.py
Algorithm = Literal["hmac-sha256", "hmac-sha512", "hmac-md5", "sha256", "sha512", "md5"]  # the last three take no key
Numbers = Literal["full", "bfloat16", "int8"]  # as they are sent: engines/compression.py
LossName = Literal["hinge", "square", "logistic", "squared-hinge", "softmax", "softmax-per-label"]
Identity = Literal["record", "content", "embedding"]  # how parties recognise the same instance: docs/privacy.md


def is_keyed(algorithm: str) -> bool:
    return algorithm.startswith("hmac-")


PRESETS: tuple[str, ...] = get_args(PresetName)
MOST_LABELS_PER_PARTY = 10_000  # a party may claim, unless the server allows more
LARGEST_SECRET = 4096  # dimensions of secret rows: a rotation has D² numbers and takes D³ operations to draw
PRIVACY_LEDGER = "privacy-ledger.jsonl"  # the file: fedalc.labels.privacy.ledger

ShareOfLiars = Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)]  # no rule withstands half of the parties
Colour = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Colours = tuple[Colour, Colour, Colour]
Margin = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]


class EncoderSettings(Settings):
    """g_θ: sparse features or a picture in, `dim` numbers out."""

    name: EncoderName = "mlp"
    """The network (`fedalc list encoders`)."""
    dim: Count = 512
    """D: how many numbers the encoder gives for a record, and the length of a class embedding."""
    embedding: Count | None = 512
    """mlp: width of the first layer, which has no ReLU. none: no such layer."""
    hidden: Annotated[tuple[Count, ...], Field(max_length=32)] = (1024, 1024)
    """mlp: widths of the hidden layers."""
    start: Literal["he", "framework", "zero"] = "he"
    """How the weights start: he (He's normal distribution), framework (torch's default), or zero (linear encoders)."""
    output: Literal["unit", "raw"] = "unit"
    """unit: scale the output to length 1, so that scores are cosines. raw: do not, for losses over all labels."""
    features: Literal["unit", "mean", "raw"] = "unit"
    """How rows of features are scaled: unit (to length 1), mean (divided by the number of their features), or raw
    (not)."""
    dropout: Share = 0.0
    """Share of units that training drops."""
    input_dropout: Share = 0.0
    """mlp: share of features that training drops."""
    shortcut: bool = False
    """mlp: add a linear map beside it. The mlp then starts at zero."""
    precision: Literal["full", "mixed"] = "full"
    """mixed: dense layers multiply in bfloat16, which is faster where the processor supports it."""
    norm: Literal["group", "frozen", "batch"] = "group"
    """ResNets: how layers are normalised (docs/images.md)."""
    pretrained: str | tuple[str, ...] | None = None
    """Weights of a pretrained network, a folder, a file or package:NAME; several stand side by side (docs/images.md).
    For a ResNet that is trained: weights to start from, a folder or a name on the hub."""
    frozen: bool = False
    """Use the pretrained network as it is: records go through it once, and its outputs are their features. If not set:
    true with pretrained weights, unless a ResNet is to be trained from them."""
    weights: str | None = None
    """Digest of the frozen weights. If not set, fedalc fills it in; other weights are then refused."""
    constant: NotNegative = 0.0
    """linear and random-features: value of one more column, which acts as an intercept. 0: none."""
    random_features: Count = 2048
    """random-features: M, how many features f(Rx) to add, with R drawn from the seed (docs/exact.md)."""
    activation: Literal["relu", "cosine", "identity"] = "relu"
    """random-features: the function f. cosine: cos(Rx + b). identity: Rx, a sketch of the features."""
    scale: Positive = 1.0
    """random-features: scale of R, whose entries are standard normal."""
    linear_part: bool = True
    """random-features: keep the features themselves beside the random ones."""

    @property
    def is_image(self) -> bool:
        """Whether it takes pictures."""
        return encoder_facts(self.name).pictures

    @property
    def sources(self) -> tuple[str, ...]:
        """Where pretrained weights are."""
        return (self.pretrained,) if isinstance(self.pretrained, str) else self.pretrained or ()


class ImageSettings(Settings):
    """How pictures are read (docs/images.md)."""

    size: Annotated[int, Field(ge=SMALLEST_SIDE, le=LARGEST_SIDE)] = 96
    """Pixels per side. All pictures are scaled to it."""
    difficult: bool = True
    """VOC: whether objects marked as difficult count as labels. If not, they count as absent. VOC's own evaluation
    ignores them (docs/images.md)."""
    broken: Literal["refuse", "skip"] = "refuse"
    """What to do with pictures that cannot be read."""
    augment: Literal["off", "mirror", "mirror-shift"] = "off"
    """Change pictures at random in each round of training: mirror them, or mirror and shift them."""
    fit: Literal["crop", "squeeze"] = "squeeze"
    """Frozen networks: how a picture becomes a square. crop: by its centre square. squeeze: all of it, so that nothing
    is cut off. (Networks that are trained get the centre square.)"""
    views: ViewName = "one"
    """Frozen networks: views of a picture whose features are averaged: as it is, mirrored too, in three sizes, or in
    three sizes and mirrored."""
    mean: Colours | None = None
    """Frozen networks: mean of red, green and blue (in 0 to 1) to subtract. none: the network's own."""
    deviation: Colours | None = None
    """Frozen networks: deviation of red, green and blue to divide by. none: the network's own."""


class ClientSettings(Settings):
    """A client's local work in one round. The defaults are the paper's: one full-batch step of rate 0.1."""

    epochs: Count = 1
    """Passes over the client's records in a round."""
    batch_size: Count | None = None
    """Records per local step. none: all records of the client."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of its records that a client uses in a round."""
    learning_rate: Positive = 0.1
    """Step size of a client."""
    row_learning_rate: NotNegative | None = None
    """Step size for the client's own row of W. none: the same as learning_rate."""
    momentum: Share = 0.0
    """Momentum of local steps. It lasts for one round."""
    weight_decay: NotNegative = 0.0
    """In each local step θ shrinks by learning_rate × this."""
    loss: LossName = "hinge"
    """What a client minimises. hinge: max(0, margin - s)² for the score s of its own label. The others compare all
    labels, as centralised training does (docs/exact.md)."""
    negatives: Count | None = None
    """logistic and squared-hinge: compare with this many random labels in each round. none: with all."""
    margin: Annotated[float, Field(gt=-1, le=1, allow_inf_nan=False)] = 0.9
    """hinge: the score that a record and its label should reach."""
    set_size: Literal["exact", "expected", "ignored"] = "exact"
    """Losses over all labels: what a client knows of how many labels each of its records has: the number, the mean, or
    nothing (docs/exact.md)."""
    label_power: Share = 0.0
    """square: how much more rare labels count. A label with n records has weight (n + label_offset)^-label_power,
    scaled so that the largest is 1."""
    label_offset: NotNegative = 30.0
    """square: added to a label's number of records in the weight above."""

    @property
    def row_rate(self) -> float:
        return self.learning_rate if self.row_learning_rate is None else self.row_learning_rate


class ServerSettings(Settings):
    """Who takes part, how clients are weighted, and the optimiser that applies their averaged change of θ."""

    optimizer: Literal["sgd", "momentum", "adam", "adagrad", "cg", "newton"] = "sgd"
    """How the server applies the averaged change. cg: conjugate gradients, for the square loss. newton: Newton steps by
    conjugate gradients, for every convex loss."""
    learning_rate: Positive = 1.0
    """Step size of the server."""
    momentum: Share = 0.9
    """For momentum, and for adam's first moment."""
    beta2: Share = 0.999
    """For adam's second moment."""
    epsilon: Positive = 1e-8
    """adam and adagrad: added to the divisor, so that it is not zero."""
    weight_decay: NotNegative = 0.0
    """In each round θ shrinks by learning_rate × this."""
    solve_rounds: Count = 15
    """cg with a shortcut: rounds for the linear map. After them adam trains the mlp."""
    newton_rounds: Count = 5
    """newton: conjugate gradients for one Newton step, at most."""
    ridge: NotNegative = 1.0
    """The penalty ridge·‖θ‖², for cg, newton and the methods of one round."""
    least_holders: Count = 1
    """Methods of one round: leave out features that fewer parties have records with (labels, if each is a client).
    Otherwise a sum over all parties shows what a single one has."""
    ema: Share = 0.0
    """Evaluate and save a moving average of the weights: the share that the past keeps in each round. 0: off."""
    weights: Literal["uniform", "samples"] = "samples"
    """How clients are weighted: all the same, or by their number of records."""
    trained_rows: Literal["keep", "discard"] = "keep"
    """What the server does with the rows of W that clients trained. discard: it goes on from its own W, as the line
    W̃ = W of the paper's algorithm says (docs/reproduction.md)."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that take part in a round, drawn at random."""
    aggregation: AggregationName = "mean"
    """How the server combines the changes of parties, some of whom may lie (docs/robust.md). If not set, or auto: clip
    with real parties, otherwise mean."""
    trim: ShareOfLiars = 0.3
    """trimmed-mean: share of parties left out at each end."""
    byzantine: ShareOfLiars = 0.3
    """multi-krum: share of parties that may lie."""


class SecureSumSettings(Settings):
    """Sums that the server cannot look into (docs/secure-sums.md). With real parties, `fedalc deploy run` turns them on
    where they fit."""

    on: bool = False
    """Mask what each party sends, so that the server learns sums over at least three parties only."""
    threshold: Annotated[float, Field(gt=0.5, le=1)] | None = None
    """Share of the parties that are needed to unmask a sum. none: the smallest number above half of them."""
    bits: Annotated[int, Field(ge=8, le=60)] = 40
    """Numbers are rounded to multiples of 2^-bits. More bits leave room for smaller numbers only."""
    norm: NotNegative = 0.0
    """Each party cuts its change of θ to this length before it masks it. 0: it does not."""


class CompressionSettings(Settings):
    """Fewer bytes between server and parties (docs/communication.md)."""

    rows: Literal["all", "own"] = "all"
    """own: of a matrix with a row for each feature, send only the rows of the party's own features, both ways. Exact.
    The server learns which features each party has."""
    up: Numbers = "full"
    """How a party's change, or its sums, are rounded: full (not), bfloat16 (16 bits), int8 (8 bits and a scale for each
    row). At random, so that the mean is exact."""
    down: Numbers = "full"
    """How θ is rounded on its way to the parties: as `up`."""
    error_feedback: bool = False
    """Parties add what rounding took off a change to their next change."""


class EmbeddingSettings(Settings):
    """How the class embeddings W start, and who knows them (docs/exact.md)."""

    start: Literal["orthogonal", "random", "by-frequency", "simplex", "codewords"] = "orthogonal"
    """orthogonal: at right angles, as far as D allows. random: unit vectors. by-frequency: an axis for each frequent
    label (docs/exact.md). simplex and codewords: those of fedetf and feduv (docs/method.md)."""
    secret: bool = False
    """For methods with fixed rows: clients turn all rows by a rotation drawn under their key (`collection.key`). The
    server cannot score with the model that it keeps (docs/exact.md)."""


class HashingSettings(Settings):
    """fedmlh: `tables` sub-models; in each, all labels share `buckets` class embeddings."""

    tables: Annotated[int, Field(ge=1, le=256)] = 4
    """Sub-models, each with an encoder of its own."""
    buckets: Count = 500
    """Class embeddings of a sub-model. Labels that fall into one bucket share its embedding."""


class RegularizerSettings(Settings):
    """The server's step on W in each round (fedaws, fedalc): W ← unit(W - lambda·rate·∇reg)."""

    lambda_: NotNegative = Field(default=10.0, alias="lambda")
    """λ: how strongly the server pushes class embeddings apart."""
    rate: Positive = 1e-4
    """Step size of this step. Only lambda × rate matters."""
    form: Literal["mined", "full"] = "mined"
    """mined: push each label away from its nearest labels. full: from all."""
    neighbours: Count = 5
    """mined: K, how many nearest labels."""
    candidates: Count | None = None
    """mined: look for neighbours among a random sample of this many labels. none: among all."""
    search: Literal["auto", "exact", "index"] = "auto"
    """mined: how to find neighbours (docs/scale.md). auto: exactly, or by an index if there are very many labels."""
    rows: Literal["all", "participants"] = "all"
    """mined: whose neighbours are pushed away: those of all labels, or of the clients of this round."""
    margin: Margin | Literal["adaptive"] = 1.0
    """ν: distance from which labels are far enough apart. adaptive: the distance to the (K+1)-th nearest label."""
    weighting: Weighting = "sigma"
    """fedalc: how label correlations weight a pair of labels (docs/method.md)."""


class FixedSettings(Settings):
    """fedalc-fixed, before round 1: `steps` steps on α·(c/N)·d² + β·σ·max(0, ν - d)², σ as `weighting` says."""

    alpha: NotNegative = 1.0
    """α: how strongly labels that occur together attract each other."""
    beta: NotNegative = 1.0
    """β: how strongly other labels repel each other."""
    margin: Margin = 1.0
    """ν: distance from which labels are far enough apart."""
    rate: Positive = 1.0
    """Step size."""
    steps: Annotated[int, Field(ge=0)] = 200
    """Steps before round 1. 0: W stays as it starts."""
    weighting: Weighting = "sigma"
    """How label correlations weight the repulsion of a pair of labels (docs/method.md)."""
    form: Literal["full", "mined"] = "full"
    """full: all pairs of labels repel each other. mined: each label and its nearest ones."""
    neighbours: Count = 50
    """mined: K, how many nearest labels."""
    search: Literal["auto", "exact", "index"] = "auto"
    """mined: how to find neighbours, as in [regularizer]."""


class CollectionSettings(Settings):
    """How the server learns about label sets: keyed digests of instances, joined, or less (docs/privacy.md)."""

    by: Literal["join", "sums", "psi"] = "join"
    """join: the server joins digests and has all label sets. sums: it adds up bucket counts and has none, for methods
    that do not need to know which labels occur together; with real parties under secure sums. psi: it learns only how
    often each pair of labels occurs together, by private set intersection, for few labels (docs/set-sizes.md)."""
    most_labels: Count = 300
    """psi with real parties: refuse a run with more labels. Time and bytes grow with labels²."""
    records: Count | None = None
    """sums: a bound on the number of records, for the size of the tables. none: the number of records of all labels
    together."""
    collisions: Annotated[float, Field(gt=0, le=0.5, allow_inf_nan=False)] = 0.005
    """sums: the share of records whose number of labels may come out too large, with as many records as the bound."""
    algorithm: Algorithm = "hmac-sha256"
    """Hash function for the digests. Those without hmac take no key, so that the server can guess."""
    digest_bytes: Annotated[int, Field(ge=8, le=64)] = 16
    """Length of a digest."""
    identity: Identity = "record"
    """How parties recognise the same instance: record (its number, in a simulation), content (its features; parties
    with files use it), or embedding (the encoder's output)."""
    quantum: NotNegative = 1e-3
    """embedding: round coordinates to multiples of this. 0: take them as they are, as the paper does."""
    key: str | None = None
    """The clients' key file. none: a new key for this run."""
    correlations: str | None = None
    """A file of `fedalc collect server`, to use instead of collecting. Needs its key."""
    missing_labels: Literal["refuse", "allow"] = "refuse"
    """What to do if that file lacks labels of the data."""


class PrivacySettings(Settings):
    """Differential privacy, of one instance's label set in the label correlations, or of whole records in the model.

    counts: n and c are noised once. gradients: as in the paper, each step on W is clipped per instance and noised.
    sums, updates: the whole model is private (docs/private-model.md).
    """

    mechanism: Literal["counts", "gradients", "sums", "updates"] | None = None
    """What gets noise. counts: the counts of labels and pairs, once. gradients: every step on W, as in the paper. sums:
    the sums of a method of one round. updates: the gradient of θ in every round. none: nothing (if you set epsilon:
    counts). The first two protect label sets, the last two whole records."""
    epsilon: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """ε of the whole run, all phases and steps."""
    delta: Annotated[float, Field(ge=1e-15, le=0.1)] = 1e-5
    """δ: the probability that the promise of ε may fail."""
    labels_per_instance: Count = 3
    """counts: use at most this many labels of an instance, drawn at random. sums: a record with more labels counts less
    for each of them (if you do not set it: 1)."""
    moments: Literal["auto", "diagonal", "full"] = "auto"
    """sums: what to sum about features. diagonal: squares and totals. full: all products of two. auto: full only where
    the records outweigh its noise."""
    noise_parties: Annotated[int, Field(ge=1, le=2**16)] = 1
    """sums, updates: how many parties add noise, each a share. 1: the server adds all of it, and must be trusted. With
    secure sums all parties do, whatever their number."""
    noise_dropouts: Annotated[int, Field(ge=0)] = 0
    """sums, updates: of these parties, how many may fail to add their share, or tell the server what it was."""
    clip: Positive = 1.0
    """gradients, updates: clip the gradient of an instance to this length."""
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """gradients: share of the instances in each step."""
    noise: Literal["system", "seeded"] = "system"
    """Where noise comes from. seeded: repeatable, for experiments; it protects nothing."""

    @property
    def covers_records(self) -> bool:
        """Whether ε is for whole records and the whole model."""
        return self.mechanism in ("sums", "updates")


class SelectionSettings(Settings):
    """Which round to keep, chosen on validation data. The test set is used once, at the end."""

    validation: Share = 0.1
    """Share of train to hold out, if the dataset has no validation data. 0: keep the last round."""
    metric: Annotated[str, AfterValidator(known_metric)] = "P@1"
    """The metric that decides (`fedalc list metrics`)."""
    every: Count = 5
    """Rounds between evaluations."""
    patience: Count | None = None
    """Stop after this many evaluations without gain (with keep = "best"). none: never."""
    keep: Literal["best", "last"] = "best"
    """Which round to keep. last: validation data only draws curves."""
    refit: bool = True
    """After the choice, train again on all of train for the chosen number of rounds."""
    test_curve: bool = False
    """With validation = 0: draw curves on the test set. They decide nothing."""
    calibrate: bool = True
    """Fit probabilities and thresholds on held-out records (docs/predictions.md)."""


class TuningSettings(Settings):
    """How a run chooses settings by itself (docs/tuning.md). config.toml has what was chosen, and all of these off."""

    search: bool = False
    """Choose loss, penalty, label power, features and D on held-out records."""
    axes: bool = False
    """Without a search: an axis for each label (D = number of labels), if that fits."""
    batch: Count | None = None
    """A round samples about this many records: sets client.sample and rounds (docs/exact.md). none: off."""
    epochs: Count = 20
    """With batch: rounds that add up to this many passes over train. Each pass is validated."""
