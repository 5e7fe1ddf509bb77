"""Refuse nets whose forward or backward pass draws random numbers from other sources than the member's own stream.

A member is one GAN; its stream (`herd.rng`) depends on its key and the step alone. Draws from global generators would
depend on the other members.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ganherd.herd.checks.hidden_state.comparable import equal
from ganherd.herd.checks.module_copies import at_line, calling_line, is_user_file
from ganherd.herd.checks.source_line import assignment_line
from ganherd.herd.global_generators import outside_torch
from ganherd.util.errors import UserError

_SEEDING = ("manual_seed", "seed", "set_state", "set_offset")


class _Guarded:
    """A stand-in for PyTorch's default generator that raises `UserError` when it is seeded or its state is set."""

    def __init__(self, generator: torch.Generator, kind: str) -> None:
        self._generator, self._kind = generator, kind

    def __getattr__(self, name: str) -> Any:
        # Reading the method is allowed: PyTorch does so when its first checkpoint imports torch._dynamo.
        return self._refuse if name in _SEEDING else getattr(self._generator, name)

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        if _is_compiling():
            raise UserError(
                f"{self._kind} calls a function{calling_line()} that is compiled with torch.compile: leave torch.compile out, "
                "since ganherd compiles what pays."
            )
        raise UserError(
            f"{self._kind} seeds PyTorch's generator in forward{calling_line()}, but each member has its own stream. "
            "Draw fixed numbers in the constructor and register them as a buffer, or leave the seed out to draw from the "
            "member's stream."
        )


def _is_compiling() -> bool:
    """Return whether PyTorch's compiler, which saves and sets the state of generators, is among the callers."""
    frame = sys._getframe(1)
    while frame is not None and "/torch/_dynamo/" not in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


@contextmanager
def no_seeding(kind: str) -> Iterator[None]:
    """Raise `UserError` for calls of `torch.manual_seed`, `seed`, `set_rng_state` and `fork_rng` inside this context.

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


class RefuseDraws(TorchFunctionMode):
    """Raise `UserError` if a function draws from PyTorch's default generator while this mode is active.

    `MemberRandomness`, which is active as well, replaces the draws of common functions, so that only others are
    noticed.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.random.get_rng_state()
        out = func(*args, **(kwargs or {}))
        drew = not torch.equal(before, torch.random.get_rng_state())
        if drew and getattr(func, "__module__", "") != "torch.nn.init":  # which initialises a layer built in forward
            name = getattr(func, "__name__", "a function")
            raise UserError(
                f"{self._kind} draws random numbers in {name}{calling_line()}, and no member's stream can give those numbers: "
                "use torch.rand, torch.randn or nn.Dropout instead."
            )
        return out


class RefuseDrawsInBackward(TorchDispatchMode):
    """Raise `UserError` if a backward pass draws random numbers while this mode is active.

    This happens if an activation checkpoint runs layers again that draw.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. Otherwise PyTorch imports its compiler at the first call, which takes seconds and is not used."""
        return False

    def __init__(self, net: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._net = net

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UserError(
                f"{type(self._net).__name__}{assignment_line(self._net)} draws random numbers within torch.utils.checkpoint, "
                "which would draw others when it runs again in the backward pass: draw them outside of it."
            )
        return func(*args, **(kwargs or {}))


def line_that_draws(net: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Call a net again, and return the line of the user's code that draws from Python's or NumPy's global generator.

    Returns:
        The line in brackets, e.g. " (nets.py, line 12)"; empty if it is not found.
    """
    lines: list[str] = []
    before, line, around = outside_torch(), "", sys.gettrace()

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal before, line
        if not is_user_file(frame.f_code.co_filename):
            return None
        if not equal(before, now := outside_torch()):
            lines.append(line)
            before = now
        line = at_line(frame.f_code.co_filename, frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        net(*inputs)
    finally:
        sys.settrace(around)
    return lines[0] if lines else ""
