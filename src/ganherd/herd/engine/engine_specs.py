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
    needs_whole_herd: bool = (
        False  # state and data of all members lie on the device, and all members take the same steps
    )


_ENGINES = {
    "loop": EngineSpec(
        "ganherd.herd.engine.engines:Engine", "one member after another: the reference", one_by_one=True
    ),
    "fused": EngineSpec("ganherd.herd.engine.engines:Engine", "all members at once"),
    "graph": EngineSpec(
        "ganherd.herd.engine.cuda_graph:GraphEngine",
        "all members at once, captured as a CUDA graph",
        needs_gpu=True,
        needs_whole_herd=True,
    ),
}
for _name, _spec in _ENGINES.items():
    ENGINES.register(_name, _spec)
ENGINES.seal()
