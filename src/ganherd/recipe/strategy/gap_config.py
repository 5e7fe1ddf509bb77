"""Settings of the strategy `gap`: members swap discriminators in random pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from ganherd.recipe.base import Span, refuse
from ganherd.recipe.strategy.strategy_settings import StrategySettings

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

_KEY = "strategy.gap"


class GapConfig(StrategySettings):
    """Members swap discriminators in random pairs."""

    every: Span = "0.5epochs"  # time from one swap to the next; 0.5epochs: twice an epoch, as in the paper
    warmup: Span = "0"  # no swap before this
    swap: Literal["discriminators", "generators"] = "discriminators"
    # what is swapped: weights only, as in the authors' code, so that Adam's moments stay with the slot; or everything
    travels: Literal["weights", "all"] = "weights"
    # how long after a swap the generator's learning rate is raised and the discriminator's lowered
    smoothing: Span = "0"
    stay: list[Annotated[int, Field(ge=0)]] = []  # slots that never swap
    # a speed for each member, of which the fastest is 1: one step per step of the run; members swap when two are ready
    pace: list[Annotated[float, Field(gt=0, le=1)]] = []
    # over ranks: with sync all wait for the slowest; with async a member takes a copy of its partner's newest net that has
    # arrived, and waits only if that is too far behind. No two such runs are the same, but each can be replayed
    exchange: Literal["sync", "async"] = "sync"
    staleness: int = Field(2, ge=0)  # async: swaps that a partner's net may be behind; 0 is the same as sync
    rejoin: int = Field(10, ge=1)  # async: swaps after which all ranks synchronise, for records and checkpoints
    replay: str = ""  # async: folder of a run whose recorded swaps are repeated, on any number of ranks

    @model_validator(mode="after")
    def _async_settings_have_effect(self) -> GapConfig:
        for name in ("staleness", "rejoin", "replay"):
            if self.exchange == "sync" and getattr(self, name) != type(self).model_fields[name].default:
                raise refuse(
                    f"{_KEY}.{name} {_KEY}.exchange",
                    f"{_KEY}.{name} has no effect with {_KEY}.exchange sync: set that to async, or leave it out",
                )
        if self.exchange == "async" and self.pace:
            raise refuse(
                f"{_KEY}.exchange {_KEY}.pace",
                f"{_KEY}.pace simulates members of different speed, and {_KEY}.exchange async follows the real speed of ranks: "
                "leave one of them out",
            )
        return self

    def with_absolute_paths(self, absolute: Callable[[str], str]) -> GapConfig:
        return self.model_copy(update={"replay": absolute(self.replay)}) if self.replay else self

    @model_validator(mode="after")
    def _has_possible_speeds(self) -> GapConfig:
        if self.pace and max(self.pace) < 1:
            raise refuse(
                f"{_KEY}.pace",
                f"{_KEY}.pace is {max(self.pace):g} for the fastest member, which takes every step of the run: its pace is 1",
            )
        if self.smoothing.strip().endswith("run"):
            raise refuse(f"{_KEY}.smoothing", f"{_KEY}.smoothing must be steps or epochs, such as 0.05epochs")
        return self

    @property
    def unsynced_key(self) -> str:
        return f"{_KEY}.exchange async" if self.exchange == "async" and self.staleness and not self.replay else ""

    @property
    def replaces_generators(self) -> str:
        return f"{_KEY}.swap generators" if self.swap == "generators" else ""

    @property
    def default_members(self) -> int | None:
        return 4

    @property
    def paces(self) -> Sequence[float]:
        return self.pace

    @property
    def rate_smoothing(self) -> str:
        return self.smoothing

    @property
    def spans(self) -> Mapping[str, str]:
        return {"every": self.every, "warmup": self.warmup}

    def check(self, recipe: Recipe) -> None:
        members = recipe.meeting_members or 0
        if members == 1:
            raise refuse("strategy.name herd.members", "strategy.name gap needs at least two members: set herd.members")
        if self.pace and len(self.pace) != members:
            raise refuse(
                f"{_KEY}.pace herd.members",
                f"{_KEY}.pace lists {len(self.pace)} speeds, but {members} members meet: give one for each",
            )
        if max(self.stay, default=0) >= members:
            raise refuse(
                f"{_KEY}.stay herd.members",
                f"{_KEY}.stay names slot {max(self.stay)}, but {members} members have the slots 0 to {members - 1}",
            )
        left = members - len(set(self.stay))
        if self.stay and left < 2:
            raise refuse(
                f"{_KEY}.stay herd.members",
                f"{_KEY}.stay leaves {left} of {members} members to swap, and a swap takes two: let fewer stay, or set "
                "strategy.name to independent",
            )
        if self.pace and recipe.engine.needs_whole_herd:
            raise refuse(
                f"{_KEY}.pace engine.name",
                f"engine.name {recipe.engine.name} captures one step of all members, and with {_KEY}.pace each is at its own: "
                "set engine.name to fused or auto",
            )

    def never_due(self, spans: Mapping[str, int], steps: int) -> list[str]:
        first = self.first_swap(spans)
        if not spans["every"] or first <= steps:
            return []
        return [
            f"no swap is due: the first would be at step {first:,}, and the run has {steps:,}; make {_KEY}.every shorter"
        ]

    def first_swap(self, spans: Mapping[str, int]) -> int:
        """Return the step of the run at which the first swap is due.

        The two fastest members that swap have then each made `warmup` + `every` steps. A member of pace 0.5 makes a step in
        every second step of the run.

        Args:
            spans: `every` and `warmup` in steps.

        >>> [GapConfig(pace=pace).first_swap({"every": 30, "warmup": 0}) for pace in ([], [1.0, 0.5, 0.25])]
        [30, 60]
        """
        own = spans["warmup"] + spans["every"]
        speeds = sorted((Fraction(str(pace)) for m, pace in enumerate(self.pace) if m not in self.stay), reverse=True)
        return -(-own // speeds[1]) if len(speeds) > 1 else own
