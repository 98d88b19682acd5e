"""What parties agree on before they turn texts into features: numbers of documents, and for a vocabulary its terms.

The server adds up the parties' numbers and sends the sum back, with a party's introduction (`query.hello`). It knows
terms by keyed digests only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedalc.config.experiment import Experiment
from fedalc.data.text.agreed import plausible
from fedalc.data.text.counted import idf_of
from fedalc.data.text.features import HashedText
from fedalc.data.text.keyed import DIGEST_BYTES, KeyedVocabularyText, is_ascending
from fedalc.data.text.settings import TextSettings
from fedalc.deployment.flower.introductions import MOST
from fedalc.deployment.flower.table_seals import SEALED, SEALS, Sealing, SumOf
from fedalc.deployment.flower.wire import BadMessage, config, pack, record_bytes, unpack
from fedalc.labels.collection.hashing import Hasher
from fedalc.secure_sums.messages import LEAST_PARTIES

TEXT, FACTS = "text", "text-facts"  # the records
MOST_DOCUMENTS = 1 << 45
"""Of all parties."""
_PREFIX = "text."


def masks_counts(settings: Experiment) -> bool:
    """Return whether parties' numbers of documents are added up in secret. Which terms of a vocabulary a party has
    depends on its data, so that these are no vectors of one length."""
    return settings.secure_sums.on and settings.text.kind == "hashing"


@dataclass(frozen=True, eq=False)
class Agreement:
    """`numbers`: of the documents, of all `documents` of all parties, that have a term in each bucket, or each of
    `terms`. `terms`: keyed digests, ascending; None if terms are hashed. `check`: the check value of their key.
    `summed`, `seals`: of a secure sum, what came out (documents, then numbers), and what shows that (`check_sealed`).
    `bytes_up`, `bytes_down`: what it took to agree."""

    documents: int
    numbers: np.ndarray
    terms: np.ndarray | None = None
    check: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    summed: np.ndarray | None = None
    seals: np.ndarray | None = None

    @classmethod
    def of_sum(cls, summed: np.ndarray, seals: np.ndarray, of: SumOf, bytes_up: int, bytes_down: int) -> Agreement:
        counts = plausible(int(summed[0]), summed[1:])
        sealed = np.concatenate([seals, of.numbers])
        return cls(counts.documents, counts.buckets, None, "", bytes_up, bytes_down, summed, sealed)

    def check_sealed(self, hasher: Hasher) -> SumOf:
        """At a party: refuse numbers that are not what the parties' sum gave, and return which sum. With false ones in
        a run a server would have other features of a few documents, and so their part of another sum."""
        assert self.summed is not None and self.seals is not None
        of, counts = SumOf.of_numbers(self.seals[SEALS:]), plausible(int(self.summed[0]), self.summed[1:])
        sealed = of_documents(of, len(self.summed)).of_sum(hasher, self.summed.view(np.uint64))
        same = self.documents == counts.documents and np.array_equal(self.numbers, counts.buckets)
        small = int(self.summed.min()) > -MOST_DOCUMENTS and int(self.summed.max()) < MOST_DOCUMENTS
        if not (same and small and of.parties >= LEAST_PARTIES and np.array_equal(sealed, self.seals[:SEALS])):
            raise BadMessage("sends other numbers of documents than those that the parties counted")
        return of

    def features(self, settings: TextSettings, key: bytes | None = None) -> KeyedVocabularyText | HashedText:
        """Return what turns texts into these features. `key`: that of the terms; without it no text can be read."""
        idf = idf_of(self.documents, self.numbers) if settings.idf else None
        if self.terms is None:
            return HashedText(settings, idf)
        text = KeyedVocabularyText(settings, self.terms, idf, self.check)
        return text if key is None else text.unlocked(key)

    def records(self) -> RecordDict:
        """Return it as records of a message."""
        facts = ConfigRecord({"documents": self.documents, "check": self.check})
        return RecordDict({TEXT: pack(self._arrays()), FACTS: facts})

    def _arrays(self) -> dict[str, np.ndarray]:
        found = {name: getattr(self, name) for name in ("numbers", "terms", "summed", "seals")}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def sent_bytes(self) -> int:
        record = self.records()[TEXT]
        assert isinstance(record, ArrayRecord)
        return record_bytes(record)

    def tensors(self) -> dict[str, Tensor]:
        signed = {name: array.view(np.int64) if name == "seals" else array for name, array in self._arrays().items()}
        return {_PREFIX + name: torch.from_numpy(array) for name, array in signed.items()}

    def facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("documents", "check", "bytes_up", "bytes_down")}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Agreement:
        names = ("numbers", "terms", "summed", "seals")
        arrays: dict[str, Any] = {n: tensors[_PREFIX + n].numpy() for n in names if _PREFIX + n in tensors}
        if "seals" in arrays:
            arrays["seals"] = arrays["seals"].view(np.uint64)
        return cls(**arrays, **facts)


def of_documents(of: SumOf, length: int) -> Sealing:
    """Return what the seals of numbers of documents are bound to."""
    return Sealing(of, "documents", False, (length, 1))


def read_agreement(content: RecordDict, settings: TextSettings, sealed: bool = False) -> Agreement:
    """Return the agreement of a message, if an honest sum of numbers could be it. `sealed`: it has what the parties'
    secure sum gave, with its seals."""
    facts = config(content, FACTS, {"documents": int, "check": str})
    if sealed:
        counted: dict[str, Any] = {"numbers": ("int64", (settings.buckets,))}
        counted |= {"summed": ("int64", (settings.buckets + 1,)), "seals": ("uint64", (SEALED,))}
        arrays = unpack(content, TEXT, counted)
        return Agreement(facts["documents"], arrays["numbers"], summed=arrays["summed"], seals=arrays["seals"])
    documents, numbers, terms = read_numbers(content, TEXT, facts["documents"], settings)
    if terms is not None:
        if len(terms) > settings.most_terms:
            raise BadMessage(f"{len(terms)} terms, and text.most_terms is {settings.most_terms}")
        most = settings.largest_share * documents
        if int(numbers.min()) < settings.least_documents or int(numbers.max()) > most:
            raise BadMessage("terms in fewer documents than text.least_documents, or more than text.largest_share")
    return Agreement(documents, numbers, terms, facts["check"][:DIGEST_BYTES])


def read_numbers(
    content: RecordDict, record: str, documents: int, settings: TextSettings
) -> tuple[int, np.ndarray, np.ndarray | None]:
    """Return the numbers of documents in a record, and the digests of the terms that they are of, if they are of terms.
    No documents, more than there can be, and terms of none are refused."""
    if not 0 < documents < MOST_DOCUMENTS:
        raise BadMessage(f"{str(documents)[:20]} documents, which cannot be")
    numbers, terms = _arrays(content, record, settings)
    least = 0 if terms is None else 1
    if not len(numbers) or int(numbers.min()) < least or int(numbers.max()) > documents:
        raise BadMessage(f"numbers of documents that are not {least} to {documents}, the number of all of them")
    if terms is not None and (len(terms) != len(numbers) or not is_ascending(terms)):
        raise BadMessage("terms that are not ascending, or not one number of documents for each")
    return documents, numbers, terms


def read_noised(
    content: RecordDict, record: str, documents: int, settings: TextSettings
) -> tuple[int, np.ndarray, None]:
    """The same of numbers with noise, which may be below 0 or above the number of all documents."""
    numbers, _ = _arrays(content, record, settings)
    if max(abs(documents), int(np.abs(numbers).max())) >= MOST:
        raise BadMessage("numbers of documents that no noise makes")
    return documents, numbers, None


def _arrays(content: RecordDict, record: str, settings: TextSettings) -> tuple[np.ndarray, np.ndarray | None]:
    count = settings.buckets if settings.kind == "hashing" else None
    wanted: dict[str, Any] = {"numbers": ("int64", (count,))}
    if settings.kind != "hashing":
        wanted["terms"] = ("uint8", (None, DIGEST_BYTES))
    arrays = unpack(content, record, wanted)
    return arrays["numbers"], arrays.get("terms")
