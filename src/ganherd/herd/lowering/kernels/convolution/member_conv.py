"""Autograd functions for convolutions of all members (GANs) by kernels.

A convolution that is fused with the layer before or after it can be differentiated once, others twice. Tensors have
channels last, `[N, B, H, W, C]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganherd.herd.lowering.kernels import gradient_stream
from ganherd.herd.lowering.kernels.convolution.conv import (
    UpstreamConv,
    gather,
    gather_few,
    input_gradient,
    parameter_gradients,
)
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.image_gradients import has_few_outputs
from ganherd.herd.lowering.kernels.convolution.taps import to_taps
from ganherd.herd.lowering.kernels.norm import NormOnLoad, column_sums
from ganherd.herd.lowering.ops import Epilogue

# What computed the input of a convolution that is its only reader: a batch norm, or a convolution, as (epilogue,
# channels). None: another operation, or one with several readers.
Source = NormOnLoad | tuple[Epilogue, int] | None


def _pending_norm(source: Source) -> NormOnLoad | None:
    """Return the batch norm that the convolution has to apply to its input on load; None if there is none."""
    return source if isinstance(source, NormOnLoad) and source.pending else None


class MemberConv(torch.autograd.Function):
    """Convolve x with each member's weight; return the output [N, B, OH, OW, CO], and its partial statistics or None.

    Differentiable twice if neither `epilogue` nor `source` is given, otherwise once.

    Args:
        x: [N, B, H, W, CI], contiguous, in the dtype of the computation.
        weight: float32, in the layout of its module.
        bias: [N, CO] or None.
        spec: The settings of the convolution, or of a transposed convolution of stride 2.
        feeds_norm: Whether only a batch norm reads the output. Then partial statistics [3, N, partials, CO] are
            returned. If in addition there is no epilogue and one bias for each channel, the gradient of the bias is
            zero, because the batch norm cancels the bias.
        epilogue: The activation and dropout to apply to the output. The output must then have only one reader, a batch
            norm or another convolution, whose backward pass must return the gradient of the epilogue's input instead of
            that of the output.
        source: The operation that computed x, if it has left work to this convolution's forward or backward pass; see
            `Source`.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, spec: ConvSpec, feeds_norm: bool = False,
        epilogue: Epilogue | None = None, source: Source = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        ctx.set_materialize_grads(False)  # the gradient of the statistics is not used
        ctx.gradient_stream = gradient_stream.current(weight, bias)
        if bias is not None and bias.stride(1) != 1:
            bias = bias.contiguous()
        layout = spec.layout
        few = has_few_outputs(layout.taps, spec.stride, spec.transposed, weight.shape[2 if layout.in_first else 1])
        w = to_taps(weight, layout, x.dtype, together=few)
        ctx.save_for_backward(x, weight, w)
        ctx.spec, ctx.source, ctx.is_fused = spec, source, epilogue is not None or source is not None
        # If the output of a linear layer is unflattened to images, each place of a channel has its own bias, and the
        # batch norm cancels only their mean.
        cancels_bias = feeds_norm and epilogue is None and layout.places_out == 1
        ctx.bias_gradient = None if bias is None else ("zero" if cancels_bias else "computed")
        norm = _pending_norm(source)
        if few:
            assert epilogue is None
            return gather_few(x, w, bias, spec, norm), None
        y, stats = gather(x, w, bias, spec, with_stats=feeds_norm, epilogue=epilogue, input_norm=norm)
        if stats is not None:
            ctx.mark_non_differentiable(stats)
        return y, stats

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 7
        x, weight, w = ctx.saved_tensors
        spec, source, needs = ctx.spec, ctx.source, ctx.needs_input_grad
        grad = grad.contiguous()
        dx = dw = db = None
        needs_bias = ctx.bias_gradient == "computed" and needs[2]
        if torch.is_grad_enabled():  # the gradient will be differentiated itself
            if ctx.is_fused:
                raise RuntimeError("a convolution that is fused with its neighbours can be differentiated only once")
            dx = InputGradient.apply(grad, weight, spec, tuple(x.shape[2:4])) if needs[0] else None
            dw = WeightGradient.apply(x, grad, spec, weight.shape) if needs[1] else None
            db = grad.sum((1, 2, 3), dtype=torch.float32) if needs_bias else None
        else:
            if needs[0]:
                upstream = UpstreamConv(source[0], x, source[1]) if isinstance(source, tuple) else source
                dx = input_gradient(grad, w, spec, (x.shape[2], x.shape[3]), upstream)
            if needs[1]:
                norm, shape = _pending_norm(source), weight.shape

                def gradients() -> tuple[Tensor, Tensor | None]:
                    return parameter_gradients(x, grad, spec, shape, needs_bias, norm)

                stream, read = ctx.gradient_stream, (x, grad, *(() if norm is None else (norm.table,)))
                dw, db = gradients() if stream is None else stream.run(gradients, *read)
            elif needs_bias:
                db = column_sums(grad.flatten(1, 3))
        if ctx.bias_gradient == "zero" and needs[2]:
            db = torch.zeros(grad.shape[0], grad.shape[-1], device=grad.device)
        return dx, dw, db, None, None, None, None


class InputGradient(torch.autograd.Function):
    """Return the input gradient of a convolution as a differentiable function of the output's gradient and the weight.

    Args:
        grad: [N, B, OH, OW, CO] the gradient of the output.
        weight: In the layout of its module.
        size: Height and width of the input.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, spec: ConvSpec, size: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.spec = spec
        return input_gradient(grad, to_taps(weight, spec.layout, grad.dtype), spec, size)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        grad, weight = ctx.saved_tensors
        ddx, needs = ddx.contiguous(), ctx.needs_input_grad
        dgrad = MemberConv.apply(ddx, weight, None, ctx.spec)[0] if needs[0] else None
        dw = WeightGradient.apply(ddx, grad, ctx.spec, weight.shape) if needs[1] else None
        return dgrad, dw, None, None


class WeightGradient(torch.autograd.Function):
    """Return the weight gradient of a convolution as a differentiable function of its input and the output's gradient.

    Args:
        x: [N, B, H, W, CI] the input.
        grad: [N, B, OH, OW, CO] the gradient of the output.
        shape: The shape of the weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor, spec: ConvSpec, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(x, grad)
        ctx.spec = spec
        return parameter_gradients(x, grad, spec, shape)[0]

    @staticmethod
    def backward(ctx: Any, ddw: Tensor) -> tuple[Any, ...]:
        x, grad = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = InputGradient.apply(grad, ddw, ctx.spec, tuple(x.shape[2:4])) if needs[0] else None
        dgrad = MemberConv.apply(x, ddw, None, ctx.spec)[0] if needs[1] else None
        return dx, dgrad, None, None
