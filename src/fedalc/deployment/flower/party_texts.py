"""At a party: count its documents, and turn its texts into the features that parties agreed on.

The agreement comes with the question who the party is, once. The party keeps it in its state folder, one file per run
id (without that folder, in Flower's context of the run), and its digest among what a run may not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from scipy.sparse import csr_matrix

from fedalc.config.experiment import Experiment
from fedalc.data.cache import store_arrays
from fedalc.data.text.agreed import DocumentCounter, needs_counts
from fedalc.data.text.base import TextFeatures, listed_texts
from fedalc.data.text.features import VocabularyText
from fedalc.data.text.keyed import key_check, term_digests
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower.agreement import FACTS, TEXT, Agreement, masks_counts, of_documents, read_agreement
from fedalc.deployment.flower.introductions import HELLO
from fedalc.deployment.flower.limits import Limits
from fedalc.deployment.flower.party import Party, TextOf, party_collection
from fedalc.deployment.flower.party_budget import spend_documents
from fedalc.deployment.flower.party_memory import check_unchanged, fingerprint
from fedalc.deployment.flower.party_settings import insists
from fedalc.deployment.flower.party_sums import masked_counts, sum_at_hand
from fedalc.deployment.flower.sum_parties import note_counted, note_texts
from fedalc.deployment.flower.wire import BadMessage, unpack
from fedalc.errors import FedalcError
from fedalc.labels.collection.hashing import Hasher
from fedalc.labels.collection.identity import make_hasher
from fedalc.labels.collection.messages import byte_order
from fedalc.labels.collection.pseudonyms import terms_key
from fedalc.labels.privacy.documents import noised_documents
from fedalc.labels.privacy.generator import SecureGenerator
from fedalc.secure_sums.primitives import derived

KEPT_RUNS = 8  # agreements of this many runs; a server must not fill the disk
WORTH_KEEPING = 500  # texts whose features are kept from one message to the next
ROWS = "text-features.npz"


def summed_documents(
    content: RecordDict, party: Party, counts: Agreement, context: Context, run: str, limits: Limits
) -> RecordDict:
    """Return numbers of documents masked: that of all documents, then of those in each bucket, and seals."""
    vector = np.concatenate([[counts.documents], counts.numbers]).astype(np.int64).view(np.uint64)
    of, names = sum_at_hand(content, context, run, party, limits)
    note_counted(context, run, of, names)
    vector = np.concatenate([vector, of_documents(of, len(vector)).of_party(party.hasher, vector)])
    return masked_counts(content, context, "document_counts", run, party, limits, vector)


def counted_documents(
    party: Party, counter: DocumentCounter, context: Context, settings: Experiment, run: str
) -> Agreement:
    """Return in how many of the party's documents each term is, as a keyed digest, or each bucket."""
    features = party.holding.split.features
    if not counter.documents or not needs_counts(counter.asked):
        raise BadMessage("asks for numbers of documents, and this party has no texts, or nobody needs them")
    if counter.settings.epsilon is not None:
        return noised_counts(features, settings, context, run)
    numbers = features.getnnz(axis=0).astype(np.int64)
    if not isinstance(counter.fitted, VocabularyText):
        return Agreement(features.shape[0], numbers)
    key = terms_key(party.hasher)
    terms = [counter.fitted.terms[column] for column in np.flatnonzero(numbers).tolist()]
    digests = term_digests(key, terms)
    order = byte_order(digests)
    return Agreement(features.shape[0], numbers[numbers > 0][order], digests[order], key_check(key))


def noised_counts(features: csr_matrix, settings: Experiment, context: Context, run: str) -> Agreement:
    """Return numbers with noise, the same whenever a run asks: the mean of several draws would be the number without
    noise. The noise of other documents would be a second draw, so they are refused."""
    written = settings.text.model_dump_json().encode()
    documents = fingerprint(features.indices.tobytes(), features.indptr.tobytes(), written)
    problem = "asks for numbers of documents again, and this party's documents have changed since: begin a new run"
    check_unchanged(context, run, {"noised documents": documents}, problem)
    key = spend_documents(context, settings, run)
    return Agreement(*noised_documents(features, settings.text, noise_source(key, documents)))


def noise_source(key: bytes, documents: str) -> SecureGenerator:
    return SecureGenerator(derived(key, "noise of documents", documents.encode()))


def text_of(message: Message, context: Context, settings: Experiment, run: str, limits: Limits) -> TextOf:
    """Return how the party's texts become features: by the settings, or as parties agreed."""
    text = settings.text
    agreement = _agreement(message, context, settings, run, limits) if needs_counts(text) else None
    if agreement is None:
        return lambda hasher: text
    check_masked(settings, context)

    def agreed(hasher: Hasher) -> TextFeatures:
        try:
            features = agreement.features(text, None if agreement.terms is None else terms_key(hasher))
        except FedalcError as error:
            raise BadMessage(f"terms that parties agreed on: {error}") from None
        folder = context.node_config.get("state")
        return features if folder is None else KeptRows(features, Path(str(folder)), _digest(agreement, text))

    return agreed


def check_masked(settings: Experiment, context: Context) -> None:
    """Refuse numbers of documents that are not added up in secret, if the party insists on secure sums: the server
    could give it alone a vocabulary that its texts have words of."""
    if insists(context) and not masks_counts(settings):
        raise BadMessage(
            "needs this party's terms by keyed digest, with numbers that no secure sum hides, and the party takes part "
            "in secure sums only (--require-secure-sums); text.kind=hashing adds up in secret"
        )


def check_own(content: RecordDict, party: Party, text: TextSettings) -> None:
    """Refuse an agreement that does not count this party's own documents."""
    if TEXT not in content:
        return
    if text.epsilon is not None or text.kind == "hashing":
        return  # noise may have made them smaller; and a refusal would tell who has a word of a known bucket
    agreement, features = read_agreement(content, text), party.holding.split.features
    if len(agreement.numbers) != features.shape[1]:
        return  # this party has no texts
    if features.shape[0] > agreement.documents or (features.getnnz(axis=0) > agreement.numbers).any():
        raise BadMessage("numbers of documents that are smaller than this party's own")


def _agreement(
    message: Message, context: Context, experiment: Experiment, run: str, limits: Limits
) -> Agreement | None:
    """Return the agreement that came with the message, or earlier in this run; None if there is none yet. A server that
    asks who the party is without it does not have it."""
    settings, sealed = experiment.text, masks_counts(experiment)
    if TEXT in message.content:
        agreement = read_agreement(message.content, settings, sealed)
        if sealed:
            note_texts(context, run, agreement.check_sealed(make_hasher(party_collection(context.node_config), run)))
            agreement = replace(agreement, summed=None, seals=None)
        limits.check("text.most_terms", len(agreement.numbers))
        facts = {TEXT: _digest(agreement, settings)}
        check_unchanged(context, run, facts, "sends other features of texts than before in this run")
        _keep(context, run, agreement)
        return agreement
    kept = None if message.metadata.message_type == HELLO else _kept(context, run)
    return None if kept is None else read_agreement(kept.records(), settings)


def _digest(agreement: Agreement, settings: TextSettings) -> str:
    parts = [agreement.numbers.tobytes(), b"" if agreement.terms is None else agreement.terms.tobytes()]
    return fingerprint(*parts, f"{agreement.documents} {agreement.check}".encode(), settings.model_dump_json().encode())


def _keep(context: Context, run: str, numbers: Agreement) -> None:
    """Keep numbers of documents for the rest of the run."""
    file = _file(context, run)
    if file is None:
        records = numbers.records()
        context.state[f"{TEXT}-{TEXT}"], context.state[f"{TEXT}-{FACTS}"] = records[TEXT], records[FACTS]
        return
    arrays = {"numbers": numbers.numbers, "documents": np.array(numbers.documents), "check": np.array(numbers.check)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        store_arrays(file, arrays | ({} if numbers.terms is None else {"terms": numbers.terms}))
        kept = sorted(file.parent.glob(f"*.{TEXT}.npz"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in kept[KEPT_RUNS:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise FedalcError(f"{file}: this party's numbers of the run cannot be written: {error}") from None


def _kept(context: Context, run: str) -> Agreement | None:
    """Return what `_keep` kept, or None. It is not checked."""
    file = _file(context, run)
    try:
        if file is None:
            records, facts = context.state.get(f"{TEXT}-{TEXT}"), context.state.get(f"{TEXT}-{FACTS}")
            if not isinstance(records, ArrayRecord) or not isinstance(facts, ConfigRecord):
                return None
            wanted = {part: (array.dtype, array.shape) for part, array in records.items()}
            arrays: dict[str, Any] = unpack(RecordDict({TEXT: records}), TEXT, wanted) | dict(facts)
        elif not file.exists():
            return None
        else:
            with np.load(file, allow_pickle=False) as stored:
                arrays = {part: stored[part] for part in stored.files}
        return Agreement(int(arrays["documents"]), arrays["numbers"], arrays.get("terms"), str(arrays["check"]))
    except Exception as error:
        raise FedalcError(f"{file}: damaged ({error}); delete it, and restart the party") from None


def _file(context: Context, run: str) -> Path | None:
    folder = context.node_config.get("state")
    return None if folder is None else Path(str(folder)) / "runs" / f"{run or '_none'}.{TEXT}.npz"


class KeptRows(TextFeatures):
    """Features of texts that are kept in a file, because a party may be a new process for every message. The newest
    alone are kept, under a digest of the texts and of `digest`, what turns them into features."""

    def __init__(self, text: TextFeatures, folder: Path, digest: str) -> None:
        self.text, self.settings = text, text.settings
        self._file, self.digest = folder / ROWS, digest

    @property
    def feature_count(self) -> int:
        return self.text.feature_count

    def transform(self, texts: Iterable[str], workers: int | None = None) -> csr_matrix:
        given = listed_texts(texts)
        if len(given) < WORTH_KEEPING:
            return self.text.transform(given, workers)
        key = hashlib.sha256(self.digest.encode())
        for text in given:
            key.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        with suppress(Exception):  # missing, damaged, or of other texts
            return self._load(key.hexdigest(), (len(given), self.feature_count))
        rows = self.text.transform(given, workers)
        with suppress(OSError):
            arrays = {name: getattr(rows, name) for name in ("data", "indices", "indptr")}
            store_arrays(self._file, {"key": np.array(key.hexdigest()), **arrays})
        return rows

    def _load(self, key: str, shape: tuple[int, int]) -> csr_matrix:
        with np.load(self._file, allow_pickle=False) as arrays:
            if str(arrays["key"]) != key:
                raise KeyError(key)
            rows = csr_matrix(tuple(arrays[name] for name in ("data", "indices", "indptr")), shape)
        rows.check_format(full_check=True)
        return rows

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self.text.parts()
