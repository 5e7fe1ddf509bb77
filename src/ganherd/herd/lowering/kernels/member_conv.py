"""Convolutions of all members as functions that can be differentiated, once together with their neighbours or twice alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganherd.herd.lowering.kernels.conv import (
    ConvSpec,
    UpstreamConv,
    gather,
    gather_few,
    has_few_outputs,
    input_gradient,
    parameter_gradients,
)
from ganherd.herd.lowering.kernels.norm import NormOnLoad, column_sums
from ganherd.herd.lowering.kernels.taps import to_taps
from ganherd.herd.lowering.ops import Epilogue


def _waiting(source: NormOnLoad | tuple[Epilogue, int] | None) -> NormOnLoad | None:
    """The batch norm that an input still waits for."""
    return source if isinstance(source, NormOnLoad) and source.waits else None


class MemberConv(torch.autograd.Function):
    """A convolution, or a stride-2 transposed one, of every member with its own weight.

    x [N, B, H, W, CI] contiguous in the dtype of the computation; the weight as its module has it, float32; bias [N, CO] or
    None. `normed`: a batch norm follows and wants the statistics [3, N, parts, CO] that are answered beside the output.
    `after`: how it ends; whoever reads it, a batch norm or the next convolution, answers the gradient of what was before that.
    Without it a batch norm takes the bias away again, so that its gradient is zero. `source`: the batch norm that made x, or
    that x still waits for, or the convolution that made x and how it ended.

    It can be differentiated twice where neither `after` nor `source` is given.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: ConvSpec, normed: bool = False,
        after: Epilogue | None = None, source: NormOnLoad | tuple[Epilogue, int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        ctx.set_materialize_grads(False)  # nobody wants zeros for the statistics
        if bias is not None and bias.stride(1) != 1:
            bias = bias.contiguous()
        size, turn, stride, pad, transposed, tf32 = how
        few = has_few_outputs(turn.taps, stride, transposed, weight.shape[2 if turn.in_first else 1])
        w = to_taps(weight, turn, x.dtype, together=few)
        ctx.save_for_backward(x, weight, w)
        ctx.how, ctx.source, ctx.joined = how, source, after is not None or source is not None
        ctx.bias = None if bias is None else ("still" if normed and after is None else "moving")
        waiting = _waiting(source)
        if few:
            assert after is None
            return gather_few(x, w, bias, size, turn.taps, pad, tf32, waiting), None
        y, stats = gather(
            x, w, bias, size, turn.taps, stride, pad, transposed, tf32, with_stats=normed, after=after, line=waiting
        )
        if stats is not None:
            ctx.mark_non_differentiable(stats)
        return y, stats

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 7
        x, weight, w = ctx.saved_tensors
        how, source, needs = ctx.how, ctx.source, ctx.needs_input_grad
        grad = grad.contiguous()
        dx = dw = db = None
        moving = ctx.bias == "moving" and needs[2]
        if torch.is_grad_enabled():  # the gradient will be differentiated itself
            if ctx.joined:
                raise RuntimeError("a convolution that is joined with its neighbours can be differentiated once")
            dx = InputGradient.apply(grad, weight, how, tuple(x.shape[2:4])) if needs[0] else None
            dw = WeightGradient.apply(x, grad, how, weight.shape) if needs[1] else None
            db = grad.float().sum((1, 2, 3)) if moving else None
        else:
            if needs[0]:
                into = UpstreamConv(source[0], x, source[1]) if isinstance(source, tuple) else source
                dx = input_gradient(grad, w, how, (x.shape[2], x.shape[3]), into)
            if needs[1]:
                dw, db = parameter_gradients(x, grad, how, weight.shape, moving, _waiting(source))
            elif moving:
                db = column_sums(grad.flatten(1, 3))
        if ctx.bias == "still" and needs[2]:
            db = torch.zeros(grad.shape[0], grad.shape[-1], device=grad.device)
        return dx, dw, db, None, None, None, None


class InputGradient(torch.autograd.Function):
    """The input gradient of a convolution as a function of the output's gradient and the weight, for a second backward pass."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, how: ConvSpec, size: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.how = how
        return input_gradient(grad, to_taps(weight, how.turn, grad.dtype), how, size)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        grad, weight = ctx.saved_tensors
        ddx, needs = ddx.contiguous(), ctx.needs_input_grad
        dgrad = MemberConv.apply(ddx, weight, None, ctx.how)[0] if needs[0] else None
        dw = WeightGradient.apply(ddx, grad, ctx.how, weight.shape) if needs[1] else None
        return dgrad, dw, None, None


class WeightGradient(torch.autograd.Function):
    """The weight gradient of a convolution as a function of its input and the output's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor, how: ConvSpec, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(x, grad)
        ctx.how = how
        return parameter_gradients(x, grad, how, shape)[0]

    @staticmethod
    def backward(ctx: Any, ddw: Tensor) -> tuple[Any, ...]:
        x, grad = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = InputGradient.apply(grad, ddw, ctx.how, tuple(x.shape[2:4])) if needs[0] else None
        dgrad = MemberConv.apply(x, ddw, None, ctx.how)[0] if needs[1] else None
        return dx, dgrad, None, None
