from __future__ import annotations

import pytest

from fedalc.data import catalog
from fedalc.errors import FedalcError

# Amazon-670K is left out: as published, its two averages contradict each other (its note says so).
CONSISTENT = [entry for entry in catalog.ENTRIES if entry.statistics and entry.name != "amazon-670k"]


def test_names_are_found_in_capitals_too() -> None:
    assert catalog.entry("Bibtex").name == "bibtex"
    assert catalog.entry("EURLex-4K").statistics == catalog.Statistics(15539, 3809, 5000, 3993, 25.73, 5.31)


def test_an_unknown_name_gets_close_ones() -> None:
    with pytest.raises(FedalcError, match=r"'bibtx': did you mean bibtex\?"):
        catalog.entry("bibtx")
    with pytest.raises(FedalcError, match="eurlex-4k"):
        catalog.entry("eurlex4k")


def test_a_name_like_none_gets_them_all() -> None:
    with pytest.raises(FedalcError, match=r"the known ones are demo, bibtex"):
        catalog.entry("zzzzzzz")


@pytest.mark.parametrize("entry", catalog.ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_says_how_to_get_it(entry: catalog.Entry) -> None:
    assert entry.how_to_get
    assert set(entry.sha256) <= set(entry.files)
    if not entry.is_embedded:
        assert entry.page.startswith("http")
        assert f"<data folder>/{entry.folder}/" in entry.how_to_get
        assert all(name in entry.how_to_get for name in entry.files)


def test_what_is_embedded_and_what_shares_a_folder() -> None:
    assert [entry.name for entry in catalog.ENTRIES if entry.is_embedded] == ["demo", "mosaics"]
    shared = {entry.name: entry.folder for entry in catalog.ENTRIES if entry.folder != entry.name}
    assert shared == {"voc2012-leaking": "voc2012", "coco-val2017": "coco", "flair-fine": "flair"}
    assert "LEAKING" in catalog.entry("voc2012-leaking").title


@pytest.mark.parametrize("entry", CONSISTENT, ids=lambda entry: entry.name)
def test_the_published_averages_fit_together(entry: catalog.Entry) -> None:
    """Instances per label times labels is labels per instance times instances, up to rounding."""
    statistics = entry.statistics
    assert statistics is not None
    instances = statistics.train
    if not statistics.averages_over_train:
        instances += statistics.test + (statistics.validation or 0)
    marks = statistics.labels_per_instance * instances
    assert marks / statistics.labels == pytest.approx(statistics.instances_per_label, rel=0.002)


def test_propensity_constants() -> None:
    assert catalog.entry("bibtex").propensity == (0.55, 1.5)
    assert catalog.entry("amazon-670k").propensity == catalog.entry("amazoncat-13k").propensity == (0.6, 2.6)
    assert catalog.entry("wikilshtc-325k").propensity == (0.5, 0.4)
