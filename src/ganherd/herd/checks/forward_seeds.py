"""Refuse nets that seed PyTorch's generator in forward: their draws would not come from the member's stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ganherd.herd.checks.module_copies import calling_line
from ganherd.util.errors import UserError

_SEEDING = ("manual_seed", "seed", "set_state", "set_offset")


class _Guarded:
    """PyTorch's default generator, with methods that seed it refused."""

    def __init__(self, generator: torch.Generator, kind: str) -> None:
        self._generator, self._kind = generator, kind

    def __getattr__(self, name: str) -> Any:
        if name in _SEEDING:
            raise UserError(
                f"{self._kind} seeds PyTorch's generator in forward{calling_line()}, but each member has its own stream. "
                "Draw fixed numbers in the constructor and register them as a buffer, or leave the seed out to draw from the "
                "member's stream."
            )
        return getattr(self._generator, name)


@contextmanager
def no_seeding(kind: str) -> Iterator[None]:
    """Refuse calls of `torch.manual_seed`, `seed`, `set_rng_state` and `fork_rng` inside this context.

    Args:
        kind: The class of the net that is called, for the message.
    """
    places: tuple[Any, ...] = (torch, torch.random)
    before = torch.random.default_generator
    try:
        for place in places:
            place.default_generator = _Guarded(before, kind)
        yield
    finally:
        for place in places:
            place.default_generator = before
