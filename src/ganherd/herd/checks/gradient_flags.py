"""Find out whether the output of a net depends on whether its parameters require gradients.

In plain PyTorch all parameters require gradients unless they are frozen. Engines let them require gradients only in passes
whose gradients are needed. So a net that reads `weight.requires_grad` may see a different value.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ganherd.herd.checks.hidden_state.comparable import equal
from ganherd.herd.checks.module_copies import at_line, is_library_file
from ganherd.herd.checks.trial import ComparisonTask, batch_sizes, first_that_runs
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.state import build_seeded, takes_label


def line_that_reads_flag(task: ComparisonTask) -> str | None:
    """Return the line of a net's forward that reads `requires_grad`, if the net's output depends on it.

    Returns:
        The line in brackets, e.g. " (nets.py, line 12)", or "" if it is not found; None if the output does not depend
        on it, or if the net fails.
    """

    def call(rows: int) -> tuple[list[list[Tensor]], str]:
        outputs, lines = [], list[str]()
        for required in (True, False):
            net = build_seeded(task.make, 1)
            if not required:
                net.requires_grad_(False)
            label = (torch.zeros(rows, dtype=torch.int64),) if takes_label(net) else ()
            with MemberRandomness(torch.tensor(1)), _ReadLines() as reads:
                output = net(torch.linspace(-1.0, 1.0, rows * _size(task)).reshape(rows, *task.input), *label)
            outputs.append([leaf.detach() for leaf in tree_leaves(output) if isinstance(leaf, Tensor)])
            lines += reads.lines
        return outputs, lines[0] if lines else ""

    with suppress(Exception), seeded_generators(0):  # a user's module may raise anything
        outputs, line = first_that_runs(call, batch_sizes(task.batch))
        return None if equal(*outputs) else line
    return None


def _size(task: ComparisonTask) -> int:
    """Return the number of values in one sample of the net's input."""
    return torch.Size(task.input).numel()


class _ReadLines(TorchFunctionMode):
    """Record the lines of users' code that read the attribute `requires_grad` of a tensor while this mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []  # in brackets, in the order of the reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_read = getattr(func, "__name__", "") == "__get__"
        if is_read and getattr(func.__self__, "__name__", "") == "requires_grad":
            code, number = (frame := sys._getframe(1)).f_code, frame.f_lineno
            if not is_library_file(code.co_filename):
                self.lines.append(at_line(code.co_filename, number))
        return func(*args, **(kwargs or {}))
