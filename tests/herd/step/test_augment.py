"""DiffAugment equals a plain reference image by image, for one GAN and for stacked members, and lets gradients through."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganherd.augment import augment, numbers
from ganherd.util.errors import UserError
from ganherd.util.registry import AUGMENTATIONS

ALL = ("colour", "translation", "cutout", "flip")


def one_image(image: np.ndarray, u: list[float], policy: tuple[str, ...]) -> np.ndarray:
    """The plainest reading of the paper's operations: one image [C, H, W], one number after another."""
    image, left = image.copy(), iter(u)
    channels, height, width = image.shape
    for name in policy:
        if name == "colour":
            image = image + (next(left) - 0.5)
            strength = 2 * next(left)
            grey = sum(image[c] for c in range(channels)) / channels
            image = np.stack([(image[c] - grey) * strength + grey for c in range(channels)])
            image = (image - image.mean()) * (next(left) + 0.5) + image.mean()
        elif name == "translation":
            down, right = (
                math.floor(next(left) * (2 * reach + 1)) - reach
                for reach in (int(height / 8 + 0.5), int(width / 8 + 0.5))
            )
            moved = np.zeros_like(image)
            for i in range(height):
                for j in range(width):
                    if 0 <= i + down < height and 0 <= j + right < width:
                        moved[:, i, j] = image[:, i + down, j + right]
            image = moved
        elif name == "cutout":
            sizes = int(height / 2 + 0.5), int(width / 2 + 0.5)
            top, start = (
                math.floor(next(left) * (side + 1 - size % 2)) - size // 2
                for side, size in zip((height, width), sizes, strict=True)
            )
            for i in range(max(top, 0), min(top + sizes[0], height)):
                for j in range(max(start, 0), min(start + sizes[1], width)):
                    image[:, i, j] = 0.0
        elif name == "flip":
            image = image[:, :, ::-1].copy() if next(left) < 0.5 else image
    return image


@settings(max_examples=60, deadline=None)
@given(
    policy=st.lists(st.sampled_from(ALL), max_size=4).map(tuple),
    members=st.integers(1, 3),
    batch=st.integers(1, 4),
    channels=st.sampled_from([1, 2, 3]),
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    seed=st.integers(0, 1000),
)
def test_augmentation_equals_the_reference_image_by_image(
    policy: tuple[str, ...], members: int, batch: int, channels: int, height: int, width: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(members, batch, channels, height, width, dtype=torch.float64, generator=random)
    u = torch.rand(members, batch, numbers(policy), dtype=torch.float64, generator=random)
    out = augment(x, u, policy)
    assert out.shape == x.shape and out.dtype == x.dtype
    for n in range(members):
        assert torch.allclose(augment(x[n], u[n], policy), out[n], rtol=0, atol=1e-12)  # one GAN alone
        for b in range(batch):
            expected = one_image(x[n, b].numpy(), u[n, b].tolist(), policy)
            assert np.allclose(out[n, b].numpy(), expected, rtol=0, atol=1e-12)


def test_ranges_of_each_augmentation() -> None:
    """At 32 px: shifts of -4 … 4 equally often, a window of 16 whose centre goes from edge to edge, half flipped."""
    steps = (torch.arange(90_000, dtype=torch.float64) + 0.5) / 90_000
    image = torch.zeros(len(steps), 1, 1, 33, dtype=torch.float64)
    image[..., 16] = 1.0
    shift = augment(image, torch.stack([steps, steps], 1), ("translation",)).flatten(1).argmax(1) - 16
    assert torch.equal((shift + 4).bincount(), torch.full((9,), 10_000))
    ones = torch.ones(33, 1, 32, 32)
    at = torch.arange(33) / 33 + 1e-4  # one for each of the 33 places
    left = augment(ones, torch.stack([at, at], 1), ("cutout",))
    removed = (left[0] == 0).sum(), (left[16] == 0).sum(), (left[32] == 0).sum()
    assert [int(r) for r in removed] == [8 * 8, 16 * 16, 8 * 8]
    assert left[16, 0, 8:24, 8:24].abs().sum() == 0
    flipped = augment(torch.arange(4.0).expand(1000, 1, 1, 4), torch.arange(1000.0)[:, None] / 1000, ("flip",))
    assert int((flipped[:, 0, 0, 0] == 3).sum()) == 500


def test_the_largest_uniform_stays_in_range() -> None:
    """The largest float32 below 1: rounding must not make it a whole step more."""
    below = torch.full((1, 1, 2), 1.0 - 2.0**-24)
    x = torch.rand(1, 1, 3, 64, 64) + 0.1
    assert torch.equal(augment(x, below, ("translation",))[..., :56, :56], x[..., 8:, 8:])
    cut = augment(x, below, ("cutout",)) == 0
    assert bool(cut[..., 48:, 48:].all()) and int(cut.sum()) == 3 * 16 * 16


def test_grey_images_keep_their_saturation() -> None:
    x = torch.randn(2, 5, 1, 6, 6)
    u = torch.full((2, 5, 3), 0.5)
    u[..., 1] = torch.rand(2, 5)
    assert torch.allclose(augment(x, u, ("colour",)), x, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_gradients_equal_those_of_single_images(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    u = torch.rand(2, 2, numbers([name]), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: augment(v, u, (name,)), (x,))
    (slope,) = torch.autograd.grad(augment(x, u, (name,))[1, 0].square().sum(), x)
    others = torch.ones(2, 2, dtype=torch.bool)
    others[1, 0] = False
    assert slope[others].abs().max() == 0 and slope[1, 0].abs().max() > 0


def test_shapes_do_not_depend_on_what_was_drawn() -> None:
    """Under `vmap` and on tensors without values: nothing is read back from the device."""
    x = torch.randn(3, 2, 3, 8, 8)
    u = torch.rand(3, 2, numbers(ALL))
    mapped = torch.func.vmap(lambda a, b: augment(a, b, ALL))(x, u)
    assert torch.allclose(mapped, augment(x, u, ALL), atol=1e-6)
    assert augment(x.to("meta"), u.to("meta"), ALL).shape == x.shape


def test_number_of_draws_and_names_of_augmentations() -> None:
    assert [numbers([name]) for name in ALL] == [3, 2, 2, 1] and set(AUGMENTATIONS) == set(ALL)
    assert numbers(()) == 0
    x = torch.randn(1, 2, 3, 4, 4)
    assert torch.equal(augment(x, torch.rand(1, 2, 0), ()), x)
    with pytest.raises(UserError, match="colour, translation, cutout, flip"):
        numbers(["color"])
