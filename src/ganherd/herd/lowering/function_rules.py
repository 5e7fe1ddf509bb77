"""Rules that run functions of PyTorch for all N members (GANs) at once: arithmetic, products, convolutions, norms, …

A rule gets a `Call` and the arguments of a function that the code of one member calls, but with tensors `[N, …]` of all
members. It returns the results of all members, or `NotImplemented` for arguments that it does not support. The rules
for functions that index, reshape, join or reduce are in `shape_rules`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from inspect import signature
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ganherd.herd import rng
from ganherd.herd.lowering import ops, shape_rules
from ganherd.herd.lowering.layers import MAX_CLASSES, embed
from ganherd.herd.lowering.shape_rules import Call, Rule, aligned, elementwise


def find_rule(node: fx.Node) -> Rule | None:
    """Return the rule by which the function or method that a node calls runs for all members.

    None if it is not PyTorch's or Python's, if it has no rule, or if the rule does not know its arguments.
    """
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if not isinstance(node.target, str):
        modules = (torch, F, operator, torch.linalg)
        if not any(getattr(module, name, None) is node.target for module in modules):
            return None
    elif name == "unfold":  # `F.unfold` is another function
        return None
    rule = _RULES.get(name)
    if rule is None or node.kwargs.get("out") is not None:
        return None
    args, kwargs = tensor_first(node.args, node.kwargs)
    try:
        signature(rule).bind(None, *args, **kwargs)
    except TypeError:  # it is called with options that the rule does not know
        return None
    return rule


def tensor_first(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return (args, kwargs) of a function with its input tensor as first argument, even if it was given by name.

    The argument `out`, which is None, is left out.
    """
    kwargs = {key: value for key, value in kwargs.items() if key != "out"}
    name = next((name for name in ("input", "tensors", "tensor") if name in kwargs), None)
    if args or name is None:
        return args, kwargs
    return (kwargs[name],), {key: value for key, value in kwargs.items() if key != name}


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _converted(call: Call, x: Tensor, *args: Any, memory_format: Any = None, **kwargs: Any) -> Any:
    """Run a function that converts or copies a tensor, e.g. `to`; a memory format alone is ignored."""
    if memory_format is not None and not args and not kwargs:
        return x.clone()
    return call.function(x, *args, **kwargs)


def _matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Run `matmul` and similar products of each member's matrices or vectors; further axes broadcast."""
    left, right = (a[:, None] if a.dim() == 2 else a), (b[..., None] if b.dim() == 2 else b)
    out = torch.matmul(*aligned((left, right)))
    out = out.squeeze(-2) if a.dim() == 2 else out
    return out.squeeze(-1) if b.dim() == 2 else out


def _linear_combination(call: Call, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Run `addmm` or `baddbmm`: beta · bias + alpha · a b."""
    total, product = aligned((bias, torch.matmul(a, b)))
    result: Tensor = beta * total + alpha * product
    return result


def _cosine_similarity(call: Call, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Any:
    """Run `cosine_similarity`; the tensors broadcast as for one member, and `dim` is an axis of what they broadcast to."""
    return call.function(*aligned((x1, x2)), shape_rules.shifted(dim), eps)


def _einsum(call: Call, equation: str, *operands: Any) -> Any:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    if "->" not in equation or len(tensors) > 2:
        return NotImplemented
    member = next(letter for letter in ascii_letters if letter not in equation)
    terms, result = equation.replace(" ", "").split("->")
    joined = ",".join(member + term for term in terms.split(","))
    if "..." in equation and len({tensor.dim() for tensor in tensors}) > 1:
        return NotImplemented
    return torch.einsum(f"{joined}->{member}{result}", *tensors)


def _attention(
    call: Call, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run attention with members and samples as one axis, for which PyTorch has fast kernels.

    These cannot be differentiated twice. Without them, PyTorch uses products and a softmax, as it does for one member
    whose tensors have three axes.
    """
    if dropout_p or query.dim() < 4:
        return NotImplemented
    tensors = [query, key, value] + ([] if attn_mask is None else [attn_mask])
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))

    def fold(x: Tensor) -> Tensor:
        x = x.reshape(len(x), *(1,) * (len(lead) + 2 - x.dim()), *x.shape[1:])
        return x.expand(*lead, *x.shape[-2:]).flatten(0, max(0, len(lead) - 2))

    q, k, v, *mask = map(fold, tensors)
    twice = getattr(call.library, "DIFFERENTIABLE_TWICE", False)
    with sdpa_kernel(SDPBackend.MATH) if twice else nullcontext():
        out: Tensor = call.function(q, k, v, attn_mask=mask[0] if mask else None, is_causal=is_causal, **kwargs)
    return out.reshape(*lead, *out.shape[-2:])


# -- functions of images ----------------------------------------------------------------------------------------------


def _folded(*axes: int) -> Rule:
    """Return the rule of a function that treats each sample separately: members and samples are joined to one axis.

    Args:
        axes: The numbers of axes of a member's tensor, including that of samples, that the rule supports.
    """

    def rule(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dim() - 1 not in axes or kwargs.get("return_indices"):
            return NotImplemented
        out: Tensor = call.function(x.flatten(0, 1), *args, **kwargs)
        return out.unflatten(0, x.shape[:2])

    return rule


def _pad(call: Call, x: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    if mode == "constant":  # here `pad` counts axes from the last one, so a member axis changes nothing
        return F.pad(x, pad, mode, value)
    return _folded(3, 4, 5)(call, x, pad, mode)


def _max_pool1d(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run `max_pool1d`; if its windows neither overlap nor leave gaps, as in a maxout unit, by reshaping."""
    if width := _pool_width(args, kwargs):
        count = x.shape[-1] // width
        return x[..., : count * width].reshape(*x.shape[:-1], count, width).max(-1).values
    return _folded(2, 3)(call, x, *args, **kwargs)


def _pool_width(args: Any, kwargs: Any) -> int | None:
    """Return the window width of a `max_pool1d` whose windows neither overlap nor leave gaps; None for any other."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    options = defaults | dict(zip(names, args, strict=False)) | kwargs
    width = options.pop("kernel_size", None)
    if options["stride"] == width:
        options["stride"] = None
    return width if isinstance(width, int) and options == defaults else None


def _grid_sample(call: Call, x: Tensor, grid: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor = call.function(x.flatten(0, 1), grid.flatten(0, 1), *args, **kwargs)
    return out.reshape(*x.shape[:2], *out.shape[1:])


# -- norms ------------------------------------------------------------------------------------------------------------


def _layer_norm(
    call: Call, x: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    return ops.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def _rms_norm(
    call: Call, x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    return ops.layer_norm(x, tuple(normalized_shape), weight, None, eps, rms=True)


def _group_norm(
    call: Call, x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    return ops.group_norm(x, num_groups, weight, bias, eps)


def _instance_norm(
    call: Call, x: Tensor, running_mean: None = None, running_var: None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if running_mean is not None or not use_input_stats:
        return NotImplemented
    return call.library.instance_norm(x, weight, bias, eps)


# -- functions that need the library or the streams -------------------------------------------------------------------


def _linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if x.dim() < 3 or weight.dim() != 3:
        return NotImplemented
    return call.library.linear(x, weight, bias)


@lru_cache(maxsize=256)
def _like(kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], *settings: Any) -> Any:
    """Return a convolution layer without weights (on the device `meta`), which only has the settings of a convolution.

    Args:
        kind: The class of the layer.
        settings: (input channels, output channels, kernel size, groups, further options as pairs).
    """
    inputs, outputs, size, groups, options = settings
    return kind(inputs, outputs, size, groups=groups, bias=False, device="meta", **dict(options))


def _conv2d(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    if input.dim() != 5:
        return NotImplemented
    options = _settings(stride=stride, padding=padding, dilation=dilation)
    like = _like(nn.Conv2d, groups * weight.shape[2], weight.shape[1], tuple(weight.shape[3:]), groups, options)
    return call.library.conv2d(input, weight, bias, like)


def _conv_transpose2d(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    if input.dim() != 5:
        return NotImplemented
    options = _settings(stride=stride, padding=padding, output_padding=output_padding, dilation=dilation)
    sizes = weight.shape[1], groups * weight.shape[2], tuple(weight.shape[3:])
    return call.library.conv_transpose2d(input, weight, bias, _like(nn.ConvTranspose2d, *sizes, groups, options))


def _settings(**settings: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in settings.items())


def _embedding(
    call: Call, input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    special = max_norm is not None or scale_grad_by_freq or sparse or weight.shape[1] > MAX_CLASSES
    return NotImplemented if special else embed(call.library, input, weight, padding_idx)


def _dropout(call: Call, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0.0:
        return x
    return call.library.dropout(x, p, call.draws.next())


def _dropout_channels(call: Call, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return x if not training or p == 0.0 else ops.dropout_channels(x, p, call.draws.next())


def _drawn_like(kind: str) -> Callable[..., Any]:
    """Return the rule of `randn_like` or `rand_like`."""

    def rule(call: Call, input: Tensor, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        return rng.draw(call.draws.next(), input.shape[1:], kind, dtype or input.dtype)

    return rule


def _drawn(kind: str) -> Callable[..., Any]:
    """Return the rule of `randn` or `rand`."""

    def rule(call: Call, *sizes: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        flat = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
        return rng.draw(call.draws.next(), tuple(flat), kind, dtype or torch.get_default_dtype())

    return rule


def _created(call: Call, *args: Any, **kwargs: Any) -> Tensor:
    """Run a function that creates a tensor, the same for every member, and return it expanded to [N, …]."""
    out: Tensor = call.function(*args, **kwargs)
    return out.expand(call.draws.members, *out.shape)


_ELEMENTWISE = (
    "abs", "absolute", "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "truediv",
    "floordiv", "floor_divide", "mod", "remainder", "fmod", "neg", "negative", "pow", "square", "sqrt", "rsqrt",
    "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "asin", "acos", "atan", "atan2", "erf", "sigmoid", "logit", "relu", "relu6", "leaky_relu", "elu", "selu", "celu",
    "gelu", "silu", "mish", "softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "tanhshrink",
    "hardshrink", "softshrink", "threshold", "clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "where",
    "lerp", "addcmul", "addcdiv", "sign", "floor", "ceil", "round", "trunc", "frac", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_not", "and_", "or_", "invert", "bitwise_and", "bitwise_or", "bitwise_not",
    "isnan", "isinf", "isfinite", "nan_to_num", "masked_fill", "type_as", "zeros_like", "ones_like",
)  # fmt: skip
# Functions that use only the last axes, counted from the end, so that a member axis in front changes nothing.
_TRAILING = ("pixel_shuffle", "pixel_unshuffle", "tril", "triu")
_IMAGES = (
    "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "lp_pool2d", "channel_shuffle", "unfold",
)  # fmt: skip
_SEQUENCES = ("avg_pool1d", "adaptive_avg_pool1d", "adaptive_max_pool1d")
_CONVERSIONS = ("to", "float", "double", "half", "bfloat16", "long", "int", "bool", "contiguous", "clone", "detach")


_CREATIONS = ("zeros", "ones", "full", "arange", "linspace", "eye")


def _directly(call: Call, *args: Any, **kwargs: Any) -> Any:
    return call.function(*args, **kwargs)


_RULES: dict[str, Rule] = {
    **shape_rules.RULES,
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_CONVERSIONS, _converted),
    **dict.fromkeys(_TRAILING, _directly),
    **dict.fromkeys(_IMAGES, _folded(4)),
    **dict.fromkeys(_SEQUENCES, _folded(3)),
    **dict.fromkeys(("interpolate", "upsample"), _folded(3, 4, 5)),
    "max_pool1d": _max_pool1d,
    "pad": _pad,
    "grid_sample": _grid_sample,
    **dict.fromkeys(("matmul", "bmm", "mm", "mv", "dot"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _linear_combination),
    "einsum": _einsum,
    "cosine_similarity": _cosine_similarity,
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "linear": _linear,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "embedding": _embedding,
    "dropout": _dropout,
    "dropout2d": _dropout_channels,
    "randn_like": _drawn_like("normal"),
    "rand_like": _drawn_like("uniform"),
    "randn": _drawn("normal"),
    "rand": _drawn("uniform"),
    **dict.fromkeys(_CREATIONS, _created),
}
