"""`fedalc export`: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedalc.errors import ConfigError


def export(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    onnx: Annotated[Path | None, typer.Option(help="write an ONNX file, such as model.onnx")] = None,
) -> None:
    """Write the model of a run as an ONNX file, which runs without fedalc (needs the extra `onnx`).

    The file takes a dense matrix of features (or pictures) and gives the scores of all labels, and their
    probabilities if the model has them. Its metadata holds the label names. It is checked against the model before it
    gets its name. Missing folders of the file are made. Example:

    fedalc export runs/mine --onnx mine.onnx
    """
    if onnx is None:
        raise ConfigError("say which file to write, such as --onnx model.onnx", "--onnx")
    from fedalc.workflows.export_onnx import export_onnx

    done = export_onnx(run, onnx)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{done.file}: {done.bytes / 1e6:.1f} MB, checked with onnxruntime")
    console.print(f"  input   {done.input}: {done.shape}")
    console.print(f"  output  scores: float32 instances × {done.labels}")
    if done.probabilities:
        console.print(f"  output  probabilities: float32 instances × {done.labels}, calibrated on held-out records")
    console.print(f"  scores differ from fedalc predict by at most {done.difference:.0e} of the largest")
