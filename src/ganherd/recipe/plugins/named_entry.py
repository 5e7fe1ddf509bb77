"""Entries of lists in a recipe that name a plug-in, with its settings next to the name: augmentations and metrics."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ganherd.recipe import yaml_lines
from ganherd.recipe.base import Section, refuse
from ganherd.recipe.net_config import named_with_settings
from ganherd.recipe.plugins.plugin_settings import full_settings
from ganherd.util.registry import METRICS, Registry, Settings
from ganherd.util.text import split_values, yaml_word

_WITH_SETTINGS = re.compile(r"\s*([^()\s]+)\s*\((.*)\)\s*", re.DOTALL)


class NamedEntry(Section):
    """An entry of a registry by name with its settings; `package.module:name` names your own."""

    registry: ClassVar[Registry[Any]]
    key: ClassVar[str]  # the key of the list in a recipe, for messages
    what: ClassVar[str]  # what messages call an entry
    example: ClassVar[str]  # a name, as an example in messages

    name: str
    settings: Settings = Field({}, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """Accept `cutout` as a short form of {name: cutout}, and settings that are written next to the name."""
        return value if isinstance(value, cls) else named_with_settings(value, cls.what, cls.example)

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if not cls.registry.accepts(name):
            raise refuse(cls.key, cls.registry.unknown(name))
        return name

    @field_validator("settings")
    @classmethod
    def _full(cls, settings: Settings, info: ValidationInfo) -> Settings:
        return full_settings(cls.registry, info.data["name"], settings, cls.key) if "name" in info.data else settings


class MetricEntry(NamedEntry):
    """A metric by name with its settings."""

    registry, key, what, example = METRICS, "run.metrics", "a metric", "contrast"

    @property
    def text(self) -> str:
        """The name of the score: the metric's name with settings that are not defaults, e.g. `contrast(window=3)`."""
        defaults: Settings = {}
        if METRICS.may_load(self.name) and (model := METRICS[self.name].settings):
            defaults = {key: field.get_default(call_default_factory=True) for key, field in model.model_fields.items()}
        given = {key: value for key, value in self.settings.items() if key not in defaults or value != defaults[key]}
        return f"{self.name}({', '.join(f'{key}={yaml_word(given[key])}' for key in given)})" if given else self.name


def parse_metric(text: str) -> Settings | None:
    """Return the name and the settings of a text such as `contrast(window=3)`; None if it has no brackets.

    Raises:
        ValueError: The text in the brackets does not consist of settings.

    >>> parse_metric("contrast(window=3, mode=fast)"), parse_metric("fid")
    ({'name': 'contrast', 'settings': {'window': 3, 'mode': 'fast'}}, None)
    """
    if not (match := _WITH_SETTINGS.fullmatch(text)):
        return None
    settings = {}
    for part in split_values(match[2]):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise ValueError("write settings as NAME(key=value), separated by commas")
        settings[key], _ = yaml_lines.read(value, text, option=True)
    return {"name": match[1], "settings": settings}


def read_metric(value: Any) -> str | MetricEntry:
    """Check an entry of `run.metrics`, and return its name, or a `MetricEntry` if the metric has settings."""
    parsed = parse_metric(value) if isinstance(value, str) else None
    entry = MetricEntry.model_validate(parsed or value)
    return entry if entry.settings else entry.name


MetricName = Annotated[str | MetricEntry, BeforeValidator(read_metric)]
