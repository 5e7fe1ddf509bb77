"""The fixtures of all tests of scores."""

from __future__ import annotations

from score_fixtures import digits, replay_fixture, rgb, ring

__all__ = ["digits", "replay_fixture", "rgb", "ring"]
