"""Text files of instances and labels, plain and compressed."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from random import Random

from fedalc.data.cache import Parsed, _load, _store, cached
from fedalc.data.check import content_sha256
from fedalc.data.formats.arff import read_arff
from fedalc.data.formats.arff_header import LabelRule
from fedalc.data.formats.label_file import label_names as read_label_names
from fedalc.data.formats.xmlc import read_xmlc
from fedalc.data.load import load_file
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import TOKENS, mutated
from tests.fuzz.registry import as_file, reader, workplace

XMLC = (
    b"3 5 4\n0,2 0:1.5 3:2\n1 4:0.25\n 1:1e-3 2:-7\n",
    b"2 3 3\n\n0,1,2 0:0.123456789 1:1 2:12345678.5\n",
    b"1 2 0\n0:1 1:2\n",
    b"2 1000 1000\n" + b",".join(b"%d" % n for n in range(40)) + b" 7:1 999:0.5\n3 0:1\n",
)
ARFF = (
    b"@relation t\n@attribute a numeric\n@attribute b {0,1}\n@attribute l1 {0,1}\n@attribute l2 {0,1}\n@data\n"
    b"{0 1.5,2 1}\n{1 1, 3 1}\n{}\n",
    b"@relation 'x: -C 2'\n@attribute l1 {0,1}\n@attribute l2 {0,1}\n@attribute 'a b' real %\n@data\n0,1,2.5\n1,0,-3\n",
    b"% comment\n@RELATION r\n\n@ATTRIBUTE \"q\\\"x\" INTEGER\n@attribute l {'0','1'}\n@data\n5,1\n% c\n'6',0\n",
)
ARFF_TOKENS = (b"@attribute ", b"@data\n", b"@relation ", b" {0,1}\n", b" numeric\n", b"-C 99", b"-C " + b"9" * 5000,
               b"?", b"%", b"{0 1,1 1}\n", b"'", b"{", b"}")  # fmt: skip
XML = (
    b'<labels xmlns="http://mulan.sourceforge.net/labels">\n<label name="l1"/>\n<label name="l2"/>\n</labels>\n',
    b'<?xml version="1.0" encoding="utf-8"?><labels><label name="l1"><label name="l2"></label></label></labels>',
)


@reader
def xmlc() -> Reader:
    tokens = (b":", b",", b" 0:1", b"0,", b"1e38", b"1e39", b"_", b"0:0 ", b"3 5 4\n")
    return Reader("xmlc", "XML-repository text", XMLC, as_file("xmlc/train.txt", read_xmlc), tokens=tokens)


@reader
def compressed_text() -> Reader:
    seeds = [pack(text) for pack in (gzip.compress, bz2.compress) for text in XMLC]

    def make(_seed: bytes, rng: Random) -> bytes:
        text = mutated(rng.choice(XMLC), XMLC, rng)
        packed = rng.choice((gzip.compress, bz2.compress))(text, 1)
        return packed if rng.random() < 0.5 else packed + rng.choice((packed, packed[:10], b"\0" * 9))

    def read(file: Path) -> object:
        content_sha256(file)
        return read_xmlc(file)

    return Reader("compressed-text", "gzip and bzip2 streams of lines", seeds, as_file("gz/t.gz", read), make)


@reader
def arff() -> Reader:
    def read(file: Path) -> object:
        return read_arff(file, LabelRule(otherwise_last=1))

    return Reader("arff", "ARFF, sparse and dense", ARFF, as_file("arff/train.arff", read), tokens=ARFF_TOKENS)


@reader
def labels_xml() -> Reader:
    data = workplace() / "labels-xml" / "train.arff"
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(ARFF[0])

    def read(file: Path) -> object:
        return read_arff(data, labels_file=file)

    tokens = (
        b"<label",
        b"</label>",
        b' name="l1"',
        b"<![CDATA[",
        b"]]>",
        b"&lt;",
        b"&#0;",
        b"&a;",
        b"encoding='utf-7'",
    )
    return Reader("labels-xml", "Mulan's list of labels", XML, as_file("labels.xml", read), tokens=tokens)


@reader
def label_names() -> Reader:
    seeds = (b"one\ntwo\nthree\n", b"1\tone\n2\ttwo\n3\t\n\n", gzip.compress(b"one\ntwo\nthree\n"))
    read = as_file("names/labels.txt", lambda file: read_label_names(file.parent, 3))
    return Reader("label-names", "labels.txt of a dataset", seeds, read)


@reader
def predict_input() -> Reader:
    """`fedalc predict` and a party's data: either format, recognised by content."""
    read = as_file("predict/new.data", lambda file: load_file(file, label_count=1))
    return Reader("predict-input", "instances to predict, format by content", (*XMLC, *ARFF), read, tokens=ARFF_TOKENS)


@reader
def record_names() -> Reader:
    from fedalc.labels.collection.holding import _read_records

    read = as_file("records.txt", lambda file: _read_records(file, 3))
    return Reader("record-names", "record names of a party (--records)", (b"a\nb\nc\n", b"1\n2\n3"), read)


@reader
def names_file() -> Reader:
    from fedalc.labels.collection.pseudonyms import read_names

    seeds = (b"one\ntwo\n", b"7\tone\n8\ttwo\n")
    return Reader("names-file", "names for `fedalc key labels`", seeds, as_file("names.txt", read_names))


@reader
def parsed_cache() -> Reader:
    """A damaged cache entry is made again, whatever the damage."""
    folder = workplace() / "parsed-cache"
    folder.mkdir(exist_ok=True)
    source = folder / "train.txt"
    source.write_bytes(XMLC[0])
    fresh = read_xmlc(source)
    seeds = []
    for names in ((), ("a", "b", "c", "d")):
        _store(Parsed(fresh, (), names), folder / "seed.npz")
        seeds.append((folder / "seed.npz").read_bytes())

    def read(file: Path) -> object:
        import fedalc.data.cache as module

        module._key, before = (lambda *_: "entry"), module._key
        module.cache_dir, where = (lambda: file.parent), module.cache_dir
        try:
            return cached(source, "xmlc", "", lambda: Parsed(fresh))
        finally:
            module._key, module.cache_dir = before, where

    assert _load(folder / "seed.npz").label_names
    return Reader("parsed-cache", "parsed files in the cache", seeds, as_file("entry/entry.npz", read), tokens=TOKENS)
