"""Run PyTorch's spectral norms for all N members (GANs) at once.

These are `nn.utils.spectral_norm` and `nn.utils.parametrizations.spectral_norm`. Both divide a weight by an estimate of
its largest singular value, with vectors u and v that are improved by power iterations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from ganherd.nets.common import spectral


class SpectralNormOf(NamedTuple):
    """The spectral norm of a layer's weight: the names of its tensors in the layer, and its settings."""

    kind: type[nn.Module]  # the class of the layer without the norm
    module: Any  # PyTorch's object with the settings `n_power_iterations`, `dim` and `eps`
    weight: str  # the name of the weight before the division
    u: str
    v: str
    u_first: bool  # whether a power iteration improves u before v


def find_spectral_norm(layer: nn.Module) -> SpectralNormOf | None:
    """Return the spectral norm of a layer's weight; None if it has none, or further hooks or parametrisations.

    >>> find_spectral_norm(nn.utils.spectral_norm(nn.Linear(2, 3))).u
    'weight_u'
    """
    kinds = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    hooks: list[Any] = [hook for registered in kinds for hook in registered.values()]
    if len(hooks) == 1 and type(hooks[0]) is SpectralNorm and hooks[0].name == "weight":
        return SpectralNormOf(type(layer), hooks[0], "weight_orig", "weight_u", "weight_v", False)
    if hooks or not parametrize.is_parametrized(layer):
        return None
    parametrizations: Any = layer.parametrizations
    first = parametrizations.weight[0] if list(parametrizations) == ["weight"] else None
    if type(first) is not _SpectralNorm or len(parametrizations.weight) > 1 or not hasattr(first, "_u"):
        return None
    prefix = "parametrizations.weight"
    kind = parametrize.type_before_parametrizations(layer)
    return SpectralNormOf(kind, first, f"{prefix}.original", f"{prefix}.0._u", f"{prefix}.0._v", True)


def divide(
    norm: SpectralNormOf, weight: Tensor, u: Tensor, v: Tensor, move: bool, library: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide weights [N, …] by their largest singular values, estimated with u [N, O] and v [N, K].

    Args:
        move: Whether to improve u and v by power iterations first, as in training mode.
        library: The library of operations, whose `divide` may be a kernel for the default settings.

    Returns:
        The divided weights, and u and v after the power iterations.
    """
    rows = weight.movedim(norm.module.dim + 1, 1).flatten(2)  # [N, O, K]
    eps = norm.module.eps
    with torch.autocast(weight.device.type, enabled=False):  # half precision would spoil the estimate
        usual = (norm.module.n_power_iterations, norm.module.dim, eps, norm.u_first) == (1, 0, 1e-12, False)
        if move and usual and library.divide is not spectral.divide:
            v = F.normalize(_product(rows.detach().mT, u), dim=-1)
            divided, u = library.divide(weight, u, True)
            return divided, u, v
        with torch.no_grad():
            for _ in range(norm.module.n_power_iterations if move else 0):
                u = F.normalize(_product(rows, v), dim=-1, eps=eps) if norm.u_first else u
                v = F.normalize(_product(rows.mT, u), dim=-1, eps=eps)
                u = u if norm.u_first else F.normalize(_product(rows, v), dim=-1, eps=eps)
        sigma = (u * _product(rows, v)).sum(-1)
    return weight / sigma.reshape(-1, *(1,) * (weight.dim() - 1)), u, v


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Multiply matrices [N, O, K] by vectors [N, K] to vectors [N, O]."""
    return (matrix @ vector[..., None]).squeeze(-1)
