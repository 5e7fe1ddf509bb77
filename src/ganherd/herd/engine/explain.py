"""Explain to users how each layer of a herd's nets runs for all members (GANs), on this machine and on a GPU.

A layer can run by a kernel, by PyTorch on all members at once, or through `vmap`; see `herd.lowering.lower`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ganherd.herd import rng
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.lowering.graph.trace import NotTraceable
from ganherd.herd.lowering.lower import FUSED, VMAP, LoweredOperation
from ganherd.herd.lowering.network import lower_net
from ganherd.herd.lowering.vmap import mute_slow_operations
from ganherd.herd.state import Blueprint
from ganherd.herd.step.rules import StepRules
from ganherd.util.files import JsonObject
from ganherd.util.text import text_table


def explain(herd: StackedHerd, guards: Sequence[JsonObject] = ()) -> JsonObject:
    """Return facts about how the nets run, without training them.

    Args:
        guards: For each net, the result of comparing engines with plain PyTorch; see `herd.checks.guard`. (): leave it
            out.

    Returns:
        {"device", "nets", "one_by_one"}. Each net has "layers"; for each layer, `here` (this machine) and `gpu` are
        {"how": method, "why": reason}.
    """
    mute_slow_operations()  # `guards` lists these operations
    slopes = not herd.rules.slope_noise and herd.rules.uses_r1_or_r2
    penalised = herd.rules.game.penalty or slopes  # penalties differentiate the discriminator twice
    facts = [_net(herd, "generator", breed.g, False) for breed in herd.breeds.all]
    facts.append(_net(herd, "discriminator", herd.d, penalised))
    if guards:
        facts = [net | {"guard": guard} for net, guard in zip(facts, guards, strict=True)]
    differences = [guard["engines"]["fused"]["why"] for guard in guards]
    return {
        "device": str(herd.device),
        "nets": facts,
        # why members must train one by one; empty if they need not
        "one_by_one": autotune.cannot_be_fused(herd) or next(filter(None, differences), ""),
    }


def _net(herd: StackedHerd, role: str, net: Blueprint, double_backward: bool) -> JsonObject:
    """Return the facts about one net.

    Args:
        role: "generator" or "discriminator".
        double_backward: Whether a gradient penalty differentiates the net twice.
    """
    gpu = _why_no_kernels(herd)
    here = gpu if herd.device.type == "cuda" else "they need a GPU"
    return {
        "role": role,
        "net": type(net.module).__name__,
        "parameters": net.num_params,
        "no_kernels": {"here": here, "gpu": gpu},
        "penalty": _penalty(net, herd.rules) if double_backward and not gpu else "",
        "layers": _layers(net, herd.rules, not here, not gpu),
    }


def _penalty(net: Blueprint, rules: StepRules) -> str:
    """Return a phrase that counts the layers by their method in the forward pass of a gradient penalty."""
    operations = _lowered(net, rules, "triton", twice=True)
    return f"the pass of the penalty is differentiated twice: there {_count_methods(op.method for op in operations)}"


def _why_no_kernels(herd: StackedHerd) -> str:
    """Return why Triton kernels would not be used on a GPU; empty if they would."""
    if herd.rules.precision == "float64":
        return "they do not support float64"
    if not rng.HAS_TRITON:
        return "Triton, in which they are written, is not installed"
    return ""


def _layers(net: Blueprint, rules: StepRules, here: bool, gpu: bool) -> list[JsonObject]:
    """Return the facts about each layer of a net.

    Args:
        here, gpu: Whether kernels are used on this machine and on a GPU.
    """
    shown, operations_on_gpu = (_lowered(net, rules, "triton" if kernels else "cpu") for kernels in (here, gpu))
    on_gpu = {op.node: op for op in operations_on_gpu}
    # Kernels run a convolution and a parameter that is added to it as one layer, which has the name of the sum.
    joined = LoweredOperation("", "", FUSED, "a part of the convolution with its bias")
    return [
        {
            "layer": op.layer,
            "what": op.operation,
            "here": {"how": op.method, "why": op.reason},
            "gpu": {"how": (twin := on_gpu.get(op.node, joined)).method, "why": twin.reason},
        }
        for op in shown
    ]


def _lowered(net: Blueprint, rules: StepRules, operations: str, twice: bool = False) -> list[LoweredOperation]:
    """Return how each operation of a net runs; a single entry for the whole net if it cannot be traced.

    Args:
        operations: The library of operations.
        twice: Use only operations that can be differentiated twice.
    """
    try:
        lowered = lower_net(net, operations, twice)
    except NotTraceable as why:
        return [LoweredOperation("all of it", type(net.module).__name__, VMAP, str(why))]
    return lowered.explain(rules.batch, torch.bfloat16 if rules.precision == "bf16" else torch.float32)


def _count_methods(methods: Iterable[str]) -> str:
    """Return how often each method occurs, e.g. "3 kernel, 1 vmap"."""
    return ", ".join(f"{count} {method}" for method, count in Counter(methods).items())


def _comparison(guard: JsonObject) -> list[str]:
    """Return lines that report how each engine compares with plain PyTorch."""
    lines = [f"  compared with plain PyTorch ({guard['extent']}):"]
    for engine, result in guard["engines"].items():
        same = f"equal (largest relative difference {result['difference'] or 0.0:.0e})"
        lines.append(f"    {engine}: {'not used, ' + result['why'] if result['why'] else same}")
    if guard["slow"]:
        lines.append(f"  slow in vmap, because PyTorch runs it member by member: {', '.join(guard['slow'])}")
    return lines


def render_text(facts: JsonObject) -> str:
    """Return the facts of `explain` as text for users: a table of the layers of each net, then what follows from it."""
    here_is_gpu = facts["device"].startswith("cuda")
    columns = [("here", f"here ({facts['device']})")] + ([] if here_is_gpu else [("gpu", "on a GPU")])
    lines: list[str] = []
    for net in facts["nets"]:
        lines.append(f"{net['role']} {net['net']}, {net['parameters']:,} parameters")
        rows = [["layer", "operation", *(title for _, title in columns)]]
        for layer in net["layers"]:
            cells = [layer[key]["how"] + (f" ({layer[key]['why']})" if layer[key]["why"] else "") for key, _ in columns]
            rows.append([layer["layer"], layer["what"], *cells])
        lines += ["  " + line for line in text_table(rows)]
        for key, title in columns:
            total = _count_methods(layer[key]["how"] for layer in net["layers"])
            lines.append(
                f"  {title}: {total}"
                + (f"; no kernels: {net['no_kernels'][key]}" if net["no_kernels"][key] else "")
                + (f"; {net['penalty']}" if net["penalty"] and key == "gpu" else "")
            )
        if "guard" in net:
            lines += _comparison(net["guard"])
        lines.append("")
    if facts["one_by_one"]:
        lines.append(f"The nets cannot be fused ({facts['one_by_one']}): the members are trained one after another.")
    lines.append("The engines fused and graph run like this; the engine loop calls the module of each member as it is.")
    return "\n".join([*lines, "Nothing was trained: leave --explain out to train."])
