from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import FedalcError
from fedalc.report.page import sentence, write_comparison_page, write_page
from fedalc.runs.folder import SHEET
from tests.report.results import record, result

drawn = pytest.mark.usefixtures("figures")

EVIL = "<script>alert(1)</script>\"'&{{ 7*7 }}"


def run_folder(folder: Path, records: list[dict[str, Any]], config: str = "", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result(**changes)), encoding="utf-8")
    (folder / "config.toml").write_text(config or 'method = "fedavg"\n', encoding="utf-8")
    (folder / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return folder


def page_of(path: Path) -> str:
    """Return the page, after checking that it needs no other file and that each tag is closed."""
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)|<script|<link|<img", page)
    references = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(reference.startswith("#") for reference in references)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)) and {reference[1:] for reference in references} <= set(ids)
    _Balanced().feed(page)
    return page


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@drawn
def test_run_page(tmp_path: Path) -> None:
    records = [record(9), record(18), record(18, "refit")]
    path = write_page(run_folder(tmp_path, records, config="[encoder]\ndim = 512\n"))
    assert path == tmp_path / "report.html"
    page = page_of(path)
    for part in (
        "<title>fedavg on demo</title>",
        "50.0 %",
        "<td>51.00</td>",
        "validation, round 18",
        "<td>2.00 MB</td>",
        "<td>3.00 MB</td>",
        "<td>50.0 MB</td>",
        "<td>3.8 s</td>",
        "<td>105 MB</td>",
        "[encoder]\ndim = 512",
        "fedalc 0.1.0",
        "prefers-color-scheme: dark",
    ):
        assert part in page, part
    assert page.count("<svg") == 4 and "collapsed</span>" not in page
    assert [part.name for part in tmp_path.glob("*.part")] == []


def test_a_contact_sheet_is_part_of_the_page(tmp_path: Path) -> None:
    """The page embeds it, and its policy allows it: the page still needs no other file."""
    folder = run_folder(tmp_path, [record(1)])
    (folder / SHEET).write_bytes(b"\x89PNG any")
    page = write_page(folder).read_text(encoding="utf-8")
    assert re.findall(r'src="([^"]*)"', page) == ["data:image/png;base64," + base64.b64encode(b"\x89PNG any").decode()]
    assert page.count("<img") == 1 and '; img-src data:">' in page


@drawn
@pytest.mark.long
def test_same_files_same_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, [record(1), record(2)])
    assert write_page(folder).read_bytes() == write_page(folder).read_bytes()


@drawn
def test_run_without_validation(tmp_path: Path) -> None:
    page = page_of(write_page(run_folder(tmp_path, [record(5, "fit")], selection=None)))
    assert page.count("<svg") == 2 and "not evaluated by round" in page and "validation, round" not in page


@drawn
@pytest.mark.parametrize("records", [[], [record(1)], [record(1, loss=math.nan, metrics={}, collapse={})]])
def test_run_page_with_little_history(records: list[dict[str, Any]], tmp_path: Path) -> None:
    assert "</html>" in page_of(write_page(run_folder(tmp_path, records)))


@drawn
def test_run_page_with_missing_and_nan_fields(tmp_path: Path) -> None:
    page = page_of(write_page(run_folder(tmp_path, [], metrics={"P@1": math.nan}, collapse={}, versions=None)))
    assert "<td>nan</td>" in page
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")
    (tmp_path / "config.toml").unlink()
    page_of(write_page(tmp_path))


def test_unfinished_run_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match=r"result\.json"):
        write_page(tmp_path)


@drawn
def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = run_folder(
        tmp_path,
        [record(1)],
        config=f"name = '{EVIL}'\n</pre>",
        method=EVIL,
        dataset=EVIL + "\ud800",
        preset=EVIL,
        metrics={EVIL: 1.0},
        versions={EVIL: EVIL},
    )
    page = page_of(write_page(folder))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "{{ 7*7 }}" in page and page.count("</pre>") == 1
    results = [result(EVIL), result(EVIL, dataset=EVIL, preset=EVIL)]
    page = page_of(write_comparison_page(tmp_path, results, {EVIL: [record(1)], "fedavg": [record(1)]}))
    assert "&lt;script&gt;" in page


@drawn
def test_comparison_page(tmp_path: Path) -> None:
    results = [
        result(),
        result(seed=1, precision=60.0),
        result("fedaws", precision=57.0, collapse={"max_cosine": 1.0}),
    ]
    path = write_comparison_page(tmp_path, results, {"fedavg": [record(1), record(2)], "fedaws": [record(1)]})
    assert path == tmp_path / "report.html"
    page = page_of(path)
    assert "<title>2 methods on demo</title>" in page and "1 to 2 seeds each" in page
    assert "<td><b>57.00</b></td>" in page and "55.00<br><small>± 7.07</small>" in page
    assert page.count('class="badge">collapsed') == 1
    assert page.count("<svg") == 5
    assert "| fedavg | 2 | 55.00 ± 7.07 |" in page


@drawn
@pytest.mark.long
def test_all_methods_with_histories_of_different_length(tmp_path: Path) -> None:
    lengths = {name: 200 for name in (*METHODS, *ORACLES)} | {"fedalc-exact": 25, "fedalc-oneshot": 1}
    histories = {name: [record(number) for number in range(1, last + 1)] for name, last in lengths.items()}
    page = page_of(write_comparison_page(tmp_path, [result(name) for name in (*METHODS, *ORACLES)], histories))
    assert f"<title>{len(METHODS) + len(ORACLES)} methods on demo</title>" in page and page.count("<svg") == 5
    for part in ("round (log scale)", "bytes sent and received, all clients (log scale)", ">100 MB<"):
        assert part in page, part


def test_comparison_of_nothing(tmp_path: Path) -> None:
    assert "No run has finished" in page_of(write_comparison_page(tmp_path, [], {}))


def test_sentence_of_an_oracle() -> None:
    selection = {"round": 1, "penalty": 0.25, "edge": None, "unconverged": 0}
    records = [record(1), record(1, "refit")]
    plain = sentence(result("ovr", centralised=True, selection=selection), records)
    assert "Best on validation data: penalty 0.25. With it, all training data was fitted." in plain
    assert "converged" not in plain
    selection |= {"edge": "smallest", "unconverged": 3}
    noted = sentence(result("ovr", centralised=True, selection=selection), records)
    assert "Best on validation data: penalty 0.25, the smallest tried." in noted
    assert "The regressions of 3 labels stopped before they converged." in noted


def test_the_comparison_says_among_whom_the_bold_one_is_best(tmp_path: Path) -> None:
    results = [result(), result("fedaws", precision=57.0)]
    assert "Bold: the best of a column." in page_of(write_comparison_page(tmp_path, results, {}))
    oracle = result("ovr", precision=90.0, centralised=True, collapse=None, clients=0)
    page = page_of(write_comparison_page(tmp_path, [*results, oracle], {}))
    assert "Bold: the best federated figure of a column." in page
    assert "<td><b>57.00</b></td>" in page and "<td>90.00</td>" in page


def test_sentence() -> None:
    assert sentence(result(), [record(18), record(18, "refit")]) == (
        "Method fedavg with preset strong on dataset demo: 10 clients with one label each, engine fused, seed 0. "
        "Round 18 was best on validation data, so it trained again on all training data for 18 rounds. "
        "The test set was used once, at the end."
    )
    curve = [record(number, "fit", metrics={"test P@1": 50.0}) for number in (1, 2)]
    assert sentence(result(selection=None), [*curve, record(3, "fit")]).endswith(
        "the last round was kept. The test set was used in 2 rounds for its curve, and at the end; it decided nothing."
    )
    assert "in 1 round for its curve" in sentence(result(selection=None), curve[:1])
    assert "was kept. 3 labels have no training instance" in sentence(result(labels_without_client=3), [record(18)])
    assert sentence(result(rounds=1), [record(1), record(1, "refit")]).count("for 1 round.") == 1
    assert "without validation data; the last round was kept" in sentence(result(selection=None), [record(1, "fit")])


def test_figures_that_parties_measured(tmp_path: Path) -> None:
    """By ranking all labels, or as scores of their own labels only."""
    ranked = result(parties=3, metrics={"party P@1": 61.25, "party nDCG@5": 70.0})
    told = sentence(ranked, [record(18)])
    assert "Round 18 was best on validation data and was kept. The parties ranked all labels" in told
    assert told.endswith("These figures chose the round, so they are a little too good.")
    (tmp_path / "history.jsonl").write_text(json.dumps(record(18)) + "\n")
    page = write_page(tmp_path, ranked).read_text()
    assert "P@1 at the parties" in page and "61.2" in page and "party P@1" not in page
    scored = result(parties=3, metrics={"party score": 0.5}, selection=None)
    assert "do not show how well the model separates labels" in sentence(scored, [record(18, "fit")])


def test_sentence_where_clients_are_users() -> None:
    assert ": 10 clients of 4 users with one label each, " in sentence(result(users=4), [record(1)])
    assert ": 10 clients with one label each, " in sentence(result(users=None), [record(1)])
