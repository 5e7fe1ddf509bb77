"""Run each supported layer as one operation on all N members (GANs), x `[N, B, …]` -> `[N, B, …]` for B samples.

A library is a module with the functions that compute these operations. Layers that are fused into a neighbour are
computed along with it; see `herd.lowering.graph.fusion`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd import rng
from ganherd.herd.lowering import ops, spectral_norms
from ganherd.herd.lowering.shape_rules import aligned
from ganherd.herd.lowering.spectral_norms import find_spectral_norm
from ganherd.herd.lowering.vmap import Draws, Tensors
from ganherd.nets.common.scaled import ScaledConv2d, ScaledLinear
from ganherd.nets.common.spectral import SpectralConv2d, SpectralEmbedding, SpectralLinear
from ganherd.nets.common.varied_dropout import VariedDropout

# The module `ops`, or one with the same functions: `ops_cpu`, `ops_onednn`, `ops_triton` or `ops_triton_double_backward`.
Library = Any

_ELEMENTWISE = (
    nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Identity, nn.Mish, nn.ReLU6,
    nn.SELU, nn.CELU, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink,
    nn.PixelShuffle, nn.PixelUnshuffle, nn.ZeroPad2d, nn.ConstantPad2d,  # these use the last axes only
)  # fmt: skip
# Layers without parameters whose first axis is the sample.
_IMAGE_LAYERS = (
    nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d,
)  # fmt: skip


MAX_CLASSES = 1024  # with more classes the one-hot rows of an embedding cost more than indexing


@dataclass
class Layer:
    """One call of a layer for all members: its tensors, and the layers around it in the graph."""

    module: Any  # the layer, whose settings count but not its tensors
    params: Tensors  # [N, …] by their names in the layer
    buffers: Tensors  # [N, …] by their names in the layer; operations replace those that change
    draws: Draws  # keys for random draws
    library: Library
    # See `herd.lowering.graph.fusion.Neighbours` for these three.
    fused: list[Any]
    feeds_norm: bool
    reader: tuple[nn.Module | None, bool]

    @property
    def fusions(self) -> ops.Fusions:
        """Return the layers fused into this convolution or linear layer, in the form that library functions take.

        If one of them is a dropout, this takes the number of the next random draw.
        """
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
    """Run a layer that treats each number separately, or uses the last axes only: a member axis changes nothing."""
    out: Tensor = layer.module(x)
    return out


def _dropout(layer: Layer, x: Tensor) -> Tensor:
    """Run a dropout, together with an activation before it if one is fused."""
    if not layer.module.training or layer.module.p == 0.0:
        return x
    result: Tensor = layer.library.dropout(x, layer.module.p, layer.draws.next(), _slope(layer.fused))
    return result


def _varied_dropout(layer: Layer, x: Tensor) -> Tensor:
    """Run a dropout in which members have different probabilities."""
    if not layer.module.training:
        return x
    p = layer.buffers["p"].view(-1, *(1,) * (x.dim() - 1))  # [N, 1, …]
    mask = rng.draw(layer.draws.next(), x.shape[1:], "uniform", torch.float32) >= p
    return x * (mask / (1.0 - p)).to(x.dtype)


def _flatten(layer: Layer, x: Tensor) -> Tensor:
    """Run `nn.Flatten`, whose axes are those of one member."""
    ends = (layer.module.start_dim, layer.module.end_dim)
    return x.flatten(*(d + 1 if d >= 0 else d for d in ends))  # the member axis comes first


def _unflatten(layer: Layer, x: Tensor) -> Tensor:
    """Run `nn.Unflatten`, whose axis is that of one member."""
    dim = int(layer.module.dim)
    result: Tensor = x.unflatten(dim + 1 if dim >= 0 else dim, layer.module.unflattened_size)
    return result


def _slope(activations: list[Any]) -> float:
    """Return the slope below zero of the first of these (leaky) ReLUs: 0 for ReLU, 1 if the list is empty."""
    return float(getattr(activations[0], "negative_slope", 0.0)) if activations else 1.0


def _batch_norm(layer: Layer, x: Tensor) -> Tensor:
    """Run a batch norm, together with an activation after it if one is fused, and update its running statistics."""
    m, buffers = layer.module, layer.buffers
    weight, bias = layer.params.get("weight"), layer.params.get("bias")
    slope, running = _slope(layer.fused), _running_statistics(layer)
    if running is not None and not m.training:
        out = ops.normalise(x, running.mean, running.var, weight, bias, m.eps)
        return out if slope == 1.0 else F.leaky_relu(out, slope)
    normed: Tensor
    normed, updated = layer.library.batch_norm(x, weight, bias, m.eps, slope, running, *layer.reader)
    if updated is not None:
        buffers |= {"running_mean": updated.mean, "running_var": updated.var, "num_batches_tracked": updated.count}
    return normed


def _running_statistics(layer: Layer) -> ops.RunningStats | None:
    """Return the running statistics of a batch norm; None if it does not track any."""
    mean, var, count = (layer.buffers.get(name) for name in ("running_mean", "running_var", "num_batches_tracked"))
    if mean is None or var is None or count is None:
        return None
    return ops.RunningStats(mean, var, count, layer.module.momentum)


def image_norm(layer: Layer, x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Return act(batch_norm(x) · gain + shift) with batch statistics; act is a fused activation if there is one.

    Args:
        layer: The batch norm, which has no weight and bias of its own.
        x: [N, B, C, H, W].
        gain, shift: [N, …], which broadcast with x as they would for one member, e.g. [N, B, C, 1, 1].
    """
    slope = _slope(layer.fused)
    out: Tensor | None = layer.library.image_norm(x, gain, shift, layer.module.eps, slope, _running_statistics(layer))
    if out is not None:
        return out
    normed, aligned_gain = aligned((_batch_norm(replace(layer, fused=[]), x), gain))
    total, aligned_shift = aligned((normed * aligned_gain, shift))
    return F.leaky_relu(total + aligned_shift, slope) if slope != 1.0 else total + aligned_shift


def _conv(layer: Layer, x: Tensor) -> Tensor:
    """Run a convolution with the layers that are fused into it."""
    weight, bias = layer.params["weight"], layer.params.get("bias")
    result: Tensor = layer.library.conv2d(x, weight, bias, layer.module, layer.fusions)
    if x.dim() == 4 and getattr(layer.module, "has_added_bias", False):
        return result[:, None]  # the sum of one image [C, H, W] and a bias [1, C, 1, 1] has a batch axis
    return result


def _embedding(layer: Layer, y: Tensor) -> Tensor:
    """Run an embedding."""
    return embed(layer.library, y, layer.params["weight"], layer.module.padding_idx)


def embed(library: Library, y: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    """Look up embeddings: indices y [N, …] into weight [N, classes, C] -> [N, …, C].

    Args:
        padding_idx: A row of the weight that gets no gradient; None: there is none.
    """
    if padding_idx is not None:
        weight = ops.without_gradient(weight, padding_idx)
    rows: Tensor = library.rows_of(weight, y.flatten(1))  # [N, B, C]
    return rows.reshape(*y.shape, weight.shape[2])


def _spectral(layer: Layer, x: Tensor) -> Tensor:
    """Run one of ganherd's spectral layers, which divide their weight by its largest singular value."""
    weight, new_u = layer.library.divide(layer.params["weight"], layer.buffers["u"], layer.module.training)
    layer.buffers["u"] = new_u
    operation = next(_LAYERS[base] for base in type(layer.module).__bases__ if base in _LAYERS)
    return operation(replace(layer, params={**layer.params, "weight": weight}), x)


def _with_spectral_norm(layer: Layer, x: Tensor) -> Tensor:
    """Run a layer whose weight is divided by one of PyTorch's spectral norms."""
    norm = find_spectral_norm(layer.module)
    assert norm is not None
    u, v = layer.buffers[norm.u], layer.buffers[norm.v]
    weight, *moved = spectral_norms.divide(norm, layer.params[norm.weight], u, v, layer.module.training, layer.library)
    layer.buffers |= dict(zip((norm.u, norm.v), moved, strict=True))
    return _LAYERS[norm.kind](replace(layer, params={**layer.params, "weight": weight}), x)


def _scaled(layer: Layer, x: Tensor) -> Tensor:
    """Run a layer whose weight and bias are multiplied by fixed numbers of the module (an equalised learning rate)."""
    factors = {"weight": layer.module.scale, "bias": layer.module.rate}
    params = {name: value * factors[name] for name, value in layer.params.items()}
    return _LAYERS[type(layer.module).__bases__[1]](replace(layer, params=params), x)


def _conv_transpose(layer: Layer, x: Tensor) -> Tensor:
    """Run a transposed convolution."""
    weight, bias = layer.params["weight"], layer.params.get("bias")
    result: Tensor = layer.library.conv_transpose2d(x, weight, bias, layer.module, layer.fusions)
    return result


def _image_layer(layer: Layer, x: Tensor) -> Tensor:
    """Run a layer without parameters on images."""
    result: Tensor = layer.library.apply_to_images(layer.module, x)
    return result


def _dropout_channels(layer: Layer, x: Tensor) -> Tensor:
    """Run a dropout of whole channels."""
    if not layer.module.training or layer.module.p == 0.0:
        return x
    return ops.dropout_channels(x, layer.module.p, layer.draws.next())


def _group_norm(layer: Layer, x: Tensor) -> Tensor:
    """Run a group norm."""
    m, params = layer.module, layer.params
    return ops.group_norm(x, m.num_groups, params.get("weight"), params.get("bias"), m.eps)


def _instance_norm(layer: Layer, x: Tensor) -> Tensor:
    """Run an instance norm."""
    params = layer.params
    result: Tensor = layer.library.instance_norm(x, params.get("weight"), params.get("bias"), layer.module.eps)
    return result


def _layer_norm(layer: Layer, x: Tensor) -> Tensor:
    """Run a layer norm or a root-mean-square norm."""
    m, params = layer.module, layer.params
    rms = isinstance(m, nn.RMSNorm)
    return ops.layer_norm(x, m.normalized_shape, params.get("weight"), params.get("bias"), m.eps, rms)


def _along_axis(layer: Layer, x: Tensor) -> Tensor:
    """Run a softmax or a gated linear unit along an axis."""
    function = {nn.Softmax: F.softmax, nn.LogSoftmax: F.log_softmax, nn.GLU: F.glu}[type(layer.module)]
    dim = layer.module.dim
    return function(x, dim=dim + 1 if dim >= 0 else dim)


def _prelu(layer: Layer, x: Tensor) -> Tensor:
    """Run a leaky ReLU whose slopes [N, C] or [N, 1] are learned."""
    slope = layer.params["weight"]
    return torch.where(x > 0, x, (ops.per_channel(slope, x) if x.dim() > 2 else slope) * x)


_LAYERS: dict[type[nn.Module], Callable[[Layer, Tensor], Tensor]] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    VariedDropout: _varied_dropout,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.Conv2d: _conv,
    nn.Embedding: _embedding,
    nn.ConvTranspose2d: _conv_transpose,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    nn.Dropout2d: _dropout_channels,
    nn.GroupNorm: _group_norm,
    nn.PReLU: _prelu,
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d), _instance_norm),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), _layer_norm),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.GLU), _along_axis),
    **dict.fromkeys(_IMAGE_LAYERS, _image_layer),
    **dict.fromkeys((SpectralConv2d, SpectralLinear, SpectralEmbedding), _spectral),
    **dict.fromkeys((ScaledConv2d, ScaledLinear), _scaled),
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
}


def find_operation(layer: nn.Module) -> Callable[[Layer, Tensor], Tensor] | None:
    """Return the function (layer, x) -> output that runs a layer for all members; None if none supports it."""
    if isinstance(layer, nn.Embedding):
        special = layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
        if special or layer.num_embeddings > MAX_CLASSES:
            return None
    tracks = isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
    if tracks or getattr(layer, "return_indices", False) or getattr(layer, "dim", 0) is None:
        return None
    if norm := find_spectral_norm(layer):
        return _with_spectral_norm if norm.kind in _LAYERS else None
    return _LAYERS.get(type(layer))


def may_draw(layer: nn.Module) -> bool:
    """Return whether a layer may draw random numbers; True for layers without an operation, whose code is not known."""
    return find_operation(layer) in (None, _dropout, _dropout_channels, _varied_dropout)
