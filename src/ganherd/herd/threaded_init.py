"""Build the modules of many members (GANs) in several threads, with the same weights as if built in sequence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ganherd.herd import rng
from ganherd.herd.global_generators import outside_torch
from ganherd.util.host import cores, in_threads

_FEWEST = 64  # with fewer members, threads save no time
_DRAWS = (
    Tensor.normal_, Tensor.uniform_, torch.rand, torch.randn,
    nn.init.normal_, nn.init.uniform_, nn.init.kaiming_normal_, nn.init.kaiming_uniform_,
)  # fmt: skip


class _DrawFrom(TorchFunctionMode):
    """Let functions draw from a given generator instead of PyTorch's global one, in this thread only."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in _DRAWS and options.get("generator") is None:
            options["generator"] = self._generator
        return func(*args, **options)


@dataclass(frozen=True)
class PackagedNet:
    """A function that builds one of ganherd's own nets. Unlike a user's function, several threads may call it."""

    make: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        """Return a new net."""
        return self.make()


def pays_in_threads(make: Callable[[], nn.Module], number: int) -> bool:
    """Return whether nets should be built in threads: `make` allows it, and their number makes it worth it."""
    return isinstance(make, PackagedNet) and number >= _FEWEST and cores() > 1


def build_in_threads(
    make: Callable[[], nn.Module], seeds: Sequence[int], write: Callable[[int, nn.Module], None]
) -> bool:
    """Build a module for each seed in parallel threads, with the weights that `build_seeded` would give it.

    Args:
        make: Builds a module.
        write: Called with the position of a seed and its module, in any order and from several threads.

    Returns:
        Whether this succeeded. False: a module has drawn from a global random generator, which threads share, so that
        all modules must be built again in sequence. The states of these generators are restored.
    """
    before, before_outside = torch.random.get_rng_state(), outside_torch()

    def build(number: int) -> None:
        with _DrawFrom(rng.seed_(torch.Generator(), seeds[number])):
            module = make()
        write(number, module)

    in_threads(build, range(len(seeds)), cores())
    if torch.equal(before, torch.random.get_rng_state()) and _is_equal(before_outside, outside_torch()):
        return True
    torch.random.set_rng_state(before)
    random.setstate(before_outside["random"])
    np.random.set_state(before_outside["numpy.random"])
    return False


def _is_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two results of `outside_torch`, states of the generators of Python and NumPy, are equal."""
    states = zip(one["numpy.random"], other["numpy.random"], strict=True)
    return one["random"] == other["random"] and all(np.array_equal(*pair) for pair in states)
