"""`fedalc key …`, `fedalc collect …`, `fedalc audit`: the collection of label sets with files, and a look at what it
tells the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

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
    help="The key the clients share and the server never has: new, labels, name-model.", rich_markup_mode="rich"
)
collect_app = typer.Typer(
    help="Collect label sets with files: client, server.", no_args_is_help=True, rich_markup_mode="rich"
)

KeyFile = Annotated[Path | None, typer.Option("--key", help="the clients' key file (make one: fedalc key new FILE)")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an earlier output of this kind")]
RunId = Annotated[
    str | None,
    typer.Option("--run", help="the run id, the same for all parties: digests and pseudonyms are of this run alone"),
]
AlgorithmOption = Annotated[str, typer.Option("--algorithm", help=", ".join(get_args(Algorithm)))]


@key_app.callback(no_args_is_help=True)
def _key() -> None: ...


@key_app.command("new")
def new_key(file: Annotated[Path, typer.Argument(help="where it goes; never overwritten")]) -> None:
    """A new key from the system's randomness, readable by you alone. Give it to the other clients, not the server."""
    from fedalc.labels.collection.keys import Key

    key = Key.fresh()
    key.write(file)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{file}: a new key, with check value {key.check} (the same for all who have this key)")


@key_app.command("labels")
def key_labels(
    key: Annotated[Path, typer.Argument(help="the clients' key file")],
    names: Annotated[Path, typer.Argument(help="the labels' names, one per line")],
    algorithm: AlgorithmOption = "hmac-sha256",
    run: RunId = None,
) -> None:
    """The labels' pseudonyms, as the server knows them, in the same order: a labels.txt for data at the server."""
    from fedalc.labels.collection.identity import make_hasher
    from fedalc.labels.collection.pseudonyms import pseudonyms, read_names

    known = read_names(names)
    hasher = make_hasher(_settings(algorithm, 16, "content", 0.0, key), _run_id(run))
    for pseudonym in pseudonyms(hasher, known):
        typer.echo(pseudonym)


@key_app.command("name-model")
def name_model(
    run: Annotated[Path, typer.Argument(help="a run's folder, or its model's, whose labels are pseudonyms")],
    key: Annotated[Path, typer.Argument(help="the clients' key file")],
    names: Annotated[Path, typer.Argument(help="the labels' names, one per line; those the model lacks do no harm")],
    out: Annotated[Path, typer.Option(help="where the model goes: for fedalc predict")] = Path("model"),
    algorithm: AlgorithmOption = "hmac-sha256",
    run_id: Annotated[
        str | None,
        typer.Option("--run", help="the run id (default: what the run folder says, if it is a deployed run's)"),
    ] = None,
) -> None:
    """A model from a server that never knew the labels, with their names."""
    from fedalc.labels.collection.identity import make_hasher
    from fedalc.labels.collection.pseudonyms import named, read_names, run_id_of
    from fedalc.models.trained import TrainedModel

    if out.exists():
        raise FedalcError(f"{out}: is there already; name another --out")
    model = TrainedModel.load(run / "model" if (run / "model").is_dir() else run)
    wanted = _run_id(run_id) or run_id_of(run)
    hasher = make_hasher(_settings(algorithm, 16, "content", 0.0, key), wanted)
    model, found = named(model, hasher, read_names(names))
    model.save(out)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{out}: {found} of {len(model.label_names)} labels were given names")


@collect_app.command()
def client(
    data: Annotated[str, typer.Argument(help="what this party holds: a file, a folder with a train file, or a name")],
    key: KeyFile = None,
    out: Annotated[Path, typer.Option(help="the message file to send to the server")] = Path("messages.fedalc"),
    labels: Annotated[
        str | None, typer.Option(help="this party's labels, by name, comma-separated (default: those in its data)")
    ] = None,
    client_name: Annotated[
        str | None, typer.Option("--client", help="what the server may call this party (default: a random name)")
    ] = None,
    identity: Annotated[
        str, typer.Option(help="what makes two instances the same: content, record (with --records), embedding")
    ] = "content",
    records: Annotated[Path | None, typer.Option(help="the instances' record names, one per line")] = None,
    algorithm: AlgorithmOption = "hmac-sha256",
    digest_bytes: Annotated[int, typer.Option(help="length of a digest, 8 to 64")] = 16,
    quantum: Annotated[float, typer.Option(help="embedding: round to multiples of it; 0: raw, as in the paper")] = 1e-3,
    seed: Annotated[int, typer.Option(help="embedding: of the encoder all clients start from")] = 0,
    size: Annotated[
        int,
        typer.Option(
            min=SMALLEST_SIDE,
            max=LARGEST_SIDE,
            help="pictures: the pixels of a side at which they are hashed, for all parties alike",
        ),
    ] = 96,
    run: RunId = None,
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
) -> None:
    """Hash what this party holds under the key, into a file for the server."""
    from fedalc.data import ImageOptions, Images
    from fedalc.labels.collection.holding import load_holding
    from fedalc.labels.collection.identity import Identity as InstanceIdentity
    from fedalc.labels.collection.identity import SharedEncoder, make_hasher
    from fedalc.labels.collection.messages import make_messages

    settings = _settings(algorithm, digest_bytes, identity, quantum, key)
    _check_out(out, overwrite, "messages")
    if (settings.identity == "record") != (records is not None):
        raise ConfigError("--identity record and --records FILE belong together")
    hasher = make_hasher(settings, _run_id(run))
    holding = load_holding(data, labels, records, data_dir, ImageOptions(size))
    features = holding.split.features
    if settings.identity == "embedding" and isinstance(features, Images):
        raise ConfigError("--identity embedding is for sparse features: pictures are told by --identity content")
    instance = InstanceIdentity(settings, SharedEncoder(EncoderSettings(), seed))
    canonical, kind = instance.canonical(features, holding.records), instance.name(features)
    sent = make_messages(hasher, kind, client_name, canonical, holding.split.labels, holding.names)
    sent.save(out)
    console = Console(highlight=False, soft_wrap=True)
    if run is None:
        console.print("note: without --run ID the server can link these digests to those of other collections", end=" ")
        console.print("under the same key; agree on a run id with the other parties")
    if empty := len(holding.names) - len(sent.pseudonyms):
        console.print(f"note: {empty:,} labels without an instance are not claimed")
    if all(name.isdigit() for name in holding.names):
        console.print("note: labels are called by number here; others must number them alike (names: labels.txt)")
    console.print(
        f"{out}: {len(sent):,} messages of client {sent.client}, {len(sent.pseudonyms):,} labels, "
        f"{out.stat().st_size:,} bytes, {sent.protocol.algorithm}"
        + (f", key check {sent.protocol.key_check}" if sent.protocol.key_check else "; NO KEY: open to guessing")
        + (f", run {sent.protocol.run}" if sent.protocol.run else "")
    )


@collect_app.command()
def server(
    files: Annotated[list[Path], typer.Argument(help="the clients' message files, in any order")],
    out: Annotated[Path, typer.Option(help="the correlations: for fedalc train --correlations")] = Path("correlations"),
    max_labels: Annotated[int, typer.Option(min=1, help="an instance with more labels is left out")] = 1000,
    shared_labels: Annotated[
        bool, typer.Option("--shared-labels", help="several clients may hold one label (default: contested, refused)")
    ] = False,
    max_labels_per_party: Annotated[
        int, typer.Option(min=1, help="a party that claims more labels is refused")
    ] = MOST_LABELS_PER_PARTY,
    strict: Annotated[bool, typer.Option("--strict", help="refuse everything when anything is refused")] = False,
    epsilon: Annotated[float | None, typer.Option(help="differential privacy: noise the counts, at this ε")] = None,
    delta: Annotated[float | None, typer.Option(help="… and this δ (default: 1e-5)")] = None,
    labels_per_instance: Annotated[
        int | None, typer.Option(min=1, help="… an instance counts with this many labels (default: 3)")
    ] = None,
    epsilon_budget: EpsilonBudget = None,
    overwrite: Overwrite = False,
) -> None:
    """Join the clients' messages into counts of labels and of pairs of labels. Needs no key and learns no name."""
    from rich.progress import Progress

    from fedalc.labels.collection.join import join, read_messages
    from fedalc.labels.collection.results import Collected

    _check_out(out, overwrite, "correlations")
    if epsilon is None and not (delta is labels_per_instance is epsilon_budget is None):
        raise ConfigError(
            "--delta, --labels-per-instance and --epsilon-budget are for noised counts: give --epsilon too"
        )
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
        raise FedalcError(f"{len(notes)} refusals, and --strict: nothing was written")
    if epsilon is None:
        collected = Collected.from_joined(joined)
    else:
        from fedalc.labels.knowledge import noised
        from fedalc.labels.privacy.accounts import files_account

        account = files_account(joined.protocol, joined.label_sets, epsilon_budget)
        collected = noised(joined, epsilon, 1e-5 if delta is None else delta, labels_per_instance or 3, account)
    collected.save(out)
    known = collected.correlations
    Console(highlight=False, soft_wrap=True).print(
        f"{out}: {known.instances:,} instances, {known.label_count:,} labels, {known.together.nnz // 2:,} pairs of "
        f"labels that occur together" + (f": noised, ε = {epsilon:g}" if epsilon is not None else "")
    )
    if epsilon is not None:
        least = collected.facts["privacy"]["label_threshold"]
        errors.print(
            f"note: labels are in the file if their noised count is at least {least}; for a training that has others "
            "too: --set collection.missing_labels=allow",
            markup=False,
        )


def audit(
    candidates: Annotated[str, typer.Argument(help="instances the server suspects: a file, folder or dataset's name")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="message files to attack (default: made here, in every mode)")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="a client has passed its key on to the server")] = None,
    size: Annotated[
        int, typer.Option(min=SMALLEST_SIDE, max=LARGEST_SIDE, help="pictures: the size at which they were hashed")
    ] = 96,
    data_dir: DataDir = None,
) -> None:
    """Play the curious server: guess instances and label names, and list what the join tells in any case."""
    import fedalc.labels.collection.audit as play
    from fedalc.data import ImageOptions
    from fedalc.data.load import load_held

    split, names = load_held(candidates, data_dir, ImageOptions(size))
    console = Console(highlight=False, soft_wrap=True)
    if files:
        rounds, notes = play.attack_files(files, split, names, key)
        for note in notes:
            console.print(f"refused: {note}", markup=False)
    elif key is not None:
        raise ConfigError("--key: is for message files; without any, every mode is tried, with a stolen key too")
    else:
        rounds = play.attack_every_mode(split, names)
    totals = rounds[0].found
    table = Table("messages", "the server has", "instances", "names", "names by frequency")
    for attempt in rounds:
        found = attempt.found
        numbers = (found.instances, found.labels, attempt.by_frequency)
        table.add_row(attempt.messages, attempt.weapon, *(f"{number:,}" for number in numbers))
    console.print(f"Found of {totals.of_instances:,} instances and {totals.of_labels:,} label names:")
    console.print(table)
    for line in play.describe(rounds[0].learnt):
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
    """Never write over data, a key or another kind of file; over an earlier output only when asked to."""
    if not out.exists():
        return
    with out.open("rb") as file:
        earlier = file.read(64).startswith(f"fedalc-{kind} ".encode())
    if not earlier:
        raise FedalcError(f"{out}: is there already, and is not a file of {kind}; name another --out")
    if not overwrite:
        raise FedalcError(f"{out}: is there already; replace it with --overwrite, or name another --out")
