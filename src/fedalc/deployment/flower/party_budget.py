"""At a party: what it spends of its own records' privacy in runs with a private model (docs/private-model.md).

The party keeps a ledger of its own in its state folder: what the server says or forgets does not matter. It works out
the noise from ε and δ by itself.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.party_memory import remembered
from fedalc.deployment.flower.wire import BadMessage
from fedalc.errors import ConfigError
from fedalc.labels.knowledge import planned_charge
from fedalc.labels.privacy.accounts import charge_documents, documents_id, party_account
from fedalc.labels.privacy.generator import KEY_BYTES
from fedalc.labels.privacy.ledger import Account, BudgetError, Charge
from fedalc.training.privacy_budget import planned_looks

log = logging.getLogger("fedalc.party")
BUDGET = "epsilon-budget"
_OF_DOCUMENTS = "noise key of documents"  # in the party's memory of the run


def check_promise(node_config: Mapping[str, Any], settings: Experiment, run: str) -> None:
    """Refuse a run whose promise is too small for this party, or that cannot be kept. Call it before data is read."""
    budget = budget_of(node_config)
    if not settings.privacy.covers_records:
        if budget is not None:
            raise BadMessage("is a run without a private model, and this party answers no other (--epsilon-budget)")
        return
    if not settings.secure_sums.on:
        raise BadMessage(
            "promises a private model without secure sums: the server would see this party's sums with a share of the "
            "noise only (--secure-sums)"
        )
    if not run:
        raise BadMessage("promises a private model and has no run id, by which this party knows what it has spent")
    if "state" not in node_config:
        raise BadMessage("promises a private model, and this party has no state folder to remember its noise in")
    if (most := _most(node_config)) is not None:
        account, charge = _charge(node_config, settings, run)
        _within(lambda: account.ledger.check(charge, most))


def spend(node_config: Mapping[str, Any], settings: Experiment, run: str) -> Charge:
    """Enter the run into this party's ledger, before its first noised answer. A run is charged once, by its id, with
    which its settings cannot change."""
    if (entered := charged(node_config, run)) is not None:
        return entered  # what it costs need not be worked out again, which takes seconds
    account, charge = _charge(node_config, settings, run)
    _within(lambda: account.ledger.add(charge, account.budget))
    return charge


def charged(node_config: Mapping[str, Any], run: str) -> Charge | None:
    """Return what the run was charged, or None: it was not."""
    return _entered(node_config, _id(run))


def noise_key(context: Context, run: str, what: str, charged: bool) -> bytes:
    """Return the key that the run's noise follows from, so that the same question gets the same noise for ever. It is
    drawn once, and kept in the party's memory of the run. `charged`: whether the run's noise was paid for before."""
    with remembered(context, run) as known:
        if what not in known and charged:
            raise BadMessage("goes on with a run whose noise this party has drawn and forgotten: begin a new one")
        return bytes.fromhex(known.setdefault(what, secrets.token_hex(KEY_BYTES)))


def check_documents(settings: Experiment) -> None:
    """In a run with a private model, numbers of documents need noise."""
    if settings.privacy.covers_records and settings.text.epsilon is None:
        raise BadMessage("asks for numbers of documents without noise, in a run with a private model (text.epsilon)")


def spend_documents(context: Context, settings: Experiment, run: str) -> bytes:
    """Charge the noise of numbers of documents, once for a run with a private model, and return its key."""
    if not settings.privacy.covers_records:
        return noise_key(context, run, _OF_DOCUMENTS, charged=False)
    account = _account(context.node_config)
    paid = _entered(context.node_config, documents_id(run)) is not None
    key = noise_key(context, run, _OF_DOCUMENTS, paid)
    _within(lambda: charge_documents(account, settings.text, account.ledger.path.parent, run))
    return key


def budget_of(node_config: Mapping[str, Any]) -> float | None:
    """Return the ε that all runs of this party together may spend; None: any."""
    budget = node_config.get(BUDGET)
    if budget is not None and not (isinstance(budget, int | float) and budget > 0):
        raise ConfigError(f"should be a number above 0, and is {budget!r}", BUDGET)
    return None if budget is None else float(budget)


def _most(node_config: Mapping[str, Any]) -> float | None:
    """Return the budget, or what one run may spend at a party with --require-secure-sums: over many runs the server
    could average the noise out."""
    if (budget := budget_of(node_config)) is None and node_config.get("require-secure-sums"):
        return Limits.from_node_config(node_config).largest("privacy.epsilon")
    return budget


def _charge(node_config: Mapping[str, Any], settings: Experiment, run: str) -> tuple[Account, Charge]:
    account = _account(node_config)
    return account, replace(planned_charge(settings, account, planned_looks(settings, 1)), id=_id(run))


def _account(node_config: Mapping[str, Any]) -> Account:
    return party_account(Path(str(node_config["state"])), _most(node_config))


def _entered(node_config: Mapping[str, Any], charge_id: str) -> Charge | None:
    return next((charge for charge in _account(node_config).ledger.charges() if charge.id == charge_id), None)


def _id(run: str) -> str:
    return f"run {run}"


def _within(act: Callable[[], None]) -> None:
    try:
        act()
    except BudgetError as error:  # what was spent before is none of the server's business
        log.error("%s", error)
        raise BadMessage("would spend more than this party's budget of ε for all runs (--epsilon-budget)") from None
