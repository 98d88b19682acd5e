"""At the server: probabilities and thresholds from the parties' held-out records.

Each party scores all labels for its held-out records and counts the scores in bins. The sums over parties are the
counts of one place with all these records (`evaluation.owner_scores`), and are fitted like those of a simulation.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from fedalc.config.experiment import Experiment
from fedalc.deployment.flower.answers import exactly
from fedalc.deployment.flower.census import Census
from fedalc.deployment.flower.held_out_records import HeldOutRecords, tells_sizes
from fedalc.deployment.flower.party_scores import MOST_LABELS, SCORES, SIZES
from fedalc.deployment.flower.ranking import SLACK, PartyRanking
from fedalc.deployment.flower.wire import BadMessage, Shape, pack, unpack
from fedalc.evaluation.calibrate import fit_calibration
from fedalc.evaluation.owner_scores import BINS, pairs_in_bins
from fedalc.labels.correlations import Correlations
from fedalc.models.calibration import Calibration
from fedalc.models.model import Model
from fedalc.training.calibration import refusal

QUESTION = "evaluate.scores"


def why_not(settings: Experiment, census: Census) -> str | None:
    """Return why parties do not count scores; None if they do."""
    reasons = (
        (census.ranking is None, "parties rank no labels for held-out records (--rank-held-out, --held-out-share)"),
        (not tells_sizes(settings), "parties may not know how many labels a record has (client.set_size)"),
        (census.roster.label_count > MOST_LABELS, f"there are more than {MOST_LABELS} labels"),
    )
    return refusal(settings) or next((reason for applies, reason in reasons if applies), None)


class PartyScores(PartyRanking):
    """Asks parties to count scores. Who is asked, and what about, is as for ranking."""

    kind = QUESTION
    records: HeldOutRecords

    def calibration(self, model: Model, round_number: int) -> Calibration | None:
        """Return what was fitted to the scores, or None if there are too few. Labels that a party has whose counts are
        missing are treated like labels without held-out records: others have its records' scores, but not the hits."""
        self.silent = set()
        labels_of = self._choose(round_number)
        exchange = self._send(model, labels_of, round_number)
        every, hits = np.zeros((2, self.roster.label_count, BINS))
        heard: set[int] = set()
        for reply in self._replies(exchange):
            party = self.parties.party_of[reply.node]
            read = partial(read_scores, self._most(party), self.roster.absent)
            found = self.parties.read(reply, round_number, self.roster.parties[party], read)
            if found is not None and len(found):
                heard.add(party)
                every += found[0]
                hits += found[1]
                self.traffic.up += 16 * int(np.count_nonzero(found))
        missing = np.isin(self.roster.owner, sorted(set(self.records.parties) - heard))
        for counts in (every, hits):
            counts[self.roster.label_of[missing]] = 0
        records = self.records.count(heard) if heard else 0
        self.parties.say(f"scores of {records} of {len(self.records)} held-out records, to fit probabilities")
        shares = self._log_shares()
        verifies = self.settings.task == "verification"
        pairs = pairs_in_bins(every, hits, shares, records)
        return fit_calibration([pairs], len(shares), shares, verifies) if heard else None

    def _most(self, party: int) -> np.ndarray:
        """Return how many held-out records the party has of each label, and at the end of all together."""
        own = np.zeros(self.roster.label_count + 1)
        clients = np.flatnonzero(self.roster.owner == party)
        own[self.roster.label_of[clients]] = self.roster.held_out[clients]
        own[-1] = len(self.records.whole_sizes(party))
        return own

    def _log_shares(self) -> np.ndarray:
        """Return the log of each label's share of the training records (`log_shares`); zeros if it is not known."""
        knowledge = self.census.knowledge
        if knowledge is None or not isinstance(knowledge.labels, Correlations):
            return np.zeros(self.roster.label_count)
        return np.asarray(np.log((knowledge.labels.counts + 1) / (knowledge.labels.instances + 1)))

    def _more(self, party: int) -> dict[str, ArrayRecord]:
        return {SIZES: pack({SIZES: self.records.whole_sizes(party)})}


def read_scores(most: np.ndarray, absent: np.ndarray, content: RecordDict) -> np.ndarray:
    """Return a party's counts, all and hits × labels × bins, if they are possible; an empty array if it sends none.

    `most`: how many records it has of each label, and in all. `absent`: labels that are not scored.
    """
    if SCORES not in content:
        metrics = content.get("metrics")
        exactly(content, {"metrics": {"num-examples"}})
        if not isinstance(metrics, MetricRecord) or metrics.get("num-examples") != 0:
            raise BadMessage("there are no scores")
        return np.empty(0)
    exactly(content, {SCORES: None})
    kinds = ("every", "hits")
    wanted: dict[str, tuple[str, Shape]] = {kind: ("float64", (None,)) for kind in kinds}
    arrays = unpack(content, SCORES, wanted | {f"{kind}-places": ("int64", (None,)) for kind in kinds})
    counts = np.zeros((2, (len(most) - 1) * BINS))
    for number, kind in enumerate(kinds):
        places, values = arrays[f"{kind}-places"], arrays[kind]
        inside = len(places) == len(values) and (not len(places) or 0 <= places[0] <= places[-1] < counts.shape[1])
        if not inside or (np.diff(places) <= 0).any() or (values <= 0).any():
            raise BadMessage("counts of scores that are not one above 0 for each of ascending places")
        counts[number, places] = values
    found = counts.reshape(2, -1, BINS)
    every, hits = found.sum(axis=2)
    scored = np.delete(every, absent)
    if (every[absent] > 0).any() or (scored > most[-1] * (1 + SLACK)).any() or np.ptp(scored) > SLACK * most[-1]:
        raise BadMessage("counts of scores that are not of the same records for every label, or of more than it has")
    if (hits > most[:-1] * (1 + SLACK)).any():
        raise BadMessage("counts of scores of more records than it has of a label")
    return found
