"""Nets whose forward keeps something outside of the module, one idiom each: what remembers is refused, what is harmless trains.

No answer of a net that is refused depends on what it remembers: the variable itself must be noticed.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import itertools
import logging
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promises import outside_helpers
from promises.outside_helpers import counted
from promises.supported_nets import WIDTH, Net

# -- what is refused --------------------------------------------------------------------------------------------------


class Tracker:
    """A helper of the user's."""

    made = 0

    def __init__(self) -> None:
        self.mean = 0.0

    def update(self, h: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * float(h.detach().mean())


tracker = Tracker()


class HelperObject(Net):
    """A running mean in an object of the file."""

    def mid(self, h: Tensor) -> Tensor:
        tracker.update(h)
        return h


trackers = {"mid": [Tracker()]}


class ObjectInAContainer(Net):
    """… in a list of a dictionary."""

    def mid(self, h: Tensor) -> Tensor:
        trackers["mid"][0].update(h)
        return h


observe = Tracker().update


class BoundMethod(Net):
    """… whose method alone has a name."""

    def mid(self, h: Tensor) -> Tensor:
        observe(h)
        return h


class Slotted:
    __slots__ = ("count", "unset")

    def __init__(self) -> None:
        self.count = 0


slotted = Slotted()


class ObjectWithSlots(Net):
    """An object with `__slots__`."""

    def mid(self, h: Tensor) -> Tensor:
        slotted.count += 1
        return h


class History(list[float]):
    """A container of the user's, whose own methods must not be called."""

    def __iter__(self) -> Iterator[float]:
        raise AssertionError("this runs code of the user")

    __len__ = __getitem__ = __eq__ = __repr__ = __iter__  # type: ignore[assignment]


history = History()


class OwnContainer(Net):
    """An own subclass of a list."""

    def mid(self, h: Tensor) -> Tensor:
        history.append(float(h.detach().mean()))
        return h


recent: collections.deque[float] = collections.deque(maxlen=8)


class Deque(Net):
    """A deque of the last means."""

    def mid(self, h: Tensor) -> Tensor:
        recent.append(float(h.detach().mean()))
        return h


numbers = itertools.count()


class Count(Net):
    """`itertools.count`."""

    def mid(self, h: Tensor) -> Tensor:
        next(numbers)
        return h


signs = itertools.cycle([1, -1, 1])


class Cycle(Net):
    """`itertools.cycle`."""

    def mid(self, h: Tensor) -> Tensor:
        next(signs)
        return h


def _alphas() -> Iterator[float]:
    for step in range(1_000_000):
        yield step / 1_000_000


alphas = _alphas()


class GeneratorObject(Net):
    """A schedule, as a generator."""

    def mid(self, h: Tensor) -> Tensor:
        next(alphas)
        return h


schedule = iter(range(1_000_000))


class RangeIterator(Net):
    """… as an iterator."""

    def mid(self, h: Tensor) -> Tensor:
        next(schedule)
        return h


calls_of_helper = 0


def _count_calls() -> None:
    global calls_of_helper
    calls_of_helper += 1


def _by_way_of() -> None:
    _count_calls()


class HelperFunction(Net):
    """A variable that a helper of a helper counts up."""

    def mid(self, h: Tensor) -> Tensor:
        _by_way_of()
        return h


class OtherFile(Net):
    """… of another file."""

    def mid(self, h: Tensor) -> Tensor:
        counted()
        return h


class AttributeOfAFile(Net):
    """… under the name of the file."""

    def mid(self, h: Tensor) -> Tensor:
        outside_helpers.calls += 1
        return h


def _with_attribute() -> None:
    _with_attribute.calls = getattr(_with_attribute, "calls", 0) + 1  # type: ignore[attr-defined]


class FunctionAttribute(Net):
    """An attribute of a function."""

    def mid(self, h: Tensor) -> Tensor:
        _with_attribute()
        return h


def _with_default(h: Tensor, seen: list[float] = []) -> None:  # noqa: B006
    seen.append(float(h.detach().mean()))


class MutableDefault(Net):
    """A default argument that grows."""

    def mid(self, h: Tensor) -> Tensor:
        _with_default(h)
        return h


def _make_counter() -> Callable[[], int]:
    total = 0

    def count() -> int:
        nonlocal total
        total += 1
        return total

    return count


count_up = _make_counter()


class Closure(Net):
    """A variable of a closure."""

    def mid(self, h: Tensor) -> Tensor:
        count_up()
        return h


def _timed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    runs: list[int] = []

    @functools.wraps(function)
    def wrapped(*given: Any) -> Tensor:
        runs.append(len(given))
        return function(*given)

    return wrapped


class Decorated(Net):
    """A method under a decorator that counts."""

    @_timed
    def mid(self, h: Tensor) -> Tensor:
        return h


def _append(to: list[int], value: int) -> None:
    to.append(value)


append = functools.partial(_append, [])


class Partial(Net):
    """`functools.partial` of a list."""

    def mid(self, h: Tensor) -> Tensor:
        append(1)
        return h


class ClassOfAHelper(Net):
    """An attribute of a helper's class."""

    def mid(self, h: Tensor) -> Tensor:
        Tracker.made += 1
        return h


class OwnClass(Net):
    """An attribute of the net's class."""

    uses = 0

    def mid(self, h: Tensor) -> Tensor:
        type(self).uses += 1
        return h


python_rng, numpy_rng, old_rng = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)


class PythonGenerator(Net):
    """`random.Random`, as in style mixing."""

    def mid(self, h: Tensor) -> Tensor:
        return h * 0.5 if python_rng.random() < 1e-9 else h


class NumpyGeneratorOutside(Net):
    """`np.random.default_rng`."""

    def mid(self, h: Tensor) -> Tensor:
        return h * 0.5 if numpy_rng.random() < 1e-9 else h


class NumpyRandomState(Net):
    """`np.random.RandomState`."""

    def mid(self, h: Tensor) -> Tensor:
        return h * 0.5 if old_rng.rand() < 1e-9 else h


config = {"step": 0, "alpha": 0.5}


class ChangedConfig(Net):
    """A dictionary of settings that forward reads and changes."""

    def mid(self, h: Tensor) -> Tensor:
        h = h * config["alpha"]
        config["step"] += 1
        return h


state = types.SimpleNamespace(step=0)


class ChangedNamespace(Net):
    """A namespace that forward changes."""

    def mid(self, h: Tensor) -> Tensor:
        state.step += 1
        return h


step, of_thread = contextvars.ContextVar("step", default=0), threading.local()


class ContextVariable(Net):
    """A context variable."""

    def mid(self, h: Tensor) -> Tensor:
        step.set(step.get() + 1)
        return h


class ThreadVariable(Net):
    """A variable of a thread."""

    def mid(self, h: Tensor) -> Tensor:
        of_thread.calls = getattr(of_thread, "calls", 0) + 1
        return h


class AttributeOfALibrary(Net):
    """A variable in the module of a third party."""

    def mid(self, h: Tensor) -> Tensor:
        logging.calls = getattr(logging, "calls", 0) + 1  # type: ignore[attr-defined]
        return h


norm = nn.BatchNorm1d(WIDTH)


class LayerOfTheFile(Net):
    """A batch norm that belongs to no net."""

    def mid(self, h: Tensor) -> Tensor:
        norm(h.detach().float())
        return h


running = torch.zeros(WIDTH)


class TensorOfTheFile(Net):
    """A running mean that belongs to no net."""

    def mid(self, h: Tensor) -> Tensor:
        running.mul_(0.9).add_(h.detach().mean(0).float(), alpha=0.1)
        return h


table, bank = torch.zeros(600_000), torch.from_numpy(np.zeros(20_000_000, np.float32))


class LargeTensor(Net):
    """One number of a tensor that is too large to be copied."""

    def mid(self, h: Tensor) -> Tensor:
        table[7] += 1
        return h


class LargestTensor(Net):
    """One number of a tensor that is too large even to be read."""

    def mid(self, h: Tensor) -> Tensor:
        bank[7] += 1
        return h


backward_calls = 0


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        global backward_calls
        backward_calls += 1
        return grad


class BackwardCounter(Net):
    """A variable that a backward pass counts up."""

    def mid(self, h: Tensor) -> Tensor:
        return _Counted.apply(h)


hook_calls = 0


def _counting_hook(layer: nn.Module, given: Any, out: Tensor) -> None:
    global hook_calls
    hook_calls += 1


class HookCounter(Net):
    """A variable that a hook counts up."""

    def setup(self) -> None:
        self.f.register_forward_hook(_counting_hook)


class LateVariable(Net):
    """A variable that forward itself makes."""

    def mid(self, h: Tensor) -> Tensor:
        global late
        late = globals().get("late", 0) + 1
        return h


samples = 0


class CountedSamples(Net):
    """A variable that only calls in evaluation mode count up."""

    def mid(self, h: Tensor) -> Tensor:
        global samples
        samples += 0 if self.training else 1
        return h


@functools.lru_cache
def _merged(net: Net) -> Tensor:
    return net.f.weight.detach().clone()


class CachedByNet(Net):
    """`functools.lru_cache` of a function of the net: members would get each other's answers."""

    def mid(self, h: Tensor) -> Tensor:
        return h + 1e-12 * _merged(self).sum()


# -- what is harmless -------------------------------------------------------------------------------------------------

GAIN, SHIFT, SETTINGS = 0.5, torch.linspace(-1, 1, WIDTH), {"alpha": 0.5, "layers": [1, 2]}


class Constants(Net):
    """Numbers, tensors and dictionaries of the file."""

    def mid(self, h: Tensor) -> Tensor:
        return h * GAIN * SETTINGS["alpha"] + SHIFT.to(h) + outside_helpers.gain


class Mode(enum.Enum):
    PLAIN, TWICE = 1, 2


@dataclasses.dataclass
class Options:
    mode: Mode = Mode.TWICE
    gain: float = 0.5


options = Options()


class ConfigObject(Net):
    """Settings in an object."""

    def mid(self, h: Tensor) -> Tensor:
        return h * options.gain * options.mode.value


@functools.cache
def _ramp(size: int) -> Tensor:
    return torch.linspace(0, 1, size)


class PureCache(Net):
    """`functools.lru_cache` of a function of sizes; only its hits are counted up."""

    def mid(self, h: Tensor) -> Tensor:
        return h + _ramp(h.shape[1]).to(h)


grids: dict[int, Tensor] = {}


class DictionaryAsCache(Net):
    """A dictionary that the first call fills."""

    def mid(self, h: Tensor) -> Tensor:
        if h.shape[1] not in grids:
            grids[h.shape[1]] = torch.linspace(0, 1, h.shape[1])
        return h + grids[h.shape[1]].to(h)


last: collections.deque[float] = collections.deque(maxlen=1)


class LastOnly(Net):
    """Something to be looked at, which each call overwrites."""

    def mid(self, h: Tensor) -> Tensor:
        last.append(h.shape[1] / 2)
        return h


warned = False


class WarnsOnce(Net):
    """A variable that the first call sets."""

    def mid(self, h: Tensor) -> Tensor:
        global warned
        warned = True
        return h


logger, lock = logging.getLogger(__name__), threading.Lock()


class Logs(Net):
    """A logger and a lock."""

    def mid(self, h: Tensor) -> Tensor:
        with lock:
            logger.debug("features: %s", h.shape)
        return h


registry: list[nn.Module] = []


class Registered(Net):
    """A list of all nets that were made."""

    def setup(self) -> None:
        registry.append(self)

    def mid(self, h: Tensor) -> Tensor:
        return h * min(len(registry), 1)


blur = nn.Linear(WIDTH, WIDTH).requires_grad_(False).double()
everything, images = list(range(3_000_000)), np.zeros((20_000, 3, 64, 64), np.float32)
names = {number: str(number) for number in range(100_000)}


class FixedLayer(Net):
    """A fixed layer of the file."""

    def mid(self, h: Tensor) -> Tensor:
        return blur.to(h)(h)


class Notebook(Net):
    """Large variables of a notebook."""

    def mid(self, h: Tensor) -> Tensor:
        return h * (everything[2] / 2) + float(images[0, 0, 0, 0]) + len(names[0])
