"""The section `herd` of a recipe: how many members there are, what they start from, and their replicas."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_serializer, model_validator

from ganherd.recipe.base import Section, refuse
from ganherd.recipe.member_values import Trial, name_of_trial


class OriginConfig(Section):
    """A member of a finished run, to start from."""

    run: str = Field(alias="from")  # folder of the run
    member: int = Field(ge=0)  # number of the member
    replica: int = Field(0, ge=0)  # number of the replica, if the run has several seeds

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {"from": self.run, "member": self.member, "replica": self.replica}


class FirstPhaseConfig(Section):
    """A first phase: another recipe that is trained before the herd."""

    # a packaged recipe or a file; its data (not the partition), sizes of nets, seeds, engine and precision become the herd's
    recipe: str
    share: float = Field(gt=0, lt=1)  # fraction of the budget


class HerdConfig(Section):
    """The members of the herd, and what they start from."""

    # number of members (default: one per class, or 1 if members share the data); or members of finished runs to start from,
    # with their nets, such as [{from: RUN, member: 2}, …]
    members: Annotated[int, Field(ge=1)] | Annotated[list[OriginConfig], Field(min_length=1)] | None = None
    # number of members for each class (needs data.partition by-class); members of a class meet by strategy.name and divide the
    # weight of their class; a list of settings may have one value for each member of a class
    per_class: int = Field(1, ge=1)
    # a finished run: each member starts from the member of its number, or from the only one
    start_from: str | None = None
    # another recipe that is trained first, and from which all members start; start_from takes precedence
    first: FirstPhaseConfig | None = None
    # a finished run with one member per class: its members stay as they are, and only missing classes are trained
    grow_from: str | None = None
    seeds: int = Field(1, ge=1)  # number of replicas: independent copies of the herd with the seeds seed, seed + 1, …
    # settings in which copies of the herd differ, such as [{train.ema: 0.9}, {train.ema: 0.99}]: a copy for each entry and seed,
    # all with the same data and noise (`ganherd sweep` writes them)
    trials: list[Trial] = []

    @property
    def replicas(self) -> int:
        """The number of copies of the herd: one for each seed of each trial, trial by trial."""
        return self.seeds * max(1, len(self.trials))

    def trial_name(self, number: int) -> str:
        """Return the settings of a trial as text for people, such as `lr_g 0.001, loss hinge`."""
        return name_of_trial(self.trials[number])

    @property
    def count(self) -> int | None:
        """The number of members, if the recipe states it."""
        return len(self.members) if isinstance(self.members, list) else self.members

    @model_validator(mode="after")
    def _one_origin(self) -> HerdConfig:
        for key in ("start_from", "first", "grow_from"):
            if isinstance(self.members, list) and getattr(self, key) is not None:
                raise refuse(
                    f"herd.{key} herd.members",
                    f"herd.{key} and a list of herd.members both set what members start from: leave one out",
                )
        return self
