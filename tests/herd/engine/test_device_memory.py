"""Memory of a GPU is released only when no stream uses it any more."""

from __future__ import annotations

import pytest
import torch

from ganherd.herd.engine.device_memory import avoid_fragments, release_cached


def test_all_streams_have_finished_before_memory_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: calls.append(("synchronize", *args)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(("empty_cache",)))
    device = torch.device("cuda:1")
    release_cached(device)
    assert calls == [("synchronize", device), ("empty_cache",)]


def test_nothing_is_released_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("there is no GPU"))
    release_cached(torch.device("cpu"))


@pytest.mark.gpu
def test_memory_of_a_side_stream_can_be_released_while_the_main_stream_reads_it() -> None:
    avoid_fragments()
    device = torch.device("cuda")
    side, busy = torch.cuda.Stream(device), torch.randn(4096, 4096, device=device)
    for _ in range(20):
        with torch.cuda.stream(side):
            ones = torch.ones(16 << 20, device=device)
        torch.cuda.current_stream(device).wait_stream(side)
        for _ in range(20):
            busy = torch.tanh(busy @ busy)  # so that the sum begins late
        total = ones.sum()
        del ones
        release_cached(device)
        assert total == 16 << 20
