"""What the catalog says of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Statistics:
    """Published numbers. The averages are over all splits together, or over train alone."""

    train: int
    test: int
    features: int
    labels: int
    instances_per_label: float
    labels_per_instance: float
    validation: int | None = None
    averages_over_train: bool = False
    features_per_instance: float | None = None
    """Those that are not zero. Counted, where the files were at hand; about so many, in generated data."""


@dataclass(frozen=True)
class ImageSet:
    """A dataset of pictures: how it is laid out, and its published numbers. Their averages are over all splits."""

    layout: Literal["voc", "coco", "flair"]
    variant: str
    """Which of the splits or kinds of labels that the layout's module knows."""
    train: int
    test: int
    labels: int
    validation: int | None = None
    labels_per_instance: float | None = None
    """With the options as they are by default. Only where it was counted."""
    markers: tuple[str, ...] = ()
    """Loose files or folders, one of which is there where the dataset has been unpacked."""


@dataclass(frozen=True)
class Download:
    """A file that can be downloaded without a browser."""

    url: str
    file_name: str
    sha256: str | None = None
    size: int | None = None
    unpack: bool = False
    """Whether it is an archive to unpack. Other archives stay packed."""
    md5: str | None = None
    """For files whose makers or users publish no SHA-256."""
    unpacked: str = ""
    """A path below the dataset's folder that exists once the archive is unpacked, by hand too. With `unpack`: the
    folder that gets its files; without a value, they go into the dataset's folder itself."""


@dataclass(frozen=True)
class Entry:
    name: str
    title: str
    statistics: Statistics | None
    page: str
    """Where its makers offer it."""
    files: tuple[str, ...]
    """What its folder should hold. Each may be compressed too, with `.gz` or `.bz2` at the end of its name."""
    how_to_get: str
    """For a person, where there is no direct download."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Per file name: the checksum of its uncompressed content."""
    downloads: tuple[Download, ...] = ()
    note: str = ""
    propensity: tuple[float, float] = (0.55, 1.5)
    """A and B of the propensity model, for propensity-scored metrics."""
    label_prefix: str | None = None
    """What the labels' names begin with, where the format does not say which attributes are labels."""
    images: ImageSet | None = None
    """Set for pictures; `statistics` is for text then, and None."""
    users: int | None = None
    """Whose the instances are: how many, in all splits. None where that is not known."""
    shared_folder: str | None = None
    """Where its files are in another dataset's folder: that one's name."""
    like: str | None = None
    """Set for generated problems, which only have the size of a real dataset: their name before anything is divided."""

    @property
    def folder(self) -> str:
        """The name of its folder among the datasets' folders."""
        return self.shared_folder or self.name

    @property
    def is_embedded(self) -> bool:
        """Made on the spot, without any file."""
        return not self.files and self.images is None
