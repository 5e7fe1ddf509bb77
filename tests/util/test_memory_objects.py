"""Objects in memory: a fingerprint is that of their content, and a name finds the object while it exists."""

from __future__ import annotations

import gc
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import environment
from torch import nn

from ganherd.util.errors import UserError
from ganherd.util.objects import memory_objects
from ganherd.util.objects.memory_objects import MemoryObject, fingerprint

FACTOR = 2


def net(width: int = 3, scale: float = 1.0) -> type[nn.Module]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(x)) * scale

    return Net


def helper(x: float) -> float:
    return x * FACTOR


def calls_helper(x: float) -> float:
    return sum(helper(y) for y in (x,))


def test_equal_code_has_equal_fingerprints() -> None:
    assert fingerprint(net()) == fingerprint(net())
    assert fingerprint(partial(helper, 2)) == fingerprint(partial(helper, 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (net(), net(width=4)),
        (net(), net(scale=2.0)),
        (partial(helper, 2), partial(helper, 3)),
        (lambda: {"a", "b"}, lambda: {"a", "c"}),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (torch.zeros(3), torch.ones(3)),
        (nn.Linear(2, 2), nn.Linear(2, 2)),
    ],
    ids=["width", "closure", "partial", "set", "dtype", "shape", "tensor", "module"],
)
def test_other_content_has_another_fingerprint(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_variable_that_inner_code_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(calls_helper)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert fingerprint(calls_helper) != before


def test_a_variable_with_the_name_of_an_attribute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(net())
    monkeypatch.setitem(globals(), "layer", 3)
    assert fingerprint(net()) == before


def test_a_class_that_refers_to_itself_ends() -> None:
    class Loop:
        others: list[Any] = []

    Loop.others = [Loop, Loop.others]
    assert len(fingerprint(Loop)) == 64


def test_all_types_of_tensors_have_one() -> None:
    kinds = (torch.bfloat16, torch.bool, torch.int64, torch.complex64)
    assert len({fingerprint(torch.ones(2, dtype=kind)) for kind in kinds}) == len(kinds)


@pytest.mark.further
def test_processes_agree(tmp_path: Path) -> None:
    """Sets of texts have another order in each process, which must not count."""
    program = tmp_path / "program.py"
    program.write_text(
        "from ganherd.util.objects.memory_objects import fingerprint\n"
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    kinds = {'a', 'b', 'c', 'd'}\n"
        "    def forward(self, x):\n"
        "        return x if 'a' in {'a', 'b', 'c'} else torch.relu(x)\n"
        "print(fingerprint(Net))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, str(program)],
            env={**environment(), "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1 and len(outputs.pop().strip()) == 64


def test_a_name_finds_its_object_while_it_exists() -> None:
    held = MemoryObject(net(), "Net", fingerprint(net()))
    name = held.name
    assert memory_objects.find(name) is held and memory_objects.label_of(name) == "Net"
    del held
    gc.collect()
    with pytest.raises(UserError, match="Net is an object of the Python process that trained it: give it again"):
        memory_objects.find(name)


def test_a_name_finds_its_object_after_an_equal_one_is_gone() -> None:
    held = MemoryObject(1, "Net", "c" * 64)
    newer = MemoryObject(2, "Net", "c" * 64)
    assert memory_objects.find(held.name) is newer
    del newer
    gc.collect()
    assert memory_objects.find(held.name) is held


def test_another_object_of_the_same_label_is_named() -> None:
    held = MemoryObject(1, "Net", "a" * 64)
    with pytest.raises(UserError, match="Net in this process is not the one that was trained"):
        memory_objects.find(f"memory:Net_{'b' * 12}")
    assert held.label == "Net"


def test_nets_that_ask_for_the_class_of_a_tensor_have_a_fingerprint() -> None:
    def fingerprint_of(kind: type) -> str:
        return fingerprint(lambda x: x if isinstance(x, kind) else None)

    assert fingerprint_of(torch.Tensor) == fingerprint_of(torch.Tensor) != fingerprint_of(np.ndarray)
