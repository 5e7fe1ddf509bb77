"""Fine-tuning: a herd of members of finished runs starts with their nets and weights, and then needs those runs no more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_files
import tiny_runs
import torch
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.recipe import recipe_file
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.variants import class_start, finetune, retrain
from ganherd.util.errors import UserError

SMALL = {"name": "small", "width": 6, "batch_norm": True}
MLP = {"name": "mlp", "hidden": [5]}


@pytest.fixture(autouse=True, scope="module")
def brief() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        yield


def recipe(source: Path, generator: Any, **sections: Any) -> dict[str, Any]:
    """Members that share the data; `nets` only where they are not another run's."""
    own = {"data": {"partition": "all"}, "loss": {"name": "non-saturating"}, "run": {"sprites": None}}
    recipe_settings = tiny_recipe(source, **{**own, **sections})
    recipe_settings["engine"] = {"name": "fused", "threads": 1, "device": "cpu", "chunk": 8}
    recipe_settings["nets"] = {"generator": generator, "discriminator": {"name": "small", "width": 7}, "latent": 4}
    recipe_settings["nets"] |= sections.get("nets", {})
    if generator is None:
        del recipe_settings["nets"]
    return recipe_settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three finished runs: two smalls (with a prior for each), three mlps of two seeds, and one small alone, by class."""
    folder = tmp_path_factory.mktemp("runs")
    data = tiny_data(folder / "data.npz")
    wanted = {
        "smalls": recipe(data, SMALL, herd={"members": 2}, nets={"prior": ["uniform", "normal"]}),
        "mlps": recipe(data, MLP, herd={"members": 3, "seeds": 2}, train={"ema": None}),
        "single": recipe(data, SMALL, herd={"members": 1}),
    }
    for name, settings in wanted.items():
        ganherd.train(settings, run=folder / name, quiet=True)
    return {"data": data, **{name: folder / name for name in wanted}}


def hybrid(runs: dict[str, Path], **sections: Any) -> dict[str, Any]:
    members = [
        {"from": str(runs["smalls"]), "member": 1},
        {"from": str(runs["smalls"]), "member": 0},
        {"from": str(runs["mlps"]), "member": 2, "replica": 1},
        {"from": str(runs["mlps"]), "member": 0},
    ]
    herd = {"members": members, **sections.pop("herd", {})}
    return recipe(runs["data"], None, herd=herd, **sections)


def last(run: Path) -> tuple[PreparedHerd, dict[str, torch.Tensor]]:
    """A finished run's herd, and its state at the end."""
    assembly = assemble(recipe_file.load(run / "recipe.yaml"), begins=False)
    return assembly, checkpoint.newest(run / "checkpoints", assembly.herd.nets)[0].state


def nets_of(assembly: PreparedHerd, state: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    view = assembly.herd.breed_of(row).view(state)
    return {name: value[row] for name, value in view.items() if "adam" not in name and not name.startswith("set.")}


def test_members_start_with_the_nets_and_weights_of_theirs(runs: dict[str, Path]) -> None:
    prepared = assemble(recipe_file.load(hybrid(runs)))
    assert [(breed.name, len(breed.slots)) for breed in prepared.herd.breeds.all] == [("small", 2), ("mlp", 2)]
    assert prepared.recipe.nets.prior == ["normal", "uniform", "normal", "normal"] and prepared.recipe.members == 4
    smalls, mlps = last(runs["smalls"]), last(runs["mlps"])
    for row, (source, theirs) in enumerate([(smalls, 1), (smalls, 0), (mlps, 3 + 2), (mlps, 0)]):
        mine = nets_of(prepared, prepared.herd.state, row)
        wanted = nets_of(*source, theirs)
        wanted.setdefault(
            "g.ema", wanted["g.params"]
        )  # a run without a running average: it starts with the weights and their age
        wanted.setdefault("g.ema.t", source[1]["g.adam.t"][theirs])
        assert mine["g.ema.t"] == 6
        assert mine.keys() >= {"g.params", "d.params", "g.ema"}
        for name, value in mine.items():
            assert torch.equal(value, wanted[name]), (row, name)
    for name in ("g.adam.m", "d.adam.v", "g.adam.t"):
        assert not prepared.herd.state[name].any()
    width = prepared.herd.breeds.all[1].g.num_params
    assert not prepared.herd.state["g.params"][2:, width:].any()


def test_a_run_says_what_it_started_from_and_trains_on(runs: dict[str, Path], tmp_path: Path) -> None:
    strategy = {"name": "gap", "gap": {"every": "2steps"}}
    settings = hybrid(runs, strategy=strategy, train={"budget": "5steps"}, herd={"seeds": 2})
    run = ganherd.train(settings, run=tmp_path / "run", quiet=True)
    info = json.loads((run.path / "run.json").read_text())
    assert [(one["member"], one["replica"], one["step"]) for one in info["origins"]] == [
        (1, 0, 6), (0, 0, 6), (2, 1, 6), (0, 0, 6)
    ] * 2  # fmt: skip
    digests = [one["sha256"] for one in info["origins"]]
    assert len(set(digests)) == 4 and digests[:4] == digests[4:]
    assert any(line["event"] == "swap" for line in run_files.json_lines(run.path / "events.jsonl"))
    mixture = ganherd.load(run.path)
    assert [breed.net.name for breed in mixture.breeds] == ["small", "mlp"] and mixture.sample(9).x.shape == (
        9,
        1,
        8,
        8,
    )


@pytest.mark.further
def test_a_resume_needs_those_runs_no_more_and_is_exact(runs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("smalls", "mlps"):
        shutil.copytree(runs[name], tmp_path / name)
    there = {**runs, "smalls": tmp_path / "smalls", "mlps": tmp_path / "mlps"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ganherd.train(hybrid(there, train={"budget": "8steps"}), run=whole, quiet=True)
    ganherd.train(hybrid(there, train={"budget": "4steps"}), run=cut, quiet=True)
    shutil.rmtree(tmp_path / "smalls")
    shutil.rmtree(tmp_path / "mlps")
    (tmp_path / "mine.yaml").write_text(json.dumps(hybrid(there, train={"budget": "8steps"})))
    assert tiny_runs.command("train", tmp_path / "mine.yaml", "--resume", cut, "--quiet", "--set", "train.batch=9") == 2
    assert tiny_runs.command("train", tmp_path / "mine.yaml", "--resume", cut, "--budget", "8steps", "--quiet") == 0
    run_files.assert_same_run(cut, whole)


def test_a_run_without_a_checkpoint_begins_again_from_the_same_members(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["single"], tmp_path / "single")
    settings = recipe(runs["data"], None, herd={"start_from": str(tmp_path / "single")})
    run = ganherd.train(settings, run=tmp_path / "run", quiet=True).path
    before = (run / "mixture" / "generators.safetensors").read_bytes()

    def forget_checkpoints() -> None:
        shutil.rmtree(run / "checkpoints")
        RunFolder(run).write_info(state="interrupted")

    forget_checkpoints()
    ganherd.resume(run, quiet=True)
    assert (run / "mixture" / "generators.safetensors").read_bytes() == before
    forget_checkpoints()
    shutil.rmtree(tmp_path / "single")
    longer = recipe(runs["data"], SMALL, herd={"members": 1}, train={"budget": "9steps"})
    ganherd.train(longer, run=tmp_path / "single", quiet=True)
    with pytest.raises(UserError, match="the runs that .* starts from have changed"):
        ganherd.resume(run, quiet=True)


def test_start_from_takes_members_of_the_same_number_or_the_only_one(runs: dict[str, Path]) -> None:
    herd = {"start_from": str(runs["mlps"]), "seeds": 2}
    prepared = assemble(recipe_file.load(recipe(runs["data"], None, herd=herd)))
    assert prepared.recipe.herd.members == 3  # as many as it has
    theirs = last(runs["mlps"])[1]
    assert torch.equal(prepared.herd.state["g.params"], theirs["g.params"])
    assert torch.equal(prepared.herd.state["d.params"], theirs["d.params"])
    herd = {"start_from": str(runs["single"]), "members": 3, "seeds": 2}
    prepared = assemble(recipe_file.load(recipe(runs["data"], None, herd=herd)))
    only = last(runs["single"])[1]["g.params"][0]
    assert prepared.herd.num_members == 6 and all(torch.equal(row, only) for row in prepared.herd.state["g.params"])
    assert (
        len({int(base) for base in prepared.herd.state["set.slot"] * 2 + prepared.herd.state["set.seed"]}) > 1
    )  # own streams


def test_by_class_each_member_may_start_from_one_that_knows_all(runs: dict[str, Path]) -> None:
    settings = recipe(runs["data"], None, herd={"start_from": str(runs["single"])})
    settings["data"]["partition"] = "by-class"
    prepared = assemble(recipe_file.load(settings))
    assert (
        prepared.label.tolist() == [0, 1, 2]
        and len({row.numpy().tobytes() for row in prepared.herd.state["d.params"]}) == 1
    )


def test_all_members_of_a_class_may_start_from_the_only_one_of_that_class(runs: dict[str, Path]) -> None:
    settings = recipe(runs["data"], None, herd={"start_from": str(runs["mlps"]), "seeds": 2, "per_class": 2})
    settings["data"]["partition"] = "by-class"
    prepared, theirs = assemble(recipe_file.load(settings)), last(runs["mlps"])[1]
    assert prepared.label.tolist() == [0, 0, 1, 1, 2, 2] * 2
    for name in ("g.params", "d.params"):
        assert torch.equal(prepared.herd.state[name], theirs[name].repeat_interleave(2, 0))
    assert retrain.chosen(prepared, "one.1, 2") == [3, 4, 5, 9, 10, 11]


def conditional(data: Path, run: Path, *overrides: str) -> Path:
    """Train one conditional GAN."""
    nets = {"discriminator": {"name": "conditional", "width": 3}}
    settings = recipe(data, {"name": "conditional", "width": 3}, herd={"members": 1}, nets=nets)
    ganherd.train(settings, overrides, run=run, quiet=True)
    return run


@pytest.mark.further
def test_by_class_each_member_takes_its_class_out_of_a_conditional_gan(runs: dict[str, Path], tmp_path: Path) -> None:
    source = conditional(runs["data"], tmp_path / "told")
    settings = recipe(runs["data"], None, herd={"start_from": str(source)})
    settings["data"]["partition"] = "by-class"
    prepared = assemble(recipe_file.load(settings))
    assert prepared.recipe.nets.generator.name == prepared.recipe.nets.discriminator.name == "residual"
    assert len({row.numpy().tobytes() for row in prepared.herd.state["g.params"]}) == 3
    assert len({row.numpy().tobytes() for row in prepared.herd.state["d.params"]}) == 3
    few = tmp_path / "few.npz"
    with np.load(runs["data"]) as all_of_it:
        two, names = all_of_it["y"] > 0, all_of_it["labels"]
        np.savez(few, x=all_of_it["x"][two], y=all_of_it["y"][two] - 1, labels=names[1:])
    settings["data"]["source"] = str(few)
    fewer = assemble(recipe_file.load(settings))  # by the classes' names, not by their numbers
    assert torch.equal(fewer.herd.state["g.params"], prepared.herd.state["g.params"][1:])
    ganherd.train(settings, run=tmp_path / "own", quiet=True)
    assert ganherd.load(tmp_path / "own").sample(5, seed=0).x.shape[0] == 5
    settings["data"]["source"] = str(tiny_data(few, labels=(str(names[0]), "other")))
    assert "knows of no class 'other'" in refused(settings)


def test_replicas_take_their_classes_out_of_a_conditional_gan_as_separate_runs_do(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """The noise that measures the layers belongs to the replica's own seed."""
    together = conditional(runs["data"], tmp_path / "together", "herd.seeds=2", "train.precision=float64")
    alone = conditional(runs["data"], tmp_path / "alone", "run.seed=1", "train.precision=float64")
    states = []
    for source, seeds, seed in ((together, 2, 0), (alone, 1, 1)):
        settings = recipe(runs["data"], None, herd={"start_from": str(source), "seeds": seeds}, run={"seed": seed})
        settings["data"]["partition"], settings["train"]["precision"] = "by-class", "float64"
        states.append(assemble(recipe_file.load(settings)).herd.state["g.params"])
    assert torch.allclose(states[0][3:], states[1], rtol=0, atol=1e-9)


def test_classes_are_extracted_on_the_cpu_if_the_device_has_too_little_memory(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recipe(runs["data"], None, herd={"start_from": str(conditional(runs["data"], tmp_path / "told"))})
    settings["data"]["partition"] = "by-class"
    expected = assemble(recipe_file.load(settings)).herd.state["g.params"]
    extract, devices = class_start._generators, []

    def without_memory(g: Any, z: torch.Tensor, labels: torch.Tensor, device: torch.device) -> Any:
        devices.append(device.type)
        if device.type == "cuda":
            with pytest.raises(RuntimeError):  # in the middle of the pass
                extract(g, torch.cat([z, z], 1), labels, torch.device("cpu"))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return extract(g, z, labels, device)

    monkeypatch.setattr(class_start, "_generators", without_memory)
    on_gpu = lambda source, member, replica, device: class_start.ByClass(source, member, replica, torch.device("cuda"))  # noqa: E731
    monkeypatch.setattr(finetune, "ByClass", on_gpu)
    assert torch.equal(assemble(recipe_file.load(settings)).herd.state["g.params"], expected)
    assert devices == ["cuda", "cpu"]


def test_weights_are_taken_to_another_precision(runs: dict[str, Path]) -> None:
    settings = recipe(runs["data"], None, herd={"start_from": str(runs["single"])}, train={"precision": "float64"})
    prepared = assemble(recipe_file.load(settings)).herd.state["g.params"]
    assert prepared.dtype == torch.float64 and torch.equal(prepared, last(runs["single"])[1]["g.params"].double())


# -- mistakes ---------------------------------------------------------------------------------------------------------


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        assemble(recipe_file.load(settings))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_started_from_is_one_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    def members(*each: tuple[Path, int], **sections: Any) -> dict[str, Any]:
        listed = [{"from": str(run), "member": member} for run, member in each]
        return recipe(sections.pop("data", runs["data"]), None, herd={"members": listed}, **sections)

    assert "there is no run folder nowhere" in refused(members((Path("nowhere"), 0)))
    assert "asks for member 2 of" in refused(members((runs["smalls"], 2)))
    settings = members((runs["smalls"], 0))
    settings["herd"]["members"][0]["replica"] = 1
    assert "asks for replica 1 of" in refused(settings)
    settings = members((runs["smalls"], 0)) | {"nets": {"generator": "mlp"}}
    assert "leave nets out of the recipe" in refused(settings)
    too_many = recipe(runs["data"], None, herd={"start_from": str(runs["smalls"]), "members": 3})
    assert "has 2 members and this herd 3" in refused(too_many)
    too_many = recipe(runs["data"], None, herd={"start_from": str(runs["mlps"]), "seeds": 3})
    assert "has 2 replicas and this herd 3" in refused(too_many)

    np.savez(tmp_path / "wide.npz", x=np.zeros((30, 1, 8, 9), np.uint8), y=np.zeros(30, np.int64))
    assert "was trained on data of shape (1, 8, 8)" in refused(members((runs["single"], 0), data=tmp_path / "wide.npz"))

    half = tmp_path / "half"
    shutil.copytree(runs["single"], half)
    info = json.loads((half / "run.json").read_text())
    (half / "run.json").write_text(json.dumps({**info, "state": "interrupted"}))
    assert "is not finished" in refused(members((half, 0)))

    other = recipe(
        runs["data"], SMALL, nets={"discriminator": {"name": "small", "width": 8}}, train={"budget": "2steps"}
    )
    ganherd.train(other | {"herd": {"members": 1}}, run=tmp_path / "other", quiet=True)
    reported = refused(members((runs["single"], 0), (tmp_path / "other", 0)))
    assert "nets.discriminator must be the same for all" in reported and "differ in their settings" in reported


def test_nets_of_a_stranger_are_not_imported(runs: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    """A run's recipe is data: naming the run is no leave to import what it names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    theirs = tmp_path / "theirs"
    shutil.copytree(runs["single"], theirs)
    text = (theirs / "recipe.yaml").read_text().replace("name: small", "name: trap:G", 1)
    (theirs / "recipe.yaml").write_text(text)
    reported = refused(recipe(runs["data"], None, herd={"start_from": "theirs"}))
    assert "names the net trap:G, which is not ganherd's" in reported
    with pytest.raises(UserError, match="names the net trap:G"):
        ganherd.train(recipe(runs["data"], None, herd={"start_from": "theirs"}), run=tmp_path / "run", quiet=True)
