"""Differentiate losses with respect to the members' weights, and hand the gradients to Adam in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ganherd.herd.state import Blueprint
from ganherd.util.errors import UserError

_LARGE = 1 << 14  # gradients of parameters with at least this many numbers are too large to copy
_ALIGNMENT = 16  # CPU vectors hold up to 16 numbers: rows cut elsewhere would be rounded differently by Adam


class Weights:
    """Rows [N, P] of parameters that a loss is differentiated by.

    On a CPU every parameter is a leaf, so that large gradients need no copy. On a GPU the whole row is the leaf, so that one
    kernel launch concatenates its gradient.
    """

    def __init__(self, net: Blueprint, rows: Tensor) -> None:
        """Take the net and the rows [N, P]; storage is shared."""
        self._net, self._row = net, rows.detach()
        self._leaves: dict[str, Tensor] = {}
        if rows.is_cuda:
            self._row.requires_grad_()
        else:
            views = net.views(self._row)
            self._leaves = {name: views[name].requires_grad_(trained) for name, trained in net.trainable.items()}

    def views(self) -> dict[str, Tensor]:
        """Return named parameters [N, …] for one forward pass."""
        if self._leaves:
            return self._leaves
        views = self._net.views(self._row)
        return {name: views[name] if trained else views[name].detach() for name, trained in self._net.trainable.items()}

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Differentiate the members' losses [N]. Return the gradient [N, P], cut into pieces along P."""
        if not self._leaves:
            return list(torch.autograd.grad(loss.sum(), self._row))
        leaves = [leaf for leaf in self._leaves.values() if leaf.requires_grad]
        grads = iter(torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True))
        every = [next(grads) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in self._leaves.values()]
        return self._pieces(every)

    def _pieces(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Flatten the gradients of all parameters (zeros for frozen ones), and join small neighbours to one piece."""
        flat = [gradient.reshape(len(gradient), -1) for gradient in gradients]
        return [join_pieces(flat[piece]).contiguous() for piece in piece_slices(self._net.param_sizes)]


class MemberWeights(Weights):
    """The row of one member, trained through the parameters of the user's module, as plain PyTorch does."""

    def __init__(self, net: Blueprint, rows: Tensor, unused: dict[int, set[str]], member: int) -> None:
        """Load a member's row [1, P] into the module.

        Args:
            unused: For each member, the parameters that its first step with this engine did not use; filled here.
            member: The key under which `unused` knows this member.
        """
        super().__init__(net, rows)
        self._unused, self._member = unused, member
        load_member_(net, self.views())

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Differentiate the member's loss [1] with `backward()`. Return the gradient [1, P], cut into pieces along P."""
        load_member_(self._net, self.views())  # in between, the module may have held an opponent's parameters
        parameters = dict(self._net.parameters())
        for parameter in parameters.values():
            parameter.grad = None
        loss.sum().backward()
        trained = (name for name, trainable in self._net.trainable.items() if trainable)
        self._refuse_irregular_use({name for name in trained if parameters[name].grad is None})
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters.values()]
        for parameter in parameters.values():
            parameter.grad = None
        return self._pieces([grad.to_dense()[None] for grad in grads])

    def _refuse_irregular_use(self, unused: set[str]) -> None:
        """Raise if a step uses other parameters than the first step did.

        `torch.optim.Adam` skips a parameter that a step does not use and counts its steps separately, but a member has one count.
        """
        before = self._unused.setdefault(self._member, unused)
        for name in sorted(before ^ unused):
            raise UserError(
                f"{type(self._net.module).__name__} uses its parameter {name} in some steps and not in others, but a member "
                "has one count of Adam steps for all parameters: use it in every step, multiplied by 0 if need be."
            )


def load_member_(net: Blueprint, views: Mapping[str, Tensor]) -> None:
    """Point the module's parameters to those of one member, views [1, …] of its row. They require gradients as the views do."""
    for name, parameter in net.parameters():
        view = views[name]
        if parameter.data_ptr() != view.data_ptr():
            parameter.data = view.detach().squeeze(0)
        is_trained = net.trainable[name] and view.requires_grad
        if parameter.requires_grad != is_trained:
            parameter.requires_grad_(is_trained)


def write_back_(net: Blueprint, views: Mapping[str, Tensor]) -> None:
    """Copy numbers that a forward pass assigned to a parameter's `data` to the member's row, views [1, …] of it."""
    for name, parameter in net.parameters():
        if parameter.data_ptr() != views[name].data_ptr():
            parameter.data = views[name].detach().squeeze(0).copy_(parameter.data)


def join_pieces(pieces: Sequence[Tensor]) -> Tensor:
    """Join pieces to [N, P]; a single piece is returned without a copy."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=1)


def piece_slices(sizes: Sequence[int]) -> list[slice]:
    """Group parameters of these sizes into pieces for Adam: large ones are separate if the row can be cut next to them.

    >>> piece_slices([1 << 14, 256, 1 << 16, 3, 5, 1 << 14])
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None), slice(3, 6, None)]
    """
    ends = list(accumulate(sizes))
    cuts = [
        number
        for number, (before, after) in enumerate(pairwise(sizes), 1)
        if max(before, after) >= _LARGE and ends[number - 1] % _ALIGNMENT == 0
    ]
    return [slice(start, stop) for start, stop in pairwise([0, *cuts, len(sizes)])]
