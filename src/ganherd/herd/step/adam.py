"""Run Adam for all members at once: each member is a row with its own learning rate, betas and step count."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.step.weights import join_pieces


def adam_(
    params: Tensor,
    grads: Sequence[Tensor],
    m: Tensor,
    v: Tensor,
    t: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    eps: float,
) -> None:
    """Take one step of `torch.optim.Adam` for each row, in place.

    On a CPU this uses PyTorch's fused kernel, which makes one pass over each row instead of eight.

    Args:
        params: [N, P], like m and v.
        grads: Pieces that, side by side, are the gradient [N, P].
        t: int64 [N], the number of steps; incremented here.
        lr: float64 [N], like beta1 and beta2.
    """
    t += 1
    if params.device.type == "cpu":
        sizes = [piece.shape[1] for piece in grads]
        rows = (value.unbind(0) for value in (params, m, v, t.to(torch.float32)))
        member_pieces = zip(*(piece.unbind(0) for piece in grads), strict=True)
        settings = (lr.tolist(), beta1.tolist(), beta2.tolist())
        for params_i, m_i, v_i, t_i, pieces, lr_i, b1, b2 in zip(*rows, member_pieces, *settings, strict=True):
            torch._fused_adam_(
                params_i.split_with_sizes(sizes), pieces, m_i.split_with_sizes(sizes), v_i.split_with_sizes(sizes), [],
                [t_i] * len(sizes),
                lr=lr_i, beta1=b1, beta2=b2, weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip
    elif params.dtype == torch.float32 and rng.HAS_TRITON:
        from ganherd.herd.lowering.kernels.adam_kernel import adam_triton_

        adam_triton_(params, join_pieces(grads), m, v, t, lr, beta1, beta2, eps)
    else:
        adam_reference_(params, join_pieces(grads), m, v, t, lr, beta1, beta2, eps)


def clip_(params: Tensor, columns: Tensor, members: Tensor, limit: float) -> None:
    """Clamp params [N, P] to ±limit in place, in the columns (bool [P]) of the members (bool [N]) that are True."""
    if params.is_cuda and params.dtype == torch.float32 and rng.HAS_TRITON:
        from ganherd.herd.lowering.kernels.adam_kernel import clip_triton_

        clip_triton_(params, columns, members, limit)
    else:
        params.copy_(torch.where(columns & members[:, None], params.clamp(-limit, limit), params))


def adam_reference_(
    params: Tensor, grads: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, eps: float
) -> None:
    """Take one Adam step in plain operations on whole rows. This defines what the kernels compute; `t` includes this step."""
    dtype = params.dtype
    b1, b2 = beta1[:, None], beta2[:, None]
    power = t[:, None].to(torch.float64)
    rate = (lr[:, None] / (1 - b1**power)).to(dtype)  # [N, 1]
    root = torch.sqrt(1 - b2**power).to(dtype)
    m.lerp_(grads, (1 - b1).to(dtype))
    v.mul_(b2.to(dtype)).add_((1 - b2).to(dtype) * grads * grads)
    params.sub_(rate * m / (v.sqrt().div_(root).add_(eps)))
