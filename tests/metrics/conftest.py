"""The fixtures of all tests of scores."""

from __future__ import annotations

from score_fixtures import cache, digits, own_score_cache, replay_fixture, rgb, ring

__all__ = ["cache", "digits", "own_score_cache", "replay_fixture", "rgb", "ring"]
