"""Reading datasets and splitting them into positive-only clients."""

from fedalc.data.dataset import Dataset, Split
from fedalc.data.images import ImageOptions, Images
from fedalc.data.load import load_dataset

__all__ = ["Dataset", "ImageOptions", "Images", "Split", "load_dataset"]
