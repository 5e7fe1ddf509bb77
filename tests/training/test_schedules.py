"""Schedules and regularisers: exact after a stop, fixed when a run is extended, and mistakes in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from recipes import noise_recipe
from safetensors.torch import load_file

import ganherd
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.training import loop
from ganherd.training.setup.assemble import assemble
from ganherd.training.setup.member_data import cut
from ganherd.training.setup.member_settings import uneven_records
from ganherd.util.errors import Interrupted, UserError

FALLING = [
    {"keys": ["optim.lr_g", "optim.lr_d"], "shape": "cosine", "last": 0.0},
    {"keys": ["loss.gp_weight"], "start": "0.5run", "over": "2epochs", "last": 0.1},
]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def settings(folder: Path) -> dict[str, Any]:
    recipe = noise_recipe(folder, "12steps")
    recipe["train"] |= {"schedules": FALLING, "precision": "float64"}
    recipe["optim"] = {"weight_decay": 0.1}
    return recipe


def steered(folder: Path) -> dict[str, Any]:
    """Return a recipe whose members remember more than their weights: means of logits, and the strength of augmentation."""
    recipe = noise_recipe(folder, "12steps")
    recipe["loss"] = {"name": "hinge", "lecam_weight": 0.3, "lecam_start": 2, "consistency_weight": 1.0}
    recipe["loss"] |= {"r1_weight": 0.1, "r1_every": 3}
    recipe["train"] |= {"augment": ["colour"], "augment_probability": 0.5, "augment_target": 0.2, "augment_images": 100}
    return recipe


def weights(run: Path) -> bytes:
    return (run / "mixture" / "generators.safetensors").read_bytes()


@pytest.mark.parametrize("recipe", [settings, steered])
def test_a_stopped_run_ends_as_an_undisturbed_one(
    recipe: Callable[[Path], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ganherd.train(recipe(tmp_path), run=tmp_path / "whole", quiet=True)
    tick = loop.Trainer.tick

    def stop_at_eight(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == 8:
            raise Interrupted("stopped")

    monkeypatch.setattr(loop.Trainer, "tick", stop_at_eight)
    with pytest.raises(Interrupted):
        ganherd.train(recipe(tmp_path), run=tmp_path / "parts", quiet=True)
    monkeypatch.setattr(loop.Trainer, "tick", tick)
    assert weights(ganherd.resume(tmp_path / "parts", quiet=True).path) == weights(whole.path)


def test_the_strength_of_adaptive_augmentation_is_recorded(tmp_path: Path) -> None:
    states: list[list[float]] = []

    class Strengths(ganherd.Callback):
        def on_record(self, trainer: loop.Trainer, line: dict[str, Any]) -> None:
            states.append(trainer.prepared.herd.state["set.augment_probability"].tolist())

    run = ganherd.train(steered(tmp_path), run=tmp_path / "run", quiet=True, callbacks=[Strengths()])
    recorded = [json.loads(text)["augment"] for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert recorded == [pytest.approx(state, abs=1e-4) for state in states]
    assert any(strength != 0.5 for strength in recorded[-1])  # it has moved from where it started
    plain = ganherd.train(settings(tmp_path), run=tmp_path / "plain", quiet=True)
    assert "augment" not in (plain.path / "metrics.jsonl").read_text()


def test_spans_of_the_run_stay_when_it_is_extended(tmp_path: Path) -> None:
    """The learning rate has fallen to 0 by the end of the first budget, so a longer one changes no weight."""
    run = ganherd.train(settings(tmp_path), run=tmp_path / "run", quiet=True)
    # an epoch is three batches of eight, two of which make a step
    planned, before = RunFolder(run.path).info.meetings, ganherd.load(run.path)
    assert planned == {
        "schedule-0-start": 0, "schedule-0-over": 12, "schedule-1-start": 6, "schedule-1-over": 3,
    }  # fmt: skip
    ganherd.resume(run.path, ["train.budget=20steps"], quiet=True)
    after = ganherd.load(run.path)
    assert RunFolder(run.path).info.meetings == planned and after.step == 20
    for name, value in before.breeds[0].params.items():
        assert torch.allclose(value, after.breeds[0].params[name], atol=1e-3)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"keys": ["optim.lr"], "last": 0.1}, "cannot move optim.lr"),
        ({"keys": ["optim.lr_g"]}, "last"),
        ({"keys": ["optim.lr_g"], "last": 0.1, "over": "3m"}, "over"),
        ({"keys": ["optim.lr_g"], "last": 0.1, "shape": "wave"}, "shape"),
    ],
)
def test_mistakes_are_named(schedule: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        recipe_file.load({"train": {"schedules": [schedule]}})


@pytest.mark.parametrize(
    ("schedules", "optim", "says"),
    [
        ([{"keys": ["optim.beta1"], "last": 0}], {}, "makes it 1"),
        ([{"keys": ["optim.lr_g", "optim.beta2"], "first": 0, "last": 1}], {}, "makes it 1"),
        ([{"keys": ["optim.beta1"], "last": 2.5}], {}, "negative: its value is 0.5"),
        ([{"keys": ["optim.beta1"], "last": 2}] * 2, {"beta1": [0.9, 0.7]}, "negative: its value is 0.7"),
    ],
)
def test_a_beta_cannot_be_moved_out_of_its_range(
    schedules: list[dict[str, Any]], optim: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=f"out of .0, 1.*{says}"):
        recipe_file.load({"optim": optim, "train": {"schedules": schedules}})


def test_a_beta_may_be_moved_to_0() -> None:
    schedule = {"keys": ["optim.beta1"], "last": 2}
    recipe = recipe_file.load({"optim": {"beta1": 0.5}, "train": {"schedules": [schedule]}})
    assert recipe.train.schedules[0].last == 2


ADAPTIVE: dict[str, Any] = {"loss": {"name": "hinge"}, "train": {"augment_target": 0.6, "augment": ["flip"]}}


def mutating(**mutation: Any) -> dict[str, Any]:
    """Return sections of a grid whose losses mutate."""
    return {"data": {"partition": "all"}, "strategy": {"name": "cellular", "cellular": {"mutation": mutation}}}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"train": {"augment_target": 0.6}}, "train.augment is empty"),
        ({"loss": {"consistency_weight": [0.0, 1.0], "consistency_augment": []}}, "loss.consistency_augment is empty"),
        ({"train": {"augment_target": 0.6, "augment": ["flip"]}}, "no such sign"),  # the default is a critic
        (
            ADAPTIVE | {"herd": {"trials": [{"loss.name": "hinge"}, {"loss.name": "wasserstein"}]}},
            "loss.name wasserstein",
        ),
        (ADAPTIVE | mutating(losses=["hinge", "wasserstein-gp"]), "mutation.losses wasserstein-gp have no such sign"),
        (ADAPTIVE | mutating(losses=["hinge", "minimax"], d_loss="wasserstein"), "mutation.d_loss wasserstein have no"),
    ],
)
def test_augmentation_that_cannot_be_used_is_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        recipe_file.load(sections)


def test_the_strength_of_augmentation_follows_the_discriminator(tmp_path: Path) -> None:
    """Each member's own: it rises while its discriminator is surer of real images than the target."""
    run = ganherd.train(steered(tmp_path), run=tmp_path / "run", quiet=True)
    (file,) = (run.path / "checkpoints" / "step-00000012").glob("*.safetensors")
    strength = load_file(file)["set.augment_probability"]
    assert ((strength >= 0) & (strength <= 1)).all() and (strength != 0.5).any()
    moved = (strength - 0.5) / (8 / 100)  # in whole moves of a batch in 100 images, unless it reached an end
    inside = (strength > 0) & (strength < 1)
    assert torch.allclose(moved[inside], moved[inside].round(), atol=1e-6)


def test_frozen_layers_that_are_not_there_are_named(tmp_path: Path) -> None:
    recipe = noise_recipe(tmp_path)
    recipe["nets"]["frozen"] = ["layer.0"]
    with pytest.raises(UserError, match=r"nets\.frozen names 'layer\.0'"):
        ganherd.train(recipe, run=tmp_path / "run", quiet=True)


@pytest.mark.parametrize("key", ["consistency_weight", "consistency_weight_fake"])
def test_consistency_is_refused_for_data_that_are_no_images(key: str) -> None:
    recipe = recipe_file.load("wine-wcgan", [f"loss.{key}=1"])
    with pytest.raises(UserError, match="compares augmented images, and wine has "):
        cut(recipe)


@pytest.mark.parametrize(
    ("changes", "key", "note"),
    [
        ({"loss": {"name": "hinge"}}, "loss.r1_weight", "multiplies loss.r1_weight, which is 0, without effect"),
        ({"optim": {"lr_g": 0.0}}, "optim.lr_g", "multiplies optim.lr_g, which is 0"),
        (
            {"train": {"augment_probability": 0.5}},
            "train.augment_probability",
            "nothing is augmented: set train.augment",
        ),
        ({"loss": {"name": "hinge"}}, "loss.gp_weight", "the loss hinge has no gradient penalty"),
        ({"loss": {"name": "hinge", "r1_weight": [0.0, 1.0, 0.0]}}, "loss.r1_weight", None),
        ({"optim": {"beta1": 0.0}}, "optim.beta1", None),
        (
            {
                "loss": {"name": "hinge"},
                "train": {"augment": ["colour"], "augment_probability": 0.0, "augment_target": 0.5},
            },
            "train.augment_probability",
            None,
        ),
    ],
    ids=["weight of 0", "rate of 0", "no augmentation", "no penalty", "one member", "beta of 0", "steered from 0"],
)
def test_a_schedule_without_effect_is_noted(
    changes: dict[str, dict[str, Any]], key: str, note: str | None, tmp_path: Path
) -> None:
    recipe = noise_recipe(tmp_path, "12steps")
    recipe |= {"data": {**recipe["data"], "partition": "all"}, "herd": {"members": 3}}
    for section, values in changes.items():
        recipe[section] = {**recipe.get(section, {}), **values}
    recipe["train"] = {**recipe["train"], "schedules": [{"keys": [key], "last": 0.5}]}
    notes = [text for text in assemble(recipe_file.load(recipe)).notes if "train.schedules" in text]
    assert [note in text for text in notes if note] == ([True] if note else [])
    assert note is not None or not notes


def test_records_that_divide_repeating_steps_are_noted_on_a_gpu(tmp_path: Path) -> None:
    recipe = noise_recipe(tmp_path)
    recipe["loss"], recipe["train"]["skip_d"] = {"name": "hinge", "r1_weight": 1.0, "r1_every": 4}, 1
    prepared = assemble(recipe_file.load(recipe))
    rules, every = prepared.herd.rules, prepared.recipe.run.record_every
    assert rules.period == 8 and replace(rules, r1=0.0).period == 2 and every % 8
    (note,) = uneven_records(prepared.recipe, rules, on_gpu=True)
    assert f"run.record_every is {every}" in note and "a multiple of 8" in note
    assert not uneven_records(prepared.recipe, rules, on_gpu=False)
    assert not uneven_records(prepared.recipe, replace(rules, r1=0.0, skip_d=0), on_gpu=True)
