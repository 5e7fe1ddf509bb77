"""The order of a member's data is a permutation drawn from its own key and the epoch, wrapped to whole batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ganherd.herd import rng
from ganherd.herd.batch_feed import BatchPlan, Feed
from ganherd.strategies.cellular import fitness

COUNT = np.array([10, 3, 7, 12, 1])  # images of each member; a batch has 4
BASE = np.array([rng.key(1, slot) for slot in range(len(COUNT))])


def feed(index: np.ndarray) -> Feed:
    x = torch.arange(40, dtype=torch.uint8)[:, None]
    return Feed(x, torch.arange(40), BatchPlan(index, COUNT, 4, 0.0, 1.0, torch.float32))


def rows() -> np.ndarray:
    return np.stack([np.resize(np.random.default_rng(k).permutation(40)[:n], 12) for k, n in enumerate(COUNT)])


def batch(index: np.ndarray, member: int, c: int) -> np.ndarray:
    """As it is defined, for one member by itself."""
    count = int(COUNT[member])
    epoch, number = divmod(c, -(-count // 4))
    generator = rng.seed_(torch.Generator(), rng.key(int(BASE[member]), rng.ORDER, epoch))
    order = torch.randperm(count, generator=generator).numpy()
    return index[member, order[(4 * number + np.arange(4)) % count]]


@pytest.mark.parametrize("threads", [1, 3])
def test_every_batch_follows_from_the_members_key(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for index in (rows(), np.broadcast_to(np.arange(12), (len(COUNT), 12))):
        own = feed(index)
        for c in (0, 1, 2, 9, 3, 0):  # onwards and back
            for members in (slice(0, 5), slice(1, 3)):
                found = own.indices(members, BASE[members], c)
                assert found.dtype == np.int64
                assert found.tolist() == [batch(index, m, c).tolist() for m in range(members.start, members.stop)]


def test_another_stream_gives_another_order() -> None:
    own, members = feed(rows()), slice(0, 5)
    first = own.indices(members, BASE, 0)
    assert own.indices(members, BASE + 1, 0).tolist() != first.tolist()
    assert own.indices(members, BASE, 0).tolist() == first.tolist()


@pytest.mark.parametrize("n", [2, 8, 30])
def test_each_cell_draws_its_own_fitness_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own, seed, cell = feed(rows()), np.full(5, 3), np.arange(5)
    found = fitness.sample(own, cell, seed, cell, 6, n)
    for k in range(5):
        key = rng.key(3, -rng.FITNESS, k, 6)
        generator = rng.seed_(torch.Generator(), rng.key(key, rng.ORDER))
        order = torch.randperm(int(COUNT[k]), generator=generator)
        assert int(found.keys[k]) == key
        assert found.rows[k].tolist() == own.member_rows(k)[np.resize(order.numpy(), n)].tolist()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert np.array_equal(fitness.sample(own, cell, seed, cell, 6, n).rows, found.rows)
