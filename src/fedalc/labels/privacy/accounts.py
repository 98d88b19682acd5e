"""Choose the ledger account that pays for a run's privacy, and charge each run once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.sparse import csr_matrix

from fedalc.config.schema import PRIVACY_LEDGER
from fedalc.core.atomic_files import write_text
from fedalc.data.dataset import Dataset
from fedalc.data.text.settings import TextSettings
from fedalc.errors import FedalcError
from fedalc.labels.collection.messages import Protocol
from fedalc.labels.privacy.accounting import epsilon_of
from fedalc.labels.privacy.documents import documents_release
from fedalc.labels.privacy.ledger import GONE_ON, Account, Charge, GoneOn, Ledger, default_path, new_id

CHARGED = "privacy.json"
"""The file in a run folder that holds the run's id in the ledger."""


def dataset_account(dataset: Dataset, location: str, budget: float | None = None) -> Account:
    """Return the account of a simulation on a dataset.

    The dataset is recognised by its name or path, and also by its label sets, so that a copy of its folder, or a folder
    with a few more instances, does not start from zero.
    """
    ledger = Ledger(default_path())
    name = str(Path(location).resolve()) if Path(location).is_dir() else dataset.name
    return Account(ledger, f"dataset {name}", (f"dataset:{name}", ledger.mark_of(dataset.train.labels)), budget)


def files_account(protocol: Protocol, label_sets: csr_matrix, budget: float | None = None) -> Account:
    """Return the account of message files. They are recognised by the clients' key and by the label sets."""
    ledger = Ledger(default_path())
    marks = [ledger.mark_of(label_sets)] + ([f"key:{protocol.key_check}"] if protocol.key_check else [])
    subject = f"collected files (key check {protocol.key_check or 'none'})"
    return Account(ledger, subject, tuple(marks), budget)


def deployment_account(ledger: Path | None, run_folder: Path, budget: float | None = None) -> Account:
    """Return the account of a deployment. All runs of a server share it, whichever parties take part."""
    path = (ledger or run_folder.parent / PRIVACY_LEDGER).resolve()
    return Account(Ledger(path), f"deployment {path.parent}", (f"deployment:{path.parent}",), budget)


def party_account(state: Path, budget: float | None = None) -> Account:
    """Return the account of a party, in its state folder. All its runs share it, whichever records they use."""
    folder = state.resolve()
    return Account(Ledger(folder / PRIVACY_LEDGER), f"party {folder}", (f"party:{folder}",), budget)


def charge_run(account: Account, charge: Charge, folder: Path | None) -> None:
    """Charge a run in the ledger, before its noise is used. A resumed run has been charged already.

    Folder and ledger share a state, which changes whenever the run continues. A copy of the folder has an old state and
    is refused. The folder also keeps the previous state, for a crash between the two writes.
    """
    recorded = _recorded(folder)
    charge = replace(charge, id=recorded.get("charge") or new_id())
    state = account.ledger.state_of(charge.id)
    if state is not None and state not in (recorded.get("state"), recorded.get("before")):
        raise GoneOn(f"{folder}: {GONE_ON}")
    new = new_id()
    if folder is not None:
        now = {"charge": charge.id, "ledger": str(account.ledger.path), "state": new, "before": state}
        write_text(folder / CHARGED, json.dumps(now) + "\n")
    account.ledger.add(charge, account.budget)
    if folder is not None:
        account.ledger.go_on(charge.id, state, new)


def charge_documents(account: Account, text: TextSettings, folder: Path, run: str) -> None:
    """Charge the noise of numbers of documents, before parties are asked for them. Parties draw it once per run id, so
    that the same run id is charged once."""
    if text.epsilon is None:
        return
    release = documents_release(text)
    spent, where = epsilon_of([release], text.delta), str(folder.resolve())
    charge = account.charge("numbers of documents", text.delta, spent, release, run=where)
    account.ledger.add(replace(charge, id=documents_id(run)), account.budget)


def documents_id(run: str) -> str:
    """Return the charge's id in the ledger."""
    return f"documents {run}"


def check_run(account: Account, charge: Charge, folder: Path | None, resume: bool) -> None:
    """Refuse early what `charge_run` would refuse."""
    if account.budget is not None:
        charge_id = _recorded(folder).get("charge", "") if resume else ""
        account.ledger.check(replace(charge, id=charge_id), account.budget)


def _recorded(folder: Path | None) -> dict[str, Any]:
    """Return the run's id in the ledger and its state, as the run folder records them."""
    if folder is None or not (folder / CHARGED).exists():
        return {}
    try:
        recorded: dict[str, Any] = json.loads((folder / CHARGED).read_text(encoding="utf-8"))
        if not isinstance(recorded["charge"], str) or not recorded["charge"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FedalcError(f"{folder / CHARGED}: damaged; delete it, and the run is charged again") from None
    return recorded
