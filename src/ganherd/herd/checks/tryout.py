"""Try out a user's net before a run, and refuse nets that no engine can train correctly.

Members (GANs) take turns in one module of the net, with their own parameters and buffers. Therefore nothing else may
carry state from one call to the next, and every random number must come from the member's own random stream.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from ganherd.herd.checks.forward_draws import RefuseDraws, RefuseDrawsInBackward, line_that_draws, no_seeding
from ganherd.herd.checks.hidden_state.comparable import differing_names, equal
from ganherd.herd.checks.hidden_state.outside_state import OutsideState
from ganherd.herd.checks.hidden_state.python_state import copy_attributes, copy_numbers
from ganherd.herd.checks.module_copies import find_second_reference, line_of, short_message
from ganherd.herd.checks.source_line import assignment_line
from ganherd.herd.global_generators import outside_torch
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.parameter_names import refuse_unsupported_tensors
from ganherd.herd.state import ModuleTraits, build_seeded
from ganherd.util.errors import UserError, first_line
from ganherd.util.memory import is_out_of_memory

Inputs = tuple[Tensor, ...]


class CannotRun(UserError):
    """Raised if a net fails when it is called or differentiated."""


def try_out(make: Callable[[], nn.Module], inputs: Callable[[int], Inputs], dtype: torch.dtype) -> ModuleTraits:
    """Call and differentiate a net, and return the traits that engines have to respect.

    Args:
        make: Builds the net.
        inputs: Returns the arguments of `forward` for the first call if it gets 0, and for the second call if it gets
            1.
        dtype: The dtype of the net.

    Raises:
        UserError: If the net draws random numbers outside of the member's stream, has state other than parameters and
            buffers, or cannot be differentiated.
    """
    nets = net, fresh, other = [build_seeded(make, seed) for seed in (1, 1, 2)]
    refuse_unsupported_tensors(net)
    _refuse_shared_memory(net)
    for module in nets:
        module.to(dtype)
    # The first call: what does it change?
    numbers, before, of_other = copy_numbers(net), copy_attributes(net), copy_attributes(other)
    outside, parameters = OutsideState(net, nets).values, list(net.parameters())
    _call(net, inputs(0), 1)
    _refuse_other_parameters(net, numbers, parameters)
    changed = [name for name, value in net.named_parameters() if not equal(numbers[name], value.detach())]
    left = differing_names(before, copy_attributes(net)) | _recomputed(net)
    moved = differing_names(outside, OutsideState(net, nets).values)
    built = differing_names(before, copy_attributes(fresh)) | differing_names(numbers, copy_numbers(fresh))
    _refuse_attributes(net, left, built - left, differing_names(before, of_other) - left)
    # The second call: another member must get the same results in this module as in its own module.
    numbers_of_other = copy_numbers(other)
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        value.data = numbers_of_other[name]
    results, attributes, states = [], [], []
    for module in (net, other):
        results.append(_call(module, inputs(1), 2))
        attributes.append(copy_attributes(module))
        states.append(OutsideState(module, nets))
    in_module, same = differing_names(*attributes), equal(*results)
    shared = differing_names(*(state.values for state in states)) or (set() if same or in_module or left else moved)
    _refuse_outside_memory(net, shared, states[1])
    _refuse_memory(net, left, in_module, same)
    _refuse_outside_memory(net, *_changed_in_evaluation(net, other, inputs(1)))
    why_not_fused = f"its forward changes its parameter {changed[0]}" if changed else ""
    paths = [path.rpartition(".") for path in sorted(left)]
    return ModuleTraits(tuple((layer, name) for layer, _, name in paths), why_not_fused)


def refuse_cpu_only(make: Callable[[], nn.Module], inputs: Inputs, dtype: torch.dtype, device: torch.device) -> None:
    """Call and differentiate a net once on the device of the run, and refuse it if it fails.

    On a GPU a net fails that creates tensors on the CPU in `forward`.

    Args:
        make: Builds the net, which was already tried out on the CPU.
        inputs: Arguments of `forward`.

    Raises:
        UserError: If the net fails for another reason than too little memory.
    """
    net = build_seeded(make, 1).to(device, dtype)
    try:
        with MemberRandomness(torch.tensor(1, device=device)):
            output = net(*(value.to(device) for value in inputs))
        _loss(output).backward()
    except UserError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):  # what fits is measured later
            raise UserError(
                f"{type(net).__name__} runs on the CPU, but not on {device} ({short_message(error)}): give tensors that its "
                "forward makes device=x.device, and register tensors that it keeps as buffers."
            ) from error


def _recomputed(net: nn.Module) -> set[str]:
    """Return the names of the weights that PyTorch's spectral and weight norms (hooks) recompute in each call."""
    return {
        f"{name}.{hook.name}".lstrip(".")
        for name, layer in net.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, (SpectralNorm, WeightNorm))
    }


def try_other_batch(
    make: Callable[[], nn.Module], first: Inputs, then: Inputs, dtype: torch.dtype, traits: ModuleTraits
) -> ModuleTraits:
    """Call a net with two batches of different sizes, because training and health checks use different sizes.

    Args:
        make: Builds the net.
        first: Arguments of `forward` with which the net was tried out.
        then: Arguments with another number of samples.
        traits: The traits that were observed when the net was tried out.

    Returns:
        The traits, with the attributes added that change only if the size of the batch changes.

    Raises:
        UserError: If the net fails with the second batch.
    """
    net, batches = build_seeded(make, 1).to(dtype), (first, then)
    before = copy_attributes(net)
    for number, inputs in enumerate(batches):
        try:
            with MemberRandomness(torch.tensor(1)):
                net(*inputs)
        except Exception as error:
            if number == 0 or is_out_of_memory(error):
                raise
            sizes = [len(one[0]) for one in batches]
            raise UserError(
                f"{type(net).__name__} runs with {sizes[0]} samples, but fails with {sizes[1]} ({short_message(error)}), the "
                "number that health checks and pictures use. Read the batch size from the input, e.g. x.shape[0], and store "
                "nothing that depends on it."
            ) from error
    paths = [path.rpartition(".") for path in sorted(differing_names(before, copy_attributes(net)))]
    names = {*traits.transient_attributes, *((layer, name) for layer, _, name in paths)}
    return traits._replace(transient_attributes=tuple(sorted(names)))


# -- one call ---------------------------------------------------------------------------------------------------------


def _call(net: nn.Module, inputs: Inputs, key: int) -> list[Any]:
    """Call and differentiate a net. Return its outputs, the gradients, and the parameters and buffers after the call.

    Args:
        key: The key of the random draws inside the net.

    Raises:
        CannotRun: If the call or its backward pass fails.
        UserError: If the net draws random numbers that the member's stream does not control.
    """
    kind, before = type(net).__name__, outside_torch()
    try:
        net.zero_grad()
        with MemberRandomness(torch.tensor(key)), RefuseDraws(kind), no_seeding(kind):
            output = net(*inputs)
        with RefuseDrawsInBackward(net):
            _loss(output).backward()
    except UserError:
        raise
    except Exception as error:
        raise CannotRun(_mistake(net, inputs, key, error)) from error
    for name, after in outside_torch().items():
        if not equal(before[name], after):
            line = line_that_draws(net, inputs)
            raise UserError(
                f"{kind} draws random numbers with {name} in forward{line}, which no member's stream controls: "
                "use torch.rand or torch.randn instead."
            )
    for name, parameter in net.named_parameters():
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise UserError(
                f"the parameter {name} of {kind}{assignment_line(net, name)} gets a sparse gradient, which Adam does not take: "
                "leave sparse=True out."
            )
    gradients = [parameter.grad for parameter in net.parameters()]
    return [tree_leaves(output), gradients, copy_numbers(net)]


def _changed_in_evaluation(net: nn.Module, other: nn.Module, inputs: Inputs) -> tuple[set[str], OutsideState]:
    """Call two nets in evaluation mode, and return the variables outside of them that the second call changes.

    Returns:
        The names of these variables, and all outside variables after the second call.
    """
    snapshots = []
    for module in (net, other):
        with suppress(Exception):  # a user's eval() may raise anything; a net that is never sampled need not have one
            module.eval()
        with suppress(CannotRun):  # nothing is differentiated in evaluation mode, so it need not be possible
            _call(module, inputs, 3)
        snapshots.append(OutsideState(module, (net, other)))
    return differing_names(snapshots[0].values, snapshots[1].values), snapshots[1]


def _loss(output: Any) -> Tensor:
    """Return a number, as a loss to differentiate, that depends on all tensors of a net's output."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    return torch.stack([leaf.double().square().mean() for leaf in leaves]).sum()


def _mistake(net: nn.Module, inputs: Inputs, key: int, error: Exception) -> str:
    """Return a sentence for users about an error of a forward or backward pass, with the line that causes it."""
    problem = first_line(error).split(". ")[0].rstrip(":")
    line = line_of(error) or _line_of_forward(net, inputs, key)
    if "modified by an inplace operation" in problem:
        problem = "it changes a tensor in place that its gradient needs"
        advice = "write x = x + 1 instead of x += 1, for example"
    else:
        problem, advice = f"{type(error).__name__}: {problem}", "try it with PyTorch alone"
    return f"{type(net).__name__} cannot be trained ({problem}{f'; {line}' if line else ''}): {advice}."


def _line_of_forward(net: nn.Module, inputs: Inputs, key: int) -> str:
    """Return the line of `forward` whose gradient fails, e.g. "nets.py, line 12"; empty if it is not found.

    The net is called again in PyTorch's anomaly mode, which names the line in a warning.
    """
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True, check_nan=False):
        warnings.simplefilter("always")
        with suppress(Exception):
            with MemberRandomness(torch.tensor(key)):
                output = net(*inputs)
            _loss(output).backward()
    file = type(net).__module__.rpartition(".")[2] + ".py"
    pattern = re.compile(rf'File ".*?({re.escape(file)})", line (\d+)')
    lines = [match for warning in caught for match in pattern.findall(str(warning.message))]
    return f"{lines[-1][0]}, line {lines[-1][1]}" if lines else ""


# -- refusals -----------------------------------------------------------------------------------------------------------


def _refuse_shared_memory(net: nn.Module) -> None:
    """Raise `UserError` if parameters or buffers overlap in memory, or if a buffer has a second name.

    In plain PyTorch such tensors change each other, but a member's tensors are stored separately.
    """
    ranges: list[tuple[int, int, int, str]] = []  # first address, end, number of the tensor, name
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        if value.numel():
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            start = value.data_ptr()
            ranges.append((start, start + (last + 1) * value.element_size(), len(ranges), name))
    ranges.sort()
    for (_, end, _, name), (start, _, _, after) in pairwise(ranges):
        if start < end:
            one, two = sorted((name, after))
            raise UserError(
                f"{one} and {two} of {type(net).__name__}{assignment_line(net, two)} share memory, which members' rows cannot: "
                "give each its own, or use one parameter in both places."
            )
    if second := find_second_reference(net, net.buffers()):
        raise UserError(
            f"{type(net).__name__}{assignment_line(net)} keeps a buffer under a second name, {second}: use the buffer itself."
        )


def _refuse_attributes(net: nn.Module, changed: set[str], each_time: set[str], each_member: set[str]) -> None:
    """Raise `UserError` if a net freezes or unfreezes parameters in `forward`, or if attributes differ between members.

    Args:
        changed: Names of attributes that a call changes.
        each_time: Names of attributes that differ between two nets that were built with the same seed.
        each_member: Names of attributes that differ between two nets that were built with different seeds.
    """
    kind, names = type(net).__name__, each_time or each_member
    for frozen in sorted(name for name in changed if name.endswith(".requires_grad")):
        raise UserError(
            f"{kind}{assignment_line(net)} changes {frozen} in forward, when members take turns: freeze in its constructor."
        )
    name = min(names) + assignment_line(net, min(names)) if names else ""
    if each_time:
        raise UserError(
            f"{kind} is built with another {name} each time: let it depend on the constructor's arguments alone."
        )
    if each_member:
        raise UserError(
            f"{kind} keeps {name} apart from its parameters and buffers, and it differs from member to member: make it "
            "a buffer, with register_buffer, or a part of the module."
        )


def _refuse_other_parameters(net: nn.Module, before: dict[str, Tensor], parameters: list[nn.Parameter]) -> None:
    """Raise `UserError` if `forward` added, removed or replaced parameters or buffers, or changed their shape or dtype.

    Args:
        before: Copies of all parameters and buffers before the call, by name.
        parameters: The parameters before the call.
    """
    kind, after = type(net).__name__, dict((*net.named_parameters(), *net.named_buffers()))
    for name in sorted(before.keys() ^ after.keys()):
        raise UserError(
            f"{kind} makes or removes {name} in forward{assignment_line(net, name)}, when no optimiser can know it: "
            "do so in its constructor."
        )
    for name, value in before.items():
        if value.shape != after[name].shape or value.dtype != after[name].dtype:
            raise UserError(
                f"{kind} changes the shape or the type of its buffer {name} in forward{assignment_line(net, name)}: keep it "
                f"{value.dtype} of shape {tuple(value.shape)}."
            )
    if list(map(id, net.parameters())) != list(map(id, parameters)):
        raise UserError(
            f"{kind}{assignment_line(net)} replaces a parameter in forward, which no optimiser can know: change its numbers "
            "instead."
        )


def _refuse_memory(net: nn.Module, changed: set[str], different: set[str], same: bool) -> None:
    """Raise `UserError` if results or attributes depend on whether another member has used the module before.

    Args:
        changed: Names of attributes that a call changes.
        different: Names of attributes that differ between a module that another member has used and a new one.
        same: Whether both modules give the same results.
    """
    if different or not same:
        names = sorted(different or changed)
        subject = (", ".join(names) or "a value outside the module") + assignment_line(net, *names[:1])
        raise UserError(
            f"{type(net).__name__} remembers {subject} from one call of forward to the next, and members take turns in one module: "
            "make it a tensor, with register_buffer."
        )


def _refuse_outside_memory(net: nn.Module, changed: set[str], outside: OutsideState) -> None:
    """Raise `UserError` if calls change variables outside of the net.

    Args:
        changed: Names of the variables that calls change.
        outside: All variables outside of the net.
    """
    innermost = sorted(name for name in changed if not any(other.startswith(f"{name}.") for other in changed))
    if innermost:
        raise UserError(
            f"{type(net).__name__} remembers {outside.describe(innermost)} from one call of forward to the next, and all members "
            "share it: make it a tensor of the module, with register_buffer, or leave it out."
        )
