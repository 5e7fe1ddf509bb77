"""Settings of `data-parallel`, a strategy that averages gradients over copies of one GAN. It has no keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ganherd.recipe.base import refuse
from ganherd.recipe.member_values import TRIAL_KEYS
from ganherd.recipe.strategy.strategy_settings import StrategySettings

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe


class DataParallelConfig(StrategySettings):
    """Members are copies of one GAN: each sees its own batch, and all take the mean of their gradients."""

    @property
    def is_one_gan(self) -> bool:
        return True

    @property
    def replaces_generators(self) -> str:
        return "strategy.name data-parallel"

    def check(self, recipe: Recipe) -> None:
        if (recipe.meeting_members or 0) < 2:
            raise refuse(
                "strategy.name herd.members",
                "strategy.name data-parallel needs at least two members: set herd.members",
            )
        if recipe.engine.name != "fused":
            raise refuse(
                "strategy.name engine.name",
                "strategy.name data-parallel averages gradients of all members inside of a step: set engine.name to fused",
            )
        if recipe.herd.trials:
            raise refuse(
                "strategy.name herd.trials", "strategy.name data-parallel trains one GAN: leave herd.trials out"
            )
        for key, policy in recipe.run.policies.items():
            if policy not in ("tell", "stop"):
                raise refuse(
                    f"{key} strategy.name",
                    f"{key} {policy} changes a member, and with strategy.name data-parallel all members are copies of one "
                    "GAN: set it to stop",
                )
        if recipe.nets.breeds:
            raise refuse(
                "nets.breeds strategy.name",
                "strategy.name data-parallel trains copies of one GAN: leave nets.breeds out",
            )
        for key in (key for key in (*TRIAL_KEYS, "nets.prior") if isinstance(_value(recipe, key), list)):
            raise refuse(
                f"{key} strategy.name",
                f"{key} lists a value for each member, and with strategy.name data-parallel all are copies of one GAN: give "
                "one value",
            )


def _value(recipe: Recipe, key: str) -> Any:
    """Return the value of a setting, such as optim.lr_g, or of a net's setting, such as nets.discriminator.dropout."""
    section, name, *inner = key.split(".")
    value = getattr(getattr(recipe, section), name)
    return value.settings.get(inner[0]) if inner else value
