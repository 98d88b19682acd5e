"""`fedalc serve`: a trained model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def serve(
    run: Annotated[Path, typer.Argument(help="folder of a finished run")],
    host: Annotated[str, typer.Option(help="address to listen on; others than this machine can reach 0.0.0.0")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="port (0: any free one)")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="file with a token that requests must send (Authorization: Bearer TOKEN)")
    ] = None,
    max_body_mb: Annotated[int, typer.Option(min=1, max=1024, help="largest request, in MiB")] = 8,
    max_records: Annotated[int, typer.Option(min=1, help="most records in one request")] = 1000,
    queue: Annotated[int, typer.Option(min=1, help="most requests that wait; more are refused with 429")] = 100,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for a request to arrive and to be answered")] = 30,
    batch_window: Annotated[
        float, typer.Option(min=0, max=1000, help="milliseconds to wait for requests to predict together")
    ] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="most records that are predicted together")] = 256,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    access_log: Annotated[bool, typer.Option("--access-log", help="print a line per request")] = False,
) -> None:
    """Serve the model of a run over HTTP (needs the extra `serve`; docs/serving.md).

    Example:

    fedalc serve runs/mine --port 8000

    curl -H 'Content-Type: application/json' -d '{"texts": ["a new text"], "top": 3}' http://127.0.0.1:8000/predict
    """
    from fedalc.serving.limits import MIB, Limits
    from fedalc.serving.server import serve as run_server

    limits = Limits(max_body_mb * MIB, max_records, queue, timeout, batch_window / 1000, batch_size)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    run_server(
        run,
        host,
        port,
        limits=limits,
        token_file=token_file,
        device=device,
        access_log=access_log,
        tell=lambda line: console.print(line),
    )
