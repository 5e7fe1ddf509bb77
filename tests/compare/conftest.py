"""The fixtures of the tests of comparisons."""

from __future__ import annotations

from commands import cli, data, own_cache, run, seeds_run

__all__ = ["cli", "data", "own_cache", "run", "seeds_run"]
