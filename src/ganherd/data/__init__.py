"""Load data sets by name or path, hold out some of their rows, and choose the rows that each member is trained on."""

from __future__ import annotations

from ganherd.data.dataset import Dataset, load
from ganherd.data.samples.python_dataset import from_dataset, prepare_dataset

__all__ = ["Dataset", "from_dataset", "load", "prepare_dataset"]
