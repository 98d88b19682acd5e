"""Check that settings are compatible. An `Experiment` is checked once, when it is built. Each method checks its own
settings in `Method.check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedalc.config.facts import encoder_facts, leaves_out_features, method_facts, parsed_options, solves_one_objective
from fedalc.config.schema import LARGEST_SECRET, is_keyed
from fedalc.core.registry import METRICS
from fedalc.errors import NO_SEARCH, ConfigError, NeedsSecureSums, either

if TYPE_CHECKING:
    from fedalc.config.experiment import Experiment

_KEY_FILE = either("--key FILE", "collection={'key': FILE}")


def check(settings: Experiment) -> None:
    """Raise ConfigError for the first field that is not compatible with the others."""
    parsed_options(settings)
    _check_task(settings)
    if method_facts(settings.method).centralised:
        _check_oracle(settings)
        return
    if settings.engine == "fused":
        for key, expressible in (
            ("epochs", settings.client.epochs == 1),
            ("batch_size", settings.client.batch_size is None),
        ):
            if not expressible:
                raise ConfigError(
                    f"engine 'fused' computes one full-batch step per client, so it cannot compute "
                    f'{key} = {getattr(settings.client, key)}; use engine = "lockstep", or name no engine',
                    f"client.{key}",
                )
    if settings.engine == "flower" and settings.clients == "users":
        raise ConfigError(
            'real parties own labels, not users: use "labels", or "parties" if several may have the same label',
            "clients",
        )
    method_facts(settings.method).check(settings)
    _check_encoder(settings)
    shrinkage = settings.server.learning_rate * settings.server.weight_decay
    if shrinkage >= 1:
        raise ConfigError(
            f"times server.learning_rate is {shrinkage:g}; it must be below 1, or θ changes its sign",
            "server.weight_decay",
        )
    if settings.regularizer.margin == "adaptive" and settings.regularizer.form == "full":
        raise ConfigError(
            'an adaptive margin is the distance to the (K+1)-th nearest class, so it needs form = "mined"',
            "regularizer.margin",
        )
    if settings.regularizer.rows == "participants" and settings.regularizer.form == "full":
        raise ConfigError('form = "full" takes all rows; use form = "mined", or rows = "all"', "regularizer.rows")
    search, form, candidates = settings.regularizer.search, settings.regularizer.form, settings.regularizer.candidates
    if (search == "index" and form == "full") or (search != "auto" and candidates is not None):
        raise ConfigError(
            'is for finding the nearest of all classes; form = "full" takes all pairs, and candidates are always '
            "compared exactly",
            "regularizer.search",
        )
    _check_aggregation(settings)
    _check_secure_sums(settings)
    _check_compression(settings)
    _check_set_loss(settings)
    _check_secret_rows(settings)
    _check_solver(settings)
    _check_tuning(settings)
    _check_sample(settings)
    _check_collection(settings)
    _check_private_records(settings)
    _check_holders(settings)


def _check_task(settings: Experiment) -> None:
    metric = settings.selection.metric
    if getattr(METRICS[metric], "needs", "top") != "trials":
        return
    if settings.task != "verification":
        raise ConfigError(f"{metric} is a metric of verification: set task = verification", "selection.metric")
    if metric not in ("EER", "EER-others"):
        raise ConfigError("held-out records have no strangers, and few trials: choose by EER", "selection.metric")


def _check_holders(settings: Experiment) -> None:
    """Check what leaving out features with few holders needs."""
    if not leaves_out_features(settings):
        return
    for possible, problem in (
        (settings.encoder.name == "linear", "is for the encoder linear: others mix features"),
        (
            not settings.privacy.covers_records,
            "counts holders without noise, which ε does not cover; the noise on the sums hides a single holder",
        ),
    ):
        if not possible:
            raise ConfigError(f"{problem}; leave it out", "server.least_holders")
    if settings.engine == "flower" and not settings.secure_sums.on:
        raise NeedsSecureSums(
            "hides features in sums; without secure sums the server sees each party's own", "server.least_holders"
        )


def _check_private_records(settings: Experiment) -> None:
    """Check what differential privacy of whole records needs: everything that comes from records has noise."""
    privacy, facts, client = settings.privacy, method_facts(settings.method), settings.client
    counts_shares = settings.engine == "flower" or settings.secure_sums.on  # then all parties add noise
    if privacy.noise_dropouts >= privacy.noise_parties and not counts_shares:
        raise ConfigError("someone must add noise: use less than privacy.noise_parties", "privacy.noise_dropouts")
    if not privacy.covers_records:
        return
    sums = privacy.mechanism == "sums"
    for possible, problem in (
        (not sums or (facts.one_round and facts.sends_gram), "sums is for fedalc-oneshot; use updates"),
        (not facts.one_round or sums, "updates is for methods of several rounds; use sums"),
        (sums or client.loss == "softmax", 'updates needs client.loss = "softmax", whose gradients are bounded'),
        (sums or settings.server.optimizer in ("sgd", "momentum"), "updates needs server.optimizer sgd or momentum"),
        (encoder_facts(settings.encoder.name).linear, "records are private only with a linear encoder"),
        (not facts.trains_rows and facts.sub_models(settings) == 1, "class embeddings must be fixed"),
        (settings.engine != "flower" or privacy.noise == "system", "seeded noise: the server knows the seed"),
        (
            settings.collection.identity != "embedding",
            "the bound is for records that are the same by number or content, not by embedding (collection.identity)",
        ),
        (settings.clients != "users", "ε is for records, not for users"),
        (not settings.embeddings.secret, "secret rows cannot be used with it"),
        (client.set_size == "exact", 'owners need client.set_size = "exact" to limit what a record adds'),
        (client.sample == 1 and settings.server.participation == 1, "all records take part: a sample is not secret"),
        (client.epochs == 1 and client.batch_size is None, "clients take one full-batch step"),
        (client.weight_decay == 0, "client.weight_decay must be 0; server.weight_decay can be used"),
        (
            settings.selection.validation == 0,
            "a choice on held-out records is not covered; selection.validation must be 0",
        ),
        (settings.server.aggregation == "mean", 'noise is for the sum of all: server.aggregation = "mean"'),
    ):
        if not possible:
            raise ConfigError(problem, "privacy.mechanism")


def _check_aggregation(settings: Experiment) -> None:
    rule = settings.server.aggregation
    if rule == "mean":
        return
    one_round = method_facts(settings.method).one_round
    solver = settings.method if one_round else f'server.optimizer = "{settings.server.optimizer}"'
    if solves_one_objective(settings.method, settings.server.optimizer):
        raise ConfigError(
            f"{solver} solves one objective, the sum over all parties, which {rule} does not have. Use mean (real "
            "parties are then screened by the length of what they send), or another method or optimizer",
            "server.aggregation",
        )
    if settings.encoder.norm == "batch" and settings.encoder.is_image:
        raise ConfigError(
            f"{rule} protects θ, but not the running averages of batch normalisation, which the server averages as "
            'they are sent; use encoder.norm = "group" or "frozen", or mean',
            "server.aggregation",
        )


def _check_secure_sums(settings: Experiment) -> None:
    """Check what sums need that the server cannot look into."""
    if not settings.secure_sums.on:
        return
    facts, rule = method_facts(settings.method), settings.server.aggregation
    fixed = "use a method with fixed ones, such as fedalc-exact, fedalc-oneshot, fedalc-fixed or fedavg-fixed"
    for possible, problem in (
        (settings.engine != "fused", 'engine "fused" adds all clients up at once; use engine = "clients"'),
        (not facts.trains_rows, f"{settings.method} trains class embeddings, each at its party alone; {fixed}"),
        (not facts.secret_rows, f"{settings.method} has rows that only their owners may know; {fixed}"),
        (
            rule == "mean",
            f'server.aggregation = "{rule}" compares the changes of single parties, which the server does not see; use '
            "mean. secure_sums.norm has each party cut its own change, which holds back honest ones only",
        ),
        (
            settings.engine == "flower" or not settings.tuning.search,
            f"a simulated search adds up plainly; leave it out ({NO_SEARCH})",
        ),
        (settings.clients != "users", 'users are not parties; use clients = "labels" or "parties"'),
        (
            settings.engine != "flower" or settings.server.participation == 1,
            "with real parties every one takes part in every sum, with all of its labels; use server.participation = 1",
        ),
    ):
        if not possible:
            raise ConfigError(problem, "secure_sums.on")


def _check_compression(settings: Experiment) -> None:
    """Check what goes with fewer bytes."""
    compression, facts = settings.compression, method_facts(settings.method)
    if not settings.compresses:
        return
    server, encoder = settings.server, encoder_facts(settings.encoder.name)
    on = next(name for name in ("rows", "up", "down") if getattr(compression, name) not in ("all", "full"))
    own, keeps = compression.rows == "own", compression.error_feedback
    for possible, problem, field in (
        (
            not settings.secure_sums.on,
            "is for runs without secure sums (--no-secure-sums), where all parties send as many masked numbers",
            on,
        ),
        (not settings.privacy.covers_records, "a private model has sums of its own", on),
        (not settings.embeddings.secret, "secret rows mix all columns", on),
        (not facts.sums_by_cluster, f"{settings.method} asks for sums of clusters, which are sent whole", on),
        (not settings.tuning.search, f"a search sends its trials whole; leave it out ({NO_SEARCH})", on),
        (server.optimizer != "newton", "Newton steps send directions and products whole; use cg", on),
        (not settings.encoder.shortcut, "a shortcut is solved for at full precision", on),
        (settings.encoder.norm != "batch" or not encoder.pictures, "the statistics are not sent rounded", on),
        (not own or not encoder.pictures, "pictures have no rows of features", "rows"),
        (not own or facts.sub_models(settings) == 1, f"{settings.method} has several encoders", "rows"),
        (not own or settings.client.weight_decay == 0, "client.weight_decay moves all rows", "rows"),
        (
            not keeps or not solves_one_objective(settings.method, server.optimizer),
            "an exact solution asks each time for something else, to which an old error does not belong",
            "error_feedback",
        ),
        (not keeps or settings.engine != "flower", "real parties do not keep their errors", "error_feedback"),
    ):
        if not possible:
            raise ConfigError(f"{problem}; leave it out", f"compression.{field}")


def _check_sample(settings: Experiment) -> None:
    if settings.client.sample == 1 and settings.tuning.batch is None:
        return
    field = "client.sample" if settings.tuning.batch is None else "tuning.batch"
    if settings.client.epochs > 1 or settings.client.batch_size is not None:
        raise ConfigError(
            "a sample is for rounds of one step; epochs and batches go through all instances. Leave one of the two out",
            field,
        )
    if solves_one_objective(settings.method, settings.server.optimizer):
        raise ConfigError("an exact solution needs all instances, not a sample of them", field)
    if settings.engine == "flower" and field == "tuning.batch":
        raise ConfigError("the number of records is not known with real parties; use client.sample", field)


def _check_encoder(settings: Experiment) -> None:
    encoder, facts = settings.encoder, encoder_facts(settings.encoder.name)
    for field, allowed in facts.only.items():
        if (value := getattr(encoder, field)) not in allowed:
            use = " or ".join(str(one).lower() if one is None or isinstance(one, bool) else str(one) for one in allowed)
            raise ConfigError(f"the encoder {encoder.name} does not support {value!r}; use {use}", f"encoder.{field}")
    if settings.engine == "flower" and not facts.for_parties:
        raise ConfigError("real parties train built-in encoders only, which their safeguards know", "encoder.name")
    if settings.engine == "flower" and (encoder.input_dropout > 0 or encoder.embedding is None):
        drops = encoder.input_dropout > 0
        what = "with input dropout" if drops else "without an embedding layer"
        field = "encoder.input_dropout" if drops else "encoder.embedding"
        raise ConfigError(f"real parties cannot check who contributes {what}; leave it out", field)
    if encoder.embedding is None and not encoder.hidden:
        raise ConfigError("without an embedding layer the mlp needs a hidden one", "encoder.hidden")
    if encoder.precision == "mixed" and settings.dtype == "float64":
        raise ConfigError('mixed is for float32; use dtype = "float32", or precision = "full"', "encoder.precision")
    if facts.pictures and encoder.norm == "batch":
        if settings.engine == "fused":
            raise ConfigError(
                "batch normalisation makes an instance's embedding depend on the others in its client's batch, so "
                'the fused engine cannot compute it; use norm = "group" or "frozen", or engine = "clients"',
                "encoder.norm",
            )
        if settings.engine == "flower":
            raise ConfigError(
                'parties do not send their statistics of batch normalisation; use norm = "group" or "frozen"',
                "encoder.norm",
            )
    if encoder.frozen and facts.pictures:
        raise ConfigError(
            f"{encoder.name} is trained from the weights; for the features of a frozen network use linear, mlp or "
            "random-features, or name no encoder",
            "encoder.frozen",
        )
    if encoder.frozen and encoder.pretrained is None:
        raise ConfigError("needs the weights of a network: encoder.pretrained (--pretrained FOLDER)", "encoder.frozen")
    if encoder.pretrained is not None and not encoder.frozen and not facts.pictures:
        raise ConfigError(f"{encoder.name} does not start from them: use encoder.frozen=true", "encoder.pretrained")
    if isinstance(encoder.pretrained, tuple) and (facts.pictures or not encoder.pretrained):
        raise ConfigError(f"{encoder.name} takes the weights of one network", "encoder.pretrained")
    if facts.pictures and encoder.norm == "frozen" and encoder.pretrained is None:
        raise ConfigError("there are no statistics to keep without pretrained weights; use group", "encoder.norm")


def _check_oracle(settings: Experiment) -> None:
    """An oracle has no clients and ignores their settings, but refuses settings that promise privacy."""
    label_settings = {
        "privacy.mechanism": settings.privacy.mechanism,
        "collection.correlations": settings.collection.correlations,
        "collection.by": None if settings.collection.by == "join" else settings.collection.by,
        "embeddings.secret": settings.embeddings.secret or None,
        "secure_sums.on": settings.secure_sums.on or None,
    }
    for field, given in label_settings.items():
        if given is not None:
            raise ConfigError(
                f"{settings.method} is centralised: it reads all features and labels, and this setting would protect "
                "nothing; leave it out, or choose a federated method",
                field,
            )
    method_facts(settings.method).check(settings)


def _check_set_loss(settings: Experiment) -> None:
    """Check what a loss over all labels needs (logistic, squared-hinge, softmax)."""
    client, facts = settings.client, method_facts(settings.method)
    if client.negatives is not None and client.loss not in ("logistic", "squared-hinge"):
        over_all = "has no sum over all labels to sample" if client.loss in ("hinge", "square") else "gets a bias by it"
        raise ConfigError(
            f"{client.loss} {over_all}; use logistic or squared-hinge, or leave it out",
            "client.negatives",
        )
    if client.loss in ("hinge", "square"):
        return
    if facts.trains_rows or facts.secret_rows or facts.sub_models(settings) > 1:
        raise ConfigError(
            f"{client.loss} compares with the class embeddings of all labels, so they must be fixed and known to all: "
            "use fedalc-exact, fedalc-fixed or fedavg-fixed",
            "client.loss",
        )


def _check_secret_rows(settings: Experiment) -> None:
    """Check what rows need that clients turn under their key."""
    if not settings.embeddings.secret:
        return
    facts, collection, dim = method_facts(settings.method), settings.collection, settings.encoder.dim
    exact = "use fedalc-exact or fedalc-oneshot"
    has_key = settings.engine == "flower" or (collection.key is not None and is_keyed(collection.algorithm))
    for possible, problem in (
        (not facts.trains_rows, f"{settings.method} trains rows, and the server has them; {exact}"),
        (not facts.secret_rows, f"{settings.method} has secret rows of its own; leave it out"),
        (facts.sub_models(settings) == 1, f"{settings.method} has several sub-models; {exact}"),
        (
            not facts.axis_per_label,
            f"{settings.method} works on each label's own column, which a rotation mixes; use fedalc-oneshot",
        ),
        (
            not settings.tuning.search,
            f"the search works on each label's own column, which a rotation mixes; leave it out ({NO_SEARCH})",
        ),
        (dim <= LARGEST_SECRET, f"encoder.dim = {dim} is too large to turn: at most {LARGEST_SECRET}"),
        (has_key, f"drawn under the clients' key: name its file ({_KEY_FILE}; make one: fedalc key new FILE)"),
    ):
        if not possible:
            raise ConfigError(problem, "embeddings.secret")


def _check_solver(settings: Experiment) -> None:
    """Check what the square loss, conjugate gradients and Newton steps need."""
    facts, one_matrix = method_facts(settings.method), encoder_facts(settings.encoder.name).linear
    one_round = facts.one_round
    newton = settings.server.optimizer == "newton" and not one_round
    solves = "method" if one_round else "server.optimizer"
    linear = (
        one_matrix
        or settings.encoder.name in facts.encoders
        or (settings.encoder.shortcut and not one_round and not newton)
    )
    if settings.server.optimizer in ("cg", "newton") and not one_round and settings.rounds < 2:
        raise ConfigError(f"{settings.server.optimizer} takes its first step in round 2: use at least 2", "rounds")
    if solves_one_objective(settings.method, settings.server.optimizer):
        convex = settings.client.loss not in ("hinge", "square")
        loss = (convex, "client.loss logistic, squared-hinge or softmax (for square use cg or fedalc-oneshot)")
        for possible, need in (
            loss if newton else (settings.client.loss == "square", 'client.loss = "square"'),
            (
                linear,
                'encoder.name = "linear" or "random-features"'
                + ("" if one_round or newton else ", or an mlp with encoder.shortcut"),
            ),
            (settings.encoder.output == "raw", 'encoder.output = "raw"'),
            (not facts.trains_rows, "a method with fixed class embeddings"),
            ("server.weights" not in facts.ignores, "clients weighted by their instances"),
            (facts.sub_models(settings) == 1, "one encoder"),
            (settings.server.weights == "samples", 'server.weights = "samples"'),
            (settings.server.participation == 1, "server.participation = 1"),
            (settings.client.negatives is None, "all labels compared (client.negatives)"),
            (settings.client.epochs == 1 and settings.client.batch_size is None, "one full-batch step a client"),
            (settings.client.momentum == 0 and settings.client.weight_decay == 0, "no momentum or decay at the client"),
            (settings.server.ema == 0, "server.ema = 0"),
        ):
            if not possible:
                kind = "convex" if newton else "a quadratic"
                raise ConfigError(f"the objective is {kind} only with {need}", solves)
    starts_at_zero = settings.encoder.start == "zero" and "start" not in encoder_facts(settings.encoder.name).ignores
    if starts_at_zero and not one_matrix:
        raise ConfigError("an encoder of several layers that starts at zero stays there; use he", "encoder.start")
    if settings.encoder.output == "unit" and (starts_at_zero or settings.encoder.shortcut):
        raise ConfigError("an output that starts at zero cannot be scaled to length 1: use raw", "encoder.output")


def _check_tuning(settings: Experiment) -> None:
    """Check what a search for settings needs."""
    if not settings.tuning.search:
        return
    for possible, problem in (
        (settings.collection.correlations is None, "collects labels anew for each part of the data"),
        (settings.method in ("fedalc-exact", "fedalc-oneshot"), "chooses settings of fedalc-exact and fedalc-oneshot"),
        (encoder_facts(settings.encoder.name).linear, "is for linear encoders and random features"),
        (settings.clients != "users", 'needs clients = "labels" or "parties"'),
        (settings.task == "classification", "chooses by ranking labels, not for verification"),
        (settings.privacy.mechanism is None, "would look at the labels many times, which ε does not cover"),
        (
            settings.selection.metric != "mAP" or settings.engine != "flower",
            "needs a metric that positive-only parties can count: P@k or nDCG@k",
        ),
    ):
        if not possible:
            raise ConfigError(f"the search {problem}; leave it out ({NO_SEARCH})", "tuning.search")


def _check_how_collected(settings: Experiment) -> None:
    """Check what collecting without a join of label sets needs (docs/set-sizes.md)."""
    collection, facts, by = settings.collection, method_facts(settings.method), settings.collection.by
    if by == "sums" and settings.engine == "flower" and not settings.secure_sums.on:  # held-out records are counted too
        raise NeedsSecureSums(
            "without masks each party's counts are a list of its records, which the server can join: sums with real "
            "parties need secure sums, so --parties 3 or more, a method with fixed rows, and no --no-secure-sums",
            "collection.by",
        )
    if by == "join" or not settings.uses_labels:
        return
    for possible, problem in (
        (
            by != "sums" or not facts.uses_labels,
            f"{settings.method} learns from how often labels occur together, which sums do not show; use join, or with "
            "few labels psi",
        ),
        (
            by != "psi" or not settings.tells_shares,
            'psi counts pairs of labels, and client.set_size = "exact" needs the size of each label set; use sums, or '
            'client.set_size = "expected"',
        ),
        (collection.correlations is None, "correlations from a file are joined already; leave one of the two out"),
        (is_keyed(collection.algorithm), f"{collection.algorithm} uses no key, so the server could guess; use an hmac"),
        (
            settings.privacy.mechanism is None,
            f"noise needs label sets cut to privacy.labels_per_instance, and nobody has these with {by}; use join, or "
            "leave out epsilon",
        ),
        (
            by == "sums" or settings.engine != "flower" or settings.clients != "parties",
            "psi with real parties needs labels that one party has; with shared labels (clients = parties) a party "
            "would find out which of its records others have. Use join",
        ),
    ):
        if not possible:
            raise ConfigError(problem, "collection.by")


def _check_collection(settings: Experiment) -> None:
    _check_how_collected(settings)
    collection, privacy = settings.collection, settings.privacy
    label_settings = {"privacy.mechanism": privacy.mechanism, "collection.correlations": collection.correlations}
    for field, given in label_settings.items():
        if given is not None and not settings.uses_labels:
            raise ConfigError(
                f"{settings.method} with these settings does not use label sets, so this setting would do nothing; "
                "leave it out, or choose another method, such as fedalc or fedalc-fixed",
                field,
            )
    keyed = is_keyed(collection.algorithm)
    if collection.key is not None and not keyed:
        raise ConfigError(f"{collection.algorithm} does not use a key; leave it out", "collection.key")
    if collection.correlations is not None and keyed and collection.key is None:
        raise ConfigError(
            f"the label pseudonyms in this file are keyed: give the key file of the collection ({_KEY_FILE})",
            "collection.correlations",
        )
    if privacy.mechanism is not None and collection.correlations is not None:
        raise ConfigError(
            "correlations from a file are used unchanged; add the noise when you make the file: "
            "fedalc collect server --epsilon",
            "privacy.mechanism",
        )
    hides_sizes = privacy.mechanism is not None and not privacy.covers_records
    if settings.tells_shares and (hides_sizes or collection.correlations is not None):
        raise ConfigError(
            "a file of counts does not hold the size of each instance's label set, and noise on counts does not "
            'protect it; use "expected", which follows from the counts, or privacy.mechanism = "sums", which makes the '
            "whole model private",
            "client.set_size",
        )
    if privacy.mechanism == "gradients" and settings.needs_counts:
        raise ConfigError('these settings need label counts: use "counts"', "privacy.mechanism")
    regularizer, section = settings.regularizer, method_facts(settings.method).compares_classes
    weighting = None if section is None else getattr(settings, section).weighting
    by_index = "index" in (regularizer.search, settings.fixed.search)
    if privacy.mechanism == "gradients" and (regularizer.rows != "all" or by_index):
        raise ConfigError(
            'private gradients need regularizer.rows = "all" and an exact search',
            "privacy.mechanism",
        )
    if privacy.mechanism == "gradients" and weighting in ("gamma", "conditional"):
        raise ConfigError(
            f"private gradients need weighting 'sigma' or 'counts': {weighting!r} divides by private counts; set "
            f"{section}.weighting",
            "privacy.mechanism",
        )
