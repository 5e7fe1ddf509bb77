"""Differentiable augmentation of real and generated images before the discriminator (DiffAugment, Zhao et al., 2020).

Pure functions of images [..., B, C, H, W] in [-1, 1] and of uniform numbers in [0, 1). The caller draws the numbers, so that
every member has its own stream. Shapes never depend on the numbers, so a CUDA graph can hold all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ganherd.util.errors import UserError
from ganherd.util.registry import AUGMENTATIONS, load_target

if TYPE_CHECKING:
    from ganherd.recipe.augment_config import AugmentationSpec


class NamedAugmentation(Protocol):
    """An augmentation by name, with its settings."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...


Policy = Sequence[str | NamedAugmentation]


def spec_of(one: str | NamedAugmentation) -> AugmentationSpec:
    """Return the entry of an augmentation of a policy."""
    name = one if isinstance(one, str) else one.name
    if not AUGMENTATIONS.is_known(name):
        raise UserError(AUGMENTATIONS.unknown(name))
    return AUGMENTATIONS[name]


def numbers(policy: Policy) -> int:
    """Return the count of uniform numbers that each image needs.

    >>> numbers(("colour", "translation", "cutout", "flip"))
    8
    """
    return sum(spec_of(one).numbers for one in policy)


def augment(x: Tensor, uniforms: Tensor, policy: Policy) -> Tensor:
    """Return x [..., B, C, H, W] changed by each augmentation of the policy in order, with uniforms [..., B, numbers(policy)].

    >>> augment(torch.zeros(1, 1, 2, 2), torch.tensor([[0.75, 0.5, 0.5]]), ["colour"]).unique()
    tensor([0.2500])
    """
    specs = [spec_of(one) for one in policy]
    for one, spec, part in zip(policy, specs, uniforms.split([spec.numbers for spec in specs], -1), strict=True):
        function = load_target(spec.target)
        if spec.settings is not None:
            x = function(x, part, spec.settings.model_validate({} if isinstance(one, str) else dict(one.settings)))
        else:
            x = function(x, part)
    return x


def colour(x: Tensor, u: Tensor) -> Tensor:
    """Change brightness by up to ±0.5, saturation by a factor of 0 to 2 (colour images only), contrast by 0.5 to 1.5."""
    brightness, saturation, contrast = u.to(x.dtype)[..., None, None, None].unbind(-4)  # [..., B, 1, 1, 1]
    x = x + (brightness - 0.5)
    if x.shape[-3] > 1:
        grey = x.mean(-3, keepdim=True)
        x = (x - grey) * (2.0 * saturation) + grey
    mean = x.mean((-3, -2, -1), keepdim=True)
    return (x - mean) * (contrast + 0.5) + mean


def translation(x: Tensor, u: Tensor) -> Tensor:
    """Shift by up to 1/8 of each side, in whole pixels, and fill with zeros."""
    height, width = x.shape[-2:]
    rows, columns = (
        _places(side, x) + _whole(u[..., i], 2 * reach + 1)[..., None] - reach  # [..., B, side]: where each comes from
        for i, (side, reach) in enumerate(((height, int(height / 8 + 0.5)), (width, int(width / 8 + 0.5))))
    )
    inside = _within(rows, 0, height)[..., :, None] & _within(columns, 0, width)[..., None, :]  # [..., B, H, W]
    source = rows.clamp(0, height - 1)[..., :, None] * width + columns.clamp(0, width - 1)[..., None, :]
    flat = x.flatten(-2)
    moved = flat.gather(-1, source.flatten(-2)[..., None, :].expand(flat.shape)).unflatten(-1, (height, width))
    result: Tensor = moved * inside[..., None, :, :].to(x.dtype)
    return result


def cutout(x: Tensor, u: Tensor) -> Tensor:
    """Set a window to zero that is half as high and wide as the image. Its centre may lie anywhere in the image."""
    cut = []
    for i, side in enumerate(x.shape[-2:]):
        size = int(side / 2 + 0.5)
        first = _whole(u[..., i], side + 1 - size % 2)[..., None] - size // 2  # [..., B, 1]
        cut.append(_within(_places(side, x), first, first + size))  # [..., B, side]
    return x * ~(cut[0][..., :, None] & cut[1][..., None, :])[..., None, :, :]


def flip(x: Tensor, u: Tensor) -> Tensor:
    """Mirror half of the images."""
    return torch.where(u[..., None, None] < 0.5, x.flip(-1), x)


def _places(side: int, like: Tensor) -> Tensor:
    return torch.arange(side, device=like.device)


def _whole(u: Tensor, count: int) -> Tensor:
    """Return whole numbers 0 … count - 1, equally likely; rounding never reaches `count`."""
    return (u * count).long().clamp(max=count - 1)


def _within(place: Tensor, first: Tensor | int, end: Tensor | int) -> Tensor:
    return (place >= first) & (place < end)
