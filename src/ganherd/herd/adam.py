"""Adam for all members at once: a row each, with its own learning rate, betas and count of steps."""

from __future__ import annotations

import torch
from torch import Tensor

from ganherd.herd import streams


def adam_(
    params: Tensor, grads: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, eps: float
) -> None:
    """One step in place. params, grads, m, v are [N, P]; t (int64), lr, beta1, beta2 (float64) are [N].

    It is `torch.optim.Adam` row by row: on a CPU by PyTorch's own fused kernel, one pass over each row instead of eight.
    """
    t += 1
    if params.device.type == "cpu":
        for i, (step, lr_i, b1, b2) in enumerate(
            zip(t.tolist(), lr.tolist(), beta1.tolist(), beta2.tolist(), strict=True)
        ):
            torch._fused_adam_(
                [params[i]], [grads[i]], [m[i]], [v[i]], [], [torch.tensor(float(step))],
                lr=lr_i, beta1=b1, beta2=b2, weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip
    elif params.dtype == torch.float32 and streams.HAS_TRITON:
        from ganherd.herd.kernels.adam import adam_triton_

        adam_triton_(params, grads, m, v, t, lr, beta1, beta2, eps)
    else:
        adam_reference_(params, grads, m, v, t, lr, beta1, beta2, eps)


def clip_(params: Tensor, which: Tensor, whose: Tensor, limit: float) -> None:
    """Clamps params [N, P] to ±limit in place, where both `which` [P] and `whose` [N] are true."""
    if params.is_cuda and params.dtype == torch.float32 and streams.HAS_TRITON:
        from ganherd.herd.kernels.adam import clip_triton_

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
