"""The weights of members that learn, under their modules' names, and their gradients on the way to Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ganherd.herd.state import Blueprint
from ganherd.util.errors import UserError

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
            views = net.views(self._row)
            self._leaves = {name: views[name].requires_grad_(learns) for name, learns in net.learns.items()}

    def views(self) -> dict[str, Tensor]:
        """Named parameters [N, …], for one forward pass."""
        if self._leaves:
            return self._leaves
        views = self._net.views(self._row)
        return {name: views[name] if learns else views[name].detach() for name, learns in self._net.learns.items()}

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Of the members' losses [N]: pieces [N, …] that make [N, P] side by side."""
        if not self._leaves:
            return list(torch.autograd.grad(loss.sum(), self._row))
        leaves = [leaf for leaf in self._leaves.values() if leaf.requires_grad]
        found = iter(torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True))
        each = [next(found) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in self._leaves.values()]
        return self._pieces(each)

    def _pieces(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Of all parameters, those that do not learn included, whose gradient is 0."""
        flat = [part.reshape(len(part), -1) for part in gradients]
        return [joined(flat[piece]).contiguous() for piece in pieces(self._net.sizes)]


class OwnWeights(Weights):
    """The row of one member, in the parameters of its module themselves, as PyTorch trains a module by itself."""

    def __init__(self, net: Blueprint, rows: Tensor, unused: dict[int, set[str]], member: int) -> None:
        """`unused`: by member, the parameters that its first step with this engine did not use."""
        super().__init__(net, rows)
        self._unused, self._member = unused, member
        fill(net, self.views())

    def gradients(self, loss: Tensor) -> list[Tensor]:
        fill(self._net, self.views())  # another member's, an opponent's, may have been there since
        parameters = dict(self._net.module.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None
        loss.sum().backward()
        self._refuse_some_steps({name for name, p in parameters.items() if self._net.learns[name] and p.grad is None})
        each = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters.values()]
        for parameter in parameters.values():
            parameter.grad = None
        return self._pieces([one.to_dense()[None] for one in each])

    def _refuse_some_steps(self, unused: set[str]) -> None:
        """Adam would skip a parameter that a step does not use, and count its steps apart; a member has one count."""
        before = self._unused.setdefault(self._member, unused)
        for name in sorted(before ^ unused):
            raise UserError(
                f"{type(self._net.module).__name__} uses its parameter {name} in some steps and not in others, which members' "
                "common count of Adam's steps cannot follow: use it in every step, multiplied by 0 if need be."
            )


def fill(net: Blueprint, views: Mapping[str, Tensor]) -> None:
    """Lets the module's own parameters be those of one member, views [1, …] of its row; they learn as the views do."""
    for name, parameter in net.module.named_parameters():
        view = views[name].detach().squeeze(0)
        if parameter.data_ptr() != view.data_ptr():
            parameter.data = view
        parameter.requires_grad_(net.learns[name] and views[name].requires_grad)


def write_back(net: Blueprint, views: Mapping[str, Tensor]) -> None:
    """Write numbers that a forward pass assigned to a parameter's `data` into the member's row."""
    for name, parameter in net.module.named_parameters():
        view = views[name].detach().squeeze(0)
        if parameter.data_ptr() != view.data_ptr():
            parameter.data = view.copy_(parameter.data)


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
