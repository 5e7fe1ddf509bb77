"""The registry of engines, which execute training steps, by name. Importing this module does not import PyTorch."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from ganherd.util.errors import UserError
from ganherd.util.registry import ENGINES, load_target


@dataclass(frozen=True)
class EngineSpec:
    """The entry of the registry for an engine that recipes can name."""

    target: Any  # the class, or its name as `module:Class`, which is imported when the engine is built
    about: str = ""  # one phrase for users
    one_by_one: bool = False  # it trains one member (GAN) after another, including nets that cannot be fused
    needs_gpu: bool = False
    # It needs the state and data of all members that it trains on the device, and these members must make the same
    # steps.
    needs_whole_herd: bool = False

    @classmethod
    def adopt(cls, name: str, target: Any, **facts: Any) -> EngineSpec:
        """Check an engine class that a user registers, and return its entry in the registry.

        Args:
            name: The engine's name in recipes.
            target: The class; it must derive from `Engine`.
            facts: The other fields of `EngineSpec`.

        Raises:
            UserError: If `target` is not such a class.
        """
        engine = load_target(_ENGINE)
        if not (inspect.isclass(target) and issubclass(target, engine)):
            raise UserError(f"the engine {name} must be a class derived from ganherd.herd.engine.engines.Engine.")
        return cls(target, **facts)


_ENGINE, _GRAPH = "ganherd.herd.engine.engines:Engine", "ganherd.herd.engine.cuda_graph:GraphEngine"
_CAPTURED = "all members at once, captured as a CUDA graph"
ENGINES.add("loop", EngineSpec(_ENGINE, "one member after another: the reference", one_by_one=True))
ENGINES.add("fused", EngineSpec(_ENGINE, "all members at once"))
ENGINES.add("graph", EngineSpec(_GRAPH, _CAPTURED, needs_gpu=True, needs_whole_herd=True))
ENGINES.seal()
