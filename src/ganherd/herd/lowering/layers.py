"""Run each supported layer as one operation on all members, x `[N, B, …]` -> `[N, B, …]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.vmap import Draws, Tensors
from ganherd.nets.common.spectral import SpectralConv2d, SpectralEmbedding, SpectralLinear

Library = Any  # the module `ops`, or `ops_triton` or `ops_triton_double_backward` with the same functions as kernels

_ELEMENTWISE = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Identity)


@dataclass
class Layer:
    """One call of a layer for all members: its parameters and buffers by its own names, and what is known of its neighbours."""

    module: Any
    params: Tensors  # [N, …]
    buffers: Tensors  # [N, …]; operations replace those that change
    draws: Draws
    library: Library
    # See `herd.lowering.fusion.Neighbours`.
    fused: list[Any]
    feeds_norm: bool
    reader: tuple[nn.Module | None, bool]

    @property
    def fusions(self) -> ops.Fusions:
        """Return what a convolution or linear layer computes in addition to its product."""
        kinds = {type(other): other for other in self.fused}
        shape = tuple(kinds[nn.Unflatten].unflattened_size) if nn.Unflatten in kinds else ()
        activation = [kinds[kind] for kind in (nn.ReLU, nn.LeakyReLU) if kind in kinds]
        epilogue = ops.Epilogue(_slope(activation)) if activation else None
        if nn.Dropout in kinds:
            p, call = kinds[nn.Dropout].p, next(self.draws.calls)
            epilogue = ops.Epilogue(_slope(activation), p, self.draws.keys, call)
        upsample, pool = nn.Upsample in kinds, kinds.get(nn.AvgPool2d)
        return ops.Fusions(nn.Flatten in kinds, shape, upsample, pool, epilogue, self.feeds_norm)


def _linear(layer: Layer, x: Tensor) -> Tensor:
    """Run a linear layer."""
    weight, bias = layer.params["weight"], layer.params.get("bias")
    result: Tensor = layer.library.linear(x, weight, bias, layer.fusions)
    return result


def _elementwise(layer: Layer, x: Tensor) -> Tensor:
    """Run a layer that treats every number alike: the member axis makes no difference."""
    out: Tensor = layer.module(x)
    return out


def _dropout(layer: Layer, x: Tensor) -> Tensor:
    """Run a dropout, with an activation before it."""
    if not layer.module.training or layer.module.p == 0.0:
        return x
    result: Tensor = layer.library.dropout(x, layer.module.p, layer.draws.next(), _slope(layer.fused))
    return result


def _flatten(layer: Layer, x: Tensor) -> Tensor:
    """Run `nn.Flatten` behind the member axis."""
    ends = (layer.module.start_dim, layer.module.end_dim)
    return x.flatten(*(d + 1 if d >= 0 else d for d in ends))  # the member axis comes first


def _unflatten(layer: Layer, x: Tensor) -> Tensor:
    """Run `nn.Unflatten` behind the member axis."""
    dim = int(layer.module.dim)
    result: Tensor = x.unflatten(dim + 1 if dim >= 0 else dim, layer.module.unflattened_size)
    return result


def _slope(activations: list[Any]) -> float:
    """Return the slope below zero of an activation: 0 for ReLU, 1 if there is no activation."""
    return float(getattr(activations[0], "negative_slope", 0.0)) if activations else 1.0


def _batch_norm(layer: Layer, x: Tensor) -> Tensor:
    """Run a batch norm, with an activation after it, and update its running statistics."""
    m, buffers = layer.module, layer.buffers
    weight, bias = layer.params.get("weight"), layer.params.get("bias")
    slope = _slope(layer.fused)
    mean, var, count = (buffers.get(name) for name in ("running_mean", "running_var", "num_batches_tracked"))
    running = None
    if mean is not None and var is not None and count is not None:
        if not m.training:
            out = ops.normalise(x, mean, var, weight, bias, m.eps)
            return out if slope == 1.0 else F.leaky_relu(out, slope)
        running = ops.RunningStats(mean, var, count, m.momentum)
    normed: Tensor
    normed, updated = layer.library.batch_norm(x, weight, bias, m.eps, slope, running, *layer.reader)
    if updated is not None:
        buffers |= {"running_mean": updated.mean, "running_var": updated.var, "num_batches_tracked": updated.count}
    return normed


def _conv(layer: Layer, x: Tensor) -> Tensor:
    """Run a convolution."""
    weight, bias = layer.params["weight"], layer.params.get("bias")
    result: Tensor = layer.library.conv2d(x, weight, bias, layer.module, layer.fusions)
    return result


def _embedding(layer: Layer, y: Tensor) -> Tensor:
    """Run an embedding as a product with one-hot rows, because the gradient of indexing is not deterministic on a GPU."""
    weight = layer.params["weight"]  # [N, classes, C]
    if layer.module.padding_idx is not None:
        weight = ops.without_gradient(weight, layer.module.padding_idx)
    one_hot = y.flatten(1)[..., None] == torch.arange(weight.shape[1], device=y.device)
    with torch.autocast(weight.device.type, enabled=False):
        rows = one_hot.to(weight.dtype) @ weight  # [N, B, C]
    return rows.reshape(*y.shape, weight.shape[2])


def _spectral(layer: Layer, x: Tensor) -> Tensor:
    """Divide the weight by its largest singular value, and run the layer with it."""
    weight, new_u = layer.library.divide(layer.params["weight"], layer.buffers["u"], layer.module.training)
    layer.buffers["u"] = new_u
    operation = next(_LAYERS[base] for base in type(layer.module).__bases__ if base in _LAYERS)
    return operation(replace(layer, params={**layer.params, "weight": weight}), x)


def _conv_transpose(layer: Layer, x: Tensor) -> Tensor:
    """Run a transposed convolution."""
    weight, bias = layer.params["weight"], layer.params.get("bias")
    result: Tensor = layer.library.conv_transpose2d(x, weight, bias, layer.module, layer.fusions)
    return result


def _image_layer(layer: Layer, x: Tensor) -> Tensor:
    """Run a layer without parameters on images."""
    return ops.apply_to_images(layer.module, x)


_LAYERS: dict[type[nn.Module], Callable[[Layer, Tensor], Tensor]] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.Conv2d: _conv,
    nn.Embedding: _embedding,
    nn.ConvTranspose2d: _conv_transpose,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.Upsample, nn.AvgPool2d, nn.MaxPool2d), _image_layer),
    **dict.fromkeys((SpectralConv2d, SpectralLinear, SpectralEmbedding), _spectral),
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
}

_MAX_CLASSES = 1024  # with more classes one-hot rows cost more than indexing


def find_operation(layer: nn.Module) -> Callable[[Layer, Tensor], Tensor] | None:
    """Return the operation that runs a layer for all members, or None if there is none for this layer and its settings."""
    if isinstance(layer, nn.Embedding):
        special = layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
        if special or layer.num_embeddings > _MAX_CLASSES:
            return None
    return _LAYERS.get(type(layer))
