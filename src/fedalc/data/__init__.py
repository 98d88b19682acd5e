"""Reading datasets and splitting them into positive-only clients."""

from fedalc.data.dataset import Dataset, Split
from fedalc.data.images.images import ImageOptions, Images
from fedalc.data.images.loose_files import picture_blocks, read_pictures
from fedalc.data.load import load_dataset

__all__ = ["Dataset", "ImageOptions", "Images", "Split", "load_dataset", "picture_blocks", "read_pictures"]
