"""A recipe is what its file and its overrides say, and comes back from its own text unchanged."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ganherd.nets import catalog
from ganherd.recipe import yaml_lines
from ganherd.recipe.recipe_file import DEFAULT, difference, dump, load, names, text
from ganherd.recipe.schema import Recipe, parse_budget, parse_bytes
from ganherd.util.errors import UserError
from ganherd.util.registry import LOSSES


def write(folder: Path, content: str) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(content, encoding="utf-8")
    return file


def test_no_torch_is_needed_to_read_recipes() -> None:
    code = (
        "import sys; from ganherd.recipe.recipe_file import *; names(); load(DEFAULT); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=processes.environment()).returncode == 0


# the packaged recipes


PACKAGED = [name for name, _ in names()]


def test_the_default_comes_first_in_the_list() -> None:
    assert PACKAGED[0] == DEFAULT == "digits-wcgan"
    assert {"digits-nonsat", "mnist-wcgan", "mnist-mlp", "cifar10-wcgan-paper", "cifar10-dcgan"} <= set(PACKAGED)
    assert {"ring8", "grid25", "r15", "folder-perclass-small"} <= set(PACKAGED)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_recipe_is_valid_and_says_what_it_is(name: str) -> None:
    recipe = load(name)
    about = dict(names())[name]
    assert recipe.about == about
    assert 20 < len(about) <= 110 and about.endswith(".")


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_recipe_teaches(name: str) -> None:
    """Comments of its own stand beside its settings, and it can be read by any YAML reader."""
    lines = text(name).splitlines()
    assert sum("#" in line for line in lines[1:]) >= 5
    assert all(len(line) <= 120 for line in lines)
    assert isinstance(yaml.safe_load(text(name)), dict)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_recipe_comes_back_from_its_dump(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    assert load(write(tmp_path, dump(recipe))) == recipe
    assert load(str(tmp_path / "recipe.yaml")) == recipe


ODD_TEXTS = [
    "",
    "7",
    "a: [",
    "a: 'x",
    "a:\tb",
    "a: *b",
    "&a [*a]",
    "a: 1\na: 2",
    "%YAML 1.2\n---\n<<: {a: 0x1F}",
    "\x00",
    "[" * 5000,
]


@pytest.mark.further("'[[[[[[[[['")
@pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML was built without libyaml")
@pytest.mark.parametrize("content", [*map(text, PACKAGED), dump(load(DEFAULT)), *ODD_TEXTS], ids=lambda t: repr(t[:9]))
def test_libyaml_and_the_parser_of_pyyaml_read_a_recipe_alike(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def result() -> Any:
        try:
            return yaml_lines.read(content, "a.yaml")
        except UserError as error:
            return str(error)

    quick = result()
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert result() == quick


def test_recipes_that_are_meant_for_a_gpu_say_what_to_do_without_one() -> None:
    for name in PACKAGED:
        meant = "Meant for a GPU" in text(name) or "on a GPU" in load(name).about
        assert bool(load(name).engine.without_gpu) == meant, name
    assert "folder-perclass-small" in load("folder-perclass").engine.without_gpu


# every default written out


def test_a_dump_holds_every_key_of_the_schema_in_its_order() -> None:
    plain = yaml.safe_load(dump(Recipe()))
    assert list(plain) == list(Recipe.model_fields)
    for name, section in plain.items():
        if name not in ("about", "code"):  # the two that are no sections
            assert list(section) == list(getattr(Recipe(), name).model_dump())
    assert plain["nets"]["generator"]["settings"] == {
        key: setting.default for key, setting in catalog.GENERATORS["small"].settings.items()
    }


@pytest.mark.further
def test_any_yaml_reader_understands_a_dump_alike() -> None:
    for recipe in (Recipe(), *map(load, PACKAGED)):
        assert yaml.safe_load(dump(recipe)) == recipe.model_dump()


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
rates = st.floats(0, 1e3, allow_subnormal=True)
per_member = rates | st.lists(rates, min_size=1, max_size=4)
decays = st.floats(0, 1, exclude_max=True)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
foreign = st.fixed_dictionaries(
    {"name": st.just("mine.nets:Net"), "settings": st.dictionaries(words, plain_values, max_size=3)}
)


def section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


recipes = section(
    about=words,
    data=section(
        source=words,
        holdout=decays,
        epoch=st.sampled_from(["largest", "smallest", "mean"]),
        size=st.none() | st.integers(2, 512),
    ),
    herd=section(members=st.none() | st.integers(1, 1000), seeds=st.integers(1, 9)),
    nets=section(generator=foreign | st.sampled_from(list(catalog.GENERATORS)), latent=st.integers(1, 512)),
    loss=section(name=st.sampled_from(list(LOSSES)) | st.lists(st.sampled_from(list(LOSSES)), min_size=1, max_size=3)),
    optim=section(lr_g=per_member, beta1=decays, eps=st.floats(0, 1, exclude_min=True)),
    train=section(
        budget=st.integers(1, 10**6).map("{}steps".format) | st.integers(1, 10**6),
        input_noise=per_member,
        ema=st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
    ),
    run=section(
        weights=st.sampled_from(["data", "uniform"])
        | st.dictionaries(words, st.floats(0.1, 9), min_size=1, max_size=3),
        tensorboard=st.booleans(),
        wandb=st.sampled_from(["off", "offline", "online"]),
        checkpoint_every=st.integers(0, 10**6) | st.integers(0, 10**6).map("{}steps".format),
    ),
)


@pytest.mark.further
@given(recipes)
def test_every_recipe_comes_back_from_its_dump(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    recipe = load(data)
    file = write(tmp_path_factory.mktemp("recipe"), dump(recipe))
    assert load(file) == recipe
    assert difference(recipe, load(file)) == []


# values and overrides


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "1.e-4", "0.0001", ".1e-3", "+1e-4", "1.0e-04"])
def test_small_numbers_may_be_written_as_people_write_them(number: str, tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-4 for text."""
    assert load(write(tmp_path, f"optim:\n  lr_g: {number}")).optim.lr_g == 1e-4
    assert load({}, [f"optim.lr_g={number}"]).optim.lr_g == 1e-4
    assert load({}, [f"optim.lr_g=[{number}, 3]"]).optim.lr_g == [1e-4, 3.0]


@pytest.mark.parametrize(
    "override, key, value",
    [
        ("train.batch=32", "train.batch", 32),
        ("train.batch = 32", "train.batch", 32),
        ("data.points=1e5", "data.points", 100_000),
        ("run.seed=1_000", "run.seed", 1000),
        ("run.checkpoint_every=50steps", "run.checkpoint_every", 50),
        ("train.budget=5000", "train.budget", "5000"),
        ("train.budget=1.5h", "train.budget", "1.5h"),
        ("run.wandb=off", "run.wandb", "off"),
        ("run.tensorboard=on", "run.tensorboard", True),
        ("engine.chunk=", "engine.chunk", None),
        ("data.source=a=b", "data.source", "a=b"),
        ("data.source=7", "data.source", "7"),
        ("run.weights.7=2", "run.weights", {"7": 2.0}),
        ("run.weights={7: 2, no: 1}", "run.weights", {"7": 2.0, "no": 1.0}),
        ("run.repair.limit=0", "run.repair.limit", 0),
        ("loss.name=[hinge, minimax]", "loss.name", ["hinge", "minimax"]),
        ("nets.generator=toy", "nets.generator.name", "toy"),
        ("nets.generator.width=64", "nets.generator.settings.width", 64),
        ("nets.generator.settings.width=64", "nets.generator.settings.width", 64),
        ("nets.generator={name: toy, width: 8}", "nets.generator.settings.width", 8),
    ],
)
def test_an_override_sets_one_key(override: str, key: str, value: Any) -> None:
    found: Any = load(DEFAULT, [override]).model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value and type(found) is type(value)


def test_an_override_reaches_into_a_list() -> None:
    alike = ["optim.lr_g=1e-4", "optim.lr_d=1e-4", "optim.beta1=0.5"]  # for all members, whose number changes
    made = load("mnist-gap-c4", ["nets.breeds.1.generator.width=8", "nets.breeds.0.members=3", *alike]).nets.breeds
    before = load("mnist-gap-c4").nets.breeds
    assert made[1].generator.settings == {**before[1].generator.settings, "width": 8}
    assert (made[0].members, made[0].generator) == (3, before[0].generator)
    assert load("mnist-gap-c4", ["optim.lr_g.3=5e-5"]).optim.lr_g == [*load("mnist-gap-c4").optim.lr_g[:3], 5e-5]
    for wrong in ("nets.breeds.2.members=1", "nets.breeds.first.members=1"):
        with pytest.raises(UserError, match="the list has the entries 0 to 1, and '.*' is not one of them"):
            load("mnist-gap-c4", [wrong])


def test_later_overrides_win_and_build_on_earlier_ones() -> None:
    recipe = load("mnist-mlp", ["nets.generator=small", "nets.generator.width=32", "train.batch=1", "train.batch=2"])
    assert (recipe.nets.generator.name, recipe.nets.generator.settings["width"], recipe.train.batch) == ("small", 32, 2)


def test_an_override_changes_a_dumped_recipe_as_it_changes_the_short_one(tmp_path: Path) -> None:
    override = ["nets.generator.hidden=[8]"]
    assert load(write(tmp_path, dump(load("mnist-mlp"))), override) == load("mnist-mlp", override)


def test_a_mapping_and_sections_load_as_a_file_does() -> None:
    recipe = load("ring8", ["run.seed=3"])
    assert load(recipe) == recipe
    assert load(recipe.model_dump()) == recipe
    assert load({"train": recipe.train}, ["train.n_critic=2"]).train.batch == recipe.train.batch


def test_the_mapping_that_was_given_is_left_alone() -> None:
    given_by_caller: dict[str, Any] = {"nets": {"generator": {"name": "toy", "width": 8}}, "run": None}
    load(given_by_caller, ["nets.generator.width=9", "run.seed=1"])
    assert given_by_caller == {"nets": {"generator": {"name": "toy", "width": 8}}, "run": None}


def test_a_section_with_all_lines_commented_out_has_its_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "train:\n  # batch: 3\nrun:\n  repair:\n")) == Recipe()


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    content = "nets:\n  generator: &net {name: mlp, hidden: [8]}\n  discriminator:\n    <<: *net\n    hidden: [9]\n"
    recipe = load(write(tmp_path, content))
    assert recipe.nets.discriminator.settings["hidden"] == [9]
    assert recipe.nets.discriminator.settings["activation"] == "leaky"


def test_a_name_is_the_packaged_recipe_and_a_path_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring8").write_text("about: mine", encoding="utf-8-sig")
    assert load("ring8").data.source == "ring8"
    assert load("./ring8").about == load(Path("ring8")).about == "mine"


def test_a_foreign_net_passes_with_any_settings_and_is_not_imported() -> None:
    recipe = load({"nets": {"generator": {"name": "no.such.module:Net", "depth": 3}}})
    assert recipe.nets.generator.settings == {"depth": 3}


# differences


def test_differences_name_the_key_and_both_values() -> None:
    new = load({}, ["train.batch=32", "engine.chunk=4", "optim.lr_g=[1, 2]", "run.weights.a=1", "about=a thing"])
    assert difference(Recipe(), new) == [
        'about: "" -> a thing',
        "optim.lr_g: 0.0002 -> [1.0, 2.0]",
        "train.batch: 64 -> 32",
        "engine.chunk: null -> 4",
        'run.weights: data -> {"a": 1.0}',
    ]
    assert difference(new, new) == []


def test_a_net_of_another_name_differs_in_its_settings_too() -> None:
    lines = difference(Recipe(), load({}, ["nets.discriminator=mlp"]))
    assert lines[0] == "nets.discriminator.name: small -> mlp"
    assert "nets.discriminator.settings.width: 128 -> (not set)" in lines


# quantities


@pytest.mark.parametrize(
    "budget, kind, amount",
    [
        ("5000steps", "steps", 5000),
        ("5000", "steps", 5000),
        ("1step", "steps", 1),
        ("1e4steps", "steps", 10_000),
        ("20epochs", "epochs", 20),
        ("0.5 epochs", "epochs", 0.5),
        ("90s", "seconds", 90),
        ("10m", "seconds", 600),
        ("10 min", "seconds", 600),
        ("2h", "seconds", 7200),
        ("1.5h", "seconds", 5400),
    ],
)
def test_budgets(budget: str, kind: str, amount: float) -> None:
    assert parse_budget(budget) == (kind, amount)


@pytest.mark.parametrize("budget", ["", "0", "0s", "-5", "1.5steps", "5 parsecs", "1:30", "s", "1e999s", "٣s", "10ms"])
def test_what_is_no_budget(budget: str) -> None:
    with pytest.raises(ValueError, match="must be steps, epochs or time"):
        parse_budget(budget)


@given(st.integers(1, 10**9), st.sampled_from(["steps", "s", "epochs"]))
def test_every_whole_amount_is_a_budget(amount: int, unit: str) -> None:
    assert parse_budget(f"{amount}{unit}")[1] == amount


@pytest.mark.parametrize(
    "size, count",
    [
        ("4GiB", 2**32),
        ("4G", 2**32),
        ("1kB", 1000),
        ("1.5 MiB", 3 * 2**19),
        ("512", 512),
        ("2TB", 2 * 10**12),
        ("1b", 1),
    ],
)
def test_sizes_of_memory(size: str, count: int) -> None:
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "GiB", "0", "-1G", "4 gigs", "4ib", "1e999"])
def test_what_is_no_size_of_memory(size: str) -> None:
    with pytest.raises(ValueError, match="must be a size of memory"):
        parse_bytes(size)


def test_infinity_is_no_setting() -> None:
    assert math.isfinite(Recipe().run.repair.diverged)
    for bad in (".inf", ".nan"):
        with pytest.raises(UserError, match="lr_g must be a number"):
            load({}, [f"optim.lr_g={bad}"])
