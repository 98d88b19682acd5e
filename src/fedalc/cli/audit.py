"""`fedalc audit`: play the curious server on one's own data, and print what it finds out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedalc.cli.options import DataDir
from fedalc.core.picture_sides import LARGEST_SIDE, SMALLEST_SIDE
from fedalc.errors import ConfigError, FedalcError

if TYPE_CHECKING:
    from fedalc.audit.inversion import Inversion
    from fedalc.data.dataset import Split
    from fedalc.labels.collection.audit import Attempt

BUCKETS = 4096  # features of texts
PARTS = ("collection", "inversion", "membership")


def audit(
    candidates: Annotated[
        str,
        typer.Argument(
            help="your data, or the instances the server suspects: a file (texts are hashed), a folder or a dataset"
        ),
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(help="message files to attack (default: make some with every algorithm)")
    ] = None,
    what: Annotated[
        str | None,
        typer.Option(help=f"parts, comma-separated: {', '.join(PARTS)} (default: all; with files: collection)"),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="attack with this key, as if a client had leaked it")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="membership: also attack this run, trained on the train part of the data")
    ] = None,
    parties: Annotated[int, typer.Option(min=2, help="inversion: deal the labels to this many parties")] = 5,
    fewest: Annotated[int, typer.Option(min=1, help="inversion: the parties' own --fewest")] = 8,
    records: Annotated[int, typer.Option(min=20, help="membership: use at most this many records")] = 4000,
    seed: Annotated[int, typer.Option(help="seed of what is drawn: labels, parties, halves of the records")] = 0,
    out: Annotated[Path | None, typer.Option("--json", help="also write all figures to this file, as JSON")] = None,
    size: Annotated[
        int,
        typer.Option(min=SMALLEST_SIDE, max=LARGEST_SIDE, help="pictures: side in pixels at which they were hashed"),
    ] = 96,
    data_dir: DataDir = None,
) -> None:
    """Attack as a curious server: guess what was collected, reconstruct records from the answers of a deployment's
    parties, with and without secure sums, and tell which records a model was trained on."""
    from fedalc.data import ImageOptions, Images
    from fedalc.data.load import load_held
    from fedalc.data.text.settings import TextSettings

    parts = _parts(what, bool(files))
    if model is not None and "membership" not in parts:
        raise ConfigError("--model needs the part membership")
    if key is not None and not files:
        raise ConfigError("--key needs message files; without files the audit also tries a stolen key of its own")
    hashed = TextSettings(kind="hashing", buckets=BUCKETS, idf=False)  # as parties without a common vocabulary do
    split, names = load_held(candidates, data_dir, ImageOptions(size), hashed)
    console = Console(highlight=False, soft_wrap=True)
    if isinstance(split.features, Images) and (left := [part for part in parts if part != "collection"]):
        if what is not None:
            raise ConfigError(f"{', '.join(left)}: for rows of features, not for pictures", "--what")
        console.print(f"note: {', '.join(left)} left out: for rows of features, not for pictures")
        parts = ("collection",)
    figures: dict[str, Any] = {"data": candidates}
    if "collection" in parts:
        figures["collection"] = _collection(console, split, names, files, key)
    advice: list[str] = []
    if "inversion" in parts:
        with _asked(what, console, "inversion"):
            figures["inversion"] = _inversion(console, split, names, parties, fewest, seed, advice)
    if "membership" in parts:
        with _asked(what, console, "membership"):
            figures["membership"] = _membership(console, split, candidates, data_dir, model, records, seed, advice)
    if advice:
        console.print("\nWhat to do")
        for paragraph in advice:
            console.print(fill(f"- {paragraph}", 80, subsequent_indent="  "), markup=False)
    if out is not None:
        from fedalc.core.atomic_files import whole_file

        with whole_file(out) as stream:
            stream.write(json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _parts(what: str | None, has_files: bool) -> tuple[str, ...]:
    if what is None:
        return PARTS[:1] if has_files else PARTS
    chosen = [part.strip() for part in what.split(",") if part.strip()]
    for part in chosen:
        if part not in PARTS:
            raise ConfigError(f"unknown part {part!r}; there are {', '.join(PARTS)}", "--what")
    if not chosen:
        raise ConfigError(f"name at least one part: {', '.join(PARTS)}", "--what")
    if has_files and "collection" not in chosen:
        raise ConfigError("message files are for the part collection", "--what")
    return tuple(chosen)


@contextmanager
def _asked(what: str | None, console: Console, part: str) -> Iterator[None]:
    """Show the part's progress. If the user did not ask for the part, data that it cannot use is no error."""
    from rich.progress import Progress, TaskID

    from fedalc.core.progress_events import watching

    errors = Console(stderr=True, highlight=False)
    tasks: dict[str, TaskID] = {}
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done, total=total, visible=done < total)

        try:
            with watching(show):
                yield
        except FedalcError as error:
            if what is not None:
                raise
            console.print(f"\nnote: {part} left out: {error}", markup=False)


def _collection(
    console: Console, split: Split, names: tuple[str, ...], files: list[Path] | None, key: Path | None
) -> list[dict[str, Any]]:
    from fedalc.labels.collection import audit as attacks
    from fedalc.report.plain_tables import PlainColumn, plain_table

    attempts: list[Attempt]
    if files:
        attempts, notes = attacks.attack_files(files, split, names, key)
        for note in notes:
            console.print(f"refused: {note}", markup=False)
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
    if not files:
        _attack_sums(console, split, names)
    return [asdict(attempt) for attempt in attempts]


def _attack_sums(console: Console, split: Split, names: tuple[str, ...]) -> None:
    from fedalc.labels.collection.sums_attack import attack_sums
    from fedalc.report.plain_tables import PlainColumn, plain_table

    console.print("\nFound with --collection sums (instances: of how many it can tell whether they were collected):")
    attempts = list(attack_sums(split, names))
    columns = [
        PlainColumn("attacker sees", [attempt.seen for attempt in attempts], wraps=True),
        PlainColumn("and has", [attempt.weapon for attempt in attempts], wraps=True),
        PlainColumn("label sets", [attempt.label_sets for attempt in attempts], right=True),
        PlainColumn("instances", [attempt.instances for attempt in attempts], right=True),
    ]
    console.print(plain_table(columns, console.width))


def _inversion(
    console: Console,
    split: Split,
    names: tuple[str, ...],
    parties: int,
    fewest: int,
    seed: int,
    advice: list[str],
) -> dict[str, Any]:
    from fedalc.audit import inversion
    from fedalc.audit.advice import about_inversion
    from fedalc.cli.audit_tables import inversion_table

    found = inversion.invert(split, names, parties=parties, fewest=fewest, seed=seed)
    console.print("\nRecords that the server of a deployment reconstructs from the parties' answers")
    for size in dict.fromkeys(row.size for row in found.rows):
        console.print(_sizes(found, size), markup=False)
        console.print(inversion_table(found, size, fewest, console.width))
    each = max(1, round(found.labels / found.parties))
    console.print("\nThe mean cosine of true records with the server's guesses, and how many it found")
    console.print("(0.99 or more). Chance: it guesses the mean record, or others of the data.")
    console.print("Who answers:")
    console.print("  alone      a party with this label only, without any rule")
    console.print(f"  fewest {fewest:<3} the same, with the party's own rule (deploy party --fewest)")
    console.print(f"  party      one of {found.parties} parties, with about {each} labels, as the server sees it")
    console.print("  sum        all parties together: what secure sums leave")
    console.print("What the server asks for:")
    for question in inversion.QUESTIONS:
        console.print(f"  {question.name:19} {question.explained}", markup=False)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    advice += about_inversion(found, split, fewest)
    return found.to_dict()


def _sizes(found: Inversion, size: int) -> str:
    targets = [target for target in found.targets if len(target.records) == size]
    cut = sum(target.had > size for target in targets)
    plural = "record" if size == 1 else "records"
    text = f"\n{len(targets)} label{'' if len(targets) == 1 else 's'} with {size} {plural}"
    return text + (f" ({cut} of them cut down to {size}: no other label has so few)" if cut else "")


def _membership(
    console: Console,
    split: Split,
    candidates: str,
    data_dir: Path | None,
    run: Path | None,
    records: int,
    seed: int,
    advice: list[str],
) -> dict[str, Any]:
    from fedalc.audit.advice import about_membership
    from fedalc.audit.membership import infer_membership
    from fedalc.cli.audit_tables import membership_table

    if run is not None and not run.is_dir():
        raise FedalcError(f"{run}: no such run folder")
    found = infer_membership(split, most=records, seed=seed)
    figures = found.to_dict()
    rows = [*found.rows]
    if run is not None:
        from fedalc.audit.membership import attack_model
        from fedalc.data import load_dataset
        from fedalc.models.trained import TrainedModel

        attacked = attack_model(str(run), TrainedModel.load(run / "model"), load_dataset(candidates, data_dir))
        rows.append(attacked)
        figures["run"] = asdict(attacked)
    console.print("\nWhich records a model was trained on: what someone who has it can tell")
    console.print(membership_table(rows, console.width))
    console.print(f"\nEach model was trained on half of {found.records:,} records, and attacked with all of them.")
    if found.of_records > found.records:
        console.print(f"(There are {found.of_records:,} in all; --records sets how many are used.)")
    console.print("AUC with its 95 % interval (0.5 is chance), and the part of the members that is")
    console.print("found if 1 % or 0.1 % of the other records may be taken for members. Attacks:")
    console.print("  own scores        the scores of the record's own labels")
    console.print(f"  likelihood ratio  these, beside {found.shadows} shadow models, half of them trained with it")
    if run is not None:
        console.print(f"  {run}: its training records against the test records", markup=False)
    advice += about_membership(found)
    return figures
