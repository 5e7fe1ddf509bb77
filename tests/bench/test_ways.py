"""Every way to train works, in a CUDA graph on a GPU, and none of them mixes members."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ganherd.bench.cases import CASES, recipe_of
from ganherd_benchmarks import ways
from ganherd_benchmarks.grouped import GroupedHerd
from ganherd_benchmarks.plain import PlainGanPair, RivalWork


def work(name: str, device: str, precision: str = "float32", batch: int = 4) -> RivalWork:
    case = replace(CASES[name], batch=batch)
    data = torch.randint(0, 256, (9, *case.shape), dtype=torch.uint8)
    return RivalWork.of(case, recipe_of(case, 2, "random", device, precision), data, torch.device(device))


@pytest.mark.parametrize("way", [ways.eager, ways.grouped])
def test_ways_on_a_cpu(way) -> None:
    found = way(work("small", "cpu"), 2, 0.01)
    assert found.rate > 0 and found.peak > 0 and found.engine == way.__name__


def test_rate_counts_members() -> None:
    """`each` is what one call stands for."""
    calls = []
    assert ways.timed(lambda: calls.append(1), 1000, 0.001, torch.device("cpu")) > 1000
    assert len(calls) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("name", ["mlp", "wcgan", "residual"])
@pytest.mark.parametrize("way", [ways.eager, ways.streams, ways.grouped])
def test_ways_on_a_gpu(way, name: str, precision: str) -> None:
    found = way(work(name, "cuda", precision, batch=8), 3, 0.05)
    assert found.rate > 0 and 0 < found.peak <= found.reserved


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make", [lambda w: [PlainGanPair(w), PlainGanPair(w)], lambda w: [GroupedHerd(w, 2)]], ids=["pairs", "grouped"]
)
def test_a_replay_is_a_step(make) -> None:
    """Weights move at every replay, by other numbers each time."""
    herds = make(work("wcgan", "cuda", "bf16"))
    replay = ways.captured(lambda: [one.step() for one in herds] and None, torch.device("cuda"))
    nets = [one.g for one in herds]
    params = [p for net in nets for p in (net.parameters() if hasattr(net, "parameters") else net.params.values())]
    seen = []
    for _ in range(3):
        replay()
        seen.append(torch.cat([p.detach().flatten() for p in params]).clone())
    first, second = seen[1] - seen[0], seen[2] - seen[1]
    assert first.abs().max() > 0 and second.abs().max() > 0 and not torch.equal(first, second)
