"""`fedalc verify`: accept or refuse claimed identities of records in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedalc.data.formats import file_format
from fedalc.data.formats.table import TableFormat
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.tables.cells import as_text
from fedalc.errors import ConfigError, DataError
from fedalc.models.verification import Verdicts
from fedalc.workflows.load_model import light_model
from fedalc.workflows.new_instances import STANDARD_INPUT, read_records, table_of


def verify_file(
    run: Path,
    file: str,
    *,
    claim: str | None = None,
    claims: str | None = None,
    far: float | None = None,
    genuine: float | None = None,
    columns: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Verdicts:
    """Return the verdicts on the records of a file, or of standard input (`-`).

    `claim`: the name that all records claim. `claims`: a column of the file with a name for each record, or a file with
    a name in each line.
    """
    if (claim is None) == (claims is None):
        raise ConfigError("give --claim NAME, or --claims COLUMN or FILE; one of them", "--claim")
    model = light_model(run, file, device)
    model.trials()  # before reading the file
    table = table_of(run, columns)
    names = claim if claims is None else _claims(claims, file, table)
    return model.verify(read_records(model, file, table), names if names is not None else "", far=far, genuine=genuine)


def _claims(claims: str, file: str, table: TableSettings) -> list[str]:
    """Return the claimed name of each record."""
    if Path(claims).is_file():
        return [line.strip() for line in Path(claims).read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if file == STANDARD_INPUT:
        raise ConfigError("no such file; a column cannot be read from standard input", "--claims")
    data_format = file_format(Path(file))
    if not isinstance(data_format, TableFormat):
        raise DataError(f"has no columns, and there is no file {claims!r:.60} of claims", Path(file))
    source = data_format.source(Path(file), table)
    if claims not in source.columns:
        known = ", ".join(map(str, source.columns[:12]))
        raise DataError(
            f"has no column {claims!r:.60} (and there is no such file); its columns are {known}", Path(file)
        )
    return [as_text(cell).strip() for block in source.blocks((claims,)) for cell in block.cells[claims]]


def as_json_lines(verdicts: Verdicts) -> str:
    lines = (
        {"record": at, "claim": one.claim, "accepted": one.accepted, "score": one.score, "threshold": one.threshold}
        for at, one in enumerate(verdicts)
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def show(verdicts: Verdicts, console: Console) -> None:
    """Print a table of verdicts, and how many were accepted."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("record", "claim", "verdict", "score", "threshold"):
        table.add_column(heading, justify="right" if heading in ("record", "score", "threshold") else "left")
    for at, one in enumerate(verdicts):
        said = Text("accepted", style="green") if one.accepted else Text("refused", style="red")
        table.add_row(str(at), Text(one.claim), said, f"{one.score:.4g}", f"{one.threshold:.4g}")
    console.print(table)
    if len(verdicts) > 1:
        accepted = int(verdicts.accepted.sum())
        console.print(f"{accepted} of {len(verdicts)} claims accepted, at {verdicts.rule}", highlight=False)
