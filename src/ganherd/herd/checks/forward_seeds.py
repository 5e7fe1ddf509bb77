"""Refuse nets that seed PyTorch's generator in forward: the numbers after it would not come from a member's own stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ganherd.herd.checks.module_copies import calling_line
from ganherd.util.errors import UserError

_SEEDING = ("manual_seed", "seed", "set_state", "set_offset")


class _Guarded:
    """PyTorch's own generator, which answers but cannot be seeded."""

    def __init__(self, generator: torch.Generator, kind: str) -> None:
        self._generator, self._kind = generator, kind

    def __getattr__(self, name: str) -> Any:
        if name in _SEEDING:
            raise UserError(
                f"{self._kind} seeds PyTorch's generator in forward{calling_line()}, and each member has its own stream: "
                "draw fixed numbers in the constructor and register them as a buffer, or leave the seed out for a member's own "
                "numbers."
            )
        return getattr(self._generator, name)


@contextmanager
def no_seeding(kind: str) -> Iterator[None]:
    """Refuse `torch.manual_seed`, `seed`, `set_rng_state` and `fork_rng`, which all use the default generator.

    Args:
        kind: The class of the net that is called.
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
