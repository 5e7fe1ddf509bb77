"""Count the floating-point operations of a net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ganherd.herd.checks.trial import first_that_runs
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.state import takes_label


def count_operations(make: Callable[[], nn.Module], shape: tuple[int, ...], batches: Sequence[int]) -> float:
    """Return the number of floating-point operations per sample that a net takes in products and convolutions.

    Args:
        make: Builds the net.
        shape: The shape of one sample of its input.
        batches: Batch sizes to try, in this order, until the net runs without an error.
    """

    def count(rows: int) -> float:
        net = make()
        label = (torch.zeros(rows, dtype=torch.int64),) if takes_label(net) else ()
        with _Counter() as counter, MemberRandomness(torch.tensor(0)):
            net(torch.zeros(rows, *shape), *label)
        return float(counter.operations / rows)

    with seeded_generators(0), torch.no_grad():
        return first_that_runs(count, batches)


class _Counter(TorchFunctionMode):
    """Count the floating-point operations of products and convolutions while this mode is active.

    PyTorch has such a counter, too, but importing it takes a second.
    """

    operations = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        if (count := _COUNTS.get(getattr(func, "__name__", ""))) is not None:
            self.operations += count(out, *tensors)
        return out


_PRODUCTS = ("linear", "matmul", "__matmul__", "mm", "bmm", "mv")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
# The number of operations of a function, computed from its output and the tensors among its arguments.
_COUNTS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(_PRODUCTS, lambda out, a, *_: 2.0 * out.numel() * a.shape[-1]),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), lambda out, added, a, *_: 2.0 * out.numel() * a.shape[-1]),
    **dict.fromkeys(_CONVOLUTIONS, lambda out, x, weight, *_: 2.0 * out.numel() * weight[0].numel()),
    **dict.fromkeys(_TRANSPOSED, lambda out, x, weight, *_: 2.0 * x.numel() * weight[0].numel()),
    "scaled_dot_product_attention": lambda out, query, key, *_: 4.0 * query.numel() * key.shape[-2],
}
