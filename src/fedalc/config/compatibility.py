"""Which settings go together. An `Experiment` is checked once, when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedalc.config.schema import FIXED_ROWS, ORACLES, SQUARE_ONLY, is_keyed, solves_one_objective
from fedalc.errors import ConfigError

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment


def check(settings: Experiment) -> None:
    """Raises ConfigError, on the first field that does not go with the others."""
    if settings.method in ORACLES:
        _oracle_agrees(settings)
        return
    if settings.engine == "fused":
        for key, expressible in (
            ("epochs", settings.client.epochs == 1),
            ("batch_size", settings.client.batch_size is None),
        ):
            if not expressible:
                raise ConfigError(
                    f"engine 'fused' is the exact algebra of one full-batch step per client, so it cannot express "
                    f'{key} = {getattr(settings.client, key)}; use engine = "clients" or leave it out',
                    f"client.{key}",
                )
    if settings.engine == "flower" and settings.clients != "labels":
        raise ConfigError(
            "real parties have the labels they have, whoever's the instances are: leave it out, or use engine "
            '"fused" or "clients"',
            "clients",
        )
    if settings.method == "fedmlh" and settings.embeddings.start == "by-frequency":
        raise ConfigError(
            "fedmlh's class embeddings are buckets', which no label's frequency fits; use orthogonal or random",
            "embeddings.start",
        )
    _encoder_agrees(settings)
    if settings.encoder.name == "linear" and settings.encoder.dropout:
        raise ConfigError("the linear encoder has no hidden layer to drop from; use 0, or mlp", "encoder.dropout")
    shrinkage = settings.server.learning_rate * settings.server.weight_decay
    if shrinkage >= 1:
        raise ConfigError(
            f"times server.learning_rate is {shrinkage:g}: at 1 and above θ would not shrink but turn around",
            "server.weight_decay",
        )
    if settings.regularizer.margin == "adaptive" and settings.regularizer.form == "full":
        raise ConfigError(
            'an adaptive margin is the distance to the (K+1)-th nearest class, so it needs form = "mined"',
            "regularizer.margin",
        )
    if settings.regularizer.rows == "participants" and settings.regularizer.form == "full":
        raise ConfigError('all pairs are of all rows; use form = "mined", or rows = "all"', "regularizer.rows")
    own = settings.regularizer
    if (own.search == "index" and own.form == "full") or (own.search != "auto" and own.candidates is not None):
        raise ConfigError(
            'is for the nearest among all classes: form = "full" has all pairs, and candidates are compared exactly',
            "regularizer.search",
        )
    _aggregation_agrees(settings)
    _square_agrees(settings)
    _sample_agrees(settings)
    _collection_agrees(settings)


def _aggregation_agrees(settings: Experiment) -> None:
    rule = settings.server.aggregation
    if rule == "mean":
        return
    solver = "fedalc-oneshot" if settings.method == "fedalc-oneshot" else 'server.optimizer = "cg"'
    if solves_one_objective(settings.method, settings.server.optimizer):
        raise ConfigError(
            f"{solver} solves one objective, the sum over all parties; with {rule} there is none. Use mean (real "
            "parties are then screened by length), or another method or optimizer",
            "server.aggregation",
        )
    if settings.encoder.norm == "batch" and settings.encoder.is_image:
        raise ConfigError(
            f"{rule} is for changes of θ, and running averages of batch normalisation would still be averaged as they "
            'are sent; use encoder.norm = "group" or "frozen", or mean',
            "server.aggregation",
        )


def _sample_agrees(settings: Experiment) -> None:
    if settings.client.sample == 1:
        return
    if settings.client.epochs > 1 or settings.client.batch_size is not None:
        raise ConfigError(
            "is for the one step of a round; batches go through all instances, so leave one of the two out",
            "client.sample",
        )
    if solves_one_objective(settings.method, settings.server.optimizer):
        raise ConfigError("an exact solution is of all instances, and not of a sample of them", "client.sample")


def _encoder_agrees(settings: Experiment) -> None:
    encoder = settings.encoder
    if encoder.precision == "mixed" and (encoder.name == "linear" or settings.dtype == "float64"):
        raise ConfigError("is for the dense layers of an mlp or a resnet in float32", "encoder.precision")
    if encoder.is_image:
        if settings.method == "fedalc-oneshot":
            raise ConfigError(
                f"fedalc-oneshot solves for a linear encoder, and a {encoder.name} is none; use fedalc-exact", "method"
            )
        for asked, field in ((encoder.shortcut, "shortcut"), (encoder.start == "zero", "start")):
            if asked:
                raise ConfigError(f"a {encoder.name} has neither a shortcut nor a start at zero", f"encoder.{field}")
        if encoder.norm == "batch" and settings.engine == "fused":
            raise ConfigError(
                "batch normalisation makes an instance's embedding depend on the others in its client's batch, so "
                'no fused step can express it; use norm = "group" or "frozen", or engine = "clients"',
                "encoder.norm",
            )
        if encoder.norm == "batch" and settings.engine == "flower":
            raise ConfigError(
                'what parties observe for batch normalisation does not travel; use norm = "group" or "frozen"',
                "encoder.norm",
            )
        if encoder.norm == "frozen" and encoder.pretrained is None:
            raise ConfigError("there are no statistics to keep without pretrained weights; use group", "encoder.norm")
    elif encoder.pretrained is not None:
        raise ConfigError(f"there are no pretrained weights for {encoder.name}; use a resnet", "encoder.pretrained")


def _oracle_agrees(settings: Experiment) -> None:
    """An oracle has no clients: their settings are ignored, apart from those that promise something."""
    asked = {
        "privacy.mechanism": settings.privacy.mechanism,
        "collection.correlations": settings.collection.correlations,
    }
    for field, given in asked.items():
        if given is not None:
            raise ConfigError(
                f"{settings.method} is centralised: it reads all features and labels as they are, and this would "
                "protect or change nothing; leave it out, or choose a federated method",
                field,
            )
    if settings.method == "ovr" and len(settings.ovr.grid) > 1 and settings.selection.validation == 0:
        raise ConfigError(
            "several are to be tried, and there is no validation data to choose one on: give a single one, "
            "or set selection.validation",
            "ovr.penalties",
        )


def _square_agrees(settings: Experiment) -> None:
    """What the square loss, and what solves it, can and cannot be put together with."""
    square = settings.client.loss == "square"
    if settings.method in SQUARE_ONLY and not square:
        raise ConfigError(f"{settings.method} is the method of the square loss", "client.loss")
    solves = "method" if settings.method == "fedalc-oneshot" else "server.optimizer"
    if settings.encoder.shortcut and settings.encoder.name == "linear":
        raise ConfigError("the linear encoder is the shortcut itself", "encoder.shortcut")
    one_round = settings.method == "fedalc-oneshot"
    linear = settings.encoder.name == "linear" or (settings.encoder.shortcut and not one_round)
    if settings.server.optimizer == "cg" and not one_round and settings.rounds < 2:
        raise ConfigError("cg asks in round 1 and steps from round 2 on: at least 2", "rounds")
    if solves_one_objective(settings.method, settings.server.optimizer):
        for possible, need in (
            (square, 'client.loss = "square"'),
            (linear, 'encoder.name = "linear"' + ("" if one_round else ", or an mlp with encoder.shortcut")),
            (settings.encoder.output == "raw", 'encoder.output = "raw"'),
            (settings.method in FIXED_ROWS, "a method with fixed class embeddings"),
            (settings.method not in ("flag", "fedmlh"), "clients weighted by their instances, and one encoder"),
            (settings.server.weights == "samples", 'server.weights = "samples"'),
            (settings.server.participation == 1, "server.participation = 1"),
            (settings.client.epochs == 1 and settings.client.batch_size is None, "one full-batch step a client"),
            (settings.client.momentum == 0 and settings.client.weight_decay == 0, "no momentum or decay at the client"),
            (settings.server.ema == 0, "server.ema = 0"),
        ):
            if not possible:
                raise ConfigError(f"the objective is a quadratic only with {need}", solves)
    if settings.encoder.start == "zero" and settings.encoder.name != "linear":
        raise ConfigError("an mlp that starts at zero stays there; use he", "encoder.start")
    if settings.encoder.output == "unit" and (settings.encoder.start == "zero" or settings.encoder.shortcut):
        raise ConfigError("an output that starts at zero has no direction to scale: use raw", "encoder.output")


def _collection_agrees(settings: Experiment) -> None:
    collection, privacy = settings.collection, settings.privacy
    asked = {"privacy.mechanism": privacy.mechanism, "collection.correlations": collection.correlations}
    for field, given in asked.items():
        if given is not None and not settings.uses_labels:
            raise ConfigError(
                f"{settings.method} with these settings does not look at label sets, so this would do nothing; leave "
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
    weighting = {"fedalc": settings.regularizer.weighting, "fedalc-fixed": settings.fixed.weighting}.get(
        settings.method
    )
    told_sizes = settings.client.loss == "square" and settings.client.set_size == "exact"
    if told_sizes and (privacy.mechanism is not None or collection.correlations is not None):
        raise ConfigError(
            "the size of each instance's label set is neither in a file of counts nor covered by noise on them; "
            'use "expected", which follows from the counts',
            "client.set_size",
        )
    if privacy.mechanism == "gradients" and settings.needs_counts:
        raise ConfigError('these settings need counts of labels: use "counts"', "privacy.mechanism")
    regularizer = settings.regularizer
    by_index = "index" in (regularizer.search, settings.fixed.search)
    if privacy.mechanism == "gradients" and (regularizer.rows != "all" or by_index):
        raise ConfigError(
            'what one instance adds to a gradient is worked out for regularizer.rows = "all" and an exact search',
            "privacy.mechanism",
        )
    if privacy.mechanism == "gradients" and weighting in ("gamma", "conditional"):
        raise ConfigError(
            f"the gradient of one instance needs weighting 'sigma' or 'counts': {weighting!r} divides by counts "
            "that are private themselves; set regularizer.weighting (fedalc) or fixed.weighting (fedalc-fixed)",
            "privacy.mechanism",
        )
