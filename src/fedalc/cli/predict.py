"""`fedalc predict`: the best labels of new instances, as CSV or JSON lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from fedalc.cli.options import FileOptions, with_options
from fedalc.errors import ConfigError, DataError, FedalcError

_FILE_NAME = re.compile(r"\S*(/\S*|\.[A-Za-z]\w{0,6}(\.gz|\.bz2)?)")  # words with a slash, or an ending such as .csv


@with_options
def predict(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    file: Annotated[
        str | None,
        typer.Argument(
            help="instances in a data format that fedalc reads; for a model of raw texts: a text, or a .txt file with "
            "one per line; for a picture model: a picture, or a folder or tar archive of pictures; - for standard "
            "input. Labels are ignored"
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text", help="a text, also if it looks like a path or an option: --text=-5 --text=a/b; may be repeated"
        ),
    ] = None,
    *,
    columns: FileOptions,
    top: Annotated[int | None, typer.Option(min=1, help="labels per instance: 5, or with --threshold all")] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="the labels that an instance has, instead of the best ones: f1 (thresholds for the best F1), "
            "precision=0.9, or a probability such as 0.5"
        ),
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="no label for an instance whose best probability is smaller; marked"),
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="also write probabilities")] = False,
    form: Annotated[str, typer.Option("--format", help="csv or jsonl")] = "csv",
    out: Annotated[Path | None, typer.Option(help="output file (default: the terminal)")] = None,
    broken: Annotated[
        str, typer.Option(help="pictures that cannot be decoded: refuse, or skip with a warning")
    ] = "refuse",
    sheet: Annotated[
        Path | None, typer.Option(help="write the first pictures with their labels to this PNG file")
    ] = None,
    sheet_pictures: Annotated[int, typer.Option(min=1, max=300, help="number of pictures on the --sheet")] = 36,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    text_encoder: Annotated[
        Path | None, typer.Option(help="where the sentence encoder of training is now, if it was moved")
    ] = None,
    pretrained: Annotated[
        list[str] | None,
        typer.Option("--pretrained", help="where the frozen network of training is now, if it was moved"),
    ] = None,
) -> None:
    """Predict the best labels of new instances, with names and scores.

    Scores rank labels and are not probabilities: cosines in [-1, 1], or any number for models of the square loss
    (fedalc-exact, fedalc-oneshot), for fedmlh and for oracles. --probabilities and --threshold need a model that was
    calibrated on held-out records, as most runs are (docs/predictions.md).
    """
    if (file is None) == (not text):
        raise ConfigError("give a file, a text, - for standard input, or --text; only one of them", "FILE")
    if file is not None and run.exists():  # before loading torch, which takes seconds
        _refuse_missing(file, run)
    from fedalc.workflows.predict import predict_file
    from fedalc.workflows.prediction_files import Answer

    if form not in ("csv", "jsonl"):
        raise FedalcError(f"--format: csv or jsonl, not {form!r}")
    if broken not in ("refuse", "skip"):
        raise FedalcError(f"--broken: refuse or skip, not {broken!r}")
    predict_file(
        run,
        file if file is not None else tuple(text or ()),
        Answer(top, threshold, abstain_below, probabilities),
        form="csv" if form == "csv" else "jsonl",
        out=out,
        broken="refuse" if broken == "refuse" else "skip",
        sheet=sheet,
        sheet_pictures=sheet_pictures,
        device=device,
        text_encoder=text_encoder,
        pretrained=pretrained or (),
        columns=columns.columns(),
    )


def _refuse_missing(given: str, run: Path) -> None:
    """Refuse a file that is not there: it looks like one, or the model does not read texts."""
    try:
        if given == "-" or Path(given).exists():
            return
    except (OSError, ValueError):  # too long for a file's name
        return
    reads_texts, looks_like_a_file = _reads_texts(run), _FILE_NAME.fullmatch(given)
    if reads_texts and looks_like_a_file:
        raise DataError("no such file or folder; if it is a text, give it with --text", Path(given))
    if not reads_texts:
        or_text = "" if looks_like_a_file else " (and no text for this model, which was trained on features)"
        raise DataError(f"no such file or folder{or_text}", Path(given))


def _reads_texts(run: Path) -> bool:
    folder = run / "model" if (run / "model").is_dir() else run
    try:
        return "text" in json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return True  # loading the model says what is wrong
