"""Load data sets from a name or a path, hold out a part of them, and choose the rows that each member sees."""

from __future__ import annotations

from ganherd.data.dataset import Dataset, load

__all__ = ["Dataset", "load"]
