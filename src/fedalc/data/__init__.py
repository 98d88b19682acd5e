"""Reading datasets and splitting them into positive-only clients."""

from fedalc.data.dataset import Dataset, Split
from fedalc.data.formats.table_settings import TableSettings
from fedalc.data.images.images import ImageOptions, Images
from fedalc.data.images.loose_files import picture_blocks, read_pictures
from fedalc.data.in_memory import dataset_from
from fedalc.data.load import load_dataset
from fedalc.data.text.settings import TextSettings

__all__ = [
    "Dataset",
    "ImageOptions",
    "Images",
    "Split",
    "TableSettings",
    "TextSettings",
    "dataset_from",
    "load_dataset",
    "picture_blocks",
    "read_pictures",
]
