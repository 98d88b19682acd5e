"""A dataset of pictures as a dataset of their features."""

from __future__ import annotations

from dataclasses import replace

from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.images import Images
from fedalc.data.pretrained.pictures import PictureFeatures


def with_features(dataset: Dataset, pictures: PictureFeatures) -> Dataset:
    """Return the dataset with the features of its pictures. Splits keep the pictures, for contact sheets and to
    recognise records."""
    parts = {name: features_of(split, pictures) for name, split in dataset.splits.items()}
    return replace(dataset, **parts, pictures=pictures)  # type: ignore[arg-type]


def features_of(split: Split, pictures: PictureFeatures) -> Split:
    assert isinstance(split.features, Images)
    return replace(split, features=pictures.transform(split.features), pictures=split.features)
