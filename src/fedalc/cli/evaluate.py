"""`fedalc evaluate`: all metrics of a run on labelled records. `fedalc calibrate`: probabilities from others."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedalc.cli.options import DataDir, FileOptions, with_options
from fedalc.errors import FedalcError

if TYPE_CHECKING:
    from fedalc.workflows.evaluate import Evaluation

Run = Annotated[Path, typer.Argument(help="folder of a finished run")]


@with_options
def evaluate(
    run: Run,
    data: Annotated[
        str | None,
        typer.Argument(
            help="labelled records: a file, or the test set of a folder or dataset (default: the run's own dataset)"
        ),
    ] = None,
    *,
    columns: FileOptions,
    per_label: Annotated[
        Path | None,
        typer.Option(help="write figures of each label to this file: CSV, or JSON if its name ends with .json"),
    ] = None,
    threshold: Annotated[
        str, typer.Option(help="for --per-label: f1, precision=0.9, or a probability such as 0.5")
    ] = "f1",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table")] = False,
    out: Annotated[Path | None, typer.Option(help="output file (default: the terminal)")] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
) -> None:
    """Evaluate a run's model on labelled records: all metrics, and with --per-label those of each label.

    Labels that the model does not know count as missed. Columns of a table have the names of the training data, unless
    you give others.
    """
    _check_run(run)
    from fedalc.core.atomic_files import whole_file
    from fedalc.core.devices import check_device
    from fedalc.models.thresholds import as_rule
    from fedalc.workflows.evaluate import evaluate_folder

    check_device(device)
    rule = as_rule(threshold)
    found = evaluate_folder(run, data, data_dir, device, columns.columns())
    content = json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else _table(found)
    with nullcontext(sys.stdout) if out is None else whole_file(out) as stream:
        stream.write(content + "\n")
    if per_label is not None:
        _write_labels(per_label, found.per_label(rule))


@with_options
def calibrate(
    run: Run,
    data: Annotated[
        str,
        typer.Argument(
            help="labelled records that the model was not trained on: a file, or the validation (else test) data of a "
            "folder or dataset"
        ),
    ],
    columns: FileOptions,
    data_dir: DataDir = None,
) -> None:
    """Fit a model's probabilities and thresholds on labelled records, and save them with it.

    The model itself does not change. Do not report metrics of sets (F1) on the same records.
    """
    _check_run(run)
    from fedalc.workflows.evaluate import calibrate_folder

    calibration = calibrate_folder(run, data, data_dir, columns.columns())
    own = len(calibration.counts.labels)
    typer.echo(
        f"{run}: probabilities fitted on {calibration.records:,} records; {own:,} of {calibration.label_count:,} "
        "labels have thresholds of their own"
    )


def _check_run(run: Path) -> None:
    if not run.is_dir():  # before loading torch, which takes seconds
        raise FedalcError(f"{run}: no such run folder")


def _table(found: Evaluation) -> str:
    from fedalc.data.tables.label_cells import separator_hint

    lines = [f"{found.data.name}: {found.records:,} records, metrics in percent"]
    if found.unknown_labels:
        shown = ", ".join(found.unknown_labels[:5]) + (", …" if len(found.unknown_labels) > 5 else "")
        lines.append(f"{len(found.unknown_labels):,} labels are unknown to the model and count as missed: {shown}")
        if hint := separator_hint(found.unknown_labels, found.model.label_names):
            lines.append(hint)
    width = max(map(len, found.metrics), default=0)
    lines += [f"{name:{width}}  {value:6.2f}" for name, value in found.metrics.items()]
    quality = found.probabilities
    if quality is None:
        return "\n".join([*lines, "no probabilities, so no F1: fedalc calibrate RUN FILE fits them"])
    lines.append("")
    lines.append("probabilities, over all pairs of record and label")
    for name in ("brier", "log_loss", "calibration_error"):
        lines.append(f"{name.replace('_', ' '):17}  {quality[name]:.6f}")
    lines += ["", "--abstain-below  coverage  P@1 of the rest"]
    for row in quality["abstention"]:
        precision = "–" if row["P@1"] is None else f"{row['P@1']:.2f}"
        lines.append(f"{row['abstain_below']:15.1f}  {row['coverage']:8.2f}  {precision:>15}")
    return "\n".join(lines)


def _write_labels(path: Path, labels: list[dict[str, Any]]) -> None:
    from fedalc.core.atomic_files import whole_file

    with whole_file(path) as stream:
        if path.suffix.lower() == ".json":
            stream.write(json.dumps(labels, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
            return
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(labels[0] if labels else ("label", "name", "positives"))
        for row in labels:
            numbers = (round(value, 6) if isinstance(value, float) else value for value in row.values())
            writer.writerow("" if value is None else value for value in numbers)
