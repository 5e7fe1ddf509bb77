"""PyTorch's segments of GPU memory may grow, unless the user has chosen otherwise; memory is released only when unused."""

from __future__ import annotations

import pytest
import torch

from ganherd.herd.engine import device_memory
from ganherd.herd.engine.device_memory import avoid_fragments, is_large, release_cached


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives what the allocator is set to."""
    received: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", received.append, raising=False)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    return received


def test_segments_may_grow(settings: list[str]) -> None:
    avoid_fragments()
    assert settings == ["expandable_segments:True"]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_users_own_settings_are_left_alone(settings: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "backend:cudaMallocAsync")
    avoid_fragments()
    assert settings == []


def test_an_older_pytorch_has_another_function(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", settings.append)
    avoid_fragments()
    assert settings == ["expandable_segments:True"]


def test_a_state_is_large_if_it_takes_more_than_a_sixteenth_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"g.params": torch.zeros(4, 100), "set.seed": torch.zeros(4, dtype=torch.int64)}  # 1,632 bytes
    for total, expected in ((16 * 1632, False), (16 * 1632 - 1, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, total=total: (0, total))
        assert is_large(state, torch.device("cuda")) is expected


@pytest.mark.gpu
def test_a_captured_graph_uses_segments_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    device_memory.avoid_fragments()
    torch.cuda.empty_cache()
    values, graph = torch.zeros(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = values * 2
    segments = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) != (0, 0)]
    assert segments and all(one["is_expandable"] for one in segments)
    values.fill_(3)
    graph.replay()
    assert doubled.eq(6).all()


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
