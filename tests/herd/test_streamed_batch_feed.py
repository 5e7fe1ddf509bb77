"""Streamed data gives the same batches as resident data, bit for bit; only the time of reading differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from image_trees import prepared

from ganherd.data.dataset import Dataset, load
from ganherd.data.partition import partition
from ganherd.herd import streamed_batch_feed
from ganherd.herd.batch_feed import BatchPlan, Feed
from ganherd.herd.streamed_batch_feed import StreamFeed, make_feed
from ganherd.recipe.schema import DataConfig

BATCH, CPU = 4, torch.device("cpu")
BASE = np.array([11, 22, 33])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load(DataConfig(source=str(prepared(tmp_path_factory.mktemp("prepared")))))


def feeds(
    data: Dataset,
    partition_: str = "by-class",
    dtype: torch.dtype = torch.float32,
    rows: bool = True,
    most: int = 1 << 20,
) -> tuple[Feed, StreamFeed]:
    settings = DataConfig(partition=partition_, diet=0.6 if partition_ == "diet" else 1.0)  # type: ignore[arg-type]
    cut = partition(data, settings, None if partition_ == "by-class" else 3, BATCH, 0)
    x = np.asarray(data.x)
    plan = BatchPlan(cut.index, cut.count, BATCH, data.offset, data.scale, dtype)
    whole = Feed(torch.from_numpy(x), torch.from_numpy(data.y), plan)
    return whole, StreamFeed(data.x if rows else x, data.y, plan, CPU, max_bytes=most)


def same(feed: Feed, other: Feed, members: slice, base: np.ndarray, c: int) -> bool:
    (x, y), (x2, y2) = feed.batch_at(members, base, c), other.batch_at(members, base, c)
    assert x.dtype == x2.dtype and x.shape == x2.shape == (len(base), BATCH, 3, 6, 6)
    return torch.equal(x, x2) and torch.equal(y, y2)


@pytest.fixture(autouse=True)
def many_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Even small batches are read by several threads."""
    monkeypatch.setattr(streamed_batch_feed, "READERS", 3)
    monkeypatch.setattr(streamed_batch_feed, "_BYTES_PER_READER", 1)
    yield


@pytest.mark.parametrize("partition_", ["by-class", "all", "diet"])
@pytest.mark.parametrize("rows", [True, False], ids=["shards", "memory"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_are_those_of_resident_data(data: Dataset, partition_: str, rows: bool, dtype: torch.dtype) -> None:
    resident, streamed = feeds(data, partition_, dtype, rows)
    everyone = slice(0, 3)
    assert np.array_equal(resident.batches_per_epoch, streamed.batches_per_epoch)
    for c in range(20):  # several epochs of every member
        assert same(resident, streamed, everyone, BASE, c)
    assert streamed.late == 1 and streamed.read_ahead == 19
    streamed.close()


def test_batches_are_correct_in_any_order_of_requests(data: Dataset) -> None:
    """Blocks, jumps, the same again, other streams after a repair, and members alone."""
    resident, streamed = feeds(data)
    random = np.random.default_rng(1)
    base = BASE.copy()
    for turn in range(200):
        start, stop = sorted(random.choice(4, 2, replace=False).tolist())
        c = int(random.integers(0, 9))
        for again in range(int(random.integers(1, 4))):
            assert same(resident, streamed, slice(start, stop), base[start:stop], c + again // 2)
        if turn % 20 == 19:
            base[random.integers(3)] += 100
    held = sum(len(block.batches) * (stop - start) * BATCH * 108 for (start, stop), block in streamed._blocks.items())
    assert streamed._held == held
    streamed.close()


def test_read_ahead_follows_a_stride(data: Dataset) -> None:
    _, streamed = feeds(data)
    for c in range(0, 30, 3):
        streamed.batch_at(slice(0, 3), BASE, c)
    assert streamed.late == 2, "the first, and the one that shows the stride"
    streamed.close()


def test_read_ahead_is_limited_in_bytes(data: Dataset) -> None:
    bytes_a_member = BATCH * 3 * 6 * 6
    resident, streamed = feeds(data, most=0)
    for c in range(6):
        for member in range(3):
            block = slice(member, member + 1)
            assert same(resident, streamed, block, BASE[block], c)
            assert streamed._held <= 3 * 2 * bytes_a_member, "for each block the batch at hand and the next"
    assert streamed.late == 3
    streamed.close()


def test_any_rows_can_be_gathered(data: Dataset) -> None:
    resident, streamed = feeds(data)
    rows = torch.tensor([[0, 20, 3], [21, 5, 5]])
    for mine, theirs in zip(streamed.gather(rows), resident.gather(rows), strict=True):
        assert torch.equal(mine, theirs)
    assert np.array_equal(streamed.member_rows(1), resident.member_rows(1))
    assert len(streamed.x) == len(resident.x) and streamed.x.shape == tuple(resident.x.shape)
    assert streamed.x.numel() == resident.x.numel() and streamed.x.device == resident.x.device
    streamed.close()


def test_data_that_fits_is_resident_with_only_the_members_rows(data: Dataset) -> None:
    cut = partition(data, DataConfig(), None, BATCH, 0)
    resident, _ = feeds(data)
    settings = (BATCH, data.offset, data.scale, torch.float32)
    for members in (slice(0, 3), slice(1, 3), slice(2, 3)):
        n, count = members.stop - members.start, cut.count[members]
        plan = BatchPlan(cut.index[members], count, *settings)
        fits = make_feed(data.x, data.y, plan, CPU)
        streams = make_feed(data.x, data.y, plan, CPU, room=1000)
        assert fits.resident and not streams.resident and len(fits.x) == count.sum()
        for c in range(7):
            expected, y = resident.batch_at(members, BASE[members], c)
            for feed in (fits, streams):
                x, y2 = feed.batch_at(slice(0, n), BASE[members], c)
                assert torch.equal(x, expected) and torch.equal(y, y2)


def test_members_with_the_same_rows_share_one_index(data: Dataset) -> None:
    cut = partition(data, DataConfig(partition="all"), 3, BATCH, 0)
    plan = BatchPlan(cut.index, cut.count, BATCH, data.offset, data.scale, torch.float32)
    made = make_feed(data.x, data.y, plan, CPU)
    resident, _ = feeds(data, "all")
    assert made.resident and made.plan.index.strides[0] == 0 and same(resident, made, slice(0, 3), BASE, 5)


def test_data_that_cannot_be_written_to_causes_no_warning(data: Dataset, recwarn) -> None:
    """As files that are mapped into memory: PyTorch would warn that it shares them."""
    x, y = np.array(data.x[:]), np.array(data.y[:])
    x.flags.writeable = y.flags.writeable = False
    cut = partition(data, DataConfig(partition="all"), 1, BATCH, 0)
    plan = BatchPlan(cut.index, cut.count, BATCH, data.offset, data.scale, torch.float32)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        feed = make_feed(x, y, plan, CPU)
    finally:
        torch.set_warn_always(before)
    assert feed.resident and not recwarn.list


def test_a_herd_trains_to_the_same_weights_with_streamed_data(data: Dataset, tmp_path: Path) -> None:
    """Through the engine, with several critic updates, blocks and members one by one."""
    from ganherd.herd.engine.engines import Engine, Plan
    from ganherd.recipe.schema import Recipe
    from ganherd.training.setup.assemble import assemble

    np.savez(tmp_path / "data.npz", x=np.asarray(data.x), y=data.y, x_test=np.asarray(data.x_test), y_test=data.y_test)
    net = {"name": "small", "width": 4}
    recipe = Recipe.model_validate(
        {
            "data": {"source": str(tmp_path / "data.npz")},
            "nets": {"latent": 2, "generator": net, "discriminator": net},
            "train": {"batch": BATCH, "n_critic": 2},
            "engine": {"device": "cpu", "name": "fused"},
        }
    )
    for name, chunk in (("fused", 3), ("fused", 2), ("loop", 3)):
        ended = []
        for streamed in (False, True):
            herd = assemble(recipe).herd
            if streamed:
                herd.feed = feeds(data)[1]
            Engine(herd, Plan(name, chunk, 1, "cpu")).advance(0, 5, herd.zero_sums())
            ended.append(herd.state)
        assert all(torch.equal(ended[0][key], ended[1][key]) for key in ended[0])
