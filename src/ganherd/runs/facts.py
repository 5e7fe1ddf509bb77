"""Check what run.json and state.json say, key by key: a run folder may come from a stranger."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ganherd.recipe.base import MOST_THREADS, Device
from ganherd.util.registry import ENGINES

LARGEST = 1 << 53  # of a count or a step: beyond it floats skip whole numbers

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Members = Annotated[int, Field(ge=1, le=1 << 24)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Number = float | Literal["nan", "inf", "-inf"]  # as JSON holds those that are not finite
Text = Annotated[str, Field(max_length=1 << 16)]


class _Facts(BaseModel):
    """Keys that other versions write pass as they are."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


def _engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"must be one of {', '.join(ENGINES.names())}")
    return name


class EngineFacts(_Facts):
    name: Annotated[str, AfterValidator(_engine)]
    chunk: Members
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    device: Device


class BudgetFacts(_Facts):
    steps: Count
    deadline: Seconds | None = None


class RanksFacts(_Facts):
    communicator: Text
    hosts: list[Text]
    members: list[list[Count]]
    weights: list[Annotated[float, Field(gt=0)]] | None = None


class OriginFacts(_Facts):
    path: Annotated[Text | None, Field(alias="from")] = None


class RunFacts(_Facts):
    """What run.json may say; a key that is missing is asked for by those that need it."""

    state: Text | None = None
    seed: Count | None = None
    host: Text | None = None
    command: Text | None = None
    started: Text | None = None
    git: Text | None = None
    launcher: Text | None = None
    data: Text | None = None
    versions: dict[Text, Text] | None = None
    engine: EngineFacts | None = None
    threads: Count | None = None
    budget: BudgetFacts | None = None
    members: Members | None = None
    step: Count | None = None
    seconds: Seconds | None = None
    meetings: dict[Text, Count] | None = None
    ranks: RanksFacts | Annotated[dict[str, Any], Field(max_length=0)] | None = None  # empty: one process again
    origins: list[OriginFacts] | None = None
    part: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    parts: bool | None = None


class StateFacts(_Facts):
    """What state.json must say."""

    step: Count
    names: list[Text]
    files: Annotated[dict[Text, Text], Field(min_length=1)]
    sums: list[list[Number]]
    repairs: list[Count]
    recorded: Count
    bytes: dict[Text, Count]
    last_good: Count | None
    best: Annotated[list[Any], Field(min_length=2, max_length=2)] | None
    seconds: Seconds
    over: Seconds | None = None


def refuse_run(info: dict[str, Any]) -> None:
    """Raise a ValueError that names the first key of run.json that ganherd would not have written so."""
    _refuse(RunFacts, info)


def refuse_state(facts: dict[str, Any]) -> None:
    """Raise a ValueError that names the first key of state.json that ganherd would not have written so."""
    _refuse(StateFacts, facts)


def _refuse(model: type[_Facts], facts: dict[str, Any]) -> None:
    try:
        model.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise ValueError(f"{where}: {first['msg'].lower()}") from None
