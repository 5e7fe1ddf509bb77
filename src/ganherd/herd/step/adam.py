"""Adam for all members at once: a row each, with its own learning rate, betas and count of steps."""

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
    """One step in place. params, m, v are [N, P], and so are the pieces of grads side by side; t (int64), lr, beta1, beta2
    (float64) are [N].

    It is `torch.optim.Adam` row by row: on a CPU by PyTorch's own fused kernel, one pass over each row instead of eight.
    """
    t += 1
    if params.device.type == "cpu":
        sizes = [piece.shape[1] for piece in grads]
        rows = (value.unbind(0) for value in (params, m, v, t.to(torch.float32)))
        own = zip(*(piece.unbind(0) for piece in grads), strict=True)  # the pieces of each member
        settings = (lr.tolist(), beta1.tolist(), beta2.tolist())
        for params_i, m_i, v_i, t_i, pieces, lr_i, b1, b2 in zip(*rows, own, *settings, strict=True):
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


def clip_(params: Tensor, which: Tensor, whose: Tensor, limit: float) -> None:
    """Clamps params [N, P] to ±limit in place, where both `which` [P] and `whose` [N] are true."""
    if params.is_cuda and params.dtype == torch.float32 and rng.HAS_TRITON:
        from ganherd.herd.lowering.kernels.adam_kernel import clip_triton_

        clip_triton_(params, which, whose, limit)
    else:
        params.copy_(torch.where(which & whose[:, None], params.clamp(-limit, limit), params))


def adam_reference_(
    params: Tensor, grads: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, eps: float
) -> None:
    """The definition, in plain operations on whole rows; `t` counts this step already."""
    dtype = params.dtype
    b1, b2 = beta1[:, None], beta2[:, None]
    power = t[:, None].to(torch.float64)
    rate = (lr[:, None] / (1 - b1**power)).to(dtype)  # [N, 1]
    root = torch.sqrt(1 - b2**power).to(dtype)
    m.lerp_(grads, (1 - b1).to(dtype))
    v.mul_(b2.to(dtype)).add_((1 - b2).to(dtype) * grads * grads)
    params.sub_(rate * m / (v.sqrt().div_(root).add_(eps)))
