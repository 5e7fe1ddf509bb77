"""Tries a user's net out, alone, before it is stacked: what no herd can do right is refused in one sentence.

Members share one module and take turns in it, so nothing but parameters and buffers may pass from one call to the next, and every
random number must come from the member's own stream.
"""

from __future__ import annotations

import os
import re
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ganherd.herd.checks.forward_seeds import no_seeding
from ganherd.herd.checks.hidden_state.comparable import different, equal
from ganherd.herd.checks.hidden_state.outside_state import Outside
from ganherd.herd.checks.hidden_state.python_state import kept_by
from ganherd.herd.checks.module_copies import calling_line, held, is_own, line_of
from ganherd.herd.checks.source_line import where
from ganherd.herd.global_generators import outside_torch
from ganherd.herd.parameter_names import refuse_other_numbers
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import ModuleTraits, seeded
from ganherd.util.errors import UserError, first_line


class CannotRun(UserError):
    """A net raises an error when it is called or differentiated."""


def try_out(
    make: Callable[[], nn.Module], given: Callable[[int], tuple[Tensor, ...]], dtype: torch.dtype
) -> ModuleTraits:
    """Call a net that `make` builds and differentiate it, with two inputs `given(0)` and `given(1)`.

    Raises:
        UserError: it draws random numbers of its own, remembers something from call to call, or cannot be differentiated.
    """
    net, fresh, other = seeded(make, 1), seeded(make, 1), seeded(make, 2)
    kind = type(net).__name__
    refuse_other_numbers(net)
    _refuse_shared_memory(net)
    if second := held(net, net.buffers()):
        raise UserError(f"{kind}{where(net)} keeps a buffer under a second name, {second}: use the buffer itself.")
    for module in (net, fresh, other):
        module.to(dtype)
    nets = (net, fresh, other)
    numbers, before, of_other, outside = _numbers(net), kept_by(net), kept_by(other), Outside(net, nets)
    parameters = [id(parameter) for parameter in net.parameters()]
    _call(net, given(0), 1)
    after = _numbers(net)
    _refuse_other_parameters(net, numbers, after)
    if [id(p) for p in net.parameters()] != parameters:
        raise UserError(
            f"{kind}{where(net)} replaces a parameter in forward, which no optimiser can know: change its numbers instead."
        )
    changed = [name for name, _ in net.named_parameters() if not equal(numbers[name], after[name])]
    left, moved = different(before, kept_by(net)), different(outside.values, Outside(net, nets).values)
    for name in sorted(name for name in left if name.endswith(".requires_grad")):
        raise UserError(
            f"{kind}{where(net)} changes {name} in forward, when members take turns: freeze in its constructor."
        )
    built = different(before, kept_by(fresh)) | different(numbers, _numbers(fresh))
    _refuse_constants(net, built - left, different(before, of_other) - left)
    # the second member in the module of the first must do what it does in its own
    theirs = _numbers(other)
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        value.data = theirs[name]
    calls = [(_call(module, given(1), 2), kept_by(module), Outside(module, nets)) for module in (net, other)]
    (one, kept, outside), (two, also_kept, also_outside) = calls
    in_module, same = different(kept, also_kept), equal(one, two)
    shared = different(outside.values, also_outside.values) or (set() if same or in_module or left else moved)
    _refuse_outside_memory(net, shared, also_outside)
    _refuse_memory(net, left, in_module, same)
    _refuse_outside_memory(net, *_changed_in_evaluation(net, other, given(1)))
    alone = f"its forward changes its parameter {changed[0]}" if changed else ""
    return ModuleTraits(tuple((layer, name) for layer, _, name in (one.rpartition(".") for one in sorted(left))), alone)


# -- one call ---------------------------------------------------------------------------------------------------------


def _call(net: nn.Module, given: tuple[Tensor, ...], key: int) -> list[Any]:
    """Return the answer of one call, the gradients of all parameters, and all parameters and buffers after it."""
    kind, before = type(net).__name__, outside_torch()
    try:
        net.zero_grad()
        with MemberRandomness(torch.tensor(key)), _Draws(kind), no_seeding(kind):
            answer = net(*given)
        with _Backward(net):
            _loss(answer).backward()
    except UserError:
        raise
    except Exception as error:
        raise CannotRun(_mistake(net, given, key, error)) from error
    for name, after in outside_torch().items():
        if not equal(before[name], after):
            line = _line_that_draws(net, given)
            raise UserError(
                f"{kind} draws random numbers with {name} in forward{line}, which no member's stream controls: "
                "use torch.rand or torch.randn instead."
            )
    gradients = [parameter.grad for parameter in net.parameters()]
    return [tree_leaves(answer), gradients, _numbers(net)]


def _changed_in_evaluation(net: nn.Module, other: nn.Module, given: tuple[Tensor, ...]) -> tuple[set[str], Outside]:
    """Call two nets in evaluation mode, and return the variables outside of them that the second call changes."""
    seen = []
    for module in (net, other):
        with suppress(Exception):  # a user's eval() may raise anything; a net that is never sampled need not have one
            module.eval()
        with suppress(CannotRun):  # nothing is differentiated in evaluation mode, so it need not be possible
            _call(module, given, 3)
        seen.append(Outside(module, (net, other)))
    return different(seen[0].values, seen[1].values), seen[1]


def _line_that_draws(net: nn.Module, given: tuple[Tensor, ...]) -> str:
    """Return the line of the user's code that draws from Python or NumPy, in brackets; empty if it is not found."""
    found: list[str] = []
    before, line, around = outside_torch(), "", sys.gettrace()

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal before, line
        if not is_own(frame.f_code.co_filename):
            return None
        if not equal(before, now := outside_torch()):
            found.append(line)
            before = now
        line = f" ({os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno})"
        return trace

    sys.settrace(trace)
    try:
        net(*given)
    finally:
        sys.settrace(around)
    return found[0] if found else ""


def _loss(answer: Any) -> Tensor:
    """Return a number that depends on all that a net answers."""
    leaves = [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor)]
    return torch.stack([leaf.double().square().mean() for leaf in leaves]).sum()


def _mistake(net: nn.Module, given: tuple[Tensor, ...], key: int, error: Exception) -> str:
    """Return one sentence about an error, with the line of the user's code: that of the forward pass for a backward pass."""
    what = first_line(error).split(". ")[0].rstrip(":")
    line = line_of(error) or _line_of_forward(net, given, key)
    if "modified by an inplace operation" in what:
        what, out = (
            "it changes a tensor in place that its gradient needs",
            "write x = x + 1 instead of x += 1, for example",
        )
    else:
        what, out = f"{type(error).__name__}: {what}", "try it with PyTorch alone"
    return f"{type(net).__name__} cannot be trained ({what}{f'; {line}' if line else ''}): {out}."


def _line_of_forward(net: nn.Module, given: tuple[Tensor, ...], key: int) -> str:
    """Return the line whose gradient failed; PyTorch's anomaly mode prints it in a warning."""
    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True, check_nan=False):
        warnings.simplefilter("always")
        try:
            with MemberRandomness(torch.tensor(key)):
                answer = net(*given)
            _loss(answer).backward()
        except Exception:
            pass
    own = type(net).__module__.rpartition(".")[2] + ".py"
    found = [re.findall(rf'File ".*?({re.escape(own)})", line (\d+)', str(warning.message)) for warning in said]
    lines = [match for matches in found for match in matches]
    return f"{lines[-1][0]}, line {lines[-1][1]}" if lines else ""


class _Draws(TorchFunctionMode):
    """Refuses a function that draws from PyTorch's own generator."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.random.get_rng_state()
        out = func(*args, **(kwargs or {}))
        drew = not torch.equal(before, torch.random.get_rng_state())
        if drew and getattr(func, "__module__", "") != "torch.nn.init":  # of a layer that is made in forward
            self._refuse(getattr(func, "__name__", "a function"))
        return out

    def _refuse(self, name: str) -> None:
        raise UserError(
            f"{self._kind} draws random numbers in {name}{calling_line()}, and no member's stream can give those numbers: "
            "use torch.rand, torch.randn or nn.Dropout instead."
        )


class _Backward(TorchDispatchMode):
    """Refuses a backward pass that draws random numbers, as a checkpoint does when it runs its layers again."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._net = net

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UserError(
                f"{type(self._net).__name__}{where(self._net)} draws random numbers within torch.utils.checkpoint, which would "
                "draw others when it runs again in the backward pass: draw them outside of it."
            )
        return func(*args, **(kwargs or {}))


# -- what a net is made of ----------------------------------------------------------------------------------------------


def _numbers(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in (*net.named_parameters(), *net.named_buffers())}


# -- refusals -----------------------------------------------------------------------------------------------------------


def _refuse_shared_memory(net: nn.Module) -> None:
    """Parameters that overlap change each other in PyTorch; in members' rows they would not."""
    places: list[tuple[int, int, int, str]] = []
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        if value.numel():
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            start = value.data_ptr()
            places.append((start, start + (last + 1) * value.element_size(), len(places), name))
    places.sort()
    for (_, end, _, name), (start, _, _, after) in pairwise(places):
        if start < end:
            one, two = sorted((name, after))
            raise UserError(
                f"{one} and {two} of {type(net).__name__}{where(net, two)} share memory, which members' rows cannot: "
                "give each its own, or use one parameter in both places."
            )


def _refuse_constants(net: nn.Module, each_time: set[str], each_member: set[str]) -> None:
    kind, names = type(net).__name__, each_time or each_member
    name = min(names) + where(net, min(names)) if names else ""
    if each_time:
        raise UserError(
            f"{kind} is built with another {name} each time: let it depend on the constructor's arguments alone."
        )
    if each_member:
        raise UserError(
            f"{kind} keeps {name} apart from its parameters and buffers, and it differs from member to member: make it "
            "a buffer, with register_buffer, or a part of the module."
        )


def _refuse_other_parameters(net: nn.Module, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    kind = type(net).__name__
    for name in sorted(before.keys() ^ after.keys()):
        raise UserError(
            f"{kind} makes or removes {name} in forward{where(net, name)}, when no optimiser can know it: do so in its constructor."
        )
    for name, value in before.items():
        if value.shape != after[name].shape or value.dtype != after[name].dtype:
            raise UserError(
                f"{kind} changes the shape or the type of its buffer {name} in forward{where(net, name)}: keep it "
                f"{value.dtype} of shape {tuple(value.shape)}."
            )


def _refuse_memory(net: nn.Module, left: set[str], different: set[str], same: bool) -> None:
    if different or not same:
        names = sorted(different or left)
        what = (", ".join(names) or "a value outside the module") + where(net, *names[:1])
        raise UserError(
            f"{type(net).__name__} remembers {what} from one call of forward to the next, and members take turns in one module: "
            "make it a tensor, with register_buffer."
        )


def _refuse_outside_memory(net: nn.Module, changed: set[str], outside: Outside) -> None:
    """Refuse variables outside of the net that each call changes."""
    innermost = sorted(name for name in changed if not any(other.startswith(f"{name}.") for other in changed))
    if innermost:
        raise UserError(
            f"{type(net).__name__} remembers {outside.describe(innermost)} from one call of forward to the next, and all members "
            "share it: make it a tensor of the module, with register_buffer, or leave it out."
        )
