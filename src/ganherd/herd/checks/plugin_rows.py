"""Check that losses and augmentations of plug-ins compute each member (GAN) separately.

Otherwise members that are trained together would not get the same weights as if they were trained alone. Each function
is called for three members at once and for each member alone, with its gradients, in float64; the results must be
equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ganherd.augment import NamedAugmentation, augment, numbers
from ganherd.losses.adversarial import Loss
from ganherd.util.errors import UserError, with_type

_MEMBERS, _BATCH = 3, 5
_IMAGE = (3, 8, 8)
_CLOSE = 1e-9
_SEED = 1234


def check_loss(name: str, loss: Loss) -> None:
    """Check that a loss returns one number for each member, and that this number depends on no other member.

    Raises:
        UserError: If it does not; the message names the problem.
    """
    real, fake = _random(_BATCH, 0), _random(_BATCH, 1)
    what, shape = f"the loss {name}", (_MEMBERS,)
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
    check_rows(
        f"the augmentation {name}",
        lambda images, drawn: augment(images, drawn, [augmentation]),
        [x, u],
        tuple(x.shape),
        differentiated=1,
    )


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
        raise UserError(
            f"{what} fails for tensors of shape {tuple(arguments[0].shape)}: {with_type(error)}."
        ) from error
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        returned = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise UserError(
            f"{what} must return a tensor of shape {shape} for {shape[0]} members at once, and it returned {returned}."
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
