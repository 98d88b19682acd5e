"""Reading datasets and splitting them into positive-only clients."""

from fedalc.data.dataset import Dataset, Split
from fedalc.data.images import ImageOptions, Images
from fedalc.data.load import load_dataset
from fedalc.data.picture_files import picture_blocks, read_pictures

__all__ = ["Dataset", "ImageOptions", "Images", "Split", "load_dataset", "picture_blocks", "read_pictures"]
