"""Operations and bytes of a member-step equal those counted by hand, and the ceiling follows from them."""

from __future__ import annotations

import pytest

from ganherd.bench.cases import CASES, recipe_of
from ganherd_benchmarks.ceiling import Machine, StepCost, count


def test_operations_of_the_mlp() -> None:
    """A pass through a layer of W weights is 2 W for an image, and so is each of its two gradients."""
    g, d = (64 * 256, 256 * 256, 256 * 784), (784 * 256, 256 * 256, 256)
    forward = 2 * sum(g) + 3 * sum(d)  # fakes for both updates; real and fake, and the fakes of the generator
    weights = sum(g) + 2 * sum(d)  # gradients of the generator's, and of the discriminator's for real and fake
    inputs = sum(g[1:]) + 2 * sum(d[1:]) + sum(d)  # noise and images need none, except on the generator's way
    assert count(CASES["mlp"], "float32").flops == 2 * 100 * (forward + weights + inputs)


def test_bytes_of_the_mlp() -> None:
    state = 8 * 4 * ((64 + 1) * 256 + (256 + 1) * 256 + (256 + 1) * 784 + (784 + 1) * 256 + (256 + 1) * 256 + 256 + 1)
    g, d = 256 + 256 + 784, 256 + 256 + 1
    for precision, size in (("float32", 4), ("bf16", 2)):
        assert count(CASES["mlp"], precision).bytes == state + 100 * size * (7 * g + 15 * d)


def test_nets_of_the_paper_take_sixty_gigaflop() -> None:
    assert 55e9 < count(CASES["wcgan"], "bf16").flops < 65e9


def test_ceiling_ranges_from_sequential_to_overlapped() -> None:
    low, high = StepCost(flops=6e10, bytes=4e8).ceiling(Machine("", flops=8e14, bytes=4e12))
    assert (low, high) == (pytest.approx(1 / (6e10 / 8e14 + 1e-4)), pytest.approx(1 / 1e-4))


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_recipe_of_equal_work(name: str) -> None:
    recipe = recipe_of(CASES[name], 3, "random", "cpu", "float32")
    assert (recipe.train.n_critic, recipe.train.ema, recipe.train.skip_d) == (1, None, 0)
    assert (recipe.optim.beta1, recipe.optim.beta2) == (0.5, 0.999)
    assert recipe.loss.name == CASES[name].loss and recipe.train.batch == CASES[name].batch
