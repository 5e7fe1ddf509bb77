"""The fixtures of all tests of mixtures."""

from __future__ import annotations

from commands import data, own_cache, run, seeds_run

__all__ = ["data", "own_cache", "run", "seeds_run"]
