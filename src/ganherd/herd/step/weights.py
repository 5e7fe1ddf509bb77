"""Differentiate losses with respect to the members' weights, and hand the gradients to Adam in pieces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ganherd.herd.state import Blueprint
from ganherd.util.errors import UserError

_LARGE = 1 << 14  # gradients of parameters with at least this many numbers are too large to copy
_ALIGNMENT = 16  # CPU vectors hold up to 16 numbers: rows cut elsewhere would be rounded differently by Adam


class Weights:
    """Rows [N, P] of parameters that a loss is differentiated by.

    On a CPU every parameter is a leaf, so that large gradients need no copy. The same holds on a GPU if only one forward pass uses
    the weights. With several passes the whole row is the leaf, so that few kernel launches join and add its gradients.
    """

    def __init__(self, net: Blueprint, rows: Tensor, used_once: bool = False) -> None:
        """Take the net and the rows [N, P]; storage is shared.

        Args:
            used_once: Whether a loss is differentiated through one forward pass only.
        """
        self._net, self._row = net, rows.detach()
        self._leaves: dict[str, Tensor] = {}
        if rows.is_cuda and not used_once:
            self._row.requires_grad_()
        else:
            views = net.views(self._row)
            self._leaves = {name: views[name].requires_grad_(trained) for name, trained in net.trainable.items()}
        # Named parameters [N, …] for passes that are not differentiated by them.
        self.constants = net.views(rows.detach())
        self._slices = piece_slices(net.param_sizes)

    def views(self) -> dict[str, Tensor]:
        """Return named parameters [N, …] for one forward pass."""
        if self._leaves:
            return self._leaves
        views = self._net.views(self._row)
        return {name: views[name] if trained else views[name].detach() for name, trained in self._net.trainable.items()}

    def gradients(self, loss: Tensor, join: Callable[[], None] | None = None) -> list[Tensor]:
        """Differentiate the members' losses [N]. Return the gradient [N, P], cut into pieces along P.

        Args:
            join: Waits for gradients that are computed on another stream.
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
        """Join the gradients [N, …] of small neighbouring parameters (zeros for frozen ones) to one piece."""
        return [join_pieces(flat[piece]).contiguous() for piece in self._slices]


class MemberModule:
    """A user's module, whose parameters share memory with the row of one member at a time."""

    def __init__(self, net: Blueprint) -> None:
        """Remember the module's own parameters, to restore them."""
        self.net = net
        self.parameters = dict(net.module.named_parameters())  # forward may change their numbers, but not replace them
        self._own = {name: parameter.data for name, parameter in self.parameters.items()}

    def load(self, views: Mapping[str, Tensor]) -> None:
        """Point the parameters to those of one member, views [1, …] of its row. They require gradients as the views do."""
        if views is self.net.loaded:
            return
        for name, parameter in self.parameters.items():
            view = views[name]
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.detach().squeeze(0)
            parameter.requires_grad_(self.net.trainable[name] and view.requires_grad)
        self.net.loaded = views

    def write_back(self) -> None:
        """Copy numbers that a forward pass assigned to a parameter's `data` to the member's row."""
        for name, view in self.net.loaded.items():
            parameter = self.parameters[name]
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.detach().squeeze(0).copy_(parameter.data)

    def release(self) -> None:
        """Restore the module's own parameters."""
        for name, parameter in self.parameters.items():
            parameter.data = self._own[name]
            parameter.requires_grad_(self.net.trainable[name])
        self.net.loaded = {}


class MemberWeights(Weights):
    """The row of one member, trained through the parameters of the user's module, as plain PyTorch does."""

    def __init__(self, module: MemberModule, rows: Tensor, unused: dict[Hashable, set[str]], member: Hashable) -> None:
        """Take the module and the row [1, P] of the member; storage is shared.

        Args:
            unused: For each member, the parameters that its first step with this engine did not use; filled here.
            member: The key under which `unused` knows this member.
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
        """Raise if a step uses other parameters than the first step did.

        `torch.optim.Adam` skips a parameter that a step does not use and counts its steps separately, but a member has one count.
        """
        before = self._unused.setdefault(self._member, unused)
        for name in sorted(before ^ unused):
            raise UserError(
                f"{type(self._net.module).__name__} uses its parameter {name} in some steps and not in others, but a member "
                "has one count of Adam steps for all parameters: use it in every step, multiplied by 0 if need be."
            )


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
