"""Update the weights of all N members (GANs): clip gradients by norm, determine learning rates, and run Adam.

Weights are rows [N, P], one for each member, with all P parameters of its net. Adam runs for all rows at once; each has
its own learning rate, betas and step count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.rng import Streams
from ganherd.herd.state import State
from ganherd.herd.step.mutation import mutate_learning_rates_, smoothing_factors
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.schedules import factor_of
from ganherd.herd.step.weights import join_pieces

Pieces = Sequence[Tensor]  # a tensor [N, P], cut along P into pieces [N, …]


def update_(
    kind: str,
    state: State,
    grads: Pieces,
    rules: StepRules,
    draws: Streams,
    number: int,
    step: int | Tensor,
    trained: Tensor | None = None,
) -> None:
    """Update the weights of one kind of net in place: clip gradients, apply L2 or weight decay, and take one Adam step.

    Args:
        kind: `g` for generators, `d` for discriminators.
        state: The stacked state; its weights, optimiser state and mutated learning rates change.
        grads: The gradient [N, P], cut into pieces along P.
        draws: Random numbers, for the mutation of learning rates.
        number: The number of the update within the step, for its random draws.
        step: The number of the step, for schedules.
        trained: bool [P], False for frozen parameters, on which L2 and weight decay must not act; None: all are
            trained.
    """
    if rules.grad_clip is not None:
        whole = join_pieces(grads)  # [N, P]
        norm = whole.norm(dim=1, keepdim=True)  # [N, 1]
        grads = [whole * (rules.grad_clip / norm.clamp(min=rules.grad_clip))]
    m, v, t = (state[f"{kind}.adam.{name}"] for name in ("m", "v", "t"))
    if rules.l2:
        pull = state["set.l2_weight"].to(m.dtype)[:, None] * state[f"{kind}.params"]
        grads = [join_pieces(grads) + (pull if trained is None else torch.where(trained, pull, 0.0))]
    if rules.wander != "off":
        how = (rules.wander, rules.wander_strength, rules.wander_probability)
        mutate_learning_rates_(state, kind, draws, number, *how)
    lr, beta1, beta2 = _learning_rate(kind, state, rules, step), *_betas(state, rules, step)
    if rules.weight_decay:  # decoupled from the gradient, as in AdamW
        shrunk = (1.0 - lr * state["set.weight_decay"]).to(m.dtype)[:, None]
        state[f"{kind}.params"].mul_(shrunk if trained is None else torch.where(trained, shrunk, 1.0))
    adam_(state[f"{kind}.params"], grads, m, v, t, lr, beta1, beta2, rules.eps)


def update_ema_(state: State, decay: float) -> None:
    """Update the exponential running averages of the generators' weights (EMA) in place.

    An average moves towards the weights by the share 1 - decay. At first it moves by the larger share 9 / (9 + number
    of updates), so that the initial weights do not stay in it: after a short run it is about the average over the last
    tenth of the run.

    Args:
        decay: The decay, for members without a value of their own in `set.ema_decay`.
    """
    params, updates = state["g.params"], state["g.ema.t"]
    updates += 1
    warmup = 9.0 / (9.0 + updates.to(params.dtype))  # [N]
    own = state.get("set.ema_decay")
    if own is None:
        weight = warmup.clamp(min=1.0 - decay)
    else:
        weight = torch.maximum(warmup, (1.0 - own).to(params.dtype))
    state["g.ema"].lerp_(params, weight[:, None])


def _learning_rate(kind: str, state: State, rules: StepRules, step: int | Tensor) -> Tensor:
    """Return the learning rate of each member for this update, [N].

    It is the member's own setting, times the factors of its schedules and of the smoothing after a swap of partners.
    """
    lr = state[f"set.lr_{kind}"]
    if rules.schedules:
        lr = lr * factor_of(rules.schedules, f"lr_{kind}", step)
    if rules.smoothing:
        since = torch.as_tensor(step, device=lr.device) - state["set.met"]
        lr = lr * smoothing_factors(since, rules.smoothing)[kind == "d"]
    return lr


def _betas(state: State, rules: StepRules, step: int | Tensor) -> list[Tensor]:
    """Return beta1 and beta2 of each member, [N] each, at this step. The factor of a schedule applies to 1 - beta."""
    betas = []
    for name in ("beta1", "beta2"):
        factor, own = factor_of(rules.schedules, name, step), state[f"set.{name}"]
        betas.append(own if isinstance(factor, float) and factor == 1.0 else 1.0 - (1.0 - own) * factor)
    return betas


def adam_(
    params: Tensor, grads: Pieces, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, eps: float
) -> None:
    """Take one step of `torch.optim.Adam` for each member (row), in place.

    On a CPU this uses PyTorch's fused kernel, which makes one pass over each row instead of eight.

    Args:
        params: [N, P], like m and v.
        grads: The gradient [N, P], cut into pieces along P.
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
            cut = [[row] if len(sizes) == 1 else row.split_with_sizes(sizes) for row in (params_i, m_i, v_i)]
            torch._fused_adam_(
                cut[0], pieces, cut[1], cut[2], [], [t_i] * len(sizes),
                lr=lr_i, beta1=b1, beta2=b2, weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip
    elif params.dtype == torch.float32 and rng.HAS_TRITON:
        from ganherd.herd.lowering.kernels.adam_kernel import adam_triton_

        adam_triton_(params, grads, m, v, t, lr, beta1, beta2, eps)
    else:
        adam_reference_(params, join_pieces(grads), m, v, t, lr, beta1, beta2, eps)


def clip_(params: Tensor, columns: Tensor, members: Tensor, limit: float) -> None:
    """Clamp params [N, P] to ±limit in place.

    Args:
        columns: bool [P], True for parameters that are clamped.
        members: bool [N], True for members whose parameters are clamped.
    """
    if params.is_cuda and params.dtype == torch.float32 and rng.HAS_TRITON:
        from ganherd.herd.lowering.kernels.adam_kernel import clip_triton_

        clip_triton_(params, columns, members, limit)
    else:
        params.copy_(torch.where(columns & members[:, None], params.clamp(-limit, limit), params))


def adam_reference_(
    params: Tensor, grads: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, eps: float
) -> None:
    """Take one Adam step in place, with plain PyTorch operations on whole rows. This defines what the kernels compute.

    The arguments are those of `adam_`, but the gradient is one tensor [N, P], and `t` already includes this step.
    """
    dtype = params.dtype
    b1, b2 = beta1[:, None], beta2[:, None]
    power = t[:, None].to(torch.float64)
    rate = (lr[:, None] / (1 - b1**power)).to(dtype)  # [N, 1]
    root = torch.sqrt(1 - b2**power).to(dtype)
    m.lerp_(grads, (1 - b1).to(dtype))
    v.mul_(b2.to(dtype)).add_((1 - b2).to(dtype) * grads * grads)
    params.sub_(rate * m / (v.sqrt().div_(root).add_(eps)))
