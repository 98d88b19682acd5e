"""The server's side of a run: census of the parties, rounds, and the run folder."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedalc.config.experiment import Experiment
from fedalc.config.resolve import for_labels
from fedalc.core.devices import check_device
from fedalc.core.interrupt import Interrupt
from fedalc.core.plugins import load_inherited_plugins
from fedalc.data.text.agreed import needs_counts
from fedalc.deployment.flower.census import Census, question
from fedalc.deployment.flower.connections import Parties, TooFew
from fedalc.deployment.flower.exchange import pull_soon
from fedalc.deployment.flower.held_out import read_held_out, server_data
from fedalc.deployment.flower.masked_sums import described as described_sums
from fedalc.deployment.flower.run_config import Deployment, read_run_config
from fedalc.deployment.flower.search import CensusKeeper, PartyPart
from fedalc.deployment.flower.take_census import take_census
from fedalc.deployment.flower.text_census import tell
from fedalc.deployment.flower.training import PartyTraining
from fedalc.engines.aggregation import described
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.knowledge import planned_charge
from fedalc.labels.privacy.accounts import charge_documents, check_run, deployment_account
from fedalc.runs.folder import check_folder, read_settings
from fedalc.secure_sums.messages import LEAST_PARTIES
from fedalc.training.base import Callback
from fedalc.training.federated import planned_looks
from fedalc.training.tuning import SEARCHING
from fedalc.workflows.inputs import frozen_pictures
from fedalc.workflows.preflight import check_memory
from fedalc.workflows.run import Run
from fedalc.workflows.train import fill_folder
from fedalc.workflows.tune import settled

app = ServerApp()
load_inherited_plugins()  # Flower starts this process, not `fedalc`, which loads them for its commands


@app.main()
def main(grid: Grid, context: Context) -> None:
    pull_soon()
    try:
        deployment, settings = read_run_config(context.run_config, context.run_id)
        run = run_with_parties(grid, deployment, settings)
    except FedalcError as error:
        say(f"error: {error}")
        raise
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in run.metrics.items())
    say(f"finished after {run.result['rounds']} rounds: {metrics or 'nothing to measure on'}")
    say(f"run folder: {run.folder}")
    if run.result.get("tuning"):
        again = f"fedalc deploy run --config {run.folder}/config.toml --held-out-share 0"
        say(f"held-out records are not in the model; to train on all records with these settings: {again}")


def run_with_parties(grid: Grid, deployment: Deployment, settings: Experiment) -> Run:
    """Run the whole training, and return the finished run folder."""
    folder, resume = deployment.folder, deployment.resume
    settings = read_settings(folder) if resume else settings
    check_device(settings.device)
    check_folder(folder, settings, resume, overwrite=False)
    account = deployment_account(deployment.privacy_ledger, folder.resolve(), deployment.epsilon_budget)
    # Before any party is asked:
    if account.budget is not None and settings.uses_labels and settings.privacy.mechanism is not None:
        check_run(account, planned_charge(settings, account, planned_looks(settings, 1), folder), folder, resume)
    census = Census.load(folder) if resume else None
    waits = settings.text.kind == "hashing" and needs_counts(settings.text)  # for what parties agree on
    network = frozen_pictures(settings) if settings.encoder.frozen else None
    held_out = None
    if deployment.held_out is not None and not waits:
        held_out = read_held_out(deployment.held_out, settings, network=network)
    share = deployment.share if census is None else census.share
    run = census.run if census is not None else deployment.run_id or secrets.token_hex(8)
    say(f"run id: {run or 'none (the run began without one)'}")
    search = "" if census is None else census.search
    hello, private = partial(question, settings, share, run, search), settings.privacy.covers_records
    parties = Parties(grid, deployment.patience, hello, say, empty_labels=private)
    if census is not None and census.text is not None:
        tell(parties, census.text)
    ranks = deployment.ranks or settings.tuning.search
    charge = partial(charge_documents, account, settings.text, folder, run)
    census = census or take_census(parties, settings, share, run, deployment.most_labels, ranks, charge)
    least, count = deployment.patience.go_on_with, len(census.roster.parties)
    if count < least:
        raise TooFew(
            f"{count} parties with labels of their own are left, and at least {least} are needed (min-parties)"
        )
    text = settings.text if census.text is None else census.text.features(settings.text)
    if waits and deployment.held_out is not None:
        held_out = read_held_out(deployment.held_out, settings, text)
    data = server_data(census.roster, held_out, say, text, network)
    if settings.embeddings.secret:  # `key name-model` finds out by pseudonyms whether it has the right key
        data = replace(data, label_names=tuple(census.roster.pseudonyms_in_hex))
    # Flower ends its processes with a signal. We need not finish the round first: all earlier rounds are saved.
    interrupt, tuning = Interrupt(), None
    if census.search:
        parts = [PartyPart(parties, census, deployment.max_norm, settings)]
        callbacks = [CensusKeeper(parties, census, folder), Spoken(1)]
        settings, tuning, resume = settled(settings, data, folder, resume, False, callbacks, parts, interrupt)
    wanted = for_labels(settings, data.label_count)
    if wanted != settings:  # parties accept only the settings they saw in the census
        need = f"{settings.method} with {data.label_count} labels of the parties: use {wanted.encoder.dim}"
        raise ConfigError(need, "encoder.dim")
    check_memory(settings, data)
    parties.say(described(settings, count))
    parties.say(described_sums(settings, count))
    if settings.secure_sums.on and count < LEAST_PARTIES:
        raise TooFew(f"{count} parties are left, and secure sums need {LEAST_PARTIES} (--no-secure-sums does without)")
    followers = [Spoken(settings.rounds)]
    training = PartyTraining(settings, data, census, parties, deployment.max_norm, folder, followers, account)
    training.tuning = tuning
    training.prepare()
    return fill_folder(training, resume, overwrite=False, interrupt=interrupt)[0]


class Spoken(Callback):
    """Prints progress for the log."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.rounds = rounds
        if name.startswith(SEARCHING):
            say(name)
        if done:
            say(f"continuing after round {done} of {rounds}")

    def note(self, text: str) -> None:
        say(f"note: {text}")

    def round(self, number: int, loss: float) -> None:
        say(f"round {number} of {self.rounds}: loss {loss:.5g}")

    def step(self, number: int, what: str) -> None:
        say(what)

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["metrics"]:
            say(f"round {record['round']}: " + ", ".join(f"{k} {v:.4g}" for k, v in record["metrics"].items()))


def say(line: str) -> None:
    """Print one line and flush it, because the log is followed live."""
    sys.stdout.write(f"fedalc: {line}\n")
    sys.stdout.flush()
