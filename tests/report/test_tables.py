from __future__ import annotations

import io
import math
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from fedalc.core.registry import METHODS, ORACLES
from fedalc.report.tables import human_bytes, human_seconds, markdown_table, rich_table
from tests.report.results import result


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1.00 kB"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (125_000_000, "125 MB"),
        (9_843_101_696, "9.84 GB"),
        (9_996_000_000, "10.0 GB"),
        (2.5e12, "2.50 TB"),
        (3e18, "3000 PB"),
        (None, "–"),
        (math.nan, "nan"),
    ],
)
def test_human_bytes(n: float | None, shown: str) -> None:
    assert human_bytes(n) == shown


@pytest.mark.parametrize(
    ("s", "shown"),
    [
        (0, "0 ms"),
        (0.0012, "1.2 ms"),
        (0.0549, "55 ms"),
        (0.9996, "1.0 s"),
        (2.087, "2.1 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (3725, "1 h 2 min"),
        (86_399, "1 d 0 h"),
        (90_000, "1 d 1 h"),
        (None, "–"),
    ],
)
def test_human_seconds(s: float | None, shown: str) -> None:
    assert human_seconds(s) == shown


def test_markdown_of_two_methods() -> None:
    assert markdown_table([result(), result("fedaws", precision=60.0)]).splitlines() == [
        "| method | P@1 | P@3 | P@5 | nDCG@5 | PSP@5 | max cosine | mean cosine | effective rank | rounds "
        "| seconds/round | up per client | total bytes |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| fedavg | 50.00 | **30.00** | **20.00** | **40.00** | **35.00** | 0.500 | 0.250 | 7.0 | 18 "
        "| 0.100 | 2.00 MB | 50.0 MB |",
        "| fedaws | **60.00** | **30.00** | **20.00** | **40.00** | **35.00** | 0.500 | 0.250 | 7.0 | 18 "
        "| 0.100 | 2.00 MB | 50.0 MB |",
    ]


def test_markdown_of_seeds() -> None:
    lines = markdown_table([result(precision=50.0), result(seed=1, precision=52.0)]).splitlines()
    assert lines[0].startswith("| method | seeds | P@1 |")
    assert lines[2].startswith("| fedavg | 2 | 51.00 ± 1.41 | 30.00 ± 0.00 |")  # alone, so nothing is best
    assert len(lines) == 3


def test_best_is_per_dataset_and_never_nan() -> None:
    table = markdown_table(
        [
            result(precision=50.0),
            result("fedaws", precision=math.nan),
            result(dataset="bibtex", precision=90.0),
            result("fedaws", dataset="bibtex", precision=80.0),
        ]
    )
    assert "| demo | fedavg | **50.00** |" in table
    assert "| demo | fedaws | nan |" in table
    assert "| bibtex | fedavg | **90.00** |" in table
    assert "| bibtex | fedaws | 80.00 |" in table


def test_collapsed_is_marked() -> None:
    table = markdown_table([result(collapse={"max_cosine": 0.995}), result("fedaws", collapse={"max_cosine": 0.98})])
    assert "| fedavg (collapsed) |" in table and "| fedaws |" in table


def test_map_only_where_there_is_one() -> None:
    with_map = result(metrics={"P@1": 1.0, "mAP": 2.0})
    assert "| mAP |" in markdown_table([with_map, result("fedaws")])
    assert "mAP" not in markdown_table([result()])


def test_hostile_names_stay_in_their_cell() -> None:
    line = markdown_table([result("a|b*<i>[x](y)\n")]).splitlines()[2]
    assert line.startswith("| a\\|b\\*\\<i\\>\\[x\\](y)\ufffd | 50.00 |")


@pytest.mark.parametrize("empty", [[], [{}], [{"metrics": None, "collapse": []}]])
def test_missing_everything(empty: list[dict[str, Any]]) -> None:
    assert markdown_table(empty).startswith("| method |")
    printed(empty, 80)


def printed(results: list[dict[str, Any]], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(rich_table(results, width=width))
    return out.getvalue()


def test_terminal_table_shows_all_where_there_is_room() -> None:
    shown = printed([result(), result(seed=1, precision=52.0), result("[red]x[/]")], 140)
    for part in ("51.00", "±1.41", "[red]x[/]", "effective", "2.00 MB", "50.0 MB"):
        assert part in shown
    assert "no room" not in shown


def test_oracles_are_marked_as_centralised() -> None:
    oracle = result("ovr", centralised=True, collapse=None, clients=0, bytes_up=0, bytes_down=0, rounds=1)
    results = [oracle, oracle | {"seed": 1}, result(centralised=False)]
    table = markdown_table(results)
    assert "| ovr (centralised) | 2 |" in table and "| fedavg | 1 |" in table and "| 0 B |" in table
    shown = printed(results, 140)
    assert "ovr (centralised)" in shown and "–" in shown


def test_oracles_do_not_win_the_bold() -> None:
    oracle = result("ovr", precision=90.0, centralised=True)
    table = markdown_table([oracle, result(), result("fedaws", precision=60.0)])
    assert "| ovr (centralised) | 90.00 | 30.00 |" in table and "| fedaws | **60.00** | **30.00** |" in table
    assert "**" not in markdown_table([oracle, result()])  # of a single federated row nothing is best


def test_a_penalty_at_the_edge_is_noted_once() -> None:
    oracle = result("ovr", centralised=True, selection={"penalty": 0.0625, "edge": "smallest"})
    shown = printed([oracle, oracle | {"seed": 1}, result(centralised=False)], 140)
    assert shown.count("ovr (centralised): the best penalty, 0.0625, is the smallest tried (ovr.penalties)") == 1
    within = result("ovr", centralised=True, selection={"penalty": 0.25, "edge": None})
    assert "tried" not in printed([within, result(selection=None), result(selection=["x"])], 140)


def test_a_small_test_set_is_noted_once() -> None:
    few = result(test_records=8, test_labels=3)
    said = "demo: there are only 8 test records: each is 12.5 points of P@1"
    assert (
        printed([few, few | {"seed": 1}, result(test_records=8, test_labels=3, method="fedaws")], 140).count(said) == 1
    )
    assert f"\n\n{said}\n" in markdown_table([few])
    alone = result(test_records=1000, test_labels=1)
    assert "all test records have the same label or none" in printed([alone], 140)
    for enough in (result(test_records=30, test_labels=2), result(), result(test_records=None, test_labels=None)):
        assert "test records" not in printed([enough], 140)


def test_all_methods_fit_a_narrow_terminal() -> None:
    shown = printed([result(method, collapse={"max_cosine": -1e-9}) for method in (*METHODS, *ORACLES)], 80)
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown and "-0.000" not in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith((*METHODS, *ORACLES))] == [
        *METHODS,
        *ORACLES,
    ]


def test_narrow_terminal_says_what_it_left_out() -> None:
    shown = printed([result("fedavg-fixed", collapse={"max_cosine": 1.0})], 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "collapsed" in shown and "…" not in shown
    assert "hidden columns (widen the terminal): mean cosine" in shown


def test_import_is_light() -> None:
    heavy = "{'torch', 'matplotlib', 'jinja2', 'numpy', 'rich'}"
    code = f"import sys, fedalc.report.tables; sys.exit(', '.join({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
