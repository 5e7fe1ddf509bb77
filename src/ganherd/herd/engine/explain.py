"""Says how every layer of a herd's nets runs, here and on a GPU: by a kernel, by PyTorch on all members, or through vmap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ganherd.herd import rng
from ganherd.herd.checks import vmap_fallback
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Herd
from ganherd.herd.lowering import lower
from ganherd.herd.lowering.lower import LoweredOperation
from ganherd.herd.lowering.trace import NoGraph, trace
from ganherd.herd.step.rules import StepRules
from ganherd.util.text import text_table


def explain(herd: Herd, guards: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Facts of each net: its layers with `here` and `gpu`, each {"how", "why"}; nothing is trained.

    `guards`: of each net, how its engines compare with plain PyTorch; see `guard`.
    """
    vmap_fallback.mute()  # `guards` name the operations
    nets = [("generator", breed.g.module, False) for breed in herd.breeds.all]
    nets.append(("discriminator", herd.d.module, herd.rules.game.penalty or herd.rules.r1 > 0))
    found = [_net(herd, role, module, twice) for role, module, twice in nets]
    differ = [guard["engines"]["fused"]["why"] for guard in guards]
    return {
        "device": str(herd.device),
        "nets": [net | {"guard": guard} for net, guard in zip(found, guards, strict=True)] if guards else found,
        "one_by_one": autotune.cannot_be_fused(herd) or next(filter(None, differ), ""),  # why; empty if they are not
    }


def _net(herd: Herd, role: str, module: nn.Module, twice: bool) -> dict[str, Any]:
    gpu = _why_no_kernels(herd)
    here = gpu if herd.device.type == "cuda" else "they need a GPU"
    return {
        "role": role,
        "net": type(module).__name__,
        "parameters": sum(p.numel() for p in module.parameters()),
        "no_kernels": {"here": here, "gpu": gpu},
        "penalty": _penalty(module, herd.rules) if twice and not gpu else "",
        "layers": _layers(module, herd.rules, not here, not gpu),
    }


def _penalty(module: nn.Module, rules: StepRules) -> str:
    return f"the pass of the penalty is differentiated twice: there {_total(_lowered(module, rules, True, twice=True))}"


def _why_no_kernels(herd: Herd) -> str:
    """Why no kernel would run on a GPU; empty where they would."""
    if herd.rules.precision == "float64":
        return "they do not know float64"
    if not rng.HAS_TRITON:
        return "Triton, in which they are written, is not installed"
    return ""


def _layers(module: nn.Module, rules: StepRules, here: bool, gpu: bool) -> list[dict[str, Any]]:
    both = [_lowered(module, rules, kernels) for kernels in (here, gpu)]
    return [
        {
            "layer": one.layer,
            "what": one.what,
            "here": {"how": one.how, "why": one.why},
            "gpu": {"how": there.how, "why": there.why},
        }
        for one, there in zip(*both, strict=True)
    ]


def _lowered(module: nn.Module, rules: StepRules, kernels: bool, twice: bool = False) -> list[LoweredOperation]:
    """Layer by layer, or the whole module in one line where its graph is not known."""
    found = lower.lower(module, kernels, twice)
    if found is None:
        return [LoweredOperation("all of it", type(module).__name__, lower.VMAP, _why_whole(module))]
    return found.explain(rules.batch, torch.bfloat16 if rules.precision == "bf16" else torch.float32)


def _total(layers: list[LoweredOperation]) -> str:
    return ", ".join(f"{number} {how}" for how, number in Counter(layer.how for layer in layers).items())


def _why_whole(module: nn.Module) -> str:
    """Why a module's graph is not lowered."""
    try:
        trace(module)
    except NoGraph as why:
        return str(why)
    return ""


def _compared(guard: dict[str, Any]) -> list[str]:
    """How each engine compares with plain PyTorch."""
    lines = [f"  compared with plain PyTorch ({guard['extent']}):"]
    for engine, result in guard["engines"].items():
        same = f"equal (largest relative difference {result['difference'] or 0.0:.0e})"
        lines.append(f"    {engine}: {'not used, ' + result['why'] if result['why'] else same}")
    if guard["slow"]:
        lines.append(f"  slow in vmap, because PyTorch runs it member by member: {', '.join(guard['slow'])}")
    return lines


def text(facts: dict[str, Any]) -> str:
    """For people: a table for each net, and what follows from it."""
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
            count = Counter(layer[key]["how"] for layer in net["layers"])
            total = ", ".join(f"{number} {how}" for how, number in count.items())
            lines.append(
                f"  {title}: {total}"
                + (f"; no kernels: {net['no_kernels'][key]}" if net["no_kernels"][key] else "")
                + (f"; {net['penalty']}" if net["penalty"] and key == "gpu" else "")
            )
        if "guard" in net:
            lines += _compared(net["guard"])
        lines.append("")
    if facts["one_by_one"]:
        lines.append(f"The nets cannot be fused ({facts['one_by_one']}): the members are trained one after another.")
    lines.append("The engines fused and graph run like this; the engine loop calls the module of each member as it is.")
    return "\n".join([*lines, "Nothing was trained: leave --explain out to train."])
