"""Settings of layers that members share: they are averaged over all members from time to time, with any strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from ganherd.recipe.base import Span, refuse
from ganherd.recipe.strategy.strategy_settings import StrategySettings


def _layers(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(layer, str | int) for layer in value):
        raise ValueError("must be a list of layers by their names, such as [first, blocks.0]")
    return value


Layers = Annotated[list[str], BeforeValidator(_layers)]


class ShareConfig(StrategySettings):
    """Layers that members have in common: they are averaged over all members, of all classes, from time to time."""

    generator: Layers = []  # names of parameters, or their beginning: `blocks.0` is all of the first block
    discriminator: Layers = []
    every: Span = "1epochs"  # time from one averaging to the next

    @model_validator(mode="after")
    def _says_what_and_when(self) -> ShareConfig:
        if not self.layers and self.every != "1epochs":
            raise refuse(
                "strategy.share.every",
                "strategy.share.every has no effect if no layers are shared: name some in strategy.share.generator "
                "or strategy.share.discriminator",
            )
        if self.layers and self.every == "0":
            raise refuse(
                "strategy.share.every", "strategy.share.every 0 means never: give steps or epochs, such as 100steps"
            )
        return self

    @property
    def layers(self) -> bool:
        """Whether any layers are shared."""
        return bool(self.generator or self.discriminator)

    @property
    def exchanges_nets(self) -> bool:
        return False

    @property
    def meets(self) -> bool:
        return self.layers

    @property
    def meets_key(self) -> str:
        return "strategy.share"

    @property
    def spans(self) -> Mapping[str, str]:
        return {"every": self.every} if self.layers else {}
