"""State that a net keeps outside of the module is refused with its name and line; harmless variables are not."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from further_tests import EACH_VALUE

from ganherd.herd.checks.hidden_state.outside_state import OutsideState
from ganherd.util.errors import UserError
from promises import outside_nets as nets
from promises.test_fused_equals_separate import differences
from promises.test_own_nets import herd_of, plan_of

# the variable that a refusal names, and the code on the line that it names
REMEMBERS = {
    nets.HelperObject: ("tracker.mean", "self.mean = 0.9"),
    nets.ObjectInAContainer: ("trackers.mean", "self.mean = 0.9"),
    nets.BoundMethod: ("observe.mean", "self.mean = 0.9"),
    nets.ObjectWithSlots: ("slotted.count", "slotted.count += 1"),
    nets.OwnContainer: ("history", "history.append"),
    nets.Deque: ("recent", "recent.append"),
    nets.Count: ("numbers", "next(numbers)"),
    nets.Cycle: ("signs", "next(signs)"),
    nets.GeneratorObject: ("alphas", "next(alphas)"),
    nets.RangeIterator: ("schedule", "next(schedule)"),
    nets.HelperFunction: ("calls_of_helper", "calls_of_helper += 1"),
    nets.OtherFile: ("calls", "calls += 1"),
    nets.AttributeOfAFile: ("outside_helpers.calls", "outside_helpers.calls += 1"),
    nets.FunctionAttribute: ("_with_attribute.calls", "_with_attribute.calls = "),
    nets.MutableDefault: ("seen", "seen.append"),
    nets.Closure: ("total", "total += 1"),
    nets.Decorated: ("runs", "runs.append"),
    nets.Partial: ("append", "append(1)"),
    nets.ClassOfAHelper: ("Tracker.made", "Tracker.made += 1"),
    nets.OwnClass: ("OwnClass.uses", "type(self).uses += 1"),
    nets.PythonGenerator: ("python_rng", "python_rng.random()"),
    nets.NumpyGeneratorOutside: ("numpy_rng", "numpy_rng.random()"),
    nets.NumpyRandomState: ("old_rng", "old_rng.rand()"),
    nets.ChangedConfig: ("config", 'config["step"] += 1'),
    nets.ChangedNamespace: ("state", "state.step += 1"),
    nets.ContextVariable: ("step", "step.set("),
    nets.ThreadVariable: ("of_thread", "of_thread.calls = "),
    nets.AttributeOfALibrary: ("logging.calls", "logging.calls = "),
    nets.LayerOfTheFile: ("norm", "norm(h.detach().float())"),
    nets.TensorOfTheFile: ("running", "running.mul_"),
    nets.LargeTensor: ("table", "table[7] += 1"),
    nets.LargestTensor: ("bank", "bank[7] += 1"),
    nets.BackwardCounter: ("backward_calls", "backward_calls += 1"),
    nets.HookCounter: ("hook_calls", "hook_calls += 1"),
    nets.LateVariable: ("late", "late = globals()"),
    nets.CountedSamples: ("samples", "samples += 0 if self.training"),
    nets.CachedByNet: ("_merged", "_merged(self)"),
}
HARMLESS = [
    nets.Constants,
    nets.ConfigObject,
    nets.PureCache,
    nets.DictionaryAsCache,
    nets.LastOnly,
    nets.WarnsOnce,
    nets.Logs,
    nets.Registered,
    nets.FixedLayer,
    nets.Notebook,
]


@pytest.mark.parametrize("net", REMEMBERS, ids=lambda net: net.__name__)
def test_a_variable_outside_of_the_net_is_refused_with_its_name_and_line(tmp_path: Path, net: type) -> None:
    variable, code = REMEMBERS[net]
    with pytest.raises(UserError, match=rf"^{net.__name__} remembers .*register_buffer") as refusal:
        herd_of(tmp_path, net)
    found = re.search(r"remembers (\S+) \((outside_\w+\.py), line (\d+)\) from", str(refusal.value))
    assert found and found[1] == variable, str(refusal.value)
    assert code in (Path(nets.__file__).parent / found[2]).read_text().splitlines()[int(found[3]) - 1]


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("net", HARMLESS, ids=lambda net: net.__name__)
@pytest.mark.parametrize("engine", ["loop", "fused"])
def test_a_net_with_harmless_variables_trains_as_in_plain_pytorch(tmp_path: Path, net: type, engine: str) -> None:
    found = differences(herd_of(tmp_path, net), 2, plan_of(engine))
    assert max(found.values()) < 1e-9, found


def test_large_variables_of_a_notebook_are_neither_copied_nor_read_as_a_whole() -> None:
    net = nets.Notebook((1, 3, 3), 3)
    tracemalloc.start()
    try:
        outside = OutsideState(net)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {"everything", "images", "names"} <= outside.values.keys()
    assert peak < 16 << 20 and sum(map(_count, outside.values.values())) < 20_000


def _count(value: Any) -> int:
    """Return the numbers and names that a compared value is made of."""
    if isinstance(value, (list, tuple)):
        return sum(map(_count, value))
    return value.numel() if isinstance(value, torch.Tensor) else 1
