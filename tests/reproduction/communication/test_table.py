"""Bytes computed by hand equal the paper's figures and the bytes of a real training."""

from __future__ import annotations

import json
import shutil
import sys
from decimal import Decimal
from pathlib import Path

import pytest
import torch

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import experiment
from fedalc.core.registry import METHODS
from fedalc.engines.traffic import Ledger
from fedalc.errors import ConfigError
from fedalc.models.encoders import make_encoder
from fedalc.reproduction.communication.cells import paper_megabytes
from fedalc.reproduction.communication.measured import Round, measured_round
from fedalc.reproduction.communication.table import (
    Communication,
    communication,
    measured,
    paper_rows,
    read_communication,
    rich_tables,
    total_rows,
)
from fedalc.reproduction.communication.traffic import Shape, Traffic, encoder_traffic
from tests.problems import federated, random_split
from tests.reproduction.problems import from_shapes

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "experiments" / "communication"


@pytest.fixture(scope="module")
def table() -> Communication:
    return read_communication(FOLDER)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the rounds of a ResNet-50: each takes seconds."""
    monkeypatch.setattr("fedalc.reproduction.communication.table.measured_round", from_shapes)


def of(table: Communication, dataset: str, method: str, preset: str = "") -> Traffic:
    lines = (*table.images, *table.texts)
    (found,) = [x.traffic for x in lines if (x.dataset, x.method, x.preset) == (dataset, method, preset)]
    return found


# --- agreement with what is really counted ---

BY_SHAPES = [method for method in METHODS if not METHODS[method].sums_by_cluster]
BY_STEPS = [method for method in METHODS if not METHODS[method].one_round and method != "fedalc-exact"]


@pytest.mark.parametrize("preset", ["strong", "paper"])
@pytest.mark.parametrize("method", BY_SHAPES)
def test_as_many_bytes_as_the_ledger_of_a_training(method: str, preset: str) -> None:
    small = {"method": method, "preset": preset, "rounds": 3, "server": {"participation": 1.0}}
    settings = experiment(small | {"encoder": {"dim": 8, "embedding": 6, "hidden": [5, 4]}})
    train = random_split(instances=40, features=11, labels=9, seed=3)
    training = federated(settings, train)
    for _ in range(1 if METHODS[method].one_round else settings.rounds):
        training.run_round()
    shape = Shape(labels=9, clients=len(training.federation.clients), pairs=train.labels.nnz)
    assert encoder_traffic(settings, 11, shape).training == training.ledger


def test_bytes_that_do_not_follow_from_shapes() -> None:
    with pytest.raises(ConfigError, match="depend on which features"):
        encoder_traffic(experiment({"method": "fedalc-tree"}), 11, Shape(labels=9, clients=9, pairs=40))


@pytest.mark.parametrize("method", BY_STEPS)
def test_as_many_bytes_as_a_round_with_pictures(method: str) -> None:
    """Every method, with a small network; and the arrays have exactly the counted size."""
    settings = experiment({"method": method, "engine": "clients", "encoder": {"name": "resnet-small", "dim": 8}})
    found = measured_round(settings, labels=5)
    shape = Shape(labels=5, clients=1, pairs=6)
    assert found.counted == encoder_traffic(settings, 0, shape).round
    assert found.packed == found.counted and found.agrees


@pytest.mark.long
def test_a_round_of_the_papers_network_is_run(table: Communication) -> None:
    """The most expensive kind: batch normalisation, whose statistics are sent, and a row."""
    cell = next(cell for cell in table.cells if (cell.dataset, cell.method) == ("VOC12", "fedalc"))
    found = measured_round(cell.settings("batch"), cell.labels)
    size = 4 * (24_557_120 + 53_120 + 512)
    assert found == Round(24_557_120, Ledger(size, size), Ledger(size, size))


def test_without_flower_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedalc.deployment.flower.wire", None)
    settings = experiment({"method": "fedaws", "engine": "clients", "encoder": {"name": "resnet-small", "dim": 8}})
    found = measured_round(settings, labels=5)
    assert found.packed is None and found.agrees and found.counted.up > 0


@pytest.mark.long
def test_what_was_counted_in_a_round_is_in_the_bytes_of_a_training(
    table: Communication, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(settings: Experiment, labels: int) -> Round:
        by = 1 if settings.encoder.norm == "batch" else 7
        return Round(1, Ledger(by * labels, by * labels + 1), None)

    monkeypatch.setattr("fedalc.reproduction.communication.table.measured_round", strange)
    run = measured(table)
    assert of(run, "VOC12", "fedaws").training == Ledger(20 * 300 * 140, 20 * 300 * 141)
    assert of(run, "COCO", "fedaws").round == Ledger(80 * 560, 80 * 561)
    assert [(line.norm, len(line.cells)) for line in run.rounds] == [
        ("group", 2), ("group", 1), ("batch", 4), ("group", 4), ("group", 2), ("group", 2), ("group", 1),
    ]  # fmt: skip
    assert run.rounds[0].row()[4:] == ["11,396", "11,397", "–", "–", "23 + 6.4", "23 + 0.004"]


def test_the_mlp_of_the_exact_method_too() -> None:
    settings = experiment({"method": "fedalc-exact", "encoder": {"name": "mlp"}})
    counted = encoder_traffic(settings, 30, Shape(labels=5, clients=5, pairs=9))
    encoder = make_encoder(30, settings.encoder, torch.Generator())
    assert counted.round.up == 5 * 4 * sum(parameter.numel() for parameter in encoder.parameters())


def test_four_sub_models_are_four_encoders_and_four_rows() -> None:
    shape = Shape(labels=9, clients=7, pairs=0)
    one, four = (encoder_traffic(experiment({"method": name}), 11, shape) for name in ("fedavg-fixed", "fedmlh"))
    assert four.round == Ledger(4 * one.round.down, 4 * one.round.up)
    assert four.once == Ledger(down=4 * 7 * 4 * 512, up=0)


# --- by hand ---


def test_bibtex_by_hand(table: Communication) -> None:
    theta, row, pairs = 4 * 1836 * 512, 4 * 512, round(4880 * 2.40)
    collected = pairs * (16 + 4) + 159 * 16  # a digest and a place each; a pseudonym per label
    assert of(table, "bibtex", "fedaws", "strong").training == Ledger(*[159 * 100 * (theta + row)] * 2)
    fixed = of(table, "bibtex", "fedalc-fixed", "strong")
    assert fixed.once == Ledger(down=159 * row, up=collected)
    assert fixed.training == Ledger(159 * (100 * theta + row), 159 * 100 * theta + collected)
    oneshot = of(table, "bibtex", "fedalc-oneshot", "strong")
    sums = 4 * (1836 * 1837 // 2 + 1836)
    assert oneshot.training == Ledger(down=2 * pairs, up=159 * sums + collected)
    assert oneshot.each(oneshot.round) == Ledger(down=0, up=sums)


def test_the_papers_mlp_by_hand(table: Communication) -> None:
    layers = 1617899 * 512 + (512 + 1) * 1024 + (1024 + 1) * 1024 + (1024 + 1) * 512
    wiki = of(table, "wikilshtc-325k", "fedavg", "paper")
    assert wiki.each(wiki.round) == Ledger(*[4 * (layers + 512)] * 2)
    assert wiki.rounds == 300 and of(table, "wikilshtc-325k", "fedavg-fixed", "paper").rounds == 500


def resnet50() -> tuple[int, int]:
    """Return the parameters without the classifier, and the size of batch-norm buffers (He et al., 2016)."""
    weights, normalised, width = 3 * 64 * 7 * 7, 64, 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            weights += width * inner + 9 * inner * inner + inner * 4 * inner
            normalised += inner + inner + 4 * inner
            if block == 0:
                weights += width * 4 * inner
                normalised += 4 * inner
            width = 4 * inner
    return weights + 2 * normalised, 2 * normalised


@pytest.mark.parametrize("dim", [512, 2048])
def test_the_encoder_is_a_resnet50(dim: int, table: Communication) -> None:
    cell = next(cell for cell in table.cells if cell.dim == dim)
    backbone, buffers = resnet50()
    assert (backbone, buffers) == (23_508_032, 53_120)
    for norm, expected in (("group", 0), ("batch", buffers)):
        with torch.device("meta"):
            encoder = make_encoder(0, cell.settings(norm).encoder, torch.Generator("cpu"))
        assert sum(p.numel() for p in encoder.parameters()) == backbone + dim * (2048 + 1)
        assert sum(b.numel() for b in encoder.buffers() if b.is_floating_point()) == expected


def test_voc12_by_hand(table: Communication) -> None:
    theta, row = 4 * 24_557_120, 4 * 512
    assert of(table, "VOC12", "fedaws").training == Ledger(*[20 * 300 * (theta + row)] * 2)
    assert of(table, "VOC12", "fedalc").once == Ledger(down=0, up=10963 * 20 + 20 * 16)


# --- the paper ---


@pytest.mark.parametrize(
    ("rows", "dim", "shown"),
    [(1628, 512, "6.4"), (20, 512, "0.08"), (80, 2048, "1.3"), (1, 512, "0.004"), (1, 2048, "0.016")],
)
def test_the_papers_megabytes(rows: int, dim: int, shown: str) -> None:
    assert paper_megabytes(rows * dim * 8) == Decimal(shown)


def test_published_figures_are_met_but_for_the_one_slip(table: Communication) -> None:
    assert len(table.cells) == 12
    for cell in table.cells:
        ours, theirs = cell.convention(), cell.published
        assert ours.server == theirs.server
        assert (ours.client == theirs.client) == (not cell.slip)
    (slipped,) = {(cell.dataset, cell.published.client, cell.convention().client) for cell in table.cells if cell.slip}
    assert slipped == ("COCO", 2316, Decimal("2301.6"))
    assert 100 * (23 + Decimal("0.16")) == 2316


def test_met_is_what_is_met(table: Communication) -> None:
    """A wrong figure is "not met" unless the table documents it as a slip."""
    cell = next(cell for cell in table.cells if not cell.slip)
    wrong = cell.model_copy(update={"published": cell.published.model_copy(update={"client": Decimal(1)})})
    explained = wrong.model_copy(update={"slip": "a slip"})
    needless = cell.model_copy(update={"slip": "a slip"})
    assert [row[-1] for row in paper_rows([cell, wrong, explained, needless])] == ["met", "not met", "a slip", "met"]


def test_the_figures_in_the_slips(table: Communication) -> None:
    text = " ".join(table.heading.slips)
    theta, W, row = 4 * 24_557_120, 4 * 1628 * 512, 4 * 512
    for share in ((2940 - 2306.4) / 2940, W / (theta + W)):
        assert f"{share:.1%}".replace("%", " %") in text
    assert f"{100 * row / (theta + row):.3f} %" in text
    assert f"{theta / 1e6:.1f} MB" in text and f"{4 * 27_704_384 / 1e6:.0f} MB" in text
    assert f"{23_508_032 + 5 * (2048 + 1):,}" in text and round((23_508_032 + 5 * 2049) / 1e6, 4) == 23.5183
    assert f"{11540 * 32 / 1e6:.2f} MB" in text and f"{4761 * 32 / 1e6:.3f} MB" in text


# --- what is written ---


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_writes_table_and_figure(tmp_path: Path) -> None:
    communication(FOLDER, tmp_path)
    facts = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert [row["met"] for row in facts["paper"]].count(False) == 2
    assert {row["method"] for row in facts["text"]} == set(BY_SHAPES)
    first = facts["images"][0]
    assert first["all_clients"]["down"] == 1628 * 100 * 4 * (24_557_120 + 512)
    assert (tmp_path / "bytes.png").read_bytes().startswith(b"\x89PNG")
    assert "| COCO | fedaws | 2430 | 2430 | 2316 | 2301.6 |" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick")
def test_tables_for_the_terminal(table: Communication) -> None:
    paper, rounds, *texts = rich_tables(measured(table))
    assert (paper.row_count, rounds.row_count) == (12, 7)
    assert [each.row_count for each in texts] == [len(BY_SHAPES)] * 2


def test_a_mistake_in_a_file_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "communication")
    (folder / "bibtex.toml").write_text('dataset = "bibtex"\npreset = "strong"\n')
    with pytest.raises(ConfigError, match=r"bibtex\.toml"):
        read_communication(folder)
    (folder / "bibtex.toml").write_text('dataset = "eurlex-4k"\npresets = ["strong"]\n')
    with pytest.raises(ConfigError, match="eurlex-4k"):
        read_communication(folder)


@pytest.mark.usefixtures("quick")
def test_the_page_says_what_the_code_says(table: Communication) -> None:
    """A method that the page does not have yet is not an error."""
    page = (ROOT / "docs" / "communication.md").read_text(encoding="utf-8")
    unwrapped = " ".join(page.split())
    assert all(f"- {text}" in unwrapped for text in (*table.heading.slips, *table.heading.notes))
    run = measured(table)
    rows = paper_rows(table.cells) + [line.row() for line in run.rounds] + [line.cells() for line in run.images]
    for preset in table.presets:
        rows += total_rows([line for line in table.texts if line.preset == preset])[1]
    for row in rows:
        assert f"| {' | '.join(row)} |\n" in page or f"| {row[0]} |" not in page
