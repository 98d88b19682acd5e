"""What every data format declares, and how a folder with one file per split becomes a `Dataset`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedalc.data.cache import Parsed, cached
from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.label_file import distinct_label_names, label_names
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.images.images import ImageOptions
from fedalc.data.test_share import share_in_words, split_off_test
from fedalc.data.text.base import TextFeatures
from fedalc.data.text.settings import TextSettings
from fedalc.errors import DataError, FedalcError

_SPLIT_OF = {"train": "train", "test": "test", "dev": "validation", "valid": "validation", "validation": "validation"}
_NEEDED = ("train", "test")


@dataclass(frozen=True)
class ReadOptions:
    """How to read a dataset. A format uses the options that apply to it."""

    cache: bool = True
    """Keep parsed files in the cache."""
    images: ImageOptions = field(default_factory=ImageOptions)
    label_prefix: str | None = None
    """ARFF: attributes whose names begin with this prefix are labels."""
    label_count: int | None = None
    """ARFF files that do not say which attributes are labels: the last `label_count` are."""
    feature_count: int | None = None
    """The number of features, if it is known before reading."""
    table: TableSettings = field(default_factory=TableSettings)
    """Which columns of a table are what; for every format, what to test on."""
    text: TextSettings | TextFeatures = field(default_factory=TextSettings)
    """How raw texts become features; what was fitted on other texts, if they have to become the same features."""


class Format:
    """A data format. fedalc sets `name`, the name under which it is registered.

    A format with one file per split declares `suffixes` and `read_file`: `train` and `test` files that end with one of
    the suffixes (`my_train.tsv`, `test.tsv`; for validation `dev`, `valid` or `validation`) then make a dataset, and
    `fedalc predict` and parties read single files. A format of whole folders overrides `recognises` and `read`.
    """

    name: str = ""
    help: ClassVar[str] = ""
    """What the format is, in a few words."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    compressed: ClassVar[bool] = False
    """Files may end with `.gz` or `.bz2` too; `read_file` has to unpack them."""
    has_pictures: ClassVar[bool] = False
    version: ClassVar[int | None] = None
    """Raise it when the same file would be read differently. None: parsed files are not cached."""

    def read_file(self, path: Path, options: ReadOptions) -> Split | Parsed:
        """Read one file. `Parsed` carries the names of features and labels too."""
        raise DataError(f"the format {self.name!r} cannot read a single file", path)

    def recognises_file(self, path: Path) -> bool:
        """Return whether a file is of this format: here, whether its name ends with one of the suffixes."""
        return bool(self.suffixes) and re.search(f"{self._ending}$", path.name, re.IGNORECASE) is not None

    def recognises(self, folder: Path) -> bool:
        """Return whether a folder has a train file of this format. Does not check that the folder is complete."""
        return bool(self.candidates(folder, "train"))

    def read(self, folder: Path, options: ReadOptions) -> Dataset:
        """Read a folder. Label names come from the files, or else from the folder's `labels.txt`. Without a test file,
        a share of train is held out."""
        files = self.split_files(folder, needed=("train",))
        return self._dataset(folder.name, files, options, folder)

    def read_alone(self, path: Path, options: ReadOptions) -> Dataset:
        """Read a single file as a dataset."""
        return self._dataset(path.name, {"train": path}, options, None)

    def _dataset(self, name: str, files: dict[str, Path], options: ReadOptions, folder: Path | None) -> Dataset:
        """Put the files of the splits together. `folder` may have a `labels.txt`."""
        table = options.table
        if table.test is not None:
            if "test" in files:
                raise DataError(f"there are two test files: this one and {table.test}", files["test"])
            files = {**files, "test": Path(table.test)}
        parsed = {split: self.parse(path, options) for split, path in files.items()}
        train = parsed["train"]
        if "test" in files and len(parsed["test"].split) == 0:
            raise DataError("has no instances to test on", files["test"])
        for split, other in parsed.items():
            if (other.feature_names, other.label_names) != (train.feature_names, train.label_names):
                raise DataError(f"has other attributes than {files['train']}, or in another order", files[split])
        count = train.split.labels.shape[1]
        names = train.label_names or (() if folder is None else distinct_label_names(folder, count))
        splits = {split: each.split for split, each in parsed.items()}
        notes: tuple[str, ...] = ()
        if "test" not in files and table.test_share > 0:
            splits["train"], splits["test"] = split_off_test(train.split, table.test_share, table.seed, name)
            notes = (share_in_words(table.test_share, len(splits["test"])),)
        return Dataset(
            name,
            splits["train"],
            splits.get("test"),  # type: ignore[arg-type]
            names,
            splits.get("validation"),
            notes=notes,
        )

    def read_held(self, path: Path, options: ReadOptions) -> tuple[Split, tuple[str, ...]]:
        """Read one file with its label names, as a party does: nothing else has to be in its folder."""
        parsed = self.parse(path, options)
        return parsed.split, parsed.label_names or label_names(path.parent, parsed.split.labels.shape[1])

    def parse(self, path: Path, options: ReadOptions) -> Parsed:
        """Return what `read_file` returns, from the cache where possible."""
        if not options.cache or self.version is None:
            return self._parsed(path, options)
        parser = f"{self.name} {self.version}"
        return cached(path, parser, self.cache_key(path, options), lambda: self._parsed(path, options))

    def cache_key(self, path: Path, options: ReadOptions) -> str:
        """Return everything besides the file and the version that changes what `read_file` returns."""
        return ""

    def _parsed(self, path: Path, options: ReadOptions) -> Parsed:
        with errors_named(self, path):
            content = self.read_file(path, options)
        if isinstance(content, Split):
            return Parsed(content)
        if not isinstance(content, Parsed) or not isinstance(content.split, Split):
            raise DataError(
                f"the format {self.name!r} returned {content!r:.60}: read_file should return fedalc.Split or Parsed",
                path,
            )
        return Parsed(content.split, _texts(content.feature_names), _texts(content.label_names))

    def split_files(self, folder: Path, needed: Iterable[str] = _NEEDED) -> dict[str, Path]:
        """Return the folder's file of each split. Two files for one split, or a missing one, are an error."""
        files: dict[str, Path] = {}
        for split in ("test", "train", "validation"):
            paths = self.candidates(folder, split)
            if len(named := self._named(folder, split) or paths) > 1:
                names = ", ".join(path.name for path in named)
                raise DataError(f"several files could be the {split} split: {names}. Leave one", folder)
            if paths:
                files[split] = paths[0]
            elif split in needed and self.suffixes:
                raise DataError(f"no {split} file: expected {self.looks_for(split)}", folder)
        return files

    def candidates(self, folder: Path, split: str) -> list[Path]:
        """Return the files that could be a split: by their names first, then by `recognises_file`."""
        return [path for path in self._named(folder, split) if self.recognises_file(path)]

    def _named(self, folder: Path, split: str) -> list[Path]:
        """Return the files whose names say that they are a split, in this format or in another with the same suffix."""
        if not self.suffixes:
            return []
        names = "|".join(name for name, named_split in _SPLIT_OF.items() if named_split == split)
        pattern = re.compile(f".*?({names}){self._ending}", re.IGNORECASE)
        return [path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name) and path.is_file()]

    def looks_for(self, split: str = "train") -> str:
        """Return which file, or files, of a folder hold a split, for error messages."""
        if not self.suffixes:
            return self.title
        names = " or ".join(f"{split}{suffix}" for suffix in self.suffixes)
        return f"a file whose name ends with {names}" + (" (.gz, .bz2)" if self.compressed else "")

    @property
    def _ending(self) -> str:
        """A regular expression for the end of a file's name."""
        return f"({'|'.join(map(re.escape, self.suffixes))})" + (r"(\.gz|\.bz2)?" if self.compressed else "")

    def describe(self, folder: Path) -> list[str]:
        """Return what `fedalc data info` says about a folder, line by line. Does not read all of it."""
        files = self.split_files(folder, needed=("train",))
        return [f"{self.title} in {', '.join(path.name for path in files.values())}" if files else self.title]

    @property
    def title(self) -> str:
        return self.help or self.name


def _texts(names: Any) -> tuple[str, ...]:
    return tuple(map(str, names))


@contextmanager
def errors_named(data_format: Format, path: Path) -> Iterator[None]:
    """Turn an exception from a registered format into an error that names the format. Built-in ones raise their own."""
    try:
        yield
    except (FedalcError, MemoryError):
        raise
    except Exception as error:
        if type(data_format).__module__.startswith("fedalc."):
            raise
        raise DataError(f"the format {data_format.name!r} failed: {type(error).__name__}: {error}", path) from error
