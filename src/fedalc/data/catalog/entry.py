"""The facts about a dataset in the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Statistics:
    """Published numbers. The averages are over all splits together, or only over train (`averages_over_train`)."""

    train: int
    test: int
    features: int | None
    """None for raw text: the settings say how it becomes features."""
    labels: int
    instances_per_label: float
    labels_per_instance: float
    validation: int | None = None
    averages_over_train: bool = False
    features_per_instance: float | None = None
    """Number of non-zero features: counted in the files, approximate for generated data."""


@dataclass(frozen=True)
class ImageSet:
    """A picture dataset: its layout and its published numbers. Averages are over all splits."""

    layout: Literal["voc", "coco", "flair"]
    variant: str
    """A key of `VARIANTS` in the layout's module: the split or the kind of labels."""
    train: int
    test: int
    labels: int
    validation: int | None = None
    labels_per_instance: float | None = None
    """With default options; None if not counted."""
    markers: tuple[str, ...] = ()
    """Files or folders, at least one of which an unpacked dataset has."""


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
    """The web page of its authors."""
    files: tuple[str, ...]
    """The files in its folder. Each may be compressed, with `.gz` or `.bz2` added to its name."""
    how_to_get: str
    """Instructions, if there is no direct download."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Per file name: the checksum of its uncompressed content."""
    downloads: tuple[Download, ...] = ()
    note: str = ""
    propensity: tuple[float, float] = (0.55, 1.5)
    """A and B of the propensity model, for propensity-scored metrics."""
    label_prefix: str | None = None
    """Attributes that begin with this are labels, if the format does not say which are."""
    images: ImageSet | None = None
    """Set for pictures; `statistics` is then None."""
    users: int | None = None
    """Number of users in all splits; None if unknown."""
    shared_folder: str | None = None
    """The name of another dataset whose folder has the files."""
    is_single_file: bool = False
    """Whether all splits are in one file."""
    like: str | None = None
    """Set for generated problems, which only have the size of a real dataset: their name before dividing."""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.shared_folder or self.name

    @property
    def is_embedded(self) -> bool:
        """Whether fedalc makes it, without any file."""
        return not self.files and self.images is None
