"""The layers that are known, each as one operation on all members: x `[N, B, …]` -> `[N, B, …]`."""

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

Library = Any  # `ops`, or `fast` and `fast_twice` with the same functions by kernels

_ELEMENTWISE = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Identity)


class Buffers:
    """The buffers of one layer, by its own names -> the module's."""

    def __init__(self, moved: Tensors, names: dict[str, str]) -> None:
        self._moved, self._names = moved, names

    def get(self, key: str) -> Tensor | None:
        return self._moved[self._names[key]] if key in self._names else None

    def set(self, key: str, value: Tensor) -> None:
        self._moved[self._names[key]] = value


@dataclass
class Layer:
    """One layer of the module for all members: its parameters [N, …], its buffers, and its neighbours."""

    module: Any
    params: Tensors
    buffers: Buffers
    draws: Draws
    library: Library
    # the activation after a batch norm or before a dropout, the upsampling before a convolution, the change of shape around
    # a linear layer, the average pooling after a convolution, the activation and dropout that a product ends with
    fused: list[Any]
    feeds_norm: bool  # a batch norm follows
    reader: tuple[nn.Module | None, bool]  # of a batch norm: see `Joins.reader`

    @property
    def after(self) -> ops.Epilogue | None:
        """How a convolution or a linear layer ends."""
        activation = [other for other in self.fused if isinstance(other, (nn.ReLU, nn.LeakyReLU))]
        dropout = next((other for other in self.fused if isinstance(other, nn.Dropout)), None)
        if dropout is not None:
            return ops.Epilogue(_slope(activation), dropout.p, self.draws.keys, self.draws.calls.next())
        return ops.Epilogue(_slope(activation)) if activation else None


def _linear(layer: Layer, x: Tensor) -> Tensor:
    flatten = any(isinstance(other, nn.Flatten) for other in layer.fused)
    shape = next((tuple(other.unflattened_size) for other in layer.fused if isinstance(other, nn.Unflatten)), ())
    weight, bias = layer.params["weight"], layer.params.get("bias")
    return layer.library.linear(x, weight, bias, flatten, shape, layer.feeds_norm, layer.after)


def _elementwise(layer: Layer, x: Tensor) -> Tensor:
    out: Tensor = layer.module(x)
    return out


def _dropout(layer: Layer, x: Tensor) -> Tensor:
    if not layer.module.training or layer.module.p == 0.0:
        return x
    return layer.library.dropout(x, layer.module.p, layer.draws.next(), _slope(layer.fused))


def _flatten(layer: Layer, x: Tensor) -> Tensor:
    ends = (layer.module.start_dim, layer.module.end_dim)
    return x.flatten(*(d + 1 if d >= 0 else d for d in ends))  # the member axis stands before


def _unflatten(layer: Layer, x: Tensor) -> Tensor:
    dim = int(layer.module.dim)
    return x.unflatten(dim + 1 if dim >= 0 else dim, layer.module.unflattened_size)


def _slope(activations: list[Any]) -> float:
    """Below zero: of none, a ReLU or a leaky one."""
    return float(getattr(activations[0], "negative_slope", 0.0)) if activations else 1.0


def _batch_norm(layer: Layer, x: Tensor) -> Tensor:
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
    out, moved = layer.library.batch_norm(x, weight, bias, m.eps, slope, running, *layer.reader)
    if moved is not None:
        for name, value in (
            ("running_mean", moved.mean),
            ("running_var", moved.var),
            ("num_batches_tracked", moved.count),
        ):
            buffers.set(name, value)
    return out


def _conv(layer: Layer, x: Tensor) -> Tensor:
    weight, bias = layer.params["weight"], layer.params.get("bias")
    doubled = any(isinstance(other, nn.Upsample) for other in layer.fused)
    pooled = next((other for other in layer.fused if isinstance(other, nn.AvgPool2d)), None)
    return layer.library.conv2d(x, weight, bias, layer.module, doubled, layer.feeds_norm, layer.after, pooled)


def _embedding(layer: Layer, y: Tensor) -> Tensor:
    """As a product with ones and zeros: its gradient adds up in one order, which that of an index does not on a GPU."""
    weight = layer.params["weight"]  # [N, classes, C]
    if layer.module.padding_idx is not None:
        weight = ops.without_gradient(weight, layer.module.padding_idx)
    chosen = y.flatten(1)[..., None] == torch.arange(weight.shape[1], device=y.device)
    with torch.autocast(weight.device.type, enabled=False):
        rows = chosen.to(weight.dtype) @ weight  # [N, B, C]
    return rows.reshape(*y.shape, weight.shape[2])


def _spectral(layer: Layer, x: Tensor) -> Tensor:
    u = layer.buffers.get("u")
    assert u is not None
    weight, moved = layer.library.divide(layer.params["weight"], u, layer.module.training)
    layer.buffers.set("u", moved)
    plain = next(own for kind, own in _SPECTRAL.items() if isinstance(layer.module, kind))
    return plain(replace(layer, params={**layer.params, "weight": weight}), x)


def _conv_transpose(layer: Layer, x: Tensor) -> Tensor:
    weight, bias = layer.params["weight"], layer.params.get("bias")
    return layer.library.conv_transpose2d(x, weight, bias, layer.module, layer.feeds_norm, layer.after)


def _each_image(layer: Layer, x: Tensor) -> Tensor:
    return ops.apply_to_images(layer.module, x)


_SPECTRAL: dict[type[nn.Module], Callable[[Layer, Tensor], Tensor]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.Embedding: _embedding,
}

_LAYERS: dict[type[nn.Module], Callable[[Layer, Tensor], Tensor]] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Conv2d: _conv,
    nn.Embedding: _embedding,
    nn.ConvTranspose2d: _conv_transpose,
    nn.Upsample: _each_image,
    nn.AvgPool2d: _each_image,
    nn.MaxPool2d: _each_image,
    SpectralConv2d: _spectral,
    SpectralLinear: _spectral,
    SpectralEmbedding: _spectral,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
}

_MOST_CLASSES = 1024  # beyond them ones and zeros cost more than an index


def find_operation(layer: nn.Module) -> Callable[[Layer, Tensor], Tensor] | None:
    """The layer as one operation on all members; none where there is none for it, or not with its settings."""
    if isinstance(layer, nn.Embedding):
        special = layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
        if special or layer.num_embeddings > _MOST_CLASSES:
            return None
    return _LAYERS.get(type(layer))
