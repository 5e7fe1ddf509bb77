"""Members that are initialised together have the same bits as modules that are built alone from their seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.herd import rng
from ganherd.herd.breeds import new_breeds
from ganherd.herd.state import Seat, init_members, new_state
from ganherd.recipe.net_config import NetConfig

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
