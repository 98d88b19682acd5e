"""The report page of a run or a comparison: one HTML file that opens offline."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fedalc.core.atomic_files import write_text
from fedalc.core.safe_parsing import Unreadable, parse_json
from fedalc.report import tables
from fedalc.report.curves import Histories, panels
from fedalc.report.differences import differences
from fedalc.report.error_curves import DET, ROC
from fedalc.report.inline import bars_svg, panel_svg
from fedalc.report.plots import row_names
from fedalc.report.style import styles
from fedalc.report.summary import (
    Result,
    Row,
    dataset_name,
    merge,
    number_at,
    per_client,
    small_test,
    text,
    total_bytes,
    varies,
)
from fedalc.runs import history
from fedalc.runs.folder import PARTIES_LOG, SHEET
from fedalc.runs.result import read_partial_result

NAME = "report.html"
SHOWN = 30  # excluded parties listed, at most
EXPLAINED = (
    ("max_cosine", "largest cosine", "1: two labels have the same embedding"),
    ("mean_cosine", "mean cosine", "1: all labels have the same embedding"),
    ("effective_rank", "effective rank", "directions that W uses; 1: a single one"),
)


def write_page(folder: Path, result: Result | None = None) -> Path:
    """Write the page of the run in `folder` from its files, or with `result` before result.json is written."""
    result = read_partial_result(folder) if result is None else result
    config = folder / "config.toml"
    records = history.read(folder / "history.jsonl")
    name = text(result.get("method"))
    selection = result.get("selection") or {}
    chosen = {name: selection["round"]} if "round" in selection else {}
    (row,) = merge([result])
    centralised = bool(result.get("centralised"))  # no rounds, so no curves
    return write_template(
        folder / NAME,
        "run.html",
        title=f"{row.method} on {dataset_name(result)}",
        sentence=sentence(result, records),
        collapsed=row.collapsed,
        headline=_headline(result),
        metrics=_metrics_of(result, selection),
        measured="at the parties" if by_parties(result) else "test",
        parties=read_left_out(folder / PARTIES_LOG) if (folder / PARTIES_LOG).exists() else None,
        validation=None if ranked_by_parties(result) else _validation_heading(selection, centralised),
        collapse=_collapse(result),
        cost=_cost(result),
        tried=_tried(result),
        tuned_by=text((result.get("tuning") or {}).get("metric")),
        sheet=_base64(folder / SHEET),
        error_curves=_error_curves(folder),
        not_measured=(result.get("verification") or {}).get("not_measured"),
        settings=config.read_text(encoding="utf-8") if config.exists() else "",
        versions=result.get("versions") or {},
        **_curves({} if centralised else {name: records}, chosen),
    )


def write_comparison_page(folder: Path, results: Iterable[Result], histories: Histories) -> Path:
    """Write the page that compares runs. `histories`: records by their name in the legend."""
    results = list(results)
    rows = merge(results)
    bar_looks = styles(row_names(rows))
    curves = _error_curves(folder)
    return write_template(
        folder / NAME,
        "comparison.html",
        title=_comparison_title(rows),
        sentence=_comparison_sentence(rows),
        names=tables.name_columns(rows),
        columns=[(column.heading, tables.column_cells(column, rows)) for column in tables.columns_of(rows)],
        rows=rows,
        differences=differences(rows),
        bars=Markup(bars_svg(rows, bar_looks)) if rows and not curves else "",
        error_curves=curves,
        bar_looks=_legend(bar_looks),
        markdown=tables.markdown_table(results),
        versions=(results[0].get("versions") or {}) if results else {},
        **_curves(histories, {}),
    )


def sentence(result: Result, records: Sequence[Mapping[str, Any]]) -> str:
    """Describe the run in words."""
    if result.get("centralised"):
        return _oracle_sentence(result, records)
    phases = {record.get("phase") for record in records}
    clients, parties, users = text(result.get("clients")), result.get("parties"), result.get("users")
    of = f" of {text(users)} users" if users else ""
    deployed = parties and result.get("engine") == "flower"
    of = f" of {text(parties)} parties" if parties and not deployed else of
    start = (
        f"Method {text(result.get('method'))} with preset {text(result.get('preset'))}"
        + ("" if deployed else f" on dataset {dataset_name(result)}")
        + (
            f": {clients} labels at {text(parties)} parties, "
            if deployed
            else f": {clients} clients{of} with one label each, "
        )
        + f"engine {text(result.get('engine'))}, seed {text(result.get('seed'))}."
    )
    rounds, selection = text(result.get("rounds")), result.get("selection")
    rounds += " round" if rounds == "1" else " rounds"
    if kept := result.get("kept"):
        how = _as_sentence(text(kept))
    elif result.get("tuning"):
        how = (
            "A search on held-out records chose the settings (the table below has what it tried); then it trained on "
            f"all training data for {rounds}."
        )
    elif not selection:
        how = f"It trained for {rounds} without validation data; the last round was kept."
    elif "refit" in phases:
        how = (
            f"Round {text(selection.get('round'))} was best on validation data, so it trained again on all training "
            f"data for {rounds}."
        )
    else:
        how = f"Round {text(selection.get('round'))} was best on validation data and was kept."
    absent = number_at(result, "labels_without_client")
    rest = f" {absent:.0f} labels have no training instance and so no client." if absent else ""
    looks = _looks_at_test(result, records)
    if by_parties(result):
        looks = (
            "The parties measured the scores of their own labels on data that they kept out of training. A party knows "
            "no other label, so these scores do not show how well the model separates labels; the collapse of W does."
        )
    if ranked_by_parties(result):
        looks = (
            "The parties ranked all labels for records that they kept out of training, and counted hits of their own."
        )
        if selection:
            looks += " These figures chose the round, so they are a little too good."
    return f"{start} {how}{rest} {looks}"


def _as_sentence(reason: str) -> str:
    """Return why a round was kept, as a sentence of its own."""
    return f"It {reason}."


def _base64(file: Path) -> str:
    """Return a file in base64, or "" if it does not exist."""
    return base64.b64encode(file.read_bytes()).decode() if file.exists() else ""


def _error_curves(folder: Path) -> list[str]:
    return [_base64(folder / name) for name in (DET, ROC) if (folder / name).exists()]


def by_parties(result: Result) -> bool:
    """Return whether parties measured the metrics."""
    return any(name.startswith("party ") for name in result.get("metrics") or ())


def ranked_by_parties(result: Result) -> bool:
    """Return whether the parties' metrics are percent of a ranking of all labels."""
    return "party P@1" in (result.get("metrics") or ())


def read_left_out(path: Path) -> list[tuple[str, str, str]]:
    """Return (round, party, event), the latest last. Skips unreadable lines."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    found = []
    for line in lines[-SHOWN:]:
        with suppress(Unreadable, TypeError, AttributeError):
            record = parse_json(line)
            why = f": {record['why']}" if record.get("why") else ""
            found.append(
                (text(record.get("round") or "–"), text(record.get("party")), text(f"{record.get('what')}{why}"))
            )
    return found


def _looks_at_test(result: Result, records: Sequence[Mapping[str, Any]]) -> str:
    """Say how often the test set was used: once, unless selection.test_curve is on."""
    if not result.get("metrics"):
        return "There was no test data."
    rounds = sum(any(name.startswith("test ") for name in record.get("metrics") or ()) for record in records)
    small = f" Note: {why}." if (why := small_test(result)) else ""
    if not rounds:
        return f"The test set was used once, at the end.{small}"
    return (
        f"The test set was used in {rounds} round{'s' * (rounds != 1)} for its curve, and at the end; it decided "
        f"nothing.{small}"
    )


def _oracle_sentence(result: Result, records: Sequence[Mapping[str, Any]]) -> str:
    start = (
        f"Method {text(result.get('method'))} on dataset {dataset_name(result)}, "
        f"seed {text(result.get('seed'))}: a centralised oracle, for comparison. It has all instances with all "
        "their labels in one place, and no clients, rounds or traffic."
    )
    if kept := result.get("kept"):
        start += f" {_as_sentence(text(kept))}"
    selection = result.get("selection")
    values = {name: number_at(result, "selection", name) for name in ("penalty", "epochs")}
    again = any(record.get("phase") == "refit" for record in records)
    if (
        not kept
        and selection
        and (found := [f"{name} {value:g}" for name, value in values.items() if value is not None])
    ):
        edge = f", the {text(selection['edge'])} tried" if selection.get("edge") else ""
        start += f" Best on validation data: {found[0]}{edge}."
        start += " With it, all training data was fitted." if again else ""
    unconverged = number_at(result, "selection", "unconverged")
    if unconverged:
        start += f" The regressions of {unconverged:.0f} labels stopped before they converged."
    absent = number_at(result, "labels_without_client")
    rest = f" {absent:.0f} labels have no training instance." if absent else ""
    return f"{start}{rest} {_looks_at_test(result, records)}"


def _validation_heading(selection: Mapping[str, Any], centralised: bool) -> str | None:
    if "round" not in selection:
        return None
    return "validation" if centralised else f"validation, round {selection['round']}"


def _headline(result: Result) -> list[tuple[str, str]]:
    pictures = (result.get("selection") or {}).get("metrics", {}).get("validation mAP") is not None
    metric = "mAP" if pictures else "P@1"  # the metric for images; only their rounds are evaluated on it
    metric = "EER" if number_at(result, "metrics", "EER") is not None else metric
    value = number_at(result, "metrics", metric)
    measured = (f"{metric} on the test set", tables.fixed(value, 1) + (" %" if value is not None else ""))
    if ranked_by_parties(result):
        measured = ("P@1 at the parties", tables.fixed(number_at(result, "metrics", "party P@1"), 1) + " %")
    elif by_parties(result):
        measured = ("mean score at the parties", tables.fixed(number_at(result, "metrics", "party score"), 3))
    headline = [
        measured,
        ("largest cosine in W", tables.fixed(number_at(result, "collapse", "max_cosine"), 3)),
        (f"sent by each {_sender(result)}", tables.human_bytes(per_client("bytes_up")(result))),
        ("training time", tables.human_seconds(number_at(result, "seconds"))),
        *(
            [("time of the search", tables.human_seconds(number_at(result, "tuning", "seconds")))]
            * bool(result.get("tuning"))
        ),
    ]
    return [headline[0], headline[-1]] if result.get("centralised") else headline


def _sender(result: Result) -> str:
    return "party" if result.get("parties") else "user" if result.get("users") else "client"


def _metrics_of(result: Result, selection: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    metrics, chosen = result.get("metrics") or {}, selection.get("metrics") or {}
    if ranked_by_parties(result):
        return _metrics({name.removeprefix("party "): value for name, value in metrics.items()}, {}, 2)
    return _metrics(metrics, chosen, 4 if by_parties(result) else 2)


def _metrics(test: Mapping[str, Any], validation: Mapping[str, Any], digits: int) -> list[tuple[str, str, str]]:
    names = list(test) + [name for key in validation if (name := key.removeprefix("validation ")) not in test]
    return [
        (
            text(name),
            tables.fixed(number_at(test, name), digits),
            tables.fixed(number_at(validation, f"validation {name}"), digits),
        )
        for name in names
    ]


def _collapse(result: Result) -> list[tuple[str, str, str]]:
    if result.get("centralised"):
        return []  # no class embeddings
    digits = {"effective_rank": 1}
    return [
        (name, tables.fixed(number_at(result, "collapse", key), digits.get(key, 3)), meaning)
        for key, name, meaning in EXPLAINED
    ]


def _cost(result: Result) -> list[tuple[str, str]]:
    memory = number_at(result, "peak_memory_mb")
    run, kept = result.get("rounds_run"), result.get("rounds")
    one, all_ = _sender(result), "parties" if result.get("parties") else "clients"
    cost = [
        (
            "rounds, including those that chose their number" if result.get("selection") else "rounds",
            text(run if run is not None else kept),
        ),
        (f"sent by each {one}, on average", tables.human_bytes(per_client("bytes_up")(result))),
        (f"received by each {one}, on average", tables.human_bytes(per_client("bytes_down")(result))),
        (f"sent by all {all_}", tables.human_bytes(number_at(result, "bytes_up"))),
        (f"received by all {all_}", tables.human_bytes(number_at(result, "bytes_down"))),
        (f"both directions, all {all_}", tables.human_bytes(total_bytes(result))),
        ("training time", tables.human_seconds(number_at(result, "seconds"))),
        ("time per round", tables.human_seconds(number_at(result, "seconds_per_round"))),
        ("peak memory", tables.human_bytes(None if memory is None else memory * 2**20)),
    ]
    if result.get("centralised"):
        return [line for line in cost if line[0] in ("training time", "peak memory")]
    return cost


def _tried(result: Result) -> list[dict[str, str]]:
    """Return the rows of the table of tried settings, the best first. A file of another version may lack fields."""
    tried = (result.get("tuning") or {}).get("tried")
    rows = [trial for trial in tried if isinstance(trial, dict)] if isinstance(tried, list) else []
    rows.sort(key=lambda trial: -(number_at(trial, "value") or 0.0))
    return [
        {
            "loss": text(trial.get("method") or trial.get("loss")),
            "features": text(features.get("name") if isinstance(features, Mapping) else None),
            "penalty": text(trial.get("penalty")),
            "power": text(trial.get("label_power")) if trial.get("loss") == "square" else "",
            "rounds": text(trial.get("rounds")),
            "value": text(None if value is None else f"{value:.2f}"),
            "seconds": tables.human_seconds(number_at(trial, "seconds")),
            "bytes": tables.human_bytes(total_bytes(trial)),
        }
        for trial in rows
        for value, features in [(number_at(trial, "value"), trial.get("features"))]
    ]


def _curves(histories: Histories, chosen: Mapping[str, int]) -> dict[str, Any]:
    """Return the panels that have data, and why the others have none."""
    looks = styles(histories)
    drawn = panels(histories) if histories else []
    return {
        "panels": [
            {"title": panel.title, "svg": Markup(panel_svg(panel, looks, chosen))} for panel in drawn if not panel.empty
        ],
        "missing": [f"{panel.title[0].lower()}{panel.title[1:]} ({panel.note})" for panel in drawn if panel.empty],
        "looks": _legend(looks),
        "ringed": bool(chosen),
    }


def _legend(looks: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": text(name), "colour": look.colour, "dash": look.dash} for name, look in looks.items()]


def _comparison_title(rows: Sequence[Row]) -> str:
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    methods = len({row.method for row in rows})
    return f"{methods} method{'s' * (methods != 1)} on {', '.join(datasets) or 'nothing yet'}"


def _comparison_sentence(rows: Sequence[Row]) -> str:
    if not rows:
        return "No run has finished."
    preset = "" if varies(rows, "preset") else f", preset {rows[0].preset}"
    counts = sorted({row.seeds for row in rows})
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = "one seed each" if counts == [1] else f"{span} seeds each"
    spread = "" if counts == [1] else " Values are mean ± standard deviation over seeds."
    best = "best federated figure" if any(row.centralised for row in rows) else "best"
    return f"Test metrics in percent{preset}, {seeds}. Bold: the {best} of a column.{spread}"


def write_template(path: Path, template: str, **values: Any) -> Path:
    page = _templates().get_template(template).render(values)
    write_text(path, page.encode("utf-8", "replace").decode("utf-8"))  # half a surrogate pair cannot be written
    return path


@cache
def _templates() -> jinja2.Environment:
    """Kept, as it keeps the compiled templates."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedalc", "report"),
        autoescape=True,  # names of datasets and labels are not trusted
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
