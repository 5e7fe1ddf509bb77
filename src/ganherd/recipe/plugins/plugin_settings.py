"""Check the settings of plug-ins by their own pydantic models, with messages like those for other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from ganherd.recipe.base import refuse
from ganherd.recipe.net_config import plain
from ganherd.util.registry import Registry, Settings
from ganherd.util.text import did_you_mean


class WithSettings(Protocol):
    """An entry of a registry that may have a model of its settings."""

    @property
    def settings(self) -> type[BaseModel] | None: ...


Entry = TypeVar("Entry", bound=WithSettings)


def full_settings(registry: Registry[Entry], name: str, given: Mapping[str, Any], key: str) -> Settings:
    """Check the settings of a registry's entry, and return all of them, defaults included.

    Settings of a plug-in that may not be imported cannot be checked and are returned as they are given.

    Args:
        registry: The registry.
        name: The name of the entry.
        given: The settings that the recipe gives.
        key: The key of the settings in the recipe, for messages.
    """
    if not registry.may_load(name):
        return dict(given)
    model = registry[name].settings
    if model is None:
        if given:
            raise refuse(f"{key}.{next(iter(given))}", f"the {registry.kind} {name} has no settings: leave them out")
        return {}
    return check_model(model, given, key)


def check_model(model: type[BaseModel], given: Mapping[str, Any], key: str) -> Settings:
    """Check settings by a pydantic model, and return them as plain data, defaults included.

    Unknown keys and wrong values raise an error whose message is a sentence (see `ganherd.recipe.base.refuse`).

    Args:
        model: The model of the settings.
        given: The settings that the recipe gives.
        key: The key of the settings in the recipe, for messages.
    """
    from ganherd.recipe.messages import field_sentence  # here, because messages need the schema, which needs this

    unknown = [name for name in given if name not in model.model_fields]
    if unknown and model.model_config.get("extra") != "allow":
        near = did_you_mean(unknown[0], model.model_fields)
        takes = f" (it has {', '.join(model.model_fields) or 'no keys'})"
        raise refuse(f"{key}.{unknown[0]}", f"unknown key '{key}.{unknown[0]}'{near or takes}")
    try:
        values: Settings = plain(model.model_validate(dict(given)).model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # the error is about the whole model
            raise refuse(key, f"{key}: {first['msg'].removeprefix('Value error, ')}") from None
        name = str(first["loc"][0])
        raise refuse(
            f"{key}.{name}", field_sentence(f"{key}.{name}", first, model.model_fields.get(name), given)
        ) from None
    return values
