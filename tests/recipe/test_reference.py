"""The list of recipes by task, the explanation of every key, and the JSON schema that editors use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ganherd.recipe import recipe_file, yaml_lines
from ganherd.recipe.reference.json_schema import recipe_schema
from ganherd.recipe.reference.key_reference import find_keys, key_sections
from ganherd.recipe.reference.recipe_list import TASKS, list_recipes
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError

NAMES = [name for name, _ in recipe_file.names()]
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def mistakes(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield what a validator of JSON schemas would mark, for the parts of the language that the schema uses."""
    if "$ref" in schema:
        schema = {
            **root["$defs"][schema["$ref"].rpartition("/")[2]],
            **{k: v for k, v in schema.items() if k != "$ref"},
        }
    if "anyOf" in schema and all(list(mistakes(value, one, root, at)) for one in schema["anyOf"]):
        yield f"{at}: {value!r} is none of the alternatives"
    if kind := schema.get("type"):
        is_wrong = not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))
        if is_wrong:
            yield f"{at}: {value!r} is no {kind}"
            return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at}: {value!r} has another form"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        limits = {
            "minimum": value.__ge__,
            "maximum": value.__le__,
            "exclusiveMinimum": value.__gt__,
            "exclusiveMaximum": value.__lt__,
        }
        yield from (
            f"{at}: {value} breaks {name}"
            for name, fits in limits.items()
            if name in schema and fits(schema[name]) is False
        )
    if isinstance(value, list) and "items" in schema:
        for number, entry in enumerate(value):
            yield from mistakes(entry, schema["items"], root, f"{at}[{number}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{at}: {name} is required" for name in schema.get("required", ()) if name not in value)
        for name, entry in value.items():
            if name in known:
                yield from mistakes(entry, known[name], root, f"{at}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{at}: unknown key {name}"


schema_once = cache(recipe_schema)  # it takes a fifth of a second


def marked(data: Any) -> list[str]:
    schema = schema_once()
    return list(mistakes(data, schema, schema))


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_accepts_every_packaged_recipe(name: str) -> None:
    data, _ = yaml_lines.read(recipe_file.text(name), name)
    assert marked(data) == []


def test_the_schema_accepts_what_people_write() -> None:
    assert marked({"extends": "digits-wcgan", "train": {"batch": None}, "nets": {"generator": "mlp"}}) == []
    assert marked({"run": {"checkpoint_every": "50steps", "record_every": 10}, "herd": {"members": 4}}) == []
    assert marked({"strategy": {"name": "gap", "gap": {"every": "3steps"}}, "optim": {"lr_g": [1e-4, 2e-4]}}) == []


@pytest.mark.parametrize(
    "data",
    [
        {"train": {"bacth": 3}},
        {"train": {"batch": 0}},
        {"train": {"batch": "many"}},
        {"loss": {"name": "wgan"}},
        {"strategy": {"name": "swap"}},
        {"strategy": {"gap": {"evry": "3steps"}}},
        {"engine": {"name": "fast"}},
        {"data": {"partition": "some"}},
        {"run": {"checkpoint_every": "soon"}},
    ],
)
def test_the_schema_marks_mistakes(data: dict[str, Any]) -> None:
    assert marked(data)


def test_the_schema_explains_keys() -> None:
    schema = recipe_schema()
    batch = schema["$defs"]["TrainConfig"]["properties"]["batch"]
    assert batch["description"] == "samples per member and update" and batch["default"] == 64


def test_every_key_is_explained_with_its_default() -> None:
    keys = {key.key: key for section in key_sections() for key in section.keys}
    assert {"train.batch", "optim.lr_g", "strategy.gap.every", "strategy.cellular.grid", "run.watch.every"} <= set(keys)
    assert [key.key for key in keys.values() if not key.meaning] == []
    assert keys["train.batch"].plain == ("whole number ≥ 1", "64", "samples per member and update")
    recipe = Recipe().model_dump()
    for key in ("train.budget", "optim.lr_g", "data.holdout", "run.keep"):
        section, name = key.split(".")
        assert keys[key].plain[1] == str(recipe[section][name])


def found(word: str) -> list[str]:
    return [key.key for section in find_keys(word) for key in section.keys]


def test_keys_are_found_by_a_word_of_theirs_or_of_other_programs() -> None:
    assert "train.n_critic" in found("critic")
    assert found("lr")[:2] == ["optim.lr_g", "optim.lr_d"]
    assert "train.budget" in found("epochs") and "train.batch" in found("batch-size")
    with pytest.raises(UserError, match=r"no key of a recipe is about 'zebra'.*lists all of them"):
        found("zebra")


@pytest.mark.parametrize("columns", [80, 140])
def test_lists_and_keys_fit_the_terminal(cli, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (["recipes"], ["recipes", "--keys"]):
        lines = cli(*words).out.splitlines()
        assert max(map(len, lines)) <= columns and len(lines) > 50


def test_recipes_are_listed_by_task(cli) -> None:
    rows = {row.name: row for row in list_recipes()}
    assert set(rows) == set(NAMES)
    assert {row.task for row in rows.values()} == {title for title, _ in TASKS}  # no task is empty
    assert rows["digits-wcgan"].device == "CPU" and rows["digits-wcgan"].length == "1200steps"
    assert rows["folder-perclass"].device == "GPU" and rows["folder-perclass"].data == "a folder"
    assert rows["cifar10-perclass"].device == "GPU" and rows["mnist-wcgan"].task == "One GAN for each class"
    out = cli("recipes").out
    tasks = [title for title, _ in TASKS]
    assert [line for line in out.splitlines() if line in tasks] == tasks
    assert "ganherd train NAME --dry-run" in out


def test_a_part_of_a_name_lists_the_recipes_that_have_it(cli) -> None:
    listed = json.loads(cli("recipes", "mnist-gap", "--json").out)["recipes"]
    assert {row["name"] for row in listed} == {name for name in NAMES if "mnist-gap" in name}
    assert cli("recipes", "ring8").out.startswith("#")  # a whole name prints the recipe


def test_the_time_of_a_recipe_that_was_trained_here_is_shown(cli) -> None:
    for number, changes in enumerate(([], ["train.batch=3"])):
        run = Path(f"runs/{number}")
        run.mkdir(parents=True)
        facts = {
            "state": "finished",
            "seconds": 75.0 + number,
            "memory": 400 << 20,
            "recipe": ["ring8", "r15"][number],
            "changes": changes,
        }
        (run / "run.json").write_text(json.dumps(facts))
    out = cli("recipes").out
    assert "5000steps (1 min 15 s, 400.0 MiB here)" in out and "1 min 16 s" not in out


def test_schema_and_keys_are_printed(cli) -> None:
    assert json.loads(cli("recipes", "--schema").out)["title"] == "ganherd recipe"
    assert {"key", "values", "default", "meaning"} == set(
        json.loads(cli("recipes", "--keys", "lr", "--json").out)["keys"][0]
    )
    assert "leave one of them out" in cli("recipes", "--schema", "--keys").sentence
    assert "leave the name out" in cli("recipes", "ring8", "--schema").sentence
