"""Check that losses and augmentations of plug-ins compute each member (GAN) separately, and keep no state between calls.

Otherwise members that are trained together would not get the same weights as if they were trained alone. Each function
is called for three members at once and for each member alone, with its gradients, in float64; the results must be
equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ganherd.augment import NamedAugmentation, augment, numbers
from ganherd.herd.checks.hidden_state.comparable import differing_names
from ganherd.herd.checks.hidden_state.outside_state import OutsideState
from ganherd.losses.adversarial import Loss
from ganherd.util.errors import UserError, with_type
from ganherd.util.registry import AUGMENTATIONS, load_target

_MEMBERS, _BATCH = 3, 5
_IMAGE = (3, 8, 8)
_CLOSE = 1e-9
_SEED = 1234


class KeepsState(UserError):
    """Raised if functions of a plug-in change variables from call to call."""


def check_loss(name: str, loss: Loss) -> None:
    """Check that a loss returns one number for each member, and that this number depends on no other member.

    Raises:
        UserError: If it does not; the message names the problem.
    """
    functions = [one for one in (loss.d, loss.g, loss.penalty) if one is not None]
    _check_state(f"the loss {name}", functions, lambda: _check_rows_of_loss(f"the loss {name}", loss))


def _check_rows_of_loss(what: str, loss: Loss) -> None:
    """Check all functions of a loss; see `check_loss`."""
    real, fake, shape = _random(_BATCH, 0), _random(_BATCH, 1), (_MEMBERS,)
    check_rows(f"d of {what}", loss.d, [real, fake], shape)
    check_rows(f"g of {what}", loss.g, [real, fake] if loss.g_sees_real else [fake], shape)
    if loss.penalty is not None:
        penalty, weights = loss.penalty, _random(4, 2)

        def of_images(x: Tensor, generated: Tensor, at: Tensor, own: Tensor) -> Tensor:
            """Return the penalty of critics tanh(w·x), one for each member."""
            return penalty(lambda images: (images * own[:, None]).sum(-1).tanh(), x, generated, at)

        x, generated = _random((_BATCH, 4), 3), _random((_BATCH, 4), 4)
        check_rows(f"penalty of {what}", of_images, [x, generated, _random(_BATCH, 5).sigmoid(), weights], shape)


def check_augmentation(name: str, augmentation: str | NamedAugmentation) -> None:
    """Check that an augmentation keeps the shape of images, computes each member separately, and has a gradient.

    Raises:
        UserError: If it does not; the message names the problem.
    """
    x, u = _random((_BATCH, *_IMAGE), 6).tanh(), _random((_BATCH, numbers([augmentation])), 7).sigmoid()
    what, own = f"the augmentation {name}", load_target(AUGMENTATIONS[name].target)

    def check() -> None:
        check_rows(what, lambda x, u: augment(x, u, [augmentation]), [x, u], tuple(x.shape), differentiated=1)

    _check_state(what, [own], check)


def _check_state(what: str, functions: Sequence[Callable[..., Any]], check: Callable[[], None]) -> None:
    """Call `check` twice, and refuse functions of a plug-in that change variables in the second call, such as a counter.

    In the first call a cache may be filled.
    """
    check()
    before = _variables_of(functions)
    check()
    after = _variables_of(functions)
    if changed := sorted(differing_names(before.values, after.values)):
        raise KeepsState(
            f"{what} keeps state from call to call: {after.describe(changed).lstrip('.')}. A resumed run would not have it, and "
            "members in other blocks would see other values: compute from the arguments only."
        )


def _variables_of(functions: Sequence[Callable[..., Any]]) -> OutsideState:
    """Return the variables that functions of a plug-in may change."""
    holder = type("Plugin", (nn.Module,), {"__module__": functions[0].__module__})()
    for number, function in enumerate(functions):
        setattr(holder, f"function_{number}", function)
    return OutsideState(holder)


def check_rows(
    what: str,
    function: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    shape: tuple[int, ...],
    differentiated: int | None = None,
) -> None:
    """Refuse a function of tensors [members, …] that is not, in each row, the function of that row alone.

    Args:
        what: The name of the function in messages.
        arguments: Tensors [members, …].
        shape: The shape of the tensor that the function must return for all members at once.
        differentiated: How many of the first arguments must have a gradient; None: all.
    """
    together = _run(what, function, arguments, shape, differentiated)
    for member in range(_MEMBERS):
        row = slice(member, member + 1)
        alone = _run(what, function, [argument[row] for argument in arguments], (1, *shape[1:]), differentiated)
        for all_members, own in zip(together, alone, strict=True):
            if not torch.allclose(all_members[row], own, rtol=_CLOSE, atol=_CLOSE, equal_nan=True):
                raise UserError(
                    f"{what} mixes members: a member's value depends on the others, or changes from call to call. Reduce over "
                    "the last axes only, e.g. with mean(-1), and draw no random numbers."
                )


def _run(
    what: str,
    function: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    shape: tuple[int, ...],
    differentiated: int | None,
) -> list[Tensor]:
    """Return the value of a function, followed by the gradients of its sum by the first `differentiated` arguments."""
    leaves = [argument.clone().requires_grad_() for argument in arguments[:differentiated]]
    rest = arguments[len(leaves) :]
    try:
        value = function(*leaves, *rest)
    except UserError:
        raise
    except Exception as error:  # whatever a user's function raises
        hint = " Losses get logits: use binary_cross_entropy_with_logits." if "between 0 and 1" in str(error) else ""
        raise UserError(
            f"{what} fails for tensors of shape {tuple(arguments[0].shape)}: {with_type(error)}.{hint}"
        ) from error
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        returned = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise UserError(
            f"{what} must return a tensor of shape {shape} for {shape[0]} members at once, and it returned {returned}: reduce over "
            "the last axes only, e.g. with mean(-1)."
        )
    if not value.isfinite().any():
        raise UserError(f"{what} returns no finite number for normally distributed ones: correct it.")
    if not value.requires_grad:
        raise UserError(f"{what} has no gradient: compute it with operations that PyTorch differentiates.")
    gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    return [value.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _random(shape: int | tuple[int, ...], number: int) -> Tensor:
    """Return normally distributed numbers [members, *shape], always the same ones for the same `number`."""
    generator = torch.Generator().manual_seed(_SEED + number)
    sizes = (shape,) if isinstance(shape, int) else shape
    return torch.randn(_MEMBERS, *sizes, generator=generator, dtype=torch.float64)
