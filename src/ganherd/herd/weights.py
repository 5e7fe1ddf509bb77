"""The weights of members that learn, under their modules' names, and their gradients on the way to Adam."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ganherd.herd.state import Blueprint

_LARGE = 1 << 14  # numbers of a parameter whose gradient is not worth a copy
_LINE = 16  # cut elsewhere, a row would be rounded differently: vectors of a CPU are up to so many numbers wide


class Weights:
    """Rows [N, P] to differentiate by.

    On a CPU every parameter is a leaf of its own, so that large gradients stay where they were made. On a GPU the row is the
    leaf, and one launch joins its gradient.
    """

    def __init__(self, net: Blueprint, rows: Tensor) -> None:
        self._net, self._row = net, rows.detach()
        self._leaves: dict[str, Tensor] = {}
        if rows.is_cuda:
            self._row.requires_grad_()
        else:
            self._leaves = {name: part.requires_grad_() for name, part in net.views(self._row).items()}

    def views(self) -> dict[str, Tensor]:
        """Named parameters [N, …], for one forward pass."""
        return self._leaves or self._net.views(self._row)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Of the members' losses [N]: pieces [N, …] that make [N, P] side by side."""
        if not self._leaves:
            return list(torch.autograd.grad(loss.sum(), self._row))
        leaves = list(self._leaves.values())
        found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True)
        flat = [part.reshape(len(part), -1) for part in found]
        return [joined(flat[piece]).contiguous() for piece in pieces(self._net.sizes)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """[N, P] from its pieces; one piece as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def pieces(sizes: Sequence[int]) -> list[slice]:
    """Which parameters of these sizes go to Adam together: large ones alone, where the row can be cut beside them.

    >>> pieces([1 << 14, 256, 1 << 16, 3, 5, 1 << 14])
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None), slice(3, 6, None)]
    """
    ends = list(accumulate(sizes))
    cuts = [
        number
        for number, (before, after) in enumerate(pairwise(sizes), 1)
        if max(before, after) >= _LARGE and ends[number - 1] % _LINE == 0
    ]
    return [slice(*both) for both in pairwise([0, *cuts, len(sizes)])]
