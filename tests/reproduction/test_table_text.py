"""The table's text, from results made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedalc.reproduction import table_text as text
from fedalc.reproduction.results import Curve, _thinned_sizes, fit_line, read_json, write_json
from tests.reproduction.problems import cell, line, outcome


def rows(markdown: str) -> dict[str, list[str]]:
    lines = [text.strip("| \n").split(" | ") for text in markdown.splitlines() if text.startswith("|")]
    return {f"{parts[0]} {parts[1].strip()}".strip(): [part.strip() for part in parts[2:]] for parts in lines}


def test_markdown_has_published_and_ours_side_by_side() -> None:
    found = rows(text.markdown(outcome()))
    assert found["FedAvg"] == [
        "11.60", "9.11", "7.84", "11.00 ± 1.41", "5.50 ± 0.71", "3.67 ± 0.47",
        "61.00 ± 1.41", "30.50 ± 0.71", "20.33 ± 0.47", "2",
    ]  # fmt: skip
    assert found["method λ"][:4] == ["published P@1", "published P@3", "published P@5", "ours, paper P@1"]


def test_the_best_federated_figure_is_bold_and_the_oracle_is_not() -> None:
    found = rows(text.markdown(outcome()))
    assert found["FedALC 10"][0] == "**21.00**" and found["FedAwS 10"][0] == "**21.00**"  # equals are both the best
    assert found["FedALC 10"][3] == "**41.00 ± 1.41**" and found["FedALC 1"][3] == "32.00 ± 1.41"
    assert found["FedALC, tuned"][6] == "**63.00 ± 0.00**"
    assert not any("**" in value for value in found["SLEEC (centralised)¹"])


def test_missing_cells_say_so_and_cells_that_are_none_are_empty() -> None:
    found = rows(text.markdown(outcome()))
    assert found["FedAvg-fixed"][3:6] == ["– not run", "–", "–"]
    assert found["FedALC-fixed"][3:6] == ["– failed", "–", "–"]
    assert found["FedALC, tuned"][:6] == [""] * 6
    assert found["FedALC-fixed"][6] == "59.00" and found["FedALC-fixed"][-1] == "0 / 1"


def test_below_the_table_stand_command_footnotes_reasons_and_versions() -> None:
    written = text.markdown(outcome())
    for part in (
        "`fedalc reproduce small`",
        "- ¹ Not ours.",
        "- A note.",
        "- fedalc-fixed paper seed 0: failed: training diverged",
        "- python 3.11, fedalc 0.1",
        "figures for Little",
    ):
        assert part in written
    assert "seed 1: not run" not in written


def test_a_name_is_read_as_it_is_written() -> None:
    assert "| a\\|b\\*c |" in text.markdown(outcome(lines=[line("a|b*c", "fedavg", cells={"paper": cell(50)})]))


def test_rows_of_one_method_have_labels_of_their_own() -> None:
    lost = {"paper": cell(missing={0: "failed: no"})}
    rows = [line("Ridge", "ovr", cells=lost), line("Logistic", "ovr", cell="ovr-logistic", cells=lost)]
    assert text.remarks(outcome(lines=rows))[1:] == ["ovr paper seed 0; ovr-logistic paper seed 0: failed: no"]


def test_a_finished_run_without_a_metric_is_not_one_that_was_not_run() -> None:
    done = cell(50)
    del done.results[0].metrics["P@1"]
    found = rows(text.markdown(outcome(lines=[line("FedAvg", "fedavg", cells={"paper": done})])))
    assert found["FedAvg"][0] == "– no P@1" and found["FedAvg"][1] == "25.00"


def test_bold_is_said_to_be_the_best_on_test() -> None:
    assert "on the test set, over all λ" in text.markdown(outcome())


def test_reasons_that_are_the_same_are_told_once() -> None:
    lost = {0: "left out: no"}
    cells = {"paper": cell(missing=lost), "strong": cell(missing=lost)}
    assert text.remarks(outcome(lines=[line("A", "a", cells=cells)]))[1:] == ["a paper; a strong: left out: no"]


@pytest.mark.parametrize(("width", "shown"), [(200, "P@1 P@3 P@5"), (85, "P@1 P@5"), (60, "P@1")])
def test_the_terminal_leaves_out_what_it_has_no_room_for(width: int, shown: str) -> None:
    console = Console(width=width, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(text.rich_table(outcome(), width))
    printed = console.export_text()
    heading = next(line for line in printed.splitlines() if "λ" in line)
    assert list(dict.fromkeys(word for word in heading.split() if word.startswith("P@"))) == shown.split()
    assert ("hidden columns" in printed) == (width < 200)
    assert "±1.41" in printed and "not run" in " ".join(printed.split())


def test_json_is_small_and_read_back_the_same(tmp_path: Path) -> None:
    first = outcome()
    write_json(first, tmp_path / "table.json")
    assert read_json(tmp_path / "table.json") == first
    assert "[ 1, 2, 3, 4, 5, 6, 7, 8 ]" in (tmp_path / "table.json").read_text()


def test_a_loss_that_halves_has_the_factor_one_half() -> None:
    fit = fit_line(cell(50).curve or pytest.fail())
    assert fit is not None
    assert (fit.factor, fit.explained, fit.first, fit.last) == (0.5, 1.0, 4, 8)
    assert fit.start == 0.5**4
    few = Curve(metric=None, rounds=[1, 2, 3], precision=[None] * 3, loss=[0.5, None, 0.0])
    assert fit_line(few) is None


def test_sizes_keep_both_ends_and_leave_out_labels_without_client() -> None:
    assert _thinned_sizes(np.array([3, 0, 9, 4])) == [(1, 9), (2, 4), (3, 3)]
    many = _thinned_sizes(np.arange(1, 100_001))
    assert len(many) <= 400 and many[0] == (1, 100_000) and many[-1] == (100_000, 1)
    assert _thinned_sizes(np.zeros(3, int)) == []
