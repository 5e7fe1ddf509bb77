"""Engines by name. Importing this module does not import PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ganherd.util.registry import ENGINES


@dataclass(frozen=True)
class EngineSpec:
    """An engine that a recipe can name.

    Register one with `ENGINES.register`: the decorated class derives from `ganherd.herd.engine.engines.Engine`.
    """

    target: Any  # the class, or `module:Class`, which is imported when the engine is built
    about: str = ""
    one_by_one: bool = False  # train one member after another, so that nets that cannot be fused are trained, too
    needs_gpu: bool = False
    # State and data of all members are on the device, and all members take the same steps.
    needs_whole_herd: bool = False


_ENGINE, _GRAPH = "ganherd.herd.engine.engines:Engine", "ganherd.herd.engine.cuda_graph:GraphEngine"
_CAPTURED = "all members at once, captured as a CUDA graph"
ENGINES.register("loop", EngineSpec(_ENGINE, "one member after another: the reference", one_by_one=True))
ENGINES.register("fused", EngineSpec(_ENGINE, "all members at once"))
ENGINES.register("graph", EngineSpec(_GRAPH, _CAPTURED, needs_gpu=True, needs_whole_herd=True))
ENGINES.seal()
