"""How a comparison describes differences between rows other than the method, from the settings in effect."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fedalc.config.resolve import experiment
from fedalc.config.unused import acting
from fedalc.core.registry import METHODS
from fedalc.report.differences import differences
from fedalc.report.page import write_comparison_page
from fedalc.report.summary import merge
from fedalc.report.tables import markdown_table, rich_table
from fedalc.reproduction.plan import make_plan
from fedalc.reproduction.table_spec import read_table
from tests.report.results import result

LINEAR = {"encoder.name": "linear", "rounds": 20, "client.loss": "square"}
MLP = {"encoder.name": "mlp", "encoder.hidden": [8, 8], "rounds": 200, "client.loss": "hinge"}
RESULTS = [
    result("fedavg", settings=MLP),
    result("fedaws", settings={**MLP, "regularizer.lambda": 3.0}),
    result("fedalc", settings={**MLP, "regularizer.lambda": 0.1}),
    result("fedalc-exact", settings=LINEAR),
]


def test_worked_by_hand() -> None:
    found = differences(merge(RESULTS))
    assert found is not None
    assert found.lines == (
        ("fedaws", "regularizer.lambda 3"),
        ("fedalc", "regularizer.lambda 0.1"),
        ("fedalc-exact", "encoder.name linear; rounds 20; client.loss square"),
        ("all others", "encoder.name mlp; rounds 200; client.loss hinge"),
    )
    assert found.same == "encoder.hidden 8 8"  # of all on which it acts


def test_nothing_to_compare_and_nothing_that_differs() -> None:
    assert differences(merge(RESULTS[:1])) is None and differences(merge([result(), result("fedaws")])) is None
    same = differences(merge([result(settings=MLP), result("fedavg-fixed", settings=MLP)]))
    assert same is not None and same.as_text()[0].startswith("Settings that differ besides the method: none")
    partly = differences(merge([*RESULTS, result("flag")]))
    assert partly is not None and ("flag", "settings not recorded") in partly.lines


def test_terminal_markdown_and_page_say_it(tmp_path: Path) -> None:
    out = io.StringIO()
    Console(file=out, width=150).print(rich_table(RESULTS, width=150))
    markdown = markdown_table(RESULTS)
    page = write_comparison_page(tmp_path, RESULTS, {}).read_text()
    for text in (out.getvalue(), markdown, page):
        assert "Settings that differ besides the method" in text
        assert "encoder.name linear; rounds 20; client.loss square" in text
    assert "\n\n- fedaws: regularizer.lambda 3\n" in markdown and markdown.endswith(
        "\n\nThe same for all: encoder.hidden 8 8\n"
    )


def test_only_settings_that_act_are_named() -> None:
    oneshot = acting(experiment({"method": "fedalc-oneshot", "preset": "demo"}))
    assert oneshot["encoder.name"] == "linear" and oneshot["client.loss"] == "square"
    for name in ("rounds", "client.margin", "regularizer.lambda", "server.learning_rate", "encoder.hidden", "seed"):
        assert name not in oneshot
    assert acting(experiment({"method": "fedalc"}))["regularizer.lambda"] == 30.0
    assert "encoder.name" not in acting(experiment({"method": "ovr"}))


def test_the_demo_compares_like_with_like() -> None:
    of_texts = {
        method: experiment({"method": method, "preset": "demo"}) for method in METHODS if not METHODS[method].encoders
    }
    assert {(s.encoder.name, s.encoder.dim, s.selection.keep) for s in of_texts.values()} == {("linear", 128, "last")}
    keys = {"preset": "demo", "dataset": "mosaics"}
    of_pictures = [experiment({**keys, "method": method}) for method in ("fedavg", "fedalc", "fedalc-exact")]
    assert len({(s.encoder.name, s.rounds, s.selection.keep, s.server.optimizer) for s in of_pictures}) == 1


def test_a_reproduced_table_says_it_too(tmp_path: Path) -> None:
    table = read_table(Path(__file__).parents[2] / "experiments" / "bibtex")
    (said,) = make_plan(table, tmp_path, presets=["paper"]).differences_in_words()
    assert "fedavg-fixed, fedalc-fixed: rounds 500" in said and "regularizer.lambda" not in said
