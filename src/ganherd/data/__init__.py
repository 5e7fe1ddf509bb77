"""Data: from a name or a path to arrays with a held-out split, and to what each member of the herd sees."""

from __future__ import annotations

from ganherd.data.dataset import Dataset, load

__all__ = ["Dataset", "load"]
