"""Refuse a net that runs on a CPU only, before a run on a GPU starts: such a net makes tensors that stay on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ganherd.herd.checks.module_copies import line_of
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import build_seeded
from ganherd.util.errors import UserError, first_line
from ganherd.util.memory import is_out_of_memory


def refuse_cpu_only(
    make: Callable[[], nn.Module], inputs: tuple[Tensor, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Call and differentiate a net once on the device of the run.

    Args:
        make: Builds the net, which was tried out on the CPU before.
        inputs: Arguments of its forward.

    Raises:
        UserError: If it fails there.
    """
    net = build_seeded(make, 1).to(device, dtype)
    try:
        with MemberRandomness(torch.tensor(1, device=device)):
            output = net(*(value.to(device) for value in inputs))
        sum(leaf.sum() for leaf in tree_leaves(output)).backward()
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):  # what fits is measured later
            return
        line = line_of(error)
        raise UserError(
            f"{type(net).__name__} runs on the CPU, but not on {device} ({first_line(error)}{f'; {line}' if line else ''}): "
            "give tensors that its forward makes device=x.device, and register tensors that it keeps as buffers."
        ) from error
