"""`fedalc key …`, `fedalc collect …`, `fedalc audit`: collect label sets with files, test what the server learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from fedalc.cli.options import DataDir, EpsilonBudget
from fedalc.config.schema import (
    MOST_LABELS_PER_PARTY,
    Algorithm,
    CollectionSettings,
    EncoderSettings,
)
from fedalc.core.picture_sides import LARGEST_SIDE, SMALLEST_SIDE
from fedalc.errors import ConfigError, FedalcError

key_app = typer.Typer(
    help="Make and use the key that the clients share: new, labels, name-model.", rich_markup_mode="rich"
)
collect_app = typer.Typer(
    help="Collect label sets through files: client, server.", no_args_is_help=True, rich_markup_mode="rich"
)

KeyFile = Annotated[Path | None, typer.Option("--key", help="the clients' key file (make one: fedalc key new FILE)")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an earlier output file")]
RunId = Annotated[
    str | None,
    typer.Option("--run", help="run id, the same for all parties: other runs have other digests and pseudonyms"),
]
AlgorithmOption = Annotated[str, typer.Option("--algorithm", help=f"one of {', '.join(get_args(Algorithm))}")]


@key_app.callback(no_args_is_help=True)
def _key() -> None: ...


@key_app.command("new")
def new_key(file: Annotated[Path, typer.Argument(help="the key file to write; never overwritten")]) -> None:
    """Make a new random key that only you can read. Give it to the other clients, never to the server."""
    from fedalc.labels.collection.keys import Key

    key = Key.fresh()
    key.write(file)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{file}: new key, check value {key.check} (the same for everyone who has this key)")


@key_app.command("labels")
def key_labels(
    key: Annotated[Path, typer.Argument(help="the clients' key file")],
    names: Annotated[Path, typer.Argument(help="file of label names, one per line")],
    algorithm: AlgorithmOption = "hmac-sha256",
    run: RunId = None,
) -> None:
    """Print the pseudonyms of labels, in the order of their names: a labels.txt for data at the server."""
    from fedalc.labels.collection.identity import make_hasher
    from fedalc.labels.collection.pseudonyms import pseudonyms, read_names

    label_names = read_names(names)
    hasher = make_hasher(_settings(algorithm, 16, "content", 0.0, key), _run_id(run))
    for pseudonym in pseudonyms(hasher, label_names):
        typer.echo(pseudonym)


@key_app.command("name-model")
def name_model(
    run: Annotated[Path, typer.Argument(help="a run folder, or a model folder, whose labels are pseudonyms")],
    key: Annotated[Path, typer.Argument(help="the clients' key file")],
    names: Annotated[Path, typer.Argument(help="file of label names, one per line; may have names the model lacks")],
    out: Annotated[Path, typer.Option(help="the model folder to write, for fedalc predict")] = Path("model"),
    algorithm: AlgorithmOption = "hmac-sha256",
    run_id: Annotated[
        str | None,
        typer.Option("--run", help="run id (default: the one in the folder of a deployed run)"),
    ] = None,
) -> None:
    """Replace the pseudonyms in a model from the server by label names."""
    from fedalc.labels.collection.identity import make_hasher
    from fedalc.labels.collection.pseudonyms import named, read_names, run_id_of
    from fedalc.models.trained import TrainedModel

    if out.exists():
        raise FedalcError(f"{out}: already exists; name another --out")
    model = TrainedModel.load(run / "model" if (run / "model").is_dir() else run)
    hasher = make_hasher(_settings(algorithm, 16, "content", 0.0, key), _run_id(run_id) or run_id_of(run))
    model, labels_named = named(model, hasher, read_names(names))
    model.save(out)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{out}: named {labels_named} of {len(model.label_names)} labels")


@collect_app.command()
def client(
    data: Annotated[
        str, typer.Argument(help="this party's data: a file, a folder with a train file, or a dataset's name")
    ],
    key: KeyFile = None,
    out: Annotated[Path, typer.Option(help="the message file to send to the server")] = Path("messages.fedalc"),
    labels: Annotated[
        str | None, typer.Option(help="this party's label names, comma-separated (default: all labels in its data)")
    ] = None,
    client_name: Annotated[
        str | None, typer.Option("--client", help="name of this party, shown to the server (default: random)")
    ] = None,
    identity: Annotated[
        str, typer.Option(help="how to recognise the same instance: content, record (with --records) or embedding")
    ] = "content",
    records: Annotated[Path | None, typer.Option(help="file of the instances' record names, one per line")] = None,
    algorithm: AlgorithmOption = "hmac-sha256",
    digest_bytes: Annotated[int, typer.Option(help="length of a digest in bytes, 8 to 64")] = 16,
    quantum: Annotated[
        float,
        typer.Option(help="with --identity embedding: round to multiples of it (0: no rounding, as in the paper)"),
    ] = 1e-3,
    seed: Annotated[int, typer.Option(help="--identity embedding: seed of the encoder that all clients use")] = 0,
    size: Annotated[
        int,
        typer.Option(
            min=SMALLEST_SIDE,
            max=LARGEST_SIDE,
            help="pictures: side in pixels at which they are hashed, the same for all parties",
        ),
    ] = 96,
    run: RunId = None,
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
) -> None:
    """Hash this party's instances and labels with the key, and write them to a file for the server."""
    from fedalc.data import ImageOptions, Images
    from fedalc.labels.collection.holding import load_holding
    from fedalc.labels.collection.identity import Identity as InstanceIdentity
    from fedalc.labels.collection.identity import SharedEncoder, make_hasher
    from fedalc.labels.collection.messages import make_messages

    settings = _settings(algorithm, digest_bytes, identity, quantum, key)
    _check_out(out, overwrite, "messages")
    if (settings.identity == "record") != (records is not None):
        raise ConfigError("--identity record needs --records FILE, and --records FILE needs --identity record")
    hasher = make_hasher(settings, _run_id(run))
    holding = load_holding(data, labels, records, data_dir, ImageOptions(size))
    features = holding.split.features
    if settings.identity == "embedding" and isinstance(features, Images):
        raise ConfigError("--identity embedding is for sparse features: use --identity content for pictures")
    instance = InstanceIdentity(settings, SharedEncoder(EncoderSettings(), seed))
    canonical, kind = instance.canonical(features, holding.records), instance.name(features)
    sent = make_messages(hasher, kind, client_name, canonical, holding.split.labels, holding.names)
    sent.save(out)
    console = Console(highlight=False, soft_wrap=True)
    if run is None:
        console.print("note: without --run ID the server can link these digests to other collections with", end=" ")
        console.print("the same key; agree on a run id with the other parties")
    if empty := len(holding.names) - len(sent.pseudonyms):
        console.print(f"note: {empty:,} labels without an instance are left out")
    if all(name.isdigit() for name in holding.names):
        console.print(
            "note: these labels have numbers, no names; all parties must number them alike (or use labels.txt)"
        )
    console.print(
        f"{out}: {len(sent):,} messages of client {sent.client}, {len(sent.pseudonyms):,} labels, "
        f"{out.stat().st_size:,} bytes, {sent.protocol.algorithm}"
        + (f", key check {sent.protocol.key_check}" if sent.protocol.key_check else "; NO KEY: the server can guess")
        + (f", run {sent.protocol.run}" if sent.protocol.run else "")
    )


@collect_app.command()
def server(
    files: Annotated[list[Path], typer.Argument(help="the clients' message files, in any order")],
    out: Annotated[Path, typer.Option(help="output file, for fedalc train --correlations")] = Path("correlations"),
    max_labels: Annotated[int, typer.Option(min=1, help="leave out instances with more labels")] = 1000,
    shared_labels: Annotated[
        bool, typer.Option("--shared-labels", help="allow several clients to hold one label (default: leave it out)")
    ] = False,
    max_labels_per_party: Annotated[
        int, typer.Option(min=1, help="refuse a party that claims more labels")
    ] = MOST_LABELS_PER_PARTY,
    strict: Annotated[bool, typer.Option("--strict", help="write nothing if anything is refused")] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="differential privacy: add noise to the counts for this ε")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="with --epsilon: δ (default: 1e-5)")] = None,
    labels_per_instance: Annotated[
        int | None, typer.Option(min=1, help="with --epsilon: count at most this many labels per instance (default: 3)")
    ] = None,
    epsilon_budget: EpsilonBudget = None,
    overwrite: Overwrite = False,
) -> None:
    """Join the clients' messages into counts of labels and label pairs. Needs no key and learns no names."""
    from rich.progress import Progress

    from fedalc.labels.collection.join import join, read_messages
    from fedalc.labels.collection.results import Collected

    _check_out(out, overwrite, "correlations")
    if epsilon is None and not (delta is labels_per_instance is epsilon_budget is None):
        raise ConfigError("--delta, --labels-per-instance and --epsilon-budget need --epsilon")
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("reading", total=len(files))
        messages, notes = read_messages(files, lambda path: bar.advance(task))
    if not messages:
        raise FedalcError("none of the files could be read:\n  " + "\n  ".join(notes))
    joined = join(
        messages,
        max_labels=max_labels,
        shared_labels=shared_labels,
        max_labels_per_client=max_labels_per_party,
        say_counts=epsilon is None,
    )
    notes = [*notes, *joined.notes]
    for note in notes:
        errors.print(f"refused: {note}", style="yellow", markup=False)
    if strict and notes:
        raise FedalcError(f"nothing was written: {len(notes)} refusals with --strict")
    if epsilon is None:
        collected = Collected.from_joined(joined)
    else:
        from fedalc.labels.knowledge import noised
        from fedalc.labels.privacy.accounts import files_account

        account = files_account(joined.protocol, joined.label_sets, epsilon_budget)
        collected = noised(joined, epsilon, 1e-5 if delta is None else delta, labels_per_instance or 3, account)
    collected.save(out)
    counts = collected.correlations
    Console(highlight=False, soft_wrap=True).print(
        f"{out}: {counts.instances:,} instances, {counts.label_count:,} labels, {counts.together.nnz // 2:,} pairs of "
        f"labels that occur together" + (f": noised, ε = {epsilon:g}" if epsilon is not None else "")
    )
    if epsilon is not None:
        least = collected.facts["privacy"]["label_threshold"]
        errors.print(
            f"note: the file has the labels with a noised count of at least {least}; to train with other labels too: "
            "--set collection.missing_labels=allow",
            markup=False,
        )


def audit(
    candidates: Annotated[
        str, typer.Argument(help="the instances that the server suspects: a file, a folder or a dataset's name")
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(help="message files to attack (default: make some with every algorithm)")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="attack with this key, as if a client had leaked it")
    ] = None,
    size: Annotated[
        int,
        typer.Option(min=SMALLEST_SIDE, max=LARGEST_SIDE, help="pictures: side in pixels at which they were hashed"),
    ] = 96,
    data_dir: DataDir = None,
) -> None:
    """Attack the collection as a curious server: guess instances and label names, and list what the join reveals."""
    from fedalc.data import ImageOptions
    from fedalc.data.load import load_held
    from fedalc.labels.collection import audit as attacks
    from fedalc.report.plain_tables import PlainColumn, plain_table

    split, names = load_held(candidates, data_dir, ImageOptions(size))
    console = Console(highlight=False, soft_wrap=True)
    if files:
        attempts, notes = attacks.attack_files(files, split, names, key)
        for note in notes:
            console.print(f"refused: {note}", markup=False)
    elif key is not None:
        raise ConfigError("--key needs message files; without files the audit also tries a stolen key of its own")
    else:
        attempts = attacks.attack_every_mode(split, names)
    totals = attempts[0].found
    columns = [
        PlainColumn("messages", [attempt.messages for attempt in attempts], wraps=True),
        PlainColumn("the server has", [attempt.weapon for attempt in attempts], wraps=True),
        PlainColumn("instances", [f"{attempt.found.instances:,}" for attempt in attempts], right=True),
        PlainColumn("names", [f"{attempt.found.labels:,}" for attempt in attempts], right=True),
        PlainColumn("names by frequency", [f"{attempt.by_frequency:,}" for attempt in attempts], True, leave_out=1),
    ]
    console.print(f"Found of {totals.of_instances:,} instances and {totals.of_labels:,} label names:")
    console.print(plain_table(columns, console.width))
    for line in attacks.describe(attempts[0].learnt):
        console.print(line)


def _settings(algorithm: str, digest_bytes: int, identity: str, quantum: float, key: Path | None) -> CollectionSettings:
    from fedalc.labels.collection.identity import collection_settings

    try:
        return collection_settings(algorithm, digest_bytes, identity, key, quantum)
    except ConfigError as error:
        raise ConfigError(f"--{error}") from None


def _run_id(run: str | None) -> str:
    from fedalc.labels.collection.keys import check_run_id

    if run is not None:
        check_run_id(run)
    return run or ""


def _check_out(out: Path, overwrite: bool, kind: str) -> None:
    """Refuse to overwrite any file, except an earlier output of this kind with --overwrite."""
    if not out.exists():
        return
    with out.open("rb") as file:
        same_kind = file.read(64).startswith(f"fedalc-{kind} ".encode())
    if not same_kind:
        raise FedalcError(f"{out}: already exists and is not a {kind} file; name another --out")
    if not overwrite:
        raise FedalcError(f"{out}: already exists; replace it with --overwrite, or name another --out")
