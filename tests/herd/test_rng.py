"""Every draw depends on a member, a purpose and a step only, not on other members, the process or the order of calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from ganherd.herd import draws_ahead, rng
from ganherd.herd.draws_ahead import DrawsAhead
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.rng import Streams, device_keys, draw, key, keys
from ganherd.herd.state import build_seeded
from ganherd.util.errors import UserError
from ganherd.util.host import in_threads

INT64 = st.integers(-(2**63), 2**63 - 1)
PARTS = st.lists(st.integers(0, 2**40), min_size=1, max_size=5)


@given(st.lists(INT64, min_size=1, max_size=8), PARTS)
def test_a_members_key_does_not_depend_on_other_members(bases: list[int], parts: list[int]) -> None:
    together = keys(np.array(bases, np.int64), *parts)
    alone = [keys(np.array([base], np.int64), *parts)[0] for base in bases]
    assert together.tolist() == alone


@given(st.lists(INT64, min_size=1, max_size=8), st.lists(INT64, min_size=1, max_size=5))
def test_few_keys_are_hashed_as_many(bases: list[int], parts: list[int]) -> None:
    few = keys(np.array(bases, np.int64), *parts)
    many = keys(np.array(bases * 20, np.int64), *parts)
    assert few.dtype == many.dtype and few.tolist() == many[: len(bases)].tolist()
    assert key(*parts) == keys(np.zeros(20, np.int64), *parts)[0]


# Steps as a run makes them: mostly in order, with stops, repetitions and jumps.
STEPS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=4)


@pytest.mark.further
@given(STEPS, st.sampled_from([1, 3]), st.sampled_from(["normal", "uniform"]))
def test_draws_ahead_are_those_of_each_step(stretches: list[tuple[int, int]], members: int, kind: str) -> None:
    ahead, herds = DrawsAhead(), [np.arange(members) + 7, np.arange(members) + 99]
    for first, length in stretches:
        for step in range(first, first + length):
            for base in herds:  # blocks take turns
                for purpose in ((rng.NOISE, 0), (rng.NOISE, 1)):
                    numbers = Streams(base, step, ahead).draw(purpose, (4, 2), kind, torch.float32)
                    assert torch.equal(numbers, Streams(base, step).draw(purpose, (4, 2), kind, torch.float32))
                    numbers.zero_()  # as a net that works in place


def test_draws_ahead_are_few_if_there_is_much_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws_ahead, "_NUMBERS_AHEAD", 100)
    drawn = []
    monkeypatch.setattr(rng, "draw", lambda keys, shape, *rest: drawn.append(len(keys)) or draw(keys, shape, *rest))
    ahead = DrawsAhead()
    for step in range(12):
        Streams(np.arange(2), step, ahead).draw((rng.NOISE,), (10,), "normal", torch.float32)
    assert sum(drawn) >= 2 * 12 and max(drawn) * 10 <= 100


@given(st.lists(INT64, min_size=1, max_size=8), PARTS)
def test_keys_on_a_device_are_the_same_keys(bases: list[int], parts: list[int]) -> None:
    host = keys(np.array(bases, np.int64), *parts)
    assert device_keys(torch.tensor(bases), *parts).tolist() == host.tolist()
    as_tensor = [torch.tensor(part) for part in parts]  # as a step inside a captured graph
    assert device_keys(torch.tensor(bases), *as_tensor).tolist() == host.tolist()


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 2**32))
def test_keys_differ_when_one_part_differs(parts: list[int], where: int, by: int) -> None:
    other = list(parts)
    other[where % len(parts)] += by
    assert key(*parts) != key(*other)
    assert key(*parts) != key(*parts, 0)  # a further part is another key, even a zero


def test_keys_of_all_purposes_members_and_steps_are_distinct() -> None:
    grid = [key(seed, slot, 0, step, purpose) for seed in range(4) for slot in range(16) for step in range(16)
            for purpose in range(1, 12)]  # fmt: skip
    assert len(set(grid)) == len(grid)


@given(st.lists(INT64, min_size=1, max_size=6, unique=True), st.sampled_from(["normal", "uniform"]))
def test_a_row_of_draws_depends_on_its_key_alone(members: list[int], kind: str) -> None:
    together = draw(np.array(members), (3, 5), kind)
    for row, member in zip(together, members, strict=True):
        assert torch.equal(row, draw(np.array([member]), (3, 5), kind)[0])


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("shape", [(), (3,), (40,), (2000,)])
def test_keys_with_equal_low_halves_draw_different_numbers(shape: tuple[int, ...], kind: str) -> None:
    """Every bit of the upper half counts."""
    own = np.array([123456789] + [123456789 ^ (1 << bit) for bit in range(32, 63)] + [123456789 - 2**63])
    numbers = draw(own, shape, kind, torch.float64).reshape(len(own), -1)
    assert len(np.unique(numbers.numpy(), axis=0)) == len(own) == 33
    with rng.using(1):
        assert len(np.unique(draw(own, shape, kind).reshape(len(own), -1).numpy(), axis=0)) == 1


def test_nets_and_orders_of_keys_with_equal_low_halves_differ() -> None:
    first, second = (build_seeded(lambda: nn.Linear(3, 4), key) for key in (7, 7 + 2**40))
    assert not torch.equal(first.weight, second.weight)
    orders = [torch.randperm(50, generator=rng.seed_(torch.Generator(), key)) for key in (7, 7 + 2**40)]
    assert not torch.equal(*orders)


@given(INT64)
def test_version_one_equals_manual_seed(member: int) -> None:
    with rng.using(1):
        drawn = draw(np.array([member]), (5,), "normal")[0]
        own = rng.seed_(torch.Generator(), member)
    assert torch.equal(drawn, torch.randn(5, generator=torch.Generator().manual_seed(member)))
    assert torch.equal(own.get_state(), torch.Generator().manual_seed(member).get_state())


def test_a_seeded_generator_has_the_layout_of_one_that_pytorch_seeds() -> None:
    """The words of the twister lie where PyTorch has them, and nothing is drawn yet."""
    twister = slice(24, 24 + 8 * 624)
    own, theirs = (g.get_state().numpy() for g in (rng.seed_(torch.Generator(), 5), torch.Generator().manual_seed(5)))
    assert theirs[twister].view(np.uint64)[0] == 5
    assert own[twister].view(np.uint64).tolist() == rng._words(np.array([5]))[0].tolist()
    own[:8], own[twister], theirs[:8], theirs[twister] = 0, 0, 0, 0
    assert own.tolist() == theirs.tolist()


def test_threads_of_the_host_draw_from_the_version_of_the_caller() -> None:
    seen: list[int] = []
    with rng.using(1):
        in_threads(lambda _: seen.append(rng.version()), range(6), 3)
    assert seen == [1] * 6


def test_draws_look_like_their_distribution() -> None:
    """Means and deviations over members as well as within one; members are uncorrelated."""
    own = keys(np.zeros(200, np.int64), np.arange(200))
    for numbers in (
        draw(own, (500,), "normal"),
        rng._hashed(torch.from_numpy(own), (500,), "normal", torch.float32),
    ):
        assert abs(float(numbers.mean())) < 0.015 and abs(float(numbers.std()) - 1) < 0.015
        assert float(numbers.mean(0).abs().max()) < 0.35  # 200 members, the same place: 5 sigma of 1/sqrt(200)
        correlation = torch.corrcoef(numbers) - torch.eye(200)
        assert float(correlation.abs().max()) < 0.3  # 5 sigma and more of 1/sqrt(500)
        assert float((numbers.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=0.001)
    for numbers in (
        draw(own, (500,), "uniform"),
        rng._hashed(torch.from_numpy(own), (500,), "uniform", torch.float32),
    ):
        assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
        assert np.histogram(numbers.numpy(), 10, (0, 1))[0] == pytest.approx(np.full(10, 1e4), rel=0.05)


def test_the_prior_is_normal_or_uniform_on_minus_one_to_one() -> None:
    at = Streams(np.arange(50), 3)
    even = at.prior((rng.NOISE, 0), (100, 4), "uniform", torch.float64)
    assert even.dtype == torch.float64 and -1 <= float(even.min()) < -0.99 and 0.99 < float(even.max()) < 1
    assert float(at.prior((rng.NOISE, 0), (100, 4), "normal", torch.float32).std()) == pytest.approx(1, abs=0.03)


def test_steps_updates_and_purposes_draw_different_numbers() -> None:
    base = np.array([7])
    drawn = [
        Streams(base, step).draw(parts, (4,), "normal", torch.float32)
        for step in (0, 1)
        for parts in ((rng.NOISE, 0), (rng.NOISE, 1), (rng.PENALTY, 0))
    ]
    assert len({tuple(row.flatten().tolist()) for row in drawn}) == len(drawn)


class Noisy(nn.Module):
    """A user's module that draws in every way that a stream can answer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.dropout, self.whole = nn.Dropout(0.5), nn.Dropout2d(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.linear(x))
        x = x + torch.randn_like(x) + torch.randn(x.shape) + torch.rand(4, dtype=x.dtype)
        x = x + torch.empty_like(x).normal_(1.0, 2.0) + torch.empty_like(x).uniform_(-1.0, 1.0) + torch.rand_like(x)
        return self.whole(F.dropout(x, 0.25)[:, :, None, None]).flatten(1)


def answers(member_keys: list[int], members: list[int]) -> Tensor:
    torch.manual_seed(0)
    module = Noisy().train()
    params = {name: p.detach()[None].expand(len(members), *p.shape) for name, p in module.named_parameters()}

    def one(own: dict[str, Tensor], member_key: Tensor) -> Tensor:
        with MemberRandomness(member_key):
            return functional_call(module, own, (torch.ones(5, 3),))

    return vmap(one)(params, torch.tensor([member_keys[m] for m in members]))


def test_randomness_inside_a_module_is_the_members_own() -> None:
    """Dropout, randn, rand, normal_ … under vmap: alone, together or in another order, a member gets its own numbers."""
    member_keys = [key(0, m) for m in range(4)]
    together = answers(member_keys, [0, 1, 2, 3])
    for member in range(4):
        assert torch.equal(together[member], answers(member_keys, [member])[0])
    assert torch.equal(together[[2, 0]], answers(member_keys, [2, 0]))
    assert len({tuple(row.flatten().tolist()) for row in together}) == 4


def test_plain_and_vmapped_calls_draw_the_same_numbers() -> None:
    own = key(3, 1)
    mapped = answers([own], [0])[0]
    torch.manual_seed(0)
    module = Noisy().train()
    with MemberRandomness(torch.tensor(own)):
        assert torch.equal(module(torch.ones(5, 3)).detach(), mapped)


def test_pytorchs_global_generator_is_neither_used_nor_advanced() -> None:
    member_keys = [key(0, 0)]
    first = answers(member_keys, [0])
    torch.manual_seed(0)
    module = Noisy().train()
    torch.manual_seed(1234)
    before = torch.random.get_rng_state()
    with MemberRandomness(torch.tensor(member_keys[0])):
        assert torch.equal(module(torch.ones(5, 3)).detach(), first[0])
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_keeps_the_mean_and_stops_in_evaluation() -> None:
    with MemberRandomness(torch.tensor(5)):
        ones = torch.ones(100, 100)
        dropped = F.dropout(ones, 0.3)
        assert set(dropped.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - 0.3)))}
        assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
        assert torch.equal(F.dropout(ones, 0.3, training=False), ones)
        assert not F.dropout(ones, 1.0).any()
        channels = F.dropout2d(torch.ones(8, 16, 3, 3), 0.5)
        assert set(channels.flatten(2).sum(2).unique().tolist()) == {0.0, 18.0}  # whole channels or none


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.randint(0, 2, (3,)),
        lambda x: torch.randperm(4),
        lambda x: torch.multinomial(torch.ones(3), 2),
        lambda x: F.gumbel_softmax(x),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.alpha_dropout(x, 0.5, True),
        lambda x: torch.normal(x, 1.0),
        lambda x: torch.poisson(x.exp()),
        lambda x: x.clone().exponential_(),
        lambda x: x.clone().bernoulli_(0.5),
        lambda x: x.clone().random_(0, 5),
    ],
)
def test_unsupported_random_functions_are_refused_in_one_sentence(refused) -> None:
    said = "cannot draw from each member's own stream; use randn"
    with pytest.raises(UserError, match=said), MemberRandomness(torch.tensor(5)):
        refused(torch.zeros(2, 3))


def test_random_functions_accept_sizes_and_dtypes_by_keyword() -> None:
    with MemberRandomness(torch.tensor(5)):
        assert torch.randn(size=(2, 3)).shape == (2, 3)
        assert torch.rand((4,), dtype=torch.float64).dtype == torch.float64
        assert torch.randn(2, 3, requires_grad=False).shape == (2, 3)
        assert torch.rand(()).shape == ()


def test_keys_on_a_device_are_computed_before_side_streams_use_them():
    """Computed at their first use, on one side stream, they would not be ready for another."""
    streams = Streams(torch.tensor([3, 4]), torch.tensor(5))
    assert "_step_keys" in vars(streams)
    assert torch.equal(vars(streams)["_step_keys"], torch.from_numpy(rng.keys(np.array([3, 4]), 5)))


def test_few_keys_and_many_are_hashed_alike_whatever_their_sign():
    base = np.array([-5, 7, -(2**63), 2**63 - 1])
    many = np.tile(base, 20)
    for parts in ((), (3,), (-1, 2**40)):
        assert np.array_equal(np.tile(rng.keys(base, *parts), 20), rng.keys(many, *parts))
