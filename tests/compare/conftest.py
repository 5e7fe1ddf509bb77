"""The fixtures of commands, for comparisons."""

from __future__ import annotations

from commands import cli, data, own_cache, run

__all__ = ["cli", "data", "own_cache", "run"]
