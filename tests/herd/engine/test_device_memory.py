"""PyTorch's segments of GPU memory may grow, unless the user has chosen otherwise."""

from __future__ import annotations

import pytest
import torch

from ganherd.herd.engine import device_memory
from ganherd.herd.engine.device_memory import avoid_fragments, is_large


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
