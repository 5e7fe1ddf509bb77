"""The JSON schema of recipes, with which an editor completes keys, shows their meaning and marks mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ganherd.recipe.reference.key_reference import key_sections
from ganherd.recipe.schema import Recipe
from ganherd.recipe.strategy_config import section_of
from ganherd.util.files import JsonObject
from ganherd.util.registry import (
    AUGMENTATIONS,
    DATA_SOURCES,
    DISCRIMINATORS,
    ENGINES,
    GENERATORS,
    LOSSES,
    METRICS,
    STRATEGIES,
    Registry,
)

_REF = "#/$defs/"
_TARGET = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"


def recipe_schema() -> JsonObject:
    """Return the JSON schema (draft 2020-12) of recipes. Every key may be null, because null restores a default."""
    from ganherd.nets import catalog

    del catalog  # it registers the nets
    schema = Recipe.model_json_schema()
    definitions: JsonObject = schema["$defs"]
    own = definitions["StrategyConfig"]["properties"]
    own["name"] |= _one_of(STRATEGIES)
    for name, spec in STRATEGIES.items():
        inner = spec.settings.model_json_schema(ref_template=f"{_REF}{{model}}")
        definitions |= inner.pop("$defs", {})
        own[section_of(name)] = inner
    for name in STRATEGIES.packages():  # strategies of plug-ins, whose settings are unknown until they are imported
        own[name] = {"type": "object"}
    nets = list(dict.fromkeys([*GENERATORS.names(), *DISCRIMINATORS.names()]))
    named = {"type": "string", "examples": nets}
    definitions["NetConfig"] = {
        "anyOf": [named, {"type": "object", "properties": {"name": named}, "required": ["name"]}]
    }
    definitions["EngineConfig"]["properties"]["name"]["enum"] = ["auto", *ENGINES.names()]
    definitions["LossConfig"]["properties"]["name"]["anyOf"][0] |= _one_of(LOSSES)
    definitions["DataConfig"]["properties"]["source"]["examples"] = DATA_SOURCES.names()
    lists = (("TrainConfig", "augment", AUGMENTATIONS), ("RunConfig", "metrics", METRICS))
    for section, key, registry in lists:
        settings = {"type": "object", "properties": {"name": _one_of(registry)}, "required": ["name"]}
        definitions[section]["properties"][key]["items"] = {"anyOf": [_one_of(registry), settings]}
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "the packaged recipe or the file that this recipe starts from",
    }
    meanings = {key.key: key.plain[2] for section in key_sections() for key in section.keys}
    sections = {id(properties): (prefix, properties) for prefix, properties in _all_properties(schema, definitions)}
    for prefix, properties in sections.values():
        for name, value in properties.items():
            properties[name] = _optional(value, meanings.get(f"{prefix}{name}"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "ganherd recipe"}


def _one_of(registry: Registry[Any]) -> JsonObject:
    """Return the schema of a text that is a registered name or has the form `package.module:name`."""
    return {"anyOf": [{"enum": registry.names()}, {"pattern": _TARGET}], "type": "string"}


def _all_properties(schema: JsonObject, definitions: JsonObject, prefix: str = "") -> Iterator[tuple[str, JsonObject]]:
    """Yield the properties of a schema and of all sections within it, each after its dotted prefix, such as `train.`.

    Args:
        schema: The schema of a section.
        definitions: The schemas that it refers to, by name.
        prefix: The dotted prefix of the section's keys; "" for the whole recipe.
    """
    for name, value in list(schema.get("properties", {}).items()):
        for branch in (value, value.get("items", {}), *value.get("anyOf", ())):
            target = definitions[branch["$ref"].removeprefix(_REF)] if "$ref" in branch else branch
            yield from _all_properties(target, definitions, f"{prefix}{name}.")
    if "properties" in schema:
        yield prefix, schema["properties"]


def _optional(value: JsonObject, meaning: str | None) -> JsonObject:
    """Return the schema of a property, extended to allow null, with `meaning` as its description if it is given."""
    about = {"description": meaning} if meaning else {}
    outer: dict[str, Any] = {key: value[key] for key in ("default", "description") if key in value}
    inner = {key: entry for key, entry in value.items() if key not in ("default", "description", "title")}
    return {"anyOf": [inner, {"type": "null"}]} | outer | about
