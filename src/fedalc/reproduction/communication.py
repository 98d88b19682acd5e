"""The communication table: bytes from the real payload, beside the paper's figures and the way they were counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedalc.config import FEDERATED, Count, Experiment, MethodName, PresetName, Settings
from fedalc.data import catalog
from fedalc.errors import ConfigError
from fedalc.files import write_text
from fedalc.methods import METHODS
from fedalc.report.tables import human_bytes
from fedalc.reproduction import markdown as md
from fedalc.reproduction.reading import read_toml, validated
from fedalc.reproduction.tables import FILE
from fedalc.reproduction.traffic import Shape, Traffic, text_traffic, traffic
from fedalc.resolution import experiment

if TYPE_CHECKING:
    from rich.table import Table


class ResNet(Settings):
    """An encoder that is only described, until there is a module to count."""

    backbone: Count  # parameters without the classifier
    features: Count  # what the backbone gives to the linear map
    buffers: Count

    def theta(self, dim: int) -> list[Tensor]:
        shapes: tuple[tuple[int, ...], ...] = ((self.backbone,), (dim, self.features), (dim,))
        return [torch.empty(shape, device="meta") for shape in shapes]


class Published(Settings):
    server: Decimal
    client: Decimal


class ImageCell(Settings):
    """One method on one dataset in the paper's table."""

    dataset: str
    method: MethodName
    labels: Count
    images: Count
    dim: Count
    rounds: Count
    encoder: ResNet
    published: Published
    slip: str = ""  # where the convention does not give what was published: what does

    def convention(self) -> Published:
        """The figures that the paper's way of counting gives: 23 and W, or 23 and a row, a round; a fixed W once."""
        model = self.rounds * PAPER_MODEL
        W, row = (paper_megabytes(rows * self.dim * PAPER_NUMBER) for rows in (self.labels, 1))
        if METHODS[self.method].trains_rows:
            return Published(
                server=_one_decimal(model + self.rounds * W), client=_one_decimal(model + self.rounds * row)
            )
        return Published(server=_one_decimal(model + W), client=model)

    def verdict(self) -> str:
        return "met" if self.published == self.convention() else self.slip or "not met"

    def traffic(self) -> Traffic:
        keys = {"method": self.method, "preset": "paper", "rounds": self.rounds, "encoder": {"dim": self.dim}}
        return traffic(experiment(keys), self.encoder.theta(self.dim), Shape(self.labels, self.labels, self.images))


PAPER_MODEL = Decimal(23)  # millions of parameters, added up as if they were MB
PAPER_NUMBER = 8  # bytes


def paper_megabytes(size: int) -> Decimal:
    """MiB to one decimal; below one, KiB as thousandths.

    >>> paper_megabytes(1628 * 512 * 8), paper_megabytes(20 * 512 * 8), paper_megabytes(512 * 8)
    (Decimal('6.4'), Decimal('0.08'), Decimal('0.004'))
    """
    kib = Decimal(size) / 1024
    return kib / 1000 if kib < 1024 else _one_decimal(kib / 1024)


def _one_decimal(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.1"), ROUND_HALF_UP)


class TextRows(Settings):
    """All methods on one dataset of the catalog."""

    dataset: str
    presets: tuple[PresetName, ...]

    def traffic(self, settings: Experiment) -> Traffic:
        known = catalog.entry(self.dataset).statistics
        if known is None:
            raise ConfigError(f"the catalog has no statistics of {self.dataset}", "dataset")
        pairs = round(known.train * known.labels_per_instance)
        return text_traffic(settings, known.features, Shape(known.labels, known.labels, pairs))


@dataclass(frozen=True)
class Line:
    """One line of a table of bytes."""

    dataset: str
    method: str
    traffic: Traffic
    preset: str = ""

    @property
    def total(self) -> int:
        """What one client sends and receives in a whole training."""
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


LINE_HEADINGS = (
    "dataset", "method", "rounds", "a round, down", "a round, up", "once, down", "once, up",
    "training, down", "training, up", "all clients, down", "all clients, up",
)  # fmt: skip
NAMES = ("dataset", "method", "")  # columns of words
PAPER_HEADINGS = ("dataset", "method", "server", "as counted", "client", "as counted", "")


class Heading(Settings):
    """table.toml."""

    kind: str
    title: str
    paper: str
    datasets: tuple[str, ...]
    slips: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Communication:
    """What the folder's files say, and the lines that follow."""

    heading: Heading
    cells: tuple[ImageCell, ...]
    images: tuple[Line, ...]
    texts: tuple[Line, ...]

    @property
    def presets(self) -> list[str]:
        return list(dict.fromkeys(line.preset for line in self.texts))


def read_communication(folder: Path) -> Communication:
    """`table.toml`, and beside it a file per cell of the paper's table and per text dataset."""
    files = {path: read_toml(path, Decimal) for path in sorted(folder.glob("*.toml")) if path.name != FILE}
    heading = validated(Heading, read_toml(folder / FILE), folder / FILE)
    cells = [validated(ImageCell, values, path) for path, values in files.items() if "published" in values]
    texts = [validated(TextRows, values, path) for path, values in files.items() if "published" not in values]
    for name in [*(cell.dataset for cell in cells), *(rows.dataset for rows in texts)]:
        if name not in heading.datasets:
            raise ConfigError(f"{folder / FILE}: {name} is missing", "datasets")
    place = heading.datasets.index
    cells.sort(key=lambda cell: (place(cell.dataset), FEDERATED.index(cell.method)))
    texts.sort(key=lambda rows: place(rows.dataset))
    return Communication(
        heading,
        tuple(cells),
        tuple(Line(cell.dataset, cell.method, cell.traffic()) for cell in cells),
        tuple(
            Line(rows.dataset, method, rows.traffic(experiment({"method": method, "preset": name})), name)
            for rows in texts
            for name in rows.presets
            for method in FEDERATED
        ),
    )


def communication(folder: Path, out: Path) -> Communication:
    """Write `table.md`, `table.json` and `bytes.png` into `out`."""
    from fedalc.reproduction.communication_figure import draw_bytes

    table = read_communication(folder)
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
            "buffer_bytes_per_round": 4 * cell.encoder.buffers,
        }
        for cell in table.cells
    ]
    lines = {
        name: [line.facts() for line in group] for name, group in (("images", table.images), ("text", table.texts))
    }
    return {"paper": paper, **lines, "slips": list(table.heading.slips), "notes": list(table.heading.notes)}


def markdown(table: Communication) -> str:
    parts = [
        f"# {table.heading.title}",
        "## The paper's table, in its own convention",
        'Published, and as its convention counts it ("MB").',
        md.table(PAPER_HEADINGS, paper_rows(table.cells), NAMES),
        "## Slips",
        md.bullets(table.heading.slips),
        "## Bytes of the image datasets",
        "Per client unless it says all clients.",
        md.table(LINE_HEADINGS, [line.cells() for line in table.images], NAMES),
    ]
    for preset in table.presets:
        lines = [line for line in table.texts if line.preset == preset]
        parts += [
            f"## Text, preset {preset}",
            "Down and up together, per client, whole training:",
            md.table(*total_rows(lines), NAMES),
            "In full:",
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
    """A row per method, a column per dataset: what one client sends and receives."""
    totals = {(line.method, line.dataset): human_bytes(line.total) for line in lines}
    methods, datasets = (list(dict.fromkeys(key[i] for key in totals)) for i in (0, 1))
    return ["method", *datasets], [[method, *(totals[method, name] for name in datasets)] for method in methods]


def rich_tables(table: Communication) -> list[Table]:
    """For the terminal: the paper's table, then each preset's bytes on text."""
    tables = [
        _rich("The paper's table, published and as counted in its convention", PAPER_HEADINGS, paper_rows(table.cells))
    ]
    for preset in table.presets:
        headings, rows = total_rows([line for line in table.texts if line.preset == preset])
        tables.append(_rich(f"Bytes per client, up and down, preset {preset}", headings, rows))
    return tables


def _rich(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in NAMES else "right")
    for row in rows:
        table.add_row(*row)
    return table
