"""The order of the data depends only on the member's stream and the number of the batch, so that nothing needs saving."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ganherd.herd import rng
from ganherd.herd.batch_feed import BatchPlan, Feed

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=5)
BATCH = st.integers(1, 12)
SEED = st.integers(0, 2**31)


def feed_of(counts: list[int], batch: int) -> Feed:
    """Members with different data: row r of member m is number 1000 m + r."""
    index = np.stack([1000 * m + np.resize(np.arange(count), max(counts)) for m, count in enumerate(counts)])
    rows = 1000 * len(counts)
    x = torch.zeros(rows, 1, dtype=torch.uint8)
    plan = BatchPlan(index, np.array(counts), batch, 0.0, 1.0, torch.float32)
    return Feed(x, torch.zeros(rows, dtype=torch.int64), plan)


def bases_of(counts: list[int], seed: int) -> np.ndarray:
    return np.array([rng.key(seed, slot, 0) for slot in range(len(counts))])


def epoch_of(feed: Feed, base: np.ndarray, member: int, epoch: int) -> np.ndarray:
    """All batches of one epoch of a member, one after the other."""
    one = slice(member, member + 1)
    length = int(feed.batches_per_epoch[member])
    return np.concatenate([feed.indices(one, base[one], epoch * length + c)[0] for c in range(length)])


@given(COUNTS, BATCH, SEED, st.integers(0, 50))
def test_every_epoch_goes_through_all_of_a_members_data(counts: list[int], batch: int, seed: int, epoch: int) -> None:
    feed, base = feed_of(counts, batch), bases_of(counts, seed)
    for member, count in enumerate(counts):
        order = epoch_of(feed, base, member, epoch)
        own = 1000 * member + np.arange(count)
        assert sorted(order[:count]) == own.tolist()  # a permutation
        assert np.array_equal(order, np.resize(order[:count], len(order)))  # filled from its own start
        assert len(order) % batch == 0 and len(order) - count < batch


@given(st.integers(1, 6), st.integers(7, 30), SEED)
def test_data_smaller_than_a_batch_is_repeated(count: int, batch: int, seed: int) -> None:
    feed, base = feed_of([count], batch), bases_of([count], seed)
    for c in range(3):
        (rows,) = feed.indices(slice(0, 1), base, c)
        seen = np.bincount(rows, minlength=count)
        assert len(rows) == batch and seen.max() - seen.min() <= 1


@given(COUNTS, BATCH, SEED, st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_a_batch_does_not_depend_on_earlier_requests(
    counts: list[int], batch: int, seed: int, asked: list[int]
) -> None:
    """Neither on the company of a member in its block, nor on the batches before: a resume starts anywhere."""
    base, everyone = bases_of(counts, seed), slice(0, len(counts))
    used = feed_of(counts, batch)
    for c in asked:
        together = used.indices(everyone, base, c)
        for member in range(len(counts)):
            fresh, one = feed_of(counts, batch), slice(member, member + 1)
            assert np.array_equal(fresh.indices(one, base[one], c)[0], together[member])


@given(SEED, st.integers(0, 20))
def test_every_epoch_and_member_has_a_different_order(seed: int, epoch: int) -> None:
    counts = [40, 40]
    feed, base = feed_of(counts, 8), bases_of(counts, seed)
    first, other, later = (epoch_of(feed, base, m, e) for m, e in ((0, epoch), (1, epoch), (0, epoch + 1)))
    assert not np.array_equal(first, other - 1000)
    assert not np.array_equal(first, later)
