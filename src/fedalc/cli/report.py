"""`fedalc report`: write the report page of a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedalc.cli.options import DataDir


def report(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    data_dir: DataDir = None,
) -> None:
    """Write report.html of a finished run again, and its contact sheet if it is missing."""
    from fedalc.workflows.train import write_report

    typer.echo(write_report(run, data_dir))
