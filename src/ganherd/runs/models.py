"""The records of a run folder as typed models: run.json, state.json, and the lines of metrics.jsonl and events.jsonl.

A run folder may come from a stranger, so every model checks what it is given. Keys that other versions write are accepted.
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

LARGEST = 1 << 53  # the largest count or step: beyond it floats skip whole numbers
NOT_FINITE = ("nan", "inf", "-inf")  # strict JSON has no such numbers: files hold their names


def _named_float(value: object) -> object:
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


def _named_floats(rows: object) -> object:
    if not isinstance(rows, list):
        return rows
    return [[_named_float(value) for value in row] if isinstance(row, list) else row for row in rows]


def _pair(value: object) -> object:
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
    """Base class of records. Keys that are not fields, which other versions may write, are kept as they are."""

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
        """Return the keys that were given, in the order of the model."""
        return self.model_dump(by_alias=True, exclude_unset=True)


# -- run.json -----------------------------------------------------------------------------------------------------------


def _engine(name: str) -> str:
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
    """The length of the run: its steps, and for a time budget the second of training by which its mixture has to be saved."""

    steps: Count
    deadline: Deadline | None = None
    training_only: bool = False  # the time is for training alone, without the start and the mixture


def _sound_weights(value: Any) -> list[float] | None:
    """Return the recorded speeds of the ranks (0 for a spare), or an empty list if they are damaged: they are measured again."""
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
        if self.model_fields_set and not {"communicator", "hosts", "members"} <= self.model_fields_set:
            raise ValueError("communicator, hosts and members belong together")
        return self


class OriginRecord(Record):
    """The run that a member started from; empty if it started from fresh weights."""

    path: Annotated[Text | None, Field(alias="from")] = None
    step: Count | None = None


class LookRecord(Record):
    """Steps between two checks of the members' samples. Older runs wrote None until they had measured it."""

    every: Count | None
    first: Count | None = None


class PluginRecord(Record):
    """A plug-in that the run was started with: a loss, net or other entry that is not ganherd's own."""

    kind: Text
    name: Text
    package: Text = ""  # the package that it comes from; empty: a module that is not installed
    version: Text = ""
    module: Text = ""
    sha256: Text = ""  # of the package's Python files; empty: they are in no file


def _stream_version(value: Any) -> int:
    """Refuse a version of the random streams that is no whole number, null included. Runs of older versions lack this key."""
    if type(value) is not int:
        raise ValueError("an unknown version of the random streams")
    return value


class CallbackRecord(Record):
    """A callback of the user, with which the run was started."""

    name: Text
    sha256: Text  # of its code and settings
    changes_result: bool = False  # a resumed run needs the same one


Tile = Annotated[list[Annotated[int, Field(ge=1, le=1 << 16)]], Field(min_length=5, max_length=5)]


class RunInfo(Record):
    """The content of run.json. A key that is missing is None; readers that need it report that."""

    versions: dict[Text, Text] | None = None
    seed: Count | None = None
    streams: Annotated[int | None, BeforeValidator(_stream_version)] = None
    git: Text | None = None
    host: Text | None = None
    launcher: Text | None = None
    command: Text | None = None
    recipe: Text | None = None  # its name
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
    tiles: dict[Text, Tile] | None = None  # shapes of kernels on a GPU: rows, columns, depth, warps, stages
    state: Text | None = None
    reason: Text | None = None  # why it ended before its last planned step; empty or None: it did not
    part: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    parts: bool | None = None
    seconds: Seconds | None = None
    memory: Count | None = None  # bytes that the training took at most: of its GPU, otherwise of its process
    step: Count | None = None


# -- state.json ---------------------------------------------------------------------------------------------------------


class TrainerState(Record):
    """What a trainer resumes from in addition to tensors, in a checkpoint on disk or a copy in memory."""

    sums: Annotated[list[list[AnyFloat]], BeforeValidator(_named_floats)]  # [4][N] since the last record
    recorded: Count  # the step of the last record
    last_good: Count | None  # the step of the checkpoint that members are rolled back to
    best: Annotated[tuple[Number, Count], BeforeValidator(_pair)] | None  # score and step of the best checkpoint
    repairs: list[Count]  # [N]
    seconds: Seconds
    over: Deadline | None = None  # the deadline that ended the run here
    score: Number | None = None
    bytes: dict[Text, Count]  # of metrics.jsonl and events.jsonl that belong to it
    saved: Count | None = None  # in memory only: the step of the newest checkpoint
    arrived: bool = False  # in memory only: what is due at this step is still to be done


class CheckpointMeta(TrainerState):
    """The content of a checkpoint's state.json."""

    step: Count
    members: Members | None = None
    names: list[Text]
    files: Annotated[dict[Text, Text], Field(min_length=1)]


# -- lines of metrics.jsonl and events.jsonl ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class JsonLine(Mapping[str, Any]):
    """A line of a file of records: a mapping with its step. It is no pydantic model, because long runs have millions."""

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
        """Seconds of training up to here."""
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
        return str(self.content.get("event", ""))

    @property
    def member(self) -> int | None:
        """The number of the member that the event is about; None if it is about no member."""
        member = self.content.get("member")
        return member if type(member) is int else None

    @property
    def name(self) -> str:
        """The name of that member."""
        return str(self.content.get("name", ""))

    @property
    def alarm(self) -> str:
        """The name of the alarm that it reports."""
        return str(self.content.get("what", self.kind))
