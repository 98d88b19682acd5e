"""Reading datasets and splitting them into positive-only clients."""

from fedalc.data.dataset import Dataset, Split
from fedalc.data.load import load_dataset

__all__ = ["Dataset", "Split", "load_dataset"]
