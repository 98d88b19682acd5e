"""`fedalc report`: write the report pages of finished runs again, and compare any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedalc.cli.options import DataDir
from fedalc.errors import FedalcError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of finished runs, of comparisons or of sweeps")
    ],
    out: Annotated[
        Path | None, typer.Option(help="compare these runs: write table, curves and page into this folder")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write the pages of finished runs again (and contact sheets that are missing), or compare runs with --out."""
    from fedalc.workflows.reports import compare_runs, write_reports

    if out is None:
        for page in write_reports(runs, data_dir):
            typer.echo(page)
        return
    if out in runs:
        raise FedalcError(f"--out {out}: is one of the runs; give another folder")
    from fedalc.report.tables import rich_table

    comparison = compare_runs(runs, out)
    Console().print(rich_table([dict(result) for result in comparison.results]))
    typer.echo(out / "report.html")
