"""Who a run's privacy is charged to, and that it is charged once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.sparse import csr_matrix

from fedalc.config.schema import PRIVACY_LEDGER
from fedalc.core.atomic_files import write_text
from fedalc.data.dataset import Dataset
from fedalc.errors import FedalcError
from fedalc.labels.collection.messages import Protocol
from fedalc.labels.privacy.ledger import GONE_ON, Account, Charge, GoneOn, Ledger, default_path, new_id

CHARGED = "privacy.json"
"""In a run folder: under which id the run is in the ledger."""


def dataset_account(dataset: Dataset, place: str, budget: float | None = None) -> Account:
    """Of a simulation. Data is known by its name or path, and by its label sets, so that neither a copy of a folder nor
    a few more instances in it are new data with nothing spent."""
    ledger = Ledger(default_path())
    name = str(Path(place).resolve()) if Path(place).is_dir() else dataset.name
    return Account(ledger, f"dataset {name}", (f"dataset:{name}", ledger.mark_of(dataset.train.labels)), budget)


def files_account(protocol: Protocol, label_sets: csr_matrix, budget: float | None = None) -> Account:
    """Of message files that a server joins: known by the clients' key and by the label sets."""
    ledger = Ledger(default_path())
    marks = [ledger.mark_of(label_sets)] + ([f"key:{protocol.key_check}"] if protocol.key_check else [])
    subject = f"collected files (key check {protocol.key_check or 'none'})"
    return Account(ledger, subject, tuple(marks), budget)


def deployment_account(ledger: Path | None, run_folder: Path, budget: float | None = None) -> Account:
    """Of runs with real parties: all runs of a server are on the same data, whichever parties take part."""
    path = (ledger or run_folder.parent / PRIVACY_LEDGER).resolve()
    return Account(Ledger(path), f"deployment {path.parent}", (f"deployment:{path.parent}",), budget)


def charge_run(account: Account, charge: Charge, folder: Path | None) -> None:
    """Enter a run in the ledger, before anything made with its noise is used. A resumed run is in it already.

    Folder and ledger share a state, which changes whenever the run goes on: a copy of the folder has an old one, and is
    refused. The folder also keeps the one before, for a crash between the two writes.
    """
    said = _said(folder)
    charge = replace(charge, id=said.get("charge") or new_id())
    state = account.ledger.state_of(charge.id)
    if state is not None and state not in (said.get("state"), said.get("before")):
        raise GoneOn(f"{folder}: {GONE_ON}")
    new = new_id()
    if folder is not None:
        now = {"charge": charge.id, "ledger": str(account.ledger.path), "state": new, "before": state}
        write_text(folder / CHARGED, json.dumps(now) + "\n")
    account.ledger.add(charge, account.budget)
    if folder is not None:
        account.ledger.go_on(charge.id, state, new)


def check_run(account: Account, charge: Charge, folder: Path | None, resume: bool) -> None:
    """Refuse, before anything is done, what `charge_run` would refuse."""
    if account.budget is not None:
        account.ledger.check(replace(charge, id=_said(folder).get("charge", "") if resume else ""), account.budget)


def _said(folder: Path | None) -> dict[str, Any]:
    """What the run folder says of the run: its id in the ledger, and its state."""
    if folder is None or not (folder / CHARGED).exists():
        return {}
    try:
        said: dict[str, Any] = json.loads((folder / CHARGED).read_text(encoding="utf-8"))
        if not isinstance(said["charge"], str) or not said["charge"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FedalcError(
            f"{folder / CHARGED}: damaged; without it the run would be charged again: delete it"
        ) from None
    return said
