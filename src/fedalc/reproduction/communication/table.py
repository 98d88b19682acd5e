"""The communication table: bytes of the real payload beside the paper's figures, and how the paper counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedalc.config.resolve import experiment
from fedalc.config.schema import Settings
from fedalc.core.atomic_files import write_text
from fedalc.core.registry import METHODS
from fedalc.errors import ConfigError
from fedalc.report.tables import human_bytes
from fedalc.reproduction import markdown as md
from fedalc.reproduction.communication.cells import PAPER_MODEL, ImageCell, TextRows
from fedalc.reproduction.communication.measured import Round, measured_round
from fedalc.reproduction.communication.traffic import Traffic
from fedalc.reproduction.table_spec import FILE
from fedalc.reproduction.toml_files import read_toml, validated

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Line:
    """One line of a table of bytes."""

    dataset: str
    method: str
    traffic: Traffic
    preset: str = ""

    @property
    def total(self) -> int:
        """Return the bytes that one client sends and receives in a whole training."""
        each = self.traffic.each(self.traffic.training)
        return each.down + each.up

    def facts(self) -> dict[str, Any]:
        t = self.traffic
        named = {"dataset": self.dataset, "method": self.method, "preset": self.preset}
        per_client = {part: asdict(t.each(getattr(t, part))) for part in ("once", "round", "training")}
        counts = {"clients": t.clients, "rounds": t.rounds}
        return named | counts | {"per_client": per_client, "all_clients": asdict(t.training)}

    def cells(self) -> list[str]:
        t = self.traffic
        ledgers = (t.each(t.round), t.each(t.once), t.each(t.training), t.training)
        numbers = [human_bytes(n) for ledger in ledgers for n in (ledger.down, ledger.up)]
        return [self.dataset, self.method, str(t.rounds), *numbers]


@dataclass(frozen=True)
class RoundLine:
    """A round that was run, and the cells with this payload: same sizes, and rows sent in every round or not."""

    cells: tuple[ImageCell, ...]
    norm: str
    round: Round

    def facts(self) -> dict[str, Any]:
        of = [{"dataset": cell.dataset, "method": cell.method} for cell in self.cells]
        return {"cells": of, "norm": self.norm, "agrees": self.round.agrees} | asdict(self.round)

    def row(self) -> list[str]:
        first, packed = self.cells[0], self.round.packed
        named = [", ".join(dict.fromkeys(getattr(cell, key) for cell in self.cells)) for key in ("dataset", "method")]
        ledgers = (self.round.counted, packed)
        sizes = ["–" if x is None else f"{n:,}" for x in ledgers for n in ((x.down, x.up) if x else (None, None))]
        paper = [f"{PAPER_MODEL} + {_figure(part)}" for part in first.paper_embeddings()]
        return [*named, self.norm, f"{self.round.parameters:,}", *sizes, *(paper if first.rows_travel else ["23"] * 2)]


ROUND_HEADINGS = (
    "dataset", "method", "norm", "θ, numbers", "down", "up", "packed, down", "packed, up",
    'paper\'s "MB", server', 'paper\'s "MB", client',
)  # fmt: skip
LINE_HEADINGS = (
    "dataset", "method", "rounds", "a round, down", "a round, up", "once, down", "once, up",
    "training, down", "training, up", "all clients, down", "all clients, up",
)  # fmt: skip
NAMES = ("dataset", "method", "norm", "")  # text columns
PAPER_HEADINGS = ("dataset", "method", "server", "as counted", "client", "as counted", "")


class Heading(Settings):
    """The contents of table.toml."""

    kind: str
    title: str
    paper: str
    datasets: tuple[str, ...]
    slips: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Communication:
    """The folder's files, and the table's lines computed from them."""

    heading: Heading
    cells: tuple[ImageCell, ...]
    images: tuple[Line, ...]
    texts: tuple[Line, ...]
    rounds: tuple[RoundLine, ...] = ()  # empty until `measured` runs them

    @property
    def presets(self) -> list[str]:
        return list(dict.fromkeys(line.preset for line in self.texts))


def read_communication(folder: Path) -> Communication:
    """Read `table.toml` and the files beside it: one per cell of the paper's table, one per text dataset."""
    files = {path: read_toml(path, Decimal) for path in sorted(folder.glob("*.toml")) if path.name != FILE}
    heading = validated(Heading, read_toml(folder / FILE), folder / FILE)
    cells = [validated(ImageCell, values, path) for path, values in files.items() if "published" in values]
    texts = [validated(TextRows, values, path) for path, values in files.items() if "published" not in values]
    for name in [*(cell.dataset for cell in cells), *(rows.dataset for rows in texts)]:
        if name not in heading.datasets:
            raise ConfigError(f"{folder / FILE}: {name} is missing", "datasets")
    place = heading.datasets.index
    cells.sort(key=lambda cell: (place(cell.dataset), list(METHODS).index(cell.method)))
    texts.sort(key=lambda rows: place(rows.dataset))
    return Communication(
        heading,
        tuple(cells),
        tuple(Line(cell.dataset, cell.method, cell.traffic()) for cell in cells),
        tuple(
            Line(rows.dataset, method, rows.traffic(experiment({"method": method, "preset": name})), name)
            for rows in texts
            for name in rows.presets
            for method in METHODS
            if not METHODS[method].sums_by_cluster  # their bytes depend on the data
        ),
    )


def measured(table: Communication) -> Communication:
    """Run one real round for each kind of cell, and take the image datasets' bytes from it.

    The paper's network, with batch normalisation, runs once too: its statistics are sent with θ.
    """
    kinds: dict[tuple[bool, int, int], list[ImageCell]] = {}
    for cell in table.cells:
        kinds.setdefault(cell.payload, []).append(cell)
    of_both_norms = min(kinds, key=lambda payload: (not payload[0], payload[1:]))  # the smallest that sends rows
    rounds, counted = [], {}
    for payload, cells in kinds.items():
        for norm in ("batch", "group") if payload == of_both_norms else ("group",):
            found = measured_round(cells[-1].settings(norm), cells[-1].labels)
            rounds.append(RoundLine(tuple(cells), norm, found))
        counted[payload] = found.counted
    images = [
        replace(line, traffic=line.traffic.with_round(counted[cell.payload]))
        for cell, line in zip(table.cells, table.images, strict=True)
    ]
    return replace(table, images=tuple(images), rounds=tuple(rounds))


def communication(folder: Path, out: Path) -> Communication:
    """Write `table.md`, `table.json` and `bytes.png` into `out`."""
    from fedalc.reproduction.communication.figure import draw_bytes

    table = measured(read_communication(folder))
    write_text(out / "table.md", markdown(table))
    write_text(out / "table.json", json.dumps(facts(table), indent=1) + "\n")
    draw_bytes(table.texts, out / "bytes.png")
    return table


def facts(table: Communication) -> dict[str, Any]:
    paper = [
        {
            "dataset": cell.dataset,
            "method": cell.method,
            "published": cell.published.model_dump(mode="json"),
            "convention": cell.convention().model_dump(mode="json"),
            "met": cell.verdict() == "met",
        }
        for cell in table.cells
    ]
    lines = {
        name: [line.facts() for line in group] for name, group in (("images", table.images), ("text", table.texts))
    }
    said = {"slips": list(table.heading.slips), "notes": list(table.heading.notes)}
    return {"paper": paper, "rounds": [line.facts() for line in table.rounds], **lines, **said}


def markdown(table: Communication) -> str:
    parts = [
        f"# {table.heading.title}",
        "## The paper's table, in its own convention",
        'Published, and counted by its convention ("MB").',
        md.table(PAPER_HEADINGS, paper_rows(table.cells), NAMES),
        "## Slips",
        md.bullets(table.heading.slips),
        "## One round with the real network",
        "Bytes of one client in a round that was run: counted by the engine, and packed in Flower's records.",
        md.table(ROUND_HEADINGS, [line.row() for line in table.rounds], NAMES),
        "## Bytes of the image datasets",
        "Per client, except the columns for all clients. A round is the one counted above.",
        md.table(LINE_HEADINGS, [line.cells() for line in table.images], NAMES),
    ]
    for preset in table.presets:
        lines = [line for line in table.texts if line.preset == preset]
        parts += [
            f"## Text, preset {preset}",
            "Down plus up per client, whole training:",
            md.table(*total_rows(lines), NAMES),
            "Details:",
            md.table(LINE_HEADINGS, [line.cells() for line in lines], NAMES),
        ]
    parts += ["![Bytes per client](bytes.png)", "## What is counted", md.bullets(table.heading.notes)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def paper_rows(cells: Iterable[ImageCell]) -> list[list[str]]:
    rows = []
    for cell in cells:
        ours, theirs = cell.convention(), cell.published
        figures = (theirs.server, ours.server, theirs.client, ours.client)
        rows.append([cell.dataset, cell.method, *(_figure(value) for value in figures), cell.verdict()])
    return rows


def _figure(value: Decimal) -> str:
    return f"{value:f}".removesuffix(".0")


def total_rows(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows (one per method, one column per dataset) of what one client sends and receives."""
    totals = {(line.method, line.dataset): human_bytes(line.total) for line in lines}
    methods, datasets = (list(dict.fromkeys(key[i] for key in totals)) for i in (0, 1))
    return ["method", *datasets], [[method, *(totals[method, name] for name in datasets)] for method in methods]


def rich_tables(table: Communication) -> list[Table]:
    """Return tables for the terminal: the paper's, the rounds that were run, and each preset's bytes on text."""
    tables = [
        _rich("The paper's table: published, and counted by its convention", PAPER_HEADINGS, paper_rows(table.cells)),
        _rich("Bytes of one client in a round that was run", ROUND_HEADINGS, [line.row() for line in table.rounds]),
    ]
    for preset in table.presets:
        headings, rows = total_rows([line for line in table.texts if line.preset == preset])
        tables.append(_rich(f"Bytes per client, up and down, preset {preset}", headings, rows))
    return tables


def _rich(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from fedalc.report.plain_tables import PlainColumn, plain_table

    cells = list(zip(*rows, strict=True)) or [()] * len(headings)
    columns = [
        PlainColumn(heading, column, right=heading not in NAMES, leave_out=max(0, place - 1), wraps=heading in NAMES)
        for place, (heading, column) in enumerate(zip(headings, cells, strict=True))
    ]
    table = plain_table(columns, shutil.get_terminal_size().columns)
    table.title, table.title_justify = title, "left"
    return table
