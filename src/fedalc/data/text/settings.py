"""The settings of raw text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from fedalc.core.settings import Count, Settings
from fedalc.errors import either

MOST_BUCKETS = 2**26
_FOLDER = either("--text-encoder FOLDER", "text={'encoder': FOLDER}")


def _ascending(lengths: tuple[int, int]) -> tuple[int, int]:
    if lengths[0] > lengths[1]:
        raise ValueError(f"the shortest comes first, as in [1, 2]; found {list(lengths)}")
    return lengths


Lengths = Annotated[tuple[Count, Annotated[int, Field(ge=1, le=10)]], AfterValidator(_ascending)]


class TextSettings(Settings):
    """How raw texts become features (docs/text.md). Without effect on data that is not raw text."""

    kind: Literal["vocabulary", "hashing", "encoder"] = "vocabulary"
    """vocabulary: a feature for each frequent term. hashing: a feature for each bucket of a hash of the terms; nothing
    has to be agreed on. encoder: the output of a sentence encoder."""
    words: Lengths | None = (1, 1)
    """Terms of this many words: fewest and most. none: no terms of words."""
    characters: Lengths | None = None
    """Terms of this many characters within words: fewest and most. none: no terms of characters."""
    lowercase: bool = True
    """Do not distinguish capital letters."""
    most_terms: Count = 66_000
    """Size of the vocabulary: the terms that most documents have."""
    least_documents: Count = 1
    """Leave out terms that fewer documents have."""
    least_parties: Count = 2
    """Of data at several parties: leave out terms that fewer parties have (docs/parties.md)."""
    largest_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Leave out terms that a larger share of the documents has."""
    buckets: Annotated[int, Field(ge=1, le=MOST_BUCKETS)] = 2**17
    """Number of features of a hash."""
    sign: bool = True
    """Half of the terms count negatively, so that terms in the same bucket cancel out on average."""
    sublinear: bool = True
    """A term that occurs n times in a text counts 1 + log n instead of n."""
    idf: bool = True
    """Rare terms count more: times 1 + log((1 + documents) / (1 + documents with the term))."""
    epsilon: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Of hashed texts at several parties: ε of a document in the numbers of documents that a party shares for idf
    (docs/privacy.md). none: no noise."""
    delta: Annotated[float, Field(ge=1e-15, le=0.1)] = 1e-5
    """With epsilon: δ."""
    terms_per_document: Count = 50
    """With epsilon: a document counts in at most this many buckets, drawn at random."""
    encoder: str | None = None
    """Folder of a sentence encoder (docs/text.md). Sets kind = "encoder"."""
    tfidf: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """With a sentence encoder: weight of the terms (as for kind = "vocabulary") beside its output, each scaled to
    length 1. 0: the encoder alone."""
    batch: Count = 32
    """Texts that a sentence encoder takes at a time."""
    device: str = "cpu"
    """Where a sentence encoder computes: cpu, cuda, …"""

    @model_validator(mode="before")
    @classmethod
    def _encoder_is_meant(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("encoder") not in (None, "none"):
            return {"kind": "encoder", **values}
        return values

    @property
    def of_terms(self) -> TextSettings:
        """The settings of the terms beside a sentence encoder."""
        return self.model_copy(update={"kind": "vocabulary", "encoder": None, "tfidf": 0.0})

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> TextSettings:
        if (self.kind == "encoder") != (self.encoder is not None):
            raise ValueError(
                f'kind = "encoder" needs the folder of one: {_FOLDER}'
                if self.encoder is None
                else f"an encoder's folder goes with kind = encoder, not {self.kind}"
            )
        if self.tfidf and self.encoder is None and not (info.context or {}).get("values_only"):
            raise ValueError(f"tfidf is the weight of terms beside a sentence encoder: it needs {_FOLDER}")
        if self.epsilon is not None and self.kind != "hashing":
            raise ValueError(
                'epsilon needs kind = "hashing": noise hides in how many documents a term is, not that there is one'
            )
        if self.words is None and self.characters is None:
            raise ValueError("words and characters are both none: no terms are left")
        return self
