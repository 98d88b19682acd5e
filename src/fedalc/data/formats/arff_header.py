"""The header of an ARFF file: its attributes, and which of them are labels."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from fedalc.data.formats.safe_xml import parse
from fedalc.data.formats.text_stream import LineReader
from fedalc.errors import DataError

_NUMERIC_TYPES = {"numeric", "real", "integer"}
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^\s'"{][^\s{]*)\s*(.*)""", re.IGNORECASE)
_MEKA_LABELS = re.compile(r"-C\s+(-?[0-9]{1,9})(?![0-9])")
_LARGEST_LIST = 64 << 20
_SPLIT_SUFFIX = re.compile(r"[-_.]?(train|test|dev|valid|validation)$", re.IGNORECASE)
_HOW_TO_SAY_IT = (
    "put Mulan's `labels.xml` beside it (<labels><label name=\"…\"/></labels>), or MEKA's `-C n` in the relation's "
    "name, or say how many of the last attributes are labels"
)


@dataclass(frozen=True)
class Attribute:
    name: str
    values: tuple[float, ...] | None
    """The values of a nominal attribute; None for a numeric one."""

    @property
    def is_binary(self) -> bool:
        return self.values is not None and set(self.values) <= {0.0, 1.0}


@dataclass(frozen=True)
class ArffHeader:
    relation: str
    attributes: tuple[Attribute, ...]


def read_arff_header(reader: LineReader) -> ArffHeader:
    """Read up to and including `@data`."""
    relation = ""
    attributes: list[Attribute] = []
    lines_of: dict[str, int] = {}
    while (raw := reader.next_line()) is not None:
        line = raw.decode("utf-8", errors="surrogateescape").strip()
        if not line or line.startswith("%"):
            continue
        keyword = line.split(maxsplit=1)[0].lower()
        if keyword == "@relation":
            relation = line[len(keyword) :].strip()
        elif keyword == "@attribute":
            attribute = _parse_attribute(line, reader)
            if attribute.name in lines_of:
                raise DataError(
                    f"attribute {attribute.name!r} is already in line {lines_of[attribute.name]}",
                    reader.path,
                    reader.line,
                )
            lines_of[attribute.name] = reader.line
            attributes.append(attribute)
        elif keyword == "@data":
            if not attributes:
                raise DataError("`@data` comes before any `@attribute`", reader.path, reader.line)
            return ArffHeader(relation, tuple(attributes))
        else:
            raise DataError(
                f"expected `@relation`, `@attribute` or `@data`, found {line[:40]!r}", reader.path, reader.line
            )
    if reader.line == 0:
        raise DataError("the file is empty", reader.path)
    raise DataError("there is no `@data` line: the file is truncated", reader.path, reader.line)


def _parse_attribute(line: str, reader: LineReader) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise DataError(f"expected `@attribute name type`, found {line[:60]!r}", reader.path, reader.line)
    name, kind = _unquoted(match[1]), match[2].strip()
    if kind.split("%")[0].strip().lower() in _NUMERIC_TYPES:
        return Attribute(name, None)
    nominal = re.fullmatch(r"\{(.*)\}\s*(%.*)?", kind)
    if nominal is None:
        raise DataError(
            f"attribute {name!r} has type {kind[:30]!r}, but should be numeric, or nominal with numbers, like {{0,1}}",
            reader.path,
            reader.line,
        )
    try:
        return Attribute(name, tuple(float(_unquoted(value.strip())) for value in nominal[1].split(",")))
    except ValueError:
        raise DataError(
            f"attribute {name!r} has values {kind[:40]!r} that are not numbers: write them as numbers, like {{0,1}}",
            reader.path,
            reader.line,
        ) from None


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def find_labels_file(path: Path) -> Path | None:
    """Return Mulan's list of labels: `x.xml` for `x.arff` and `x-train.arff`, or else `labels.xml`."""
    stem = path.name.split(".arff")[0]
    for name in (f"{stem}.xml", f"{_SPLIT_SUFFIX.sub('', stem)}.xml", "labels.xml"):
        candidate = path.with_name(name)
        if candidate.is_file():
            return candidate
    return None


@dataclass(frozen=True)
class LabelRule:
    """The caller's knowledge about the labels. `otherwise_last` applies if no other source says which they are."""

    last: int | None = None
    prefix: str | None = None
    otherwise_last: int | None = None


def which_are_labels(header: ArffHeader, path: Path, labels_file: Path | None, rule: LabelRule) -> NDArray[np.bool_]:
    """Return a mask of the attributes that are labels. Sources that disagree are an error."""
    said: dict[str, NDArray[np.bool_]] = {}
    names = [attribute.name for attribute in header.attributes]
    if labels_file is not None:
        said[str(labels_file)] = _from_labels_file(labels_file, names, path)
    if meka := _MEKA_LABELS.search(header.relation):
        said[f"the relation's {meka[0]!r}"] = _from_count(-int(meka[1]), len(names), path)
    if rule.last is not None:
        said[f"the last {rule.last} attributes"] = _from_count(rule.last, len(names), path)
    if rule.prefix is not None:
        with_prefix = np.array([name.startswith(rule.prefix) for name in names])
        said[f"the attributes that begin with {rule.prefix!r}"] = with_prefix
    if not said and rule.otherwise_last is not None:
        said[f"the last {rule.otherwise_last} attributes"] = _from_count(rule.otherwise_last, len(names), path)
    if not said:
        raise DataError(f"nothing says which attributes are labels: {_HOW_TO_SAY_IT}", path)
    (first, mask), *others = said.items()
    for other, other_mask in others:
        if not np.array_equal(mask, other_mask):
            raise DataError(
                f"{first} gives {int(mask.sum())} labels and {other} gives {int(other_mask.sum())}, but they are not "
                "the same: remove the wrong source",
                path,
            )
    if not mask.any() or mask.all():
        raise DataError(f"{first}: {'every' if mask.all() else 'no'} attribute is a label; {_HOW_TO_SAY_IT}", path)
    for name, attribute, is_label in zip(names, header.attributes, mask, strict=True):
        if is_label and attribute.values is not None and not attribute.is_binary:
            raise DataError(f"label {name!r} should be {{0,1}}, not {attribute.values}", path)
    return mask


def _from_count(last: int, attribute_count: int, path: Path) -> NDArray[np.bool_]:
    """Return a mask of the last `last` attributes, or of the first ones if the number is negative."""
    if not 0 < abs(last) < attribute_count:
        raise DataError(f"{abs(last)} labels cannot be among {attribute_count} attributes; {_HOW_TO_SAY_IT}", path)
    mask = np.zeros(attribute_count, dtype=bool)
    mask[-last:] = last > 0
    mask[: max(-last, 0)] = last < 0
    return mask


def _from_labels_file(labels_file: Path, names: list[str], path: Path) -> NDArray[np.bool_]:
    wanted = _label_names(labels_file)
    if unknown := sorted(wanted - set(names)):
        raise DataError(f"label {unknown[0]!r} is not an attribute of {path}", labels_file)
    return np.array([name in wanted for name in names])


def _label_names(labels_file: Path) -> set[str]:
    """Return the names in `<labels><label name="…"/></labels>`, including nested labels."""
    names: set[str] = set()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition(":")[2] == "label" and "name" in attributes:
            names.add(attributes["name"])

    def refuse(*_: object) -> None:
        raise DataError(
            "has a document type or entities, which a list of labels does not need: remove them", labels_file
        )

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    # Only a document type can declare entities: without it there is nothing to expand or to fetch.
    parser.StartDoctypeDeclHandler = refuse
    parse(parser, _content(labels_file), lambda message, line: DataError(message, labels_file, line))
    if not names:
        raise DataError('has no <label name="…"/>', labels_file)
    return names


def _content(labels_file: Path) -> bytes:
    try:
        with labels_file.open("rb") as file:
            # Python allocates the memory of the requested size.
            content = file.read(min(_LARGEST_LIST, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", labels_file) from None
    if len(content) > _LARGEST_LIST:
        raise DataError(f"is larger than {_LARGEST_LIST >> 20} MB, too large for a list of labels", labels_file)
    return content
