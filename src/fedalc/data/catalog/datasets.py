"""The datasets known by name: their statistics, sources and file names."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from fedalc.data.catalog.entry import Download, Entry, ImageSet, Statistics
from fedalc.data.catalog.image_datasets import PICTURES
from fedalc.errors import ConfigError

__all__ = ["ENTRIES", "Download", "Entry", "ImageSet", "Statistics", "entry", "is_generated", "is_known"]

_XML_REPOSITORY = "http://manikvarma.org/downloads/XC/XMLRepository.html"
_MULAN = "http://mulan.sourceforge.net/datasets-mlc.html"
_ANNIF = "https://github.com/NatLibFi/Annif-corpora"
_REUTERS = "https://archive.ics.uci.edu/dataset/137/reuters+21578+text+categorization+collection"
_AUDIO_MNIST = "https://github.com/soerenab/AudioMNIST"
_EURLEX57K = "https://archive.org/details/EURLEX57K"


def _from_xml_repository(folder: str, train: str, test: str) -> str:
    return (
        "The repository's links are on Google Drive and need a browser: open the page, download the bag-of-words "
        f"version, unpack it, and put {train} and {test} into <data folder>/{folder}/ (plain or gzipped). "
        "The names train.txt and test.txt work as well."
    )


_TEXTS: tuple[Entry, ...] = (
    Entry(
        name="demo",
        title="Demo: synthetic texts with 79 labels in 12 groups",
        statistics=None,
        page="",
        files=(),
        how_to_get="No download needed: fedalc generates it, always the same.",
    ),
    Entry(
        name="identities",
        title="Identities: generated embeddings of 40 persons and 20 strangers",
        statistics=None,
        page="",
        files=(),
        how_to_get="No download needed: fedalc generates it, always the same.",
        note="For --task verification. Figures on it say nothing about real voices or faces.",
    ),
    Entry(
        name="bibtex",
        title="Bibtex: tags of BibSonomy entries (Katakis, Tsoumakas and Vlahavas, 2008)",
        statistics=Statistics(4880, 2515, 1836, 159, 111.71, 2.40, features_per_instance=68.66),
        page=_MULAN,
        files=("bibtex-train.arff", "bibtex-test.arff"),
        how_to_get=(
            "Mulan offers bibtex.rar: unpack it (with unrar or 7-zip) and put bibtex-train.arff and bibtex-test.arff "
            "into <data folder>/bibtex/ (plain or gzipped)."
        ),
        sha256={
            "bibtex-train.arff": "8dcc9de6e0b2cebaec8c1f4fac78431adeeb73cfd3ab879b530a66d366e59174",
            "bibtex-test.arff": "9b03329cde64d3f994bdf7fbbac3f3b10fe185c311cb9ae725475f59c7f3f922",
        },
        note="2.40 labels per instance is the average over train and test; train has 2.38, test 2.44.",
        label_prefix="TAG_",
    ),
    Entry(
        name="eurlex-4k",
        title="EURLex-4K: laws of the European Union (Loza Mencía and Fürnkranz, 2008)",
        statistics=Statistics(15539, 3809, 5000, 3993, 25.73, 5.31),
        page=_XML_REPOSITORY,
        files=("eurlex_train.txt", "eurlex_test.txt"),
        how_to_get=_from_xml_repository("eurlex-4k", "eurlex_train.txt", "eurlex_test.txt"),
    ),
    Entry(
        name="eurlex57k",
        title="EURLEX57K: laws of the European Union with EuroVoc labels (Chalkidis et al., 2019)",
        statistics=Statistics(45000, 6000, 5000, 4271, 67.65, 5.07, validation=6000, features_per_instance=102.64),
        page=_EURLEX57K,
        files=("train.txt", "dev.txt", "test.txt", "labels.txt"),
        how_to_get=(
            "The page has the texts; this project computed the features (tf-idf of the 5000 most frequent terms). "
            "Put train.txt, dev.txt, test.txt and labels.txt into <data folder>/eurlex57k/ (plain or gzipped)."
        ),
        sha256={
            "train.txt": "683a19dba4122e42ba3b4a5bb524f884c89c3e6edcc3818048a03c167483201c",
            "dev.txt": "c08710d536babfd4b023b1a103ac9646e55484137b5ad62a545123882ff5cde2",
            "test.txt": "f6ef37e72e004a169df3fb6f32bcfbcccc70eef3856fca065f5510e003d83fed",
            "labels.txt": "dd22a2852925f9bdc33852d2cd2fc2a8d891ccf41b9caa3887bd79dcb151deb5",
        },
        note="This project computed the features: results are not comparable with published ones.",
    ),
    Entry(
        name="eurlex15k",
        title="A fixed sample of EURLEX57K at EURLex-4K's size",
        statistics=Statistics(15539, 3809, 5000, 3286, 29.76, 5.05, features_per_instance=103.18),
        page=_EURLEX57K,
        files=("train.txt", "test.txt", "labels.txt"),
        how_to_get=(
            "This project drew the sample and computed the features. Put train.txt, test.txt and labels.txt into "
            "<data folder>/eurlex15k/ (plain or gzipped)."
        ),
        sha256={
            "train.txt": "019a1552c455c34124628fd97b1bab4093e4aa4fee2925b5c8a52821187128f1",
            "test.txt": "492c205236931fe36f1c03f1d5c25279bc1f190fb054a9d20496e79892a99ee7",
            "labels.txt": "f4ce43cbc643051801ffcf78e201151fddd6ce884e3373e4eee438cbbab80625",
        },
        note="A substitute for EURLex-4K if you cannot get that: the same shape, but other results.",
    ),
    Entry(
        name="yso",
        title="YSO: English titles and abstracts of libraries with subjects (National Library of Finland)",
        statistics=Statistics(587336, 65259, None, 21334, 74.67, 2.44),
        page=_ANNIF,
        files=("train.tsv", "test.tsv", "labels.txt"),
        how_to_get=(
            "The page has a file of texts per subject; this project joined them on equal texts. Put train.tsv and "
            "test.tsv (columns labels and text) and labels.txt into <data folder>/yso/ (plain or gzipped)."
        ),
        sha256={
            "train.tsv": "3cb68e087a73094068362f41e8792c796640a93aca576de6822d7809f8267abb",
            "test.tsv": "bb8e7ca6d7ebd68b7d973329af93ccbca00767211f41f3a4866c63e4b89f1573",
            "labels.txt": "a7d59624308ecb9030813cfdf9b2d6733b0f637586b30c2a5a3dc020eecdcda1",
        },
        note="Raw text. No label has more than 339 documents, and some labels of documents are missing.",
    ),
    Entry(
        name="reuters21578",
        title="Reuters-21578: news with topics, ModApte split (Lewis, 1997)",
        statistics=Statistics(7775, 3019, None, 118, 113.52, 1.24),
        page=_REUTERS,
        files=("train.jsonl", "test.jsonl"),
        how_to_get=(
            'Put train.jsonl and test.jsonl, lines like {"text": "…", "labels": ["grain"]}, into '
            "<data folder>/reuters21578/ (plain or gzipped)."
        ),
        sha256={
            "train.jsonl": "548a7518ef1e51d5cca026f60d6fdec1053b6066608c3e3acf532045446a7b11",
            "test.jsonl": "5c9aea62e5f7ddeea486de06e551b40723f8522a516bc32ec99d407b71a5036c",
        },
        note=(
            "Raw text. 1,828 of 9,603 training and 280 of 3,299 test documents have no topic and are left out; "
            "--set table.unlabelled=keep uses them. 115 of the 118 topics are in train."
        ),
    ),
    Entry(
        name="speakers60",
        title="AudioMNIST's speakers: embeddings of 2,400 utterances (Becker et al., 2018)",
        statistics=Statistics(1200, 400, 256, 40, 40.0, 1.0, features_per_instance=None),
        page=_AUDIO_MNIST,
        files=("speakers60.npz",),
        how_to_get="Put speakers60.npz (arrays embedding, speaker and split) into <data folder>/speakers60/.",
        note=(
            "40 enrolled speakers are the labels. The 800 utterances of 20 strangers (split `stranger`) are used by "
            "--task verification only, to test who is refused."
        ),
        is_single_file=True,
    ),
    Entry(
        name="amazoncat-13k",
        title="AmazonCat-13K: product categories (McAuley and Leskovec, 2013)",
        statistics=Statistics(1186239, 306782, 203882, 13330, 448.57, 5.04, averages_over_train=True),
        page=_XML_REPOSITORY,
        files=("amazonCat_train.txt", "amazonCat_test.txt"),
        how_to_get=_from_xml_repository("amazoncat-13k", "amazonCat_train.txt", "amazonCat_test.txt"),
        propensity=(0.6, 2.6),
    ),
    Entry(
        name="amazon-670k",
        title="Amazon-670K: products bought together (McAuley and Leskovec, 2013)",
        statistics=Statistics(485176, 150875, 66666, 670091, 5.11, 5.99),
        page=_XML_REPOSITORY,
        files=("amazon_train.txt", "amazon_test.txt"),
        how_to_get=_from_xml_repository("amazon-670k", "amazon_train.txt", "amazon_test.txt"),
        note=(
            "5.11 instances per label would be 5.38 labels per instance over train and test: the published 5.99 is "
            "doubtful. Another version with the same name has 490449 train and 153025 test instances, 135909 features, "
            "3.99 instances per label and 5.45 labels per instance: its results are not comparable."
        ),
        propensity=(0.6, 2.6),
    ),
    Entry(
        name="wikilshtc-325k",
        title="WikiLSHTC-325K: categories of Wikipedia articles (Partalas et al., 2015)",
        statistics=Statistics(1778351, 587084, 1617899, 325056, 17.46, 3.19, averages_over_train=True),
        page=_XML_REPOSITORY,
        files=("wikiLSHTC_train.txt", "wikiLSHTC_test.txt"),
        how_to_get=_from_xml_repository("wikilshtc-325k", "wikiLSHTC_train.txt", "wikiLSHTC_test.txt"),
        propensity=(0.5, 0.4),
    ),
)


def _generated(
    name: str, real: str, train: int, test: int, features: int, labels: int, per_instance: float, words: float
) -> Entry:
    """Return the entry of a problem with these sizes. Its averages are over train and consistent with each other."""
    sizes = Statistics(
        train, test, features, labels, 0.0, per_instance, averages_over_train=True, features_per_instance=words
    )
    return Entry(
        name=name,
        title=f"GENERATED, not the real {real}: synthetic data with its sizes, to measure time and memory",
        statistics=_averaged(sizes),
        page="",
        files=(),
        how_to_get=(
            f"No download needed: fedalc generates it, always the same. For a smaller one, use {name}-100th (every "
            f"count divided by 100) or any other number. To write files: fedalc data generate {name} FOLDER"
        ),
        note=f"Metrics on it say nothing about {real} and are not comparable with published results.",
        like=name,
    )


def _averaged(statistics: Statistics) -> Statistics:
    pairs = round(statistics.labels_per_instance * statistics.train)
    return replace(statistics, instances_per_label=round(pairs / statistics.labels, 2))


_GENERATED: tuple[Entry, ...] = (
    _generated("amazoncat-shaped", "AmazonCat-13K", 1186239, 306782, 203882, 13330, 5.04, 71.0),
    _generated("amazon670k-shaped", "Amazon-670K", 485176, 150875, 66666, 670091, 5.99, 76.0),
    _generated("wikilshtc-shaped", "WikiLSHTC-325K", 1778351, 587084, 1617899, 325056, 3.19, 42.0),
)

ENTRIES: tuple[Entry, ...] = _TEXTS + PICTURES + _GENERATED

_BY_NAME = {entry.name: entry for entry in ENTRIES}
_DIVIDED = re.compile(r"(.+-shaped)-([1-9][0-9]{0,6})(?:th|st|nd|rd)")


def is_known(name: str) -> bool:
    divided = _DIVIDED.fullmatch(name.lower())
    return (name.lower() if divided is None else divided[1]) in _BY_NAME


def is_generated(name: str) -> bool:
    """Return whether this is the name of synthetic data that only has the sizes of a real dataset."""
    return is_known(name) and entry(name).like is not None


def entry(name: str) -> Entry:
    """Return the dataset of this name, in upper or lower case. Generated problems may end with `-100th`, `-1000th`, …

    `-2nd` means `-2th`: each number has one name, whatever its ending in English.
    """
    known = _BY_NAME.get(name.lower())
    if known is not None:
        return known
    divided = _DIVIDED.fullmatch(name.lower())
    if divided is not None and divided[1] in _BY_NAME:
        return _divided(_BY_NAME[divided[1]], int(divided[2]))
    close = difflib.get_close_matches(name.lower(), _BY_NAME, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"the known ones are {', '.join(_BY_NAME)}."
    raise ConfigError(f"no dataset is called {name!r}: {hint} You can also give a path to a folder with a dataset.")


def _divided(whole: Entry, by: int) -> Entry:
    """Return the same problem with every count divided and rounded up. Labels per instance do not change."""
    s = whole.statistics
    assert s is not None
    assert s.features is not None
    train, test, features, labels = (-(-count // by) for count in (s.train, s.test, s.features, s.labels))
    if labels < 2 * s.labels_per_instance or features < 16:
        raise ConfigError(
            f"{whole.name}-{by}th would have {labels} labels and {features} features, too few for "
            f"{s.labels_per_instance} labels per instance: divide by a smaller number"
        )
    assert s.features_per_instance is not None
    words = min(s.features_per_instance, features / 4)  # an instance must not have most of the words
    divided = replace(s, train=train, test=test, features=features, labels=labels, features_per_instance=words)
    return replace(
        whole,
        name=f"{whole.name}-{by}th",
        title=f"{whole.title}; every count divided by {by}",
        statistics=_averaged(divided),
    )
