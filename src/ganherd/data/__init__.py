"""Load data sets from a name or a path, hold out a part of them, and choose the rows that each member sees."""

from __future__ import annotations

from ganherd.data.dataset import Dataset, load
from ganherd.data.samples.python_dataset import from_dataset, prepare_dataset

__all__ = ["Dataset", "from_dataset", "load", "prepare_dataset"]
