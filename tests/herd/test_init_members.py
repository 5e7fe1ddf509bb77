"""Members that are initialised together have the same bits as modules that are built alone from their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recipes import tiny_data, tiny_recipe
from torch import Tensor, nn

from ganherd import nets
from ganherd.herd import rng, state, threaded_init
from ganherd.herd.breeds import new_breeds
from ganherd.herd.state import Seat, init_members, new_state
from ganherd.recipe import recipe_file
from ganherd.recipe.net_config import NetConfig
from ganherd.training.setup.assemble import makers

Make = Callable[[], nn.Module]
SEEDS = [rng.key(7, slot) for slot in range(6)]  # some are negative


def generator(shape: tuple[int, ...], name: str, **settings: object) -> Make:
    return lambda: nets.build_generator(NetConfig(name=name, settings=settings), shape, 5, 3)


def discriminator(shape: tuple[int, ...], name: str, **settings: object) -> Make:
    return lambda: nets.build_discriminator(NetConfig(name=name, settings=settings), shape, 3)


class Own(nn.Module):
    """A user's net: several kinds of initialisation, tied weights, a view as a parameter, buffers of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        nn.init.orthogonal_(self.a.weight)
        nn.init.kaiming_normal_(self.b.weight)
        self.c = nn.Parameter(torch.randn(4, 5).T * torch.tensor([0.5, 1.0, 2.0, 4.0]))
        self.tied = self.a.weight
        self.d = nn.Linear(6, 3)
        with torch.no_grad():
            self.d.weight[1].fill_(3.0)
            self.d.weight[:, 2:4] += self.b.weight[:3, :2]
        self.table = nn.Embedding(4, 3, padding_idx=1)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
        self.register_buffer("order", torch.randperm(9))
        self.register_buffer("wide", torch.rand(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x


BUILT_IN = {
    "wcgan g": generator((3, 8, 8), "wcgan", width=8),
    "wcgan d": discriminator((3, 8, 8), "wcgan", width=4),
    "mlp g": generator((1, 6, 6), "mlp", hidden=[7, 9]),
    "mlp d": discriminator((1, 6, 6), "mlp", hidden=[7, 9]),
    "dcgan g": generator((1, 28, 28), "dcgan", width=4),
    "dcgan5 d": discriminator((3, 8, 8), "dcgan5", width=4),
    "gran g": generator((3, 8, 8), "gran", width=4),
    "residual g": generator((3, 8, 8), "residual", width=4, attention=True),
    "residual d": discriminator((3, 8, 8), "residual", width=4, attention=True),
    "acgan d": discriminator((3, 8, 8), "acgan", width=4),
    "own": Own,
}  # fmt: skip


def bits(value: Tensor) -> bytes:
    return bytes(value.detach().contiguous().numpy().tobytes())


def alone(make: Make, seed: int, dtype: torch.dtype) -> list[bytes]:
    """The row and the buffers of a module that is built as anyone would."""
    rng.seed_(torch.default_generator, seed)
    module = make().to(dtype)
    row = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    return [bits(row), *(bits(buffer) for buffer in module.buffers())]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_members_are_initialised_bit_for_bit_like_modules_built_alone(name: str, dtype: torch.dtype) -> None:
    before = torch.random.get_rng_state()
    blueprint, params, buffers = init_members(BUILT_IN[name], SEEDS, dtype)
    assert torch.equal(before, torch.random.get_rng_state())  # the caller draws on as if nothing had been
    for row, seed in enumerate(SEEDS):
        found = [bits(params[row]), *(bits(stack[row]) for stack in buffers.values())]
        assert found == alone(BUILT_IN[name], seed, dtype)
    assert list(buffers) == [name for name, _ in blueprint.module.named_buffers()]


def test_initial_weights_do_not_depend_on_other_members_or_breeds() -> None:
    make_d = BUILT_IN["wcgan d"]
    seats = [Seat(seed, slot) for seed in (3, 4) for slot in range(9)]
    each = [("wcgan", BUILT_IN["wcgan g"], 4), ("residual", BUILT_IN["residual g"], 5)]
    breeds, _, state = new_breeds(each, make_d, seats, {}, torch.float32, ema=True)
    for row, seat in enumerate(seats):
        breed = breeds.of(seat.slot)
        lone = new_state(each[breeds.all.index(breed)][1], make_d, [seat], {}, torch.float32, ema=True)[2]
        mine = breed.view({name: value[row : row + 1] for name, value in state.items()})
        assert mine.keys() == lone.keys()
        assert all(bits(mine[name]) == bits(value) for name, value in lone.items())


@pytest.mark.parametrize("name", BUILT_IN)
def test_members_are_the_same_if_threads_build_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = init_members(BUILT_IN[name], SEEDS, torch.float32)[1:]
    monkeypatch.setattr(threaded_init, "_FEWEST", 1)
    monkeypatch.setattr(threaded_init, "cores", lambda: 3)
    results = []
    build = threaded_init.build_in_threads
    monkeypatch.setattr(state, "build_in_threads", lambda *a: results.append(build(*a)) or results[-1])
    before = torch.random.get_rng_state()
    make = BUILT_IN[name] if name == "own" else threaded_init.PackagedNet(BUILT_IN[name])
    params, buffers = init_members(make, SEEDS, torch.float32)[1:]
    assert torch.equal(before, torch.random.get_rng_state())
    assert results == ([] if name == "own" else [True])  # a user's net may not be safe in threads
    assert bits(params) == bits(one_by_one[0])
    assert all(bits(value) == bits(one_by_one[1][key]) for key, value in buffers.items())


def test_modules_that_draw_from_the_global_generator_are_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        module = nn.Linear(3, 2)
        module.register_buffer("order", torch.randperm(9))  # takes no generator from `_DrawFrom`
        return module

    one_by_one = init_members(make, SEEDS, torch.float32)[1:]
    monkeypatch.setattr(threaded_init, "_FEWEST", 1)
    monkeypatch.setattr(threaded_init, "cores", lambda: 3)
    before = torch.random.get_rng_state()
    assert not threaded_init.build_in_threads(make, SEEDS, lambda number, module: None)
    params, buffers = init_members(threaded_init.PackagedNet(make), SEEDS, torch.float32)[1:]
    assert torch.equal(before, torch.random.get_rng_state())
    assert bits(params) == bits(one_by_one[0]) and bits(buffers["order"]) == bits(one_by_one[1]["order"])


def test_a_users_function_is_called_by_one_thread_even_if_it_returns_layers_of_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may seed PyTorch's generator itself, which threads share."""

    def make(shape: tuple[int, ...]) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1))

    monkeypatch.setattr(threaded_init, "_FEWEST", 1)
    monkeypatch.setattr(threaded_init, "cores", lambda: 3)
    recipe = recipe_file.load(tiny_recipe(tiny_data(tmp_path / "data.npz")))
    packaged, _ = makers(recipe, (1, 8, 8), 3, trust_code=True)
    assert threaded_init.pays_in_threads(packaged, 9)
    params = init_members(lambda: make((1, 8, 8)), SEEDS, torch.float32)[1]
    assert not threaded_init.pays_in_threads(lambda: make((1, 8, 8)), 9)
    assert (params == params[0]).all()
