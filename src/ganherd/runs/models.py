"""The records of a run folder as typed models: run.json, state.json, and the lines of metrics.jsonl and events.jsonl.

A run folder may come from a stranger, so every model validates its content. Keys that other versions write are
accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ganherd.recipe.base import MOST_THREADS, Device
from ganherd.util.errors import first_invalid
from ganherd.util.files import JsonObject
from ganherd.util.registry import ENGINES

LARGEST = 1 << 53  # the largest count or step: beyond it a float64 cannot represent every whole number
NOT_FINITE = ("nan", "inf", "-inf")  # strict JSON has no such numbers, so files hold their names as text


def _named_float(value: object) -> object:
    """Return the number if the value is the name of one that is not finite; any other value as it is."""
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


def _named_floats(rows: object) -> object:
    """Return a list of lists with the names of numbers that are not finite replaced by the numbers."""
    if not isinstance(rows, list):
        return rows
    return [[_named_float(value) for value in row] if isinstance(row, list) else row for row in rows]


def _pair(value: object) -> object:
    """Return a list as a tuple, because JSON has no tuples; any other value as it is."""
    return tuple(value) if isinstance(value, list) else value


AnyFloat = Annotated[float, Field(allow_inf_nan=True)]
Number = Annotated[AnyFloat, BeforeValidator(_named_float)]  # may be NaN or infinite
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Members = Annotated[int, Field(ge=1, le=1 << 24)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
# Seconds of training; below 0 if the start took longer than the budget.
Deadline = Annotated[float, Field(ge=-1e12, le=1e12)]
Text = Annotated[str, Field(max_length=1 << 16)]


class Record(BaseModel):
    """Base class of records. Keys that are not fields are kept as they are, because other versions may write them."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, populate_by_name=True)

    @classmethod
    def parse(cls, content: object) -> Self:
        """Return the checked record.

        Raises:
            ValueError: The content is not what ganherd writes; the message names the first wrong key.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ValueError(first_invalid(error)) from None

    def as_json(self) -> JsonObject:
        """Return the record as JSON values, without the fields that were not given."""
        return self.model_dump(by_alias=True, exclude_unset=True)


# -- run.json -----------------------------------------------------------------------------------------------------------


def _engine(name: str) -> str:
    """Return the name of an engine. Raise a ValueError if there is no such engine."""
    if name not in ENGINES:
        raise ValueError(f"must be one of {', '.join(ENGINES.names())}")
    return name


class EngineRecord(Record):
    """The engine that the run was started with."""

    name: Annotated[str, AfterValidator(_engine)]
    chunk: Members
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    device: Device
    operations: Literal["plain", "cpu", "cpu-onednn"] = "plain"  # older runs record none


class BudgetRecord(Record):
    """The length of the run in steps and, for a time budget, the seconds of training until its mixture is due."""

    steps: Count
    deadline: Deadline | None = None
    training_only: bool = False  # the time is for training alone, without the start and the mixture


def _sound_weights(value: Any) -> list[float] | None:
    """Return the recorded speeds of the ranks (0 for a spare, which has no members).

    An empty list if they are damaged: then the speeds are measured again. None if all ranks are equally fast.
    """
    if value is None:
        return None
    numbers = value if isinstance(value, list) else []
    is_sound = all(type(one) in (int, float) and 0 <= one < 1e300 for one in numbers) and any(numbers)
    return [float(one) for one in numbers] if is_sound else []


class RanksRecord(Record):
    """The members of each rank. The record is empty if the run was resumed in one process."""

    communicator: Text = ""
    hosts: list[Text] = []
    members: list[list[Count]] | None = None
    weights: Annotated[list[float] | None, BeforeValidator(_sound_weights)] = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Raise a ValueError if the record is neither empty nor complete."""
        if self.model_fields_set and not {"communicator", "hosts", "members"} <= self.model_fields_set:
            raise ValueError("communicator, hosts and members belong together")
        return self


class OriginRecord(Record):
    """The run that a member started from; empty if it started from fresh weights."""

    path: Annotated[Text | None, Field(alias="from")] = None
    step: Count | None = None


class LookRecord(Record):
    """The steps at which the monitor looks at the members (checks their health): multiples of `every` from `first` on.

    Runs of older versions recorded None until they had measured how often to look.
    """

    every: Count | None  # 0: never
    first: Count | None = None


class PluginRecord(Record):
    """A plug-in that the run was started with: a loss, net or other entry that is not ganherd's own."""

    kind: Text
    name: Text
    package: Text = ""  # the package that it comes from; empty: a module that is not installed
    version: Text = ""
    module: Text = ""
    sha256: Text = ""  # of the package's Python files; empty: its code is in no file


def _stream_version(value: Any) -> int:
    """Return the version of the random streams. Raise a ValueError if it is not a whole number (null is not allowed).

    Runs of older versions lack this key.
    """
    if type(value) is not int:
        raise ValueError("an unknown version of the random streams")
    return value


class CallbackRecord(Record):
    """A callback of the user, with which the run was started."""

    name: Text
    sha256: Text  # of its code and settings
    changes_result: bool = False  # whether it changes the members; then a resumed run needs the same callback


Tile = Annotated[list[Annotated[int, Field(ge=1, le=1 << 16)]], Field(min_length=5, max_length=5)]


class RunInfo(Record):
    """The content of run.json. A missing key is None; readers that need it raise an error."""

    versions: dict[Text, Text] | None = None
    seed: Count | None = None
    streams: Annotated[int | None, BeforeValidator(_stream_version)] = None
    git: Text | None = None
    host: Text | None = None
    launcher: Text | None = None
    command: Text | None = None
    recipe: Text | None = None  # name of the recipe
    changes: list[Text] | None = None  # settings that replaced those of the recipe, as key=value
    started: Text | None = None
    engine: EngineRecord | None = None
    threads: Count | None = None
    budget: BudgetRecord | None = None
    members: Members | None = None
    data: Text | None = None
    objects: dict[Text, Text] | None = None  # the sha256 of each object in memory that the recipe names
    callbacks: list[CallbackRecord] | None = None
    plugins: list[PluginRecord] | None = None
    origins: list[OriginRecord] | None = None
    ranks: RanksRecord | None = None
    meetings: dict[Text, Count] | None = None
    watch: LookRecord | None = None
    tiles: dict[Text, Tile] | None = None  # tile shapes of GPU kernels: rows, columns, depth, warps, stages
    state: Text | None = None
    reason: Text | None = None  # why the run ended before its last planned step; empty or None: it did not
    part: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    parts: bool | None = None
    seconds: Seconds | None = None
    memory: Count | None = None  # the most bytes that the training used: of GPU memory, or of its process on a CPU
    step: Count | None = None


# -- state.json ---------------------------------------------------------------------------------------------------------


class TrainerState(Record):
    """What a trainer resumes from in addition to tensors; part of a checkpoint on disk and of a copy in memory."""

    # [4][N] sums of losses and mean logits over the steps since the last record
    sums: Annotated[list[list[AnyFloat]], BeforeValidator(_named_floats)]
    recorded: Count  # the step of the last record
    # [N] the step from which each member's sums count: that of its repair, if it came after the last record; empty: `recorded`
    counted_from: list[Count] = []
    last_good: Count | None  # the step of the checkpoint that members are rolled back to
    best: Annotated[tuple[Number, Count], BeforeValidator(_pair)] | None  # score and step of the best checkpoint
    repairs: list[Count]  # [N] how often each member was repaired
    seconds: Seconds  # of training so far
    over: Deadline | None = None  # the deadline that ended the run at this step; None: no deadline did
    score: Number | None = None  # score of the samples at this step; lower is better
    bytes: dict[Text, Count]  # the lengths of metrics.jsonl and events.jsonl ("metrics", "events") at this step
    saved: Count | None = None  # only in memory: the step of the newest checkpoint
    arrived: bool = False  # only in memory: whether the work that is due at this step is still to be done


class CheckpointMeta(TrainerState):
    """The content of a checkpoint's state.json."""

    step: Count
    members: Members | None = None  # the number of members
    names: list[Text]  # of the tensors
    files: Annotated[dict[Text, Text], Field(min_length=1)]  # the sha256 of each safetensors file


# -- lines of metrics.jsonl and events.jsonl ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class JsonLine(Mapping[str, Any]):
    """A line of metrics.jsonl or events.jsonl: a mapping that has a step.

    It is not a pydantic model, because long runs have millions of lines.
    """

    step: int
    content: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    @classmethod
    def parse(cls, content: object) -> Self:
        """Return the line, or raise a ValueError if ganherd would not have written it."""
        if not isinstance(content, Mapping) or type(step := content.get("step")) is not int or not 0 <= step < LARGEST:
            raise ValueError("no step")
        return cls(step, content)

    def _number(self, key: str) -> float:
        """Return a number of the line; 0 if it is missing."""
        value = self.content.get(key, 0.0)
        if type(value) not in (int, float) and value not in NOT_FINITE:
            raise ValueError(f"{key} is no number")
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{key} is too large") from None


class MetricsRecord(JsonLine):
    """The numbers of all members at one step.

    >>> MetricsRecord.parse({"step": 4, "seconds": 2.5, "loss_g": [1.0, "nan"]}).seconds
    2.5
    """

    __slots__ = ()

    @property
    def seconds(self) -> float:
        """Seconds of training up to this record."""
        return self._number("seconds")

    @property
    def rate(self) -> float:
        """Member-steps per second."""
        return self._number("rate")

    @property
    def profile(self) -> Mapping[str, Any] | None:
        """Seconds of each routine since the last record, if they were measured."""
        own = self.content.get("profile")
        return own if isinstance(own, Mapping) else None


class EventRecord(JsonLine):
    """Something that happened to the run or to a member.

    >>> event = EventRecord.parse({"step": 4, "event": "calm", "what": "dead_critic", "member": 2, "name": "two"})
    >>> event.kind, event.alarm, event.member
    ('calm', 'dead_critic', 2)
    """

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The name of the event, e.g. `repair`."""
        return str(self.content.get("event", ""))

    @property
    def member(self) -> int | None:
        """The number of the member that the event is about; None if it is about no member."""
        member = self.content.get("member")
        return member if type(member) is int else None

    @property
    def name(self) -> str:
        """The name of the member that the event is about; empty if it is about no member."""
        return str(self.content.get("name", ""))

    @property
    def alarm(self) -> str:
        """The name of the alarm that the event reports, e.g. `collapse`; for other events, their kind."""
        return str(self.content.get("what", self.kind))
