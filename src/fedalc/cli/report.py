"""`fedalc report`: the page of a finished run, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedalc.cli.options import DataDir


def report(
    run: Annotated[Path, typer.Argument(help="a finished run's folder")],
    data_dir: DataDir = None,
) -> None:
    """Make report.html of a finished run again, and its contact sheet if that is missing."""
    from fedalc.workflows.train import write_report

    typer.echo(write_report(run, data_dir))
