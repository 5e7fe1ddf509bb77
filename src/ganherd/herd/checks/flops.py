"""Count the floating-point operations of a net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ganherd.herd.checks.trial import first_that_runs
from ganherd.herd.global_generators import seeded_generators
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import takes_label


def count_operations(make: Callable[[], nn.Module], shape: tuple[int, ...], batches: Sequence[int]) -> float:
    """Count the floating-point operations of products and convolutions of a new net, per sample.

    Args:
        make: Builds the net.
        shape: The shape of one sample.
        batches: Batch sizes to try until the net runs.
    """

    def count(rows: int) -> float:
        net = make()
        label = (torch.zeros(rows, dtype=torch.int64),) if takes_label(net) else ()
        with _Counter() as counter, MemberRandomness(torch.tensor(0)):
            net(torch.zeros(rows, *shape), *label)
        result: float = counter.operations / rows
        return result

    with seeded_generators(0), torch.no_grad():
        return first_that_runs(count, batches)


class _Counter(TorchFunctionMode):
    """Count the operations of products and convolutions; importing PyTorch's own counter takes a second."""

    operations = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        if (count := _COUNTS.get(getattr(func, "__name__", ""))) is not None:
            self.operations += count(out, *tensors)
        return out


def _product(out: Tensor, a: Tensor, *_: Tensor) -> float:
    """Count the operations of a matrix product."""
    return 2.0 * out.numel() * a.shape[-1]


def _sum_and_product(out: Tensor, added: Tensor, a: Tensor, *_: Tensor) -> float:
    """Count the operations of a matrix product with a summand."""
    return _product(out, a)


def _convolution(out: Tensor, x: Tensor, weight: Tensor, *_: Tensor) -> float:
    """Count the operations of a convolution."""
    return 2.0 * out.numel() * weight[0].numel()


def _transposed(out: Tensor, x: Tensor, weight: Tensor, *_: Tensor) -> float:
    """Count the operations of a transposed convolution."""
    return 2.0 * x.numel() * weight[0].numel()


def _attention(out: Tensor, query: Tensor, key: Tensor, *_: Tensor) -> float:
    """Count the operations of both products of an attention."""
    return 4.0 * query.numel() * key.shape[-2]


_COUNTS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("linear", "matmul", "__matmul__", "mm", "bmm", "mv"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _sum_and_product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "scaled_dot_product_attention": _attention,
}
