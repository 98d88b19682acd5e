"""The privacy budget of a run: what it may spend is entered into the privacy ledger before any noise is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalc.config.experiment import Experiment
from fedalc.core import distributed
from fedalc.errors import FedalcError
from fedalc.labels.knowledge import LabelKnowledge, planned_charge, privacy_spent
from fedalc.labels.privacy.accounts import charge_run, check_run
from fedalc.labels.privacy.ledger import Account, Charge
from fedalc.methods import METHODS


def planned_looks(settings: Experiment, phases: int) -> int:
    """Return how often, at most, a run takes noised figures from label sets."""
    if settings.privacy.mechanism in ("counts", "sums"):
        return phases
    every_round = settings.privacy.mechanism == "updates"
    return phases * (settings.rounds if every_round else METHODS[settings.method].looks_at_labels(settings))


class PrivacyBudget:
    """Charges a run of `phases` phases to the account that `open_account` returns."""

    def __init__(
        self, settings: Experiment, phases: int, folder: Path | None, open_account: Callable[[], Account]
    ) -> None:
        self.settings = settings
        self.phases = phases
        self.folder = folder
        self.open_account = open_account

    def check(self, resume: bool) -> None:
        """Refuse a run that would spend more than its budget."""
        self._in_ledger(lambda account, charge: check_run(account, charge, self.folder, resume))

    def charge(self) -> None:
        """Enter what all phases may spend."""
        self._in_ledger(lambda account, charge: charge_run(account, charge, self.folder))

    def spent(self, knowledge: LabelKnowledge | None, looks: int) -> dict[str, Any] | None:
        """Return the field `privacy` of result.json, after `looks` looks at the labels."""
        return privacy_spent(self.settings, knowledge, planned_looks(self.settings, self.phases), looks)

    def draws_noise(self, knowledge: LabelKnowledge | None) -> bool:
        """Whether noise was drawn that must not be drawn again: it is then saved at once."""
        return knowledge is not None and self.settings.privacy.mechanism is not None

    def draws_noise_each_round(self, knowledge: LabelKnowledge | None) -> bool:
        """Whether each round draws noise. A round is then saved before any of its outcome is shown, so that noise is
        drawn again only for a round that nobody has seen."""
        return self.draws_noise(knowledge) and self.settings.privacy.mechanism != "counts"

    def draws_again_from(self, phase: Any, knowledge: LabelKnowledge | None) -> bool:
        """Whether resuming from a checkpoint of `phase` that is not the newest would draw new noise once more."""
        if not self.draws_noise(knowledge) or self.settings.privacy.noise == "seeded":
            return False
        return self.draws_noise_each_round(knowledge) or (self.phases > 1 and phase == "select")

    def _in_ledger(self, act: Callable[[Account, Charge], None]) -> None:
        """Let the first process act on the ledger. If it is refused, all processes are."""
        refusal: Exception | None = None
        if distributed.is_first():
            try:
                account, looks = self.open_account(), planned_looks(self.settings, self.phases)
                act(account, planned_charge(self.settings, account, looks, self.folder))
            except (FedalcError, OSError) as error:
                refusal = error
        if distributed.any_of(refusal is not None):
            raise refusal or FedalcError("the first process could not enter the run into the privacy ledger")
