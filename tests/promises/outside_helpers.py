"""A second file of a user, with helpers that nets call."""

from __future__ import annotations

calls = 0
gain = 0.5


def counted() -> None:
    global calls
    calls += 1
