"""`fedalc verify`, `fedalc enrol` and `fedalc unenrol`: claimed identities, and who is enrolled."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedalc.cli.options import ColumnOptions, with_options

RunFolder = Annotated[Path, typer.Argument(help="folder of a finished run of task verification")]
OutFolder = Annotated[
    Path | None, typer.Option(help="write the new model to this folder (default: replace that of the run)")
]
REFUSED = 1  # the exit code


@with_options
def verify(
    run: RunFolder,
    file: Annotated[str, typer.Argument(help="records in a data format that fedalc reads; - for standard input")],
    *,
    columns: ColumnOptions,
    claim: Annotated[str | None, typer.Option(help="the name that all records claim")] = None,
    claims: Annotated[
        str | None, typer.Option(help="a column of the file with the claimed name of each record, or a file of names")
    ] = None,
    far: Annotated[
        float | None, typer.Option(help="share of impostors' claims to accept, of held-out trials (default 0.001)")
    ] = None,
    genuine: Annotated[
        float | None, typer.Option(help="instead: share of genuine claims to refuse, of held-out trials")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object per line")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
) -> None:
    """Accept or refuse the identity that records claim, with score and threshold.

    Exit code: 0 if all claims are accepted, 1 if any is refused, 2 for an error (docs/verification.md).
    """
    from fedalc.workflows.verify import as_json_lines, show, verify_file

    verdicts = verify_file(
        run,
        file,
        claim=claim,
        claims=claims,
        far=far,
        genuine=genuine,
        columns=columns.columns(),
        device=device,
    )
    if verdicts.note is not None:
        Console(stderr=True).print(f"note: {verdicts.note}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(as_json_lines(verdicts))
    else:
        show(verdicts, Console())
    if not verdicts.accepted.all():
        raise typer.Exit(REFUSED)


@with_options
def enrol(
    run: RunFolder,
    name: Annotated[str, typer.Argument(help="the new person's name")],
    file: Annotated[str, typer.Argument(help="the person's records; - for standard input")],
    *,
    columns: ColumnOptions,
    out: OutFolder = None,
) -> None:
    """Enrol a new person in a trained model. Nobody else's row changes."""
    from fedalc.workflows.enrol import enrol_file

    said = enrol_file(run, name, file, out, columns.columns())
    Console().print(said, highlight=False, markup=False, soft_wrap=True)


def unenrol(
    run: RunFolder,
    name: Annotated[str, typer.Argument(help="the person's name")],
    out: OutFolder = None,
) -> None:
    """Remove a person from a trained model: row, name and counts of scores."""
    from fedalc.workflows.enrol import unenrol_run

    Console().print(unenrol_run(run, name, out), highlight=False, markup=False, soft_wrap=True)
