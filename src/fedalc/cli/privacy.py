"""`fedalc privacy`: list what all runs spent. (Not in labels.privacy, which loads torch.)"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedalc.config.schema import PRIVACY_LEDGER
from fedalc.errors import FedalcError

if TYPE_CHECKING:
    from fedalc.labels.privacy.ledger import Charge

_SERVER_STATE = Path("fedalc-server")


def privacy(
    state: Annotated[
        Path | None,
        typer.Option(
            help="state folder of a server or a party, to list its runs (default: ./fedalc-server, if it exists)"
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="ledger file (default: $FEDALC_PRIVACY_LEDGER, or the one in your state folder)")
    ] = None,
    delta: Annotated[float, typer.Option(min=1e-15, max=0.1, help="δ of the totals")] = 1e-5,
) -> None:
    """List the differential privacy (ε, δ) that all runs spent, by dataset and deployment, with totals."""
    from fedalc.labels.privacy.ledger import Ledger, by_subject, default_path

    if state is not None and ledger is not None:
        raise FedalcError("give either --state or --ledger, not both")
    if ledger is not None:
        paths = [ledger]
    elif state is not None:
        paths = [state / PRIVACY_LEDGER]
    else:
        paths = [default_path()] + (
            [_SERVER_STATE / PRIVACY_LEDGER] if (_SERVER_STATE / PRIVACY_LEDGER).exists() else []
        )
    if (ledger or state) and not paths[0].exists():
        raise FedalcError(f"{paths[0]}: there is no such privacy ledger")
    console = Console(highlight=False, soft_wrap=True)
    for path in paths:
        console.print(f"privacy ledger: {path}", markup=False)
        groups = by_subject(Ledger(path).charges())
        if not groups:
            console.print("nothing spent yet")
        for group in groups:
            _show(console, group, delta)


def _epsilon(charge: Charge) -> str:
    return "not private (seeded)" if charge.epsilon is None else f"{charge.epsilon:.4g}"


def _show(console: Console, charges: Sequence[Charge], delta: float) -> None:
    from fedalc.labels.privacy.ledger import total
    from fedalc.report.plain_tables import PlainColumn, plain_table

    names = dict.fromkeys(charge.subject for charge in charges)
    columns = [
        PlainColumn("time (UTC)", [charge.time[:16].replace("T", " ") for charge in charges], leave_out=1),
        PlainColumn("what", [charge.what for charge in charges], wraps=True),
        PlainColumn("ε", [_epsilon(charge) for charge in charges], right=True),
        PlainColumn("δ", [f"{charge.delta:g}" for charge in charges], right=True),
        PlainColumn("run", [charge.run or "" for charge in charges], leave_out=2, wraps=True),
    ]
    console.print()
    console.print(", ".join(names), markup=False)
    console.print(plain_table(columns, console.width))
    spent = total(charges, delta)
    console.print(
        f"spent in {spent.runs} runs: ε = {spent.epsilon:.4g} at δ = {spent.delta:.3g} "
        f"(plain sum: ε = {spent.plain:.4g} at δ = {spent.plain_delta:.3g})"
    )
