from __future__ import annotations

import pytest

from fedalc.data.catalog import datasets as catalog
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
    with pytest.raises(FedalcError, match=r"the known ones are demo, identities, bibtex"):
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
    embedded = [entry.name for entry in catalog.ENTRIES if entry.is_embedded and entry.like is None]
    assert embedded == ["demo", "identities", "mosaics"]
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


def test_generated_problems_have_the_real_ones_sizes_and_say_what_they_are() -> None:
    for name, real in (
        ("amazoncat-shaped", "amazoncat-13k"),
        ("wikilshtc-shaped", "wikilshtc-325k"),
        ("amazon670k-shaped", "amazon-670k"),
    ):
        ours, theirs = catalog.entry(name), catalog.entry(real)
        assert ours.statistics is not None and theirs.statistics is not None
        for what in ("train", "test", "features", "labels", "labels_per_instance"):
            assert getattr(ours.statistics, what) == getattr(theirs.statistics, what)
        assert ours.title.startswith(f"GENERATED, not the real {theirs.title.split(':')[0]}:")
        assert catalog.is_generated(name) and not catalog.is_generated(real)
        if name != "amazon670k-shaped":  # the real one's two averages contradict each other
            per_label = ours.statistics.instances_per_label
            assert per_label == pytest.approx(theirs.statistics.instances_per_label, rel=0.002)


def test_generated_problems_can_be_divided() -> None:
    small = catalog.entry("Amazon670K-shaped-100th")
    assert (small.name, small.like) == ("amazon670k-shaped-100th", "amazon670k-shaped")
    averages = {"averages_over_train": True, "features_per_instance": 76.0}
    assert small.statistics == catalog.Statistics(4852, 1509, 667, 6701, 4.34, 5.99, **averages)
    assert small.title.endswith("; every count divided by 100")
    assert catalog.is_known("wikilshtc-shaped-7th") and not catalog.is_known("bibtex-7th")
    assert not catalog.is_known("wikilshtc-shaped-0th") and not catalog.is_known("wikilshtc-shaped-th")
    why = "^amazoncat-shaped-2000th would have 7 labels and 102 features, too few for 5.04 labels per instance: divide"
    with pytest.raises(FedalcError, match=why):
        catalog.entry("amazoncat-shaped-2000th")


@pytest.mark.parametrize("ending", ["th", "nd", "st", "rd"])
def test_a_divided_problem_is_found_by_whatever_the_number_ends_with(ending: str) -> None:
    assert catalog.is_generated(f"amazoncat-shaped-22{ending}")
    assert catalog.entry(f"amazoncat-shaped-22{ending}").name == "amazoncat-shaped-22th"


def test_a_small_problem_has_fewer_features_in_each_instance() -> None:
    statistics = catalog.entry("amazoncat-shaped-1000th").statistics
    assert statistics is not None and (statistics.features, statistics.features_per_instance) == (204, 51.0)


def test_propensity_constants() -> None:
    assert catalog.entry("bibtex").propensity == (0.55, 1.5)
    assert catalog.entry("amazon-670k").propensity == catalog.entry("amazoncat-13k").propensity == (0.6, 2.6)
    assert catalog.entry("wikilshtc-325k").propensity == (0.5, 0.4)
