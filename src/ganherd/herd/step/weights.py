"""Differentiate the losses of N members (GANs) by their weights, and return the gradients in pieces for Adam.

Row n of a tensor [N, P] has all P parameters of member n. A gradient [N, P] is cut along P into pieces, so that the
gradients of large parameters need not be copied into one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ganherd.herd.state import Blueprint
from ganherd.util.errors import UserError

_LARGE = 1 << 14  # gradients with at least this many numbers are pieces of their own, because copying takes time
# Pieces start at multiples of this many numbers, the longest vector of a CPU. Adam would round others differently.
_ALIGNMENT = 16


class Weights:
    """Rows [N, P] of parameters by which a loss is differentiated.

    On a CPU every parameter is a leaf of the autograd graph, so that large gradients need no copy; also on a GPU if
    only one forward pass uses the weights. If several passes use them on a GPU, the whole rows are one leaf: then few
    kernel launches join the gradients of the parameters and add those of the passes.

    Attributes:
        constants: Parameters [N, …] by name, for forward passes that are not differentiated by them.
    """

    def __init__(self, net: Blueprint, rows: Tensor, used_once: bool = False) -> None:
        """Make the parameters of a net leaves of the autograd graph; their storage is that of the rows.

        Args:
            rows: [N, P].
            used_once: Whether each loss is differentiated through only one forward pass.
        """
        self._net, self._row = net, rows.detach()
        self._leaves: dict[str, Tensor] = {}
        if rows.is_cuda and not used_once:
            self._row.requires_grad_()
        else:
            views = net.views(self._row)
            self._leaves = {name: views[name].requires_grad_(trained) for name, trained in net.trainable.items()}
        self.constants = net.views(rows.detach())
        self._slices = piece_slices(net.param_sizes)

    def views(self) -> dict[str, Tensor]:
        """Return the parameters [N, …] by name for one forward pass; those that are trained require gradients."""
        if self._leaves:
            return self._leaves
        views = self._net.views(self._row)
        return {name: views[name] if trained else views[name].detach() for name, trained in self._net.trainable.items()}

    def gradients(self, loss: Tensor, join: Callable[[], None] | None = None) -> list[Tensor]:
        """Differentiate the members' losses [N]. Return the gradient [N, P], cut into pieces along P.

        Args:
            join: Called before the gradients are read, to wait for those that are computed on another CUDA stream.
        """
        if not self._leaves:
            return list(torch.autograd.grad(loss.sum(), self._row))
        leaves = [leaf for leaf in self._leaves.values() if leaf.requires_grad]
        grads = iter(torch.autograd.grad(loss.sum(), leaves, allow_unused=True, materialize_grads=True))
        if join is not None:
            join()
        every = (next(grads) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in self._leaves.values())
        return self._pieces([gradient.reshape(len(loss), -1) for gradient in every])

    def _pieces(self, flat: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of all parameters, [N, n] each, as pieces: those of small neighbours are joined."""
        return [join_pieces(flat[piece]).contiguous() for piece in self._slices]


class MemberModule:
    """A user's module in which members take turns: its parameters share memory with the row of one member at a time."""

    def __init__(self, net: Blueprint) -> None:
        """Remember the module's own parameters, to restore them."""
        self.net = net
        self.parameters = dict(net.module.named_parameters())  # forward may change their numbers, but not replace them
        self._own = {name: parameter.data for name, parameter in self.parameters.items()}

    def load(self, views: Mapping[str, Tensor]) -> None:
        """Let the module's parameters share memory with those of one member.

        Args:
            views: The member's parameters by name, [1, …] views of its row. The module's parameters require gradients
                if these do.
        """
        if views is self.net.loaded:
            return
        for name, parameter in self.parameters.items():
            view = views[name]
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.detach().squeeze(0)
            parameter.requires_grad_(self.net.trainable[name] and view.requires_grad)
        self.net.loaded = views

    def write_back(self) -> None:
        """Copy parameters whose `data` a forward pass has replaced to the member's row, and share its memory again."""
        for name, view in self.net.loaded.items():
            parameter = self.parameters[name]
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.detach().squeeze(0).copy_(parameter.data)

    def release(self) -> None:
        """Restore the parameters that the module had when this object was created."""
        for name, parameter in self.parameters.items():
            parameter.data = self._own[name]
            parameter.requires_grad_(self.net.trainable[name])
        self.net.loaded = {}


class MemberWeights(Weights):
    """The row [1, P] of one member, differentiated through the parameters of the user's module as in plain PyTorch."""

    def __init__(self, module: MemberModule, rows: Tensor, unused: dict[Hashable, set[str]], member: Hashable) -> None:
        """Take the module and the row [1, P] of the member; storage is shared.

        Args:
            unused: For each member, the names of the parameters that its first step with this engine did not use;
                filled here.
            member: The key of this member in `unused`.
        """
        super().__init__(module.net, rows)
        self._module, self._unused, self._member = module, unused, member

    def gradients(self, loss: Tensor, join: Callable[[], None] | None = None) -> list[Tensor]:
        """Differentiate the member's loss [1] with `backward()`. Return the gradient [1, P], cut into pieces along P."""
        self._module.load(self.views())  # in between, the module may have held an opponent's parameters
        parameters = self._module.parameters
        for parameter in parameters.values():
            parameter.grad = None
        loss.sum().backward()
        flat, unused = [], set()
        for name, parameter in parameters.items():
            if parameter.grad is None and self._net.trainable[name]:
                unused.add(name)
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            flat.append((grad.to_dense() if grad.is_sparse else grad).reshape(1, -1))
            parameter.grad = None
        self._refuse_irregular_use(unused)
        return self._pieces(flat)

    def _refuse_irregular_use(self, unused: set[str]) -> None:
        """Raise `UserError` if this step uses other parameters than the member's first step did.

        `torch.optim.Adam` skips a parameter that a step does not use, and counts the steps of each parameter
        separately. A member has only one step count for all of its parameters.

        Args:
            unused: The names of the trained parameters that this step does not use.
        """
        before = self._unused.setdefault(self._member, unused)
        for name in sorted(before ^ unused):
            raise UserError(
                f"{type(self._net.module).__name__} uses its parameter {name} in some steps and not in others, but a member "
                "has one count of Adam steps for all parameters: use it in every step, multiplied by 0 if need be."
            )


def join_pieces(pieces: Sequence[Tensor]) -> Tensor:
    """Return pieces [N, …] joined to one tensor [N, P]; a single piece is returned without a copy."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=1)


def piece_slices(sizes: Sequence[int]) -> list[slice]:
    """Return the pieces for Adam as slices of the list of parameters, which have these sizes.

    A parameter of at least `_LARGE` numbers is a piece of its own if it begins and ends at multiples of `_ALIGNMENT` in
    the row.

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
