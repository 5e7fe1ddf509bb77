"""The fixtures of all tests of scores."""

from __future__ import annotations

from score_fixtures import cache, cli, data, digits, own_cache, own_score_cache, replay_fixture, rgb, ring, run

__all__ = ["cache", "cli", "data", "digits", "own_cache", "own_score_cache", "replay_fixture", "rgb", "ring", "run"]
