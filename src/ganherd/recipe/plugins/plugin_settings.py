"""Check the settings of plug-ins by their own models, with the same sentences as other keys of a recipe."""

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
    """Return all settings of an entry, defaults included. Those of a plug-in that may not be imported stay as they are.

    Args:
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
    """Return the settings of a model as plain data, defaults included; refuse unknown keys and wrong values in a sentence."""
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
        if not first["loc"]:  # of the whole model
            raise refuse(key, f"{key}: {first['msg'].removeprefix('Value error, ')}") from None
        name = str(first["loc"][0])
        raise refuse(
            f"{key}.{name}", field_sentence(f"{key}.{name}", first, model.model_fields.get(name), given)
        ) from None
    return values
