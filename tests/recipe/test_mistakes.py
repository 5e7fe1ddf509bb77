"""Every mistake in a recipe is one sentence that names the key, the line and what was meant."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ganherd.nets import catalog
from ganherd.nets.net_spec import NetSpec
from ganherd.recipe.base import Section
from ganherd.recipe.recipe_file import load, text
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError
from ganherd.util.registry import LOSSES


def mistake(content: str | bytes, folder: Path, *overrides: str) -> str:
    """What is said about a recipe with this content, in a file named recipe.yaml."""
    file = folder / "recipe.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return mistake_in(file, *overrides)


def mistake_in(file: Path, *overrides: str) -> str:
    """Return the message about a recipe file with these overrides."""
    with pytest.raises(UserError) as caught:
        load(file, overrides)
    said = str(caught.value).replace(str(file), "recipe.yaml")
    assert "\n" not in said and len(said) < 400, "one sentence"
    return said


def keys(model: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in model.known_fields().items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            if field.annotation.__name__ != "NetConfig":
                yield from keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


KEYS = sorted(keys(Recipe))


def misspelt(word: str) -> Iterator[str]:
    """The word with two letters exchanged, one lost and one doubled."""
    for i in range(1, len(word)):
        yield word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :]
        yield word[:i] + word[i + 1 :]
        yield word[:i] + word[i] + word[i:]


# unknown keys


@pytest.mark.parametrize("key", KEYS)
def test_a_slip_in_any_key_is_named_with_its_line_and_the_key_that_was_meant(key: str, tmp_path: Path) -> None:
    *sections, word = key.split(".")
    head = "# a comment\n\n" + "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(sections))
    empty = tmp_path / "empty.yaml"
    empty.write_text("{}")
    beside = [k.rpartition(".")[2] for k in KEYS if k.rpartition(".")[0] == ".".join(sections)]
    for slip in set(misspelt(word)) - set(beside):
        said = mistake(f"{head}{'  ' * len(sections)}{slip}: 1\n", tmp_path)
        wrong = ".".join((*sections, slip))
        assert said.startswith(f"recipe.yaml line {3 + len(sections)}: unknown key {wrong!r}; did you mean "), said
        assert repr(key) in said, said
        assert mistake_in(empty, f"{wrong}=1") == f"--set {wrong}=1: {said.partition(': ')[2]}"


@given(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12), st.sampled_from(["", *Recipe.model_fields]))
def test_any_unknown_key_is_named_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, word: str, section: str
) -> None:
    assume(section not in ("about", "code") and word not in Recipe.model_fields)
    assume(f"{section}.{word}" not in KEYS and word not in ("generator", "discriminator", "repair"))
    content = f"\n{section}:\n  {word}: 1\n" if section else f"\n\n{word}: 1\n"
    said = mistake(content, tmp_path_factory.mktemp("recipe"))
    assert said.startswith(f"recipe.yaml line 3: unknown key '{section}{'.' * bool(section)}{word}'; ")
    assert "did you mean" in said or " has " in said


def test_a_key_of_another_section_is_found(tmp_path: Path) -> None:
    assert mistake("batch: 3", tmp_path).endswith("unknown key 'batch'; did you mean 'train.batch'?")
    assert mistake("train: {lr: 3}", tmp_path).endswith("did you mean 'optim.lr_g' or 'optim.lr_d'?")
    assert mistake("herd: {seed: 3}", tmp_path).endswith("did you mean 'herd.seeds' or 'run.seed'?")


@pytest.mark.parametrize("role, specs", [("generator", catalog.GENERATORS), ("discriminator", catalog.DISCRIMINATORS)])
def test_a_slip_in_a_net_or_its_settings_is_named(role: str, specs: dict[str, NetSpec], tmp_path: Path) -> None:
    for name, spec in specs.items():
        said = mistake(f"nets:\n  {role}: {name}x", tmp_path)
        assert said.startswith(f"recipe.yaml line 2: there is no {role} '{name}x'") and repr(name) in said
        for setting in spec.settings:
            said = mistake(f"nets:\n  {role}:\n    name: {name}\n    {setting}x: 1", tmp_path)
            assert said.startswith(f"recipe.yaml line 4: unknown key 'nets.{role}.{setting}x'")
            assert said.endswith(f"did you mean 'nets.{role}.{setting}'?")
            assert mistake(f"nets: {{{role}: {name}}}", tmp_path, f"nets.{role}.{setting}=[no]").startswith(
                f"--set nets.{role}.{setting}=[no]: nets.{role}.{setting} must be "
            )


# wrong values: one line of YAML (or an override), and what is said


@pytest.mark.parametrize(
    "line, said",
    [
        ("train: {batch: x}", "train.batch must be a whole number of at least 1, not 'x'"),
        ("train: {batch: 0}", "train.batch must be a whole number of at least 1, not 0"),
        ("train: {batch: 2.5}", "train.batch must be a whole number of at least 1, not 2.5"),
        ("train: {batch: true}", "train.batch must be a whole number of at least 1, not true"),
        ("train: {batch: }", "train.batch must be a whole number of at least 1, not empty"),
        ("train: {batch: [1]}", "train.batch must be a whole number of at least 1, not [1]"),
        (
            "train: {ema: 1}",
            "train.ema must be a number of at least 0 and below 1, or a list of such, one for each member, or null, not 1",
        ),
        ("data: {diet: 0}", "data.diet must be a number above 0 and at most 1, not 0"),
        (
            "data: {partition: by-clas}",
            "data.partition must be one of by-class, all, diet, not 'by-clas'; did you mean",
        ),
        (
            "optim: {lr_g: -1}",
            "optim.lr_g must be a number of at least 0, or a list of such, one for each member, not -1",
        ),
        ("optim: {lr_g: [1, true]}", "optim.lr_g must be a number of at least 0, or a list of such"),
        ("optim: {lr_g: []}", "optim.lr_g must be a number of at least 0, or a list of such"),
        ("optim: {beta1: 1}", "optim.beta1 must be a number of at least 0 and below 1"),
        ("run: {tensorboard: 7}", "run.tensorboard must be true or false, not 7"),
        ("run: {record_every: 0}", "run.record_every must be a whole number of at least 1, not 0"),
        (
            "run: {weights: dat}",
            "run.weights must be one of data, uniform, or a mapping of labels to numbers of at least 0",
        ),
        ("run: {weights: {a: 0}}", "run.weights must give at least one label a weight above zero"),
        ("run: {seed: -1}", "run.seed must be a whole number of at least 0, not -1"),
        ("about: [1]", "about must be text, not [1]"),
        ("train: 5", "train must be a mapping (budget, batch, "),
        (
            "engine: fused",
            "engine must be a mapping (name, device, chunk, memory, threads, balance, without_gpu), not 'fused'; did you",
        ),
        ("engine: {device: gpu}", "engine.device must be auto, cpu, cuda or one GPU, such as cuda:1, not 'gpu'"),
        ("engine: {memory: lots}", "engine.memory must be a size of memory, such as 4GiB or 500MB, not 'lots'"),
        (
            "train: {budget: soon}",
            "train.budget must be steps, epochs or time above zero, e.g. 5000steps, 20epochs, 90s",
        ),
        ("train: {budget: 1:30}", "train.budget must be steps, epochs or time above zero"),
        ("strategy: {name: gapp}", "strategy.name must be "),
        ("nets: {generator: 3}", "nets.generator must name a net, such as mlp or {name: mlp, activation: tanh}"),
        ("nets: {generator: {width: 3}}", "nets.generator must name a net"),
        ("nets: {generator: {name: mlp, settings: 3}}", "nets.generator must have a mapping as its settings"),
        (
            "nets: {generator: {name: small, width: 3, settings: {width: 4}}}",
            "nets.generator must have its setting 'width' once",
        ),
        ("nets: {generator: {name: mlp, hidden: 3}}", "nets.generator.hidden must be a list of whole numbers"),
        (
            "nets: {generator: {name: mlp, hidden: [256, 0]}}",
            "nets.generator.hidden must be a list of whole numbers of at least 1",
        ),
        ('nets: {generator: {name: mlp, "": 3}}', "unknown key 'nets.generator.'"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_wanted(line: str, said: str, tmp_path: Path) -> None:
    assert mistake(f"\n{line}", tmp_path).startswith(f"recipe.yaml line 2: {said}")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{at: 0, topology: ring}", "rewire.at must be a whole number of at least 1, not 0"),
        ("{at: 3, topology: rnig}", "rewire.topology must be one of torus, .*, not 'rnig'; did you mean 'ring'"),
        ("{topology: ring}", "rewire.at must be a whole number of at least 1, not empty"),
        ("7", r"rewire must be a list of mappings \(at, topology, neighbours, graph\)"),
    ],
)
def test_a_wrong_value_in_a_list_of_mappings_is_named_by_its_own_key(entry: str, said: str, tmp_path: Path) -> None:
    content = f"strategy:\n  cellular:\n    rewire: [{{at: 1, topology: full}}, {entry}]\n"
    assert re.fullmatch(rf"recipe.yaml line 3: strategy\.cellular\.{said}.*", mistake(content, tmp_path))


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    assert len(mistake(f"train: {{batch: {'x' * 10_000}}}", tmp_path)) < 200


@pytest.mark.parametrize("name", LOSSES)
def test_a_misspelt_loss_is_answered_with_the_loss_that_was_meant(name: str, tmp_path: Path) -> None:
    for wrong in (name[:-1] + name[-1] * 2, f"[{name}, {name}x]"):
        said = mistake(f"loss:\n  name: {wrong}", tmp_path)
        assert said.startswith("recipe.yaml line 2: there is no loss ") and said.endswith(f"did you mean {name!r}?")


def test_a_loss_of_a_list_is_blamed_where_it_was_given(tmp_path: Path) -> None:
    key = "strategy.cellular.mutation.losses"
    grid = "loss: {name: hinge}\ndata: {partition: all}\nstrategy:\n  name: cellular\n"
    wrong = grid + "  cellular:\n    mutation:\n      losses: [foo]"
    assert mistake(wrong, tmp_path).startswith("recipe.yaml line 7: there is no loss 'foo'")
    assert mistake(grid, tmp_path, f"{key}=[foo]").startswith(f"--set {key}=[foo]: there is no loss 'foo'")


def test_losses_are_known_by_their_other_names(tmp_path: Path) -> None:
    assert mistake("loss: {name: WGAN-GP}", tmp_path).endswith("did you mean 'wasserstein-gp'?")
    assert mistake("loss: {name: lsgan}", tmp_path).endswith("did you mean 'least-squares'?")


# impossible combinations


def test_a_diet_needs_its_partition(tmp_path: Path) -> None:
    said = mistake("data:\n  source: mnist\n  diet: 0.5", tmp_path)
    assert said.startswith("recipe.yaml line 3: data.diet 0.5 has no effect with data.partition by-class")
    assert load({"data": {"diet": 0.5, "partition": "diet"}}).data.diet == 0.5


def test_a_graph_needs_a_gpu(tmp_path: Path) -> None:
    said = "engine.name graph needs a GPU, and engine.device is cpu"
    assert mistake("engine:\n  device: cpu\n  name: graph", tmp_path).startswith(f"recipe.yaml line 3: {said}")
    assert mistake("engine:\n  name: graph", tmp_path, "engine.device=cpu").startswith(
        f"--set engine.device=cpu: {said}"
    )
    assert load({"engine": {"name": "graph", "device": "cuda"}}).engine.name == "graph"


def test_settings_of_a_grid_that_have_no_effect_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    def said(**cellular: Any) -> str:
        grid = {"strategy": {"name": "cellular", "cellular": cellular}}
        with pytest.raises(UserError) as refused:
            load({"data": {"partition": "all"}, "loss": {"name": "non-saturating"}, **grid})
        return str(refused.value)

    key = "strategy.cellular"
    for name, value in (("offspring", 4), ("opponents", "partner"), ("max_age", 2), ("survival", "comma")):
        assert f"{key}.{name} has no effect with {key}.selection false" in said(selection=False, **{name: value})
    assert f"{key}.max_age has no effect with {key}.survival comma" in said(survival="comma", max_age=2)
    assert f"{key}.offspring 2 is fewer than the 3 individuals of a cell" in said(population=3, offspring=2)
    assert f"{key}.offspring" in said(offspring=65)


def test_asynchronous_swaps_have_settings_that_fit(tmp_path: Path) -> None:
    gap = "strategy:\n  name: gap\n  gap:\n    "
    message = mistake(f"{gap}staleness: 3", tmp_path)
    assert message.startswith(
        "recipe.yaml line 4: strategy.gap.staleness has no effect with strategy.gap.exchange sync"
    )
    message = mistake(f"{gap}replay: runs/1", tmp_path)
    assert message.startswith("recipe.yaml line 4: strategy.gap.replay has no effect with strategy.gap.exchange sync")
    message = mistake(f"{gap}exchange: async\n    pace: [1, 0.5, 0.5, 1]", tmp_path)
    assert "strategy.gap.pace simulates members of different speed" in message
    message = mistake("strategy:\n  name: gap\n  cellular: {exchange: async}", tmp_path)
    assert "strategy.cellular has no effect with strategy.name gap" in message


def test_of_several_mistakes_the_first_in_the_file_is_told(tmp_path: Path) -> None:
    said = mistake("train:\n  batch: x\n  bacth: 3\ndata:\n  diet: 7", tmp_path)
    assert said.startswith("recipe.yaml line 2: train.batch")


def test_an_override_mends_a_mistake_in_the_file(tmp_path: Path) -> None:
    assert "line 1" in mistake("train: {batch: x}", tmp_path)
    assert load(tmp_path / "recipe.yaml", ["train.batch=3"]).train.batch == 3


# files that are no recipes


@pytest.mark.parametrize(
    "content, said",
    [
        ("", "recipe.yaml is empty"),
        ("# nothing\n\n---\n", "recipe.yaml is empty"),
        ("- a\n- b", "recipe.yaml line 1: a recipe is made of sections (data:, nets:, train: …), and this is a list"),
        ("hello", "recipe.yaml line 1: a recipe is made of sections"),
        ("train:\n  batch: [1\n", "recipe.yaml line 3: this is not YAML: expected ',' or ']'"),
        ("train:\n\tbatch: 3", "recipe.yaml line 2: this is not YAML"),
        ("a: *b", "recipe.yaml line 1: this is not YAML: found undefined alias"),
        ("a: 1\n---\na: 1", "recipe.yaml line 2: this is not YAML"),
        (
            "train:\n  batch: 3\n\n  batch: 3",
            "recipe.yaml line 4: the key 'train.batch' occurs twice, first in line 2",
        ),
        ("train: {}\ndata: {}\ntrain: {}", "recipe.yaml line 3: the key 'train' occurs twice, first in line 1"),
        (
            "about: a\nx: !!python/object/apply:os.system [ls]",
            "recipe.yaml line 2: the tag !!python/object/apply:os.system",
        ),
        ("about: !!binary aGk=", "recipe.yaml line 1: the tag !!binary is not allowed in a recipe"),
        ("? [a]\n: b", "recipe.yaml line 1: a key must be a word"),
        ("run: {seed: !!int x}", "recipe.yaml line 1: 'x' is not a number"),
        (f"run: {{seed: {'9' * 5000}}}", "recipe.yaml line 1: '9999999999"),
        ("about: &a [*a]", "recipe.yaml line 1: its aliases (*name) make it endless"),
        ("[" * 5000, "recipe.yaml is nested too deeply"),
        ("about: a\0b", "recipe.yaml line 1: a character that YAML does not allow"),
        (b"about: fine\nabout2: \xff\xfe", "recipe.yaml line 2: this is not UTF-8 text"),
        (b"#" * (2**20 + 1), "recipe.yaml is too large to be a recipe"),
    ],
)
def test_a_file_that_is_no_recipe(content: str | bytes, said: str, tmp_path: Path) -> None:
    assert mistake(content, tmp_path).startswith(said)


def test_tabs_are_named_as_the_trouble(tmp_path: Path) -> None:
    assert mistake("train:\n\tbatch: 3", tmp_path).endswith("indent with spaces, not with tabs")


@pytest.mark.parametrize("shape", ["[*{0}, *{0}]", "{{<<: [*{0}, *{0}]}}"])
def test_a_short_file_cannot_grow_enormous(shape: str, tmp_path: Path) -> None:
    first = "{a: 1, b: 2}"
    lines = [f"x0: &x0 {first}"] + [f"x{i}: &x{i} {shape.format(f'x{i - 1}')}" for i in range(1, 40)]
    assert "its aliases (*name) make it endless" in mistake("\n".join(lines), tmp_path)


def refused(source: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        load(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    assert refused("digits-wcgn").endswith("did you mean 'digits-wcgan'?")
    assert "there is no recipe file 'nowhere/x.yaml'" in refused("nowhere/x.yaml")
    assert "`ganherd recipes` lists them" in refused("zzz")
    assert "there is no recipe file" in refused("a\0b")
    assert refused("").startswith("the name of the recipe is empty; name a recipe file")
    with pytest.raises(UserError, match="there is no recipe 'digits-wcgn'; did you mean 'digits-wcgan'"):
        text("digits-wcgn")
    with pytest.raises(UserError, match="there is no recipe"):
        text("../recipe")


def test_a_folder_is_no_recipe_but_may_hold_one(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith("is a folder, not a recipe; name a recipe file in it")
    (tmp_path / "recipe.yaml").write_text("{}")
    assert refused(tmp_path).endswith(f"did you mean {tmp_path / 'recipe.yaml'}?")


def test_special_and_unreadable_files(tmp_path: Path) -> None:
    if Path("/dev/zero").exists():
        assert "is not a file" in refused("/dev/zero")
    locked = tmp_path / "locked.yaml"
    locked.write_text("{}")
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        assert "cannot be read" in refused(locked)
    assert "there is no recipe file" in refused(tmp_path / "locked.yaml" / "inside.yaml")
    assert "cannot be read" in refused("x" * 5000)


# overrides


@pytest.mark.parametrize("override", ["train.batch", "=3", "", ".=3", "train.=3", "train..batch=3"])
def test_an_override_without_key_or_value_is_explained(override: str, tmp_path: Path) -> None:
    said = mistake("{}", tmp_path, override)
    assert said == f"--set {override}: write key=value, for example --set train.batch=32"


def test_a_broken_value_of_an_override(tmp_path: Path) -> None:
    assert mistake("{}", tmp_path, "optim.lr_g=[1").startswith("--set optim.lr_g=[1: this is not YAML")
    assert mistake("{}", tmp_path, "train.batch.x=1").startswith("--set train.batch.x=1: train.batch must be")
    assert mistake("{}", tmp_path, "train=3").startswith("--set train=3: train must be a mapping")
    assert mistake("{}", tmp_path, "nets.generator=dcgn").startswith("--set nets.generator=dcgn: there is no generator")
    assert mistake("{}", tmp_path, "nets.generatr=mlp").endswith("did you mean 'nets.generator'?")


@given(st.text(max_size=40))
def test_no_override_ends_in_anything_but_a_sentence(override: str) -> None:
    try:
        load({}, [override, f"train.batch={override}", f"about={override}", f"nets.generator.{override}"])
    except UserError as error:
        assert str(error)


@given(st.text("abt:{}[]&*!<>|-\n \"'#?,.0", max_size=60))
def test_no_text_ends_in_anything_but_a_recipe_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(content)
    try:
        assert isinstance(load(file), Recipe)
    except UserError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.batch", 10**30),
        ("train.batch", 2**21),
        ("herd.members", 10**30),
        ("herd.seeds", 10**9),
        ("nets.latent", 10**12),
        ("nets.generator.width", 10**30),
        ("engine.threads", 4096),
        ("run.checkpoint_every", 10**30),
        ("run.record_every", f"{10**30}steps"),
        ("run.seed", 10**30),
        ("train.budget", "1e300epochs"),
        ("train.budget", f"{10**30}steps"),
        ("optim.lr_g", 10**400),
    ],
)
def test_numbers_that_no_machine_holds_are_refused_by_their_key(key: str, value: object) -> None:
    with pytest.raises(UserError, match=re.escape(key)):
        load({}, [f"{key}={value}"])
