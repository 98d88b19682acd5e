"""Raw texts to features: against scikit-learn and by hand, the same for any number of processes and blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

from fedalc.core.progress_events import watching
from fedalc.data.text import blocks
from fedalc.data.text.counts import BucketCounts, TermCounts
from fedalc.data.text.features import (
    TextFeatures,
    VocabularyText,
    count_documents,
    fit_text,
    text_from_counts,
    text_from_parts,
)
from fedalc.data.text.settings import TextSettings
from fedalc.data.text.terms import Terms
from fedalc.errors import DataError

WORDS = ["wheat", "corn", "oil", "price", "export", "ship", "grain", "crude", "bank", "loan", "Übung", "Öl", "naïve"]
EVERYTHING = TextSettings(words=(1, 2), least_documents=1, characters=(2, 4))
HASHED = TextSettings(kind="hashing", buckets=64, characters=(3, 3))


def texts(count: int = 60) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(count)]


def same(ours: csr_matrix, theirs: csr_matrix) -> bool:
    parts = ("indptr", "indices", "data")
    return ours.shape == theirs.shape and all(
        getattr(ours, part).tobytes() == getattr(theirs, part).tobytes() for part in parts
    )


def test_equals_scikit_learn() -> None:
    theirs = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, norm=None, min_df=2)
    wanted = theirs.fit_transform(texts())
    text = fit_text(texts(), TextSettings(words=(1, 2), least_documents=2))
    assert isinstance(text, VocabularyText)
    assert text.terms == tuple(theirs.get_feature_names_out())
    found = text.transform(texts())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), wanted.toarray(), rtol=1e-6)


def test_characters_equal_scikit_learn() -> None:
    theirs = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), norm=None)
    wanted = theirs.fit_transform(texts())
    text = fit_text(texts(), TextSettings(words=None, characters=(2, 4), least_documents=1, sublinear=False))
    assert isinstance(text, VocabularyText)
    assert text.terms == tuple(f"#{term}" for term in theirs.get_feature_names_out())
    np.testing.assert_allclose(text.transform(texts()).toarray(), wanted.toarray(), rtol=1e-6)


def test_hashing_equals_scikit_learn() -> None:
    theirs = HashingVectorizer(ngram_range=(1, 1), n_features=64, norm=None)
    text = fit_text(texts(), TextSettings(kind="hashing", words=(1, 1), buckets=64, sublinear=False, idf=False))
    np.testing.assert_array_equal(text.transform(texts()).toarray(), theirs.transform(texts()).toarray())


def test_weights_by_hand() -> None:
    text = fit_text(["oil oil oil", "oil bank", ""], TextSettings(least_documents=1, words=(1, 1)))
    bank, oil = 1 + np.log(4 / 2), 1 + np.log(4 / 3)
    expected = [[0, (1 + np.log(3)) * oil], [bank, oil], [0, 0]]
    np.testing.assert_allclose(text.transform(["oil oil oil", "oil bank", ""]).toarray(), expected, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("settings", [EVERYTHING, HASHED], ids=["vocabulary", "hashing"])
def test_same_bits_for_any_blocks_and_processes(settings: TextSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit_text(texts(), settings)
    rows = whole.transform(texts())
    monkeypatch.setattr(blocks, "TEXTS", 7)
    for workers in (1, 2):
        parts = fit_text(texts(), settings, workers)
        assert parts.parts()[1] == whole.parts()[1]
        for name, array in whole.parts()[0].items():
            assert parts.parts()[0][name].tobytes() == array.tobytes()
        assert same(parts.transform(texts(), workers), rows)


def test_same_terms_if_most_of_them_are_in_files() -> None:
    settings = TextSettings(words=(1, 2), least_documents=2, most_terms=20)
    whole = fit_text(texts(), settings)
    few = TermCounts(most_in_memory=5)
    for text in texts():
        few.merge(count_documents([text], settings))  # type: ignore[arg-type]
    again = text_from_counts(few, settings)
    assert isinstance(whole, VocabularyText) and isinstance(again, VocabularyText)
    assert again.terms == whole.terms and len(whole.terms) == 20
    assert again.idf is not None and whole.idf is not None and again.idf.tobytes() == whole.idf.tobytes()


@pytest.mark.parametrize("settings", [EVERYTHING, HASHED], ids=["vocabulary", "hashing"])
def test_counts_of_parties_add_up(settings: TextSettings) -> None:
    whole = fit_text(texts(), settings)
    north, south = count_documents(texts()[:25], settings), count_documents(texts()[25:], settings)
    if isinstance(north, TermCounts):
        sent = TermCounts(south.documents, dict(south.items()))  # type: ignore[union-attr]
        north.merge(sent)
    else:
        assert isinstance(south, BucketCounts)
        north.merge(south)
    joined = text_from_counts(north, settings)
    assert same(joined.transform(texts()), whole.transform(texts()))


def test_most_terms_keeps_the_frequent_ones_and_breaks_ties_by_term() -> None:
    text = fit_text(["aa bb", "aa cc", "bb dd"], TextSettings(words=(1, 1), least_documents=1, most_terms=3))
    assert isinstance(text, VocabularyText)
    assert text.terms == ("aa", "bb", "cc")


def test_largest_share() -> None:
    text = fit_text(["aa bb", "aa cc", "aa bb"], TextSettings(words=(1, 1), least_documents=1, largest_share=0.7))
    assert isinstance(text, VocabularyText)
    assert text.terms == ("bb", "cc")


def test_other_scripts_and_forms() -> None:
    text = fit_text(["Cafe\u0301 हिन्दी 東京都", "café"], TextSettings(words=(1, 1), least_documents=1))
    assert isinstance(text, VocabularyText)
    assert text.terms == ("café", "हिन्दी", "東京都")


@pytest.mark.parametrize("settings", [EVERYTHING, HASHED], ids=["vocabulary", "hashing"])
def test_empty_and_odd_texts_give_rows(settings: TextSettings) -> None:
    text = fit_text(texts(), settings)
    rows = text.transform(["", " \n\t", "…", "\ud800 \0", "qqqq" if settings.kind == "vocabulary" else ""])
    assert rows.shape == (5, text.feature_count) and rows.nnz == 0
    assert text.transform([]).shape == (0, text.feature_count)


@pytest.mark.parametrize("settings", [EVERYTHING, HASHED, EVERYTHING.model_copy(update={"idf": False})])
def test_parts_give_it_again(settings: TextSettings) -> None:
    text = fit_text(texts(), settings)
    arrays, facts = text.parts()
    again: TextFeatures = text_from_parts(arrays, facts)
    assert again.settings == settings
    assert same(again.transform(texts()), text.transform(texts()))


def test_parts_that_do_not_fit_are_refused() -> None:
    arrays, facts = fit_text(texts(), EVERYTHING).parts()
    for wrong in (
        {**arrays, "idf": arrays["idf"][1:]},
        {**arrays, "idf": arrays["idf"].astype(np.float64)},
        {**arrays, "idf": np.full_like(arrays["idf"], np.nan)},
        {**arrays, "terms": np.frombuffer(b"aa\naa", dtype=np.uint8)},
    ):
        with pytest.raises(ValueError):
            text_from_parts(wrong, facts)
    with pytest.raises(ValueError, match="version"):
        text_from_parts(arrays, {**facts, "version": 99})


def test_refusals() -> None:
    with pytest.raises(DataError, match=r"give \[text\]"):
        fit_text("one text", EVERYTHING)
    with pytest.raises(DataError, match="text 1 is not a string"):
        fit_text(["a text", 5], EVERYTHING)  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"text\.least_documents"):
        fit_text(["every word once"], TextSettings(least_documents=2))


def test_progress_is_shown() -> None:
    seen: list[tuple[str, int, int]] = []
    with watching(lambda *event: seen.append(event)):
        fit_text(texts(), EVERYTHING).transform(texts())
    assert ("texts counted", 60, 60) in seen and ("texts to features", 60, 60) in seen


def test_texts_without_a_length_are_read() -> None:
    def stream() -> Iterator[str]:
        yield from texts()

    assert same(fit_text(stream(), EVERYTHING).transform(stream()), fit_text(texts(), EVERYTHING).transform(texts()))


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [(EVERYTHING, {"sign": False}), (HASHED, {"most_terms": 3, "least_documents": 9})],
)
def test_settings_of_the_other_kind_change_nothing(settings: TextSettings, ignored: dict[str, int]) -> None:
    other = fit_text(texts(), settings.model_copy(update=ignored))
    assert same(other.transform(texts()), fit_text(texts(), settings).transform(texts()))


def test_counts_are_those_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import CountVectorizer

    texts = ["the rain, the Rain", "", "wind and rain, the wind", "unknown"]
    settings = TextSettings(words=(1, 2), characters=(2, 3))
    fitted = fit_text(texts[:3], settings)
    assert isinstance(fitted, VocabularyText)
    twin = CountVectorizer(analyzer=Terms.of(settings), vocabulary={term: at for at, term in enumerate(fitted.terms)})
    assert (fitted.counts(texts) != twin.transform(texts)).nnz == 0 and fitted.counts(texts).sum() > 10
