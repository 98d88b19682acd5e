"""The settings of raw text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from fedalc.core.settings import Count, Settings

MOST_BUCKETS = 2**26


def _ascending(lengths: tuple[int, int]) -> tuple[int, int]:
    if lengths[0] > lengths[1]:
        raise ValueError(f"the shortest comes first, as in [1, 2]; found {list(lengths)}")
    return lengths


Lengths = Annotated[tuple[Count, Annotated[int, Field(ge=1, le=10)]], AfterValidator(_ascending)]


class TextSettings(Settings):
    """How raw texts become features (docs/text.md). Without effect on data that is not raw text."""

    kind: Literal["vocabulary", "hashing", "encoder"] = "vocabulary"
    words: Lengths | None = (1, 2)  # terms of this many words, from and to
    characters: Lengths | None = None  # also terms of this many characters, within words
    lowercase: bool = True
    most_terms: Count = 50_000  # vocabulary: keep the terms in most documents
    least_documents: Count = 2  # vocabulary: leave out terms in fewer documents
    largest_share: Annotated[float, Field(gt=0, le=1)] = 1.0  # vocabulary: leave out terms in a larger share of them
    buckets: Annotated[int, Field(ge=1, le=MOST_BUCKETS)] = 2**17  # hashing: features; terms share them
    sign: bool = True  # hashing: half of the terms count negatively, so that chance meetings cancel out
    sublinear: bool = True  # a term that occurs n times in a text counts 1 + log n, not n
    idf: bool = True  # rare terms count more: times 1 + log((1 + documents) / (1 + documents with the term))
    encoder: str | None = None  # folder of a sentence encoder; sets kind = "encoder"

    @model_validator(mode="before")
    @classmethod
    def _encoder_is_meant(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("encoder") not in (None, "none"):
            return {"kind": "encoder", **values}
        return values

    @model_validator(mode="after")
    def _check(self) -> TextSettings:
        if (self.kind == "encoder") != (self.encoder is not None):
            raise ValueError(
                'kind = "encoder" needs the folder of one: text.encoder (--text-encoder FOLDER)'
                if self.encoder is None
                else f"an encoder's folder goes with kind = encoder, not {self.kind}"
            )
        if self.words is None and self.characters is None:
            raise ValueError("words and characters are both none: no terms are left")
        return self
