"""What `ganherd.train` takes: data, nets and settings as Python objects; mistakes are one sentence, and nothing is made."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import tiny_runs
import torch
import warm_python
from processes import environment
from torch import Tensor, nn

import ganherd
from ganherd import UserError
from ganherd.runs import checkpoint
from ganherd.training.setup.assemble import assemble

LABELS = ["cat"] * 24 + ["dog"] * 16


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.chdir(tmp_path)


def images(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (40, 8, 8), np.uint8)


def local_nets(width: int = 6) -> tuple[type[nn.Module], type[nn.Module]]:
    """Classes that no other process can import."""

    class Generator(nn.Module):
        def __init__(self, shape: tuple[int, ...], latent: int) -> None:
            super().__init__()
            self.shape, self.layer = shape, nn.Linear(latent, width)
            self.out = nn.Linear(width, math.prod(shape))

        def forward(self, z: Tensor) -> Tensor:
            return torch.tanh(self.out(torch.relu(self.layer(z)))).reshape(-1, *self.shape)

    class Discriminator(nn.Module):
        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, 1)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    return Generator, Discriminator


def tiny(**sections: Any) -> dict[str, Any]:
    """Arguments of `ganherd.train` for a run that takes a blink."""
    settings = recipes.tiny_recipe("digits", **sections)
    return {"recipe": {key: value for key, value in settings.items() if key != "data"}, "quiet": True}


def weights(run: ganherd.Run) -> dict[str, Tensor]:
    nets = assemble(run.recipe, trust_code=True).herd.nets
    return checkpoint.newest(run.folder.checkpoints, nets)[0].state


def test_arrays_train_as_the_file_that_holds_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=images(), y=np.array(LABELS))
    from_file = ganherd.train(**tiny(), data=tmp_path / "data.npz", run="file")
    from_arrays = ganherd.train(**tiny(), data=(images(), LABELS), run="arrays")
    as_tensors = ganherd.train(**tiny(), data=(torch.from_numpy(images()), LABELS), run="tensors")
    assert from_arrays.mixture.labels == ("cat", "dog")
    first = weights(from_file)
    for run in (from_arrays, as_tensors):
        assert run.folder.info.data == from_file.folder.info.data
        second = weights(run)
        assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_x_alone_trains_one_gan_on_all_rows() -> None:
    run = ganherd.train(data=images(), budget=3, run="run", quiet=True)
    assert run.mixture.members == 1 and run.mixture.labels == () and run.recipe.data.partition == "all"


@pytest.mark.parametrize("in_recipe", [False, True])
def test_arrays_may_be_the_source_of_the_section_data(in_recipe: bool) -> None:
    section = {"source": (images(), LABELS), "partition": "all"}
    given: dict[str, Any] = {"recipe": {"data": section}} if in_recipe else {"data": section}
    run = ganherd.train(**given, budget=2, quiet=True)
    assert run.recipe.data.partition == "all" and run.mixture.members == 1
    with pytest.raises(UserError, match="holds values of type"):
        ganherd.train(data={"source": np.array(["a"] * 40)}, budget=2, quiet=True)


def test_a_test_set_may_come_with_the_data() -> None:
    held = images(1)[:10]
    run = ganherd.train(**tiny(), data=(images(), LABELS, held, LABELS[:10]), run="run")
    from ganherd.data.dataset import load

    assert np.array_equal(load(run.recipe.data).x_test[:, 0], held)


def test_without_a_recipe_one_is_chosen_for_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    run = ganherd.train(data=(images(), LABELS), budget="3steps", seeds=2, device="cpu", run="run")
    err = capsys.readouterr().err
    assert "recipe   digits-wcgan (tiny images" in err and "same as" not in err and "budget= sets another" in err
    assert run.recipe.train.budget == "3steps" and run.recipe.herd.seeds == 2 and run.recipe.engine.device == "cpu"
    assert run.folder.info.recipe == "digits-wcgan"
    assert {"train.budget=3steps", "herd.seeds=2", "engine.device=cpu"} <= set(run.folder.info.changes or ())


def test_a_named_recipe_is_adapted_to_the_data(tmp_path: Path) -> None:
    run = ganherd.train("digits-nonsat", data=images(), budget=3, run="run", quiet=True)
    assert run.recipe.data.partition == "all" and run.folder.info.recipe == "digits-nonsat"


def test_sections_and_overrides_replace_keys_in_this_order() -> None:
    run = ganherd.train(
        "digits-wcgan",
        ["optim.lr_d=0.004"],
        budget=2,
        optim={"lr_g": 0.003, "lr_d": 0.003},
        train={"batch": 4, "budget": "9steps"},
        run="run",
        quiet=True,
    )
    assert (run.recipe.optim.lr_g, run.recipe.optim.lr_d) == (0.003, 0.004)
    assert (run.recipe.train.batch, run.recipe.train.budget) == (4, "2steps")
    assert run.recipe.train.n_critic == ganherd.Recipe.model_validate(run.recipe.model_dump()).train.n_critic
    assert run.folder.info.changes == ["optim.lr_g=0.003", "optim.lr_d=0.003", "train.batch=4", "train.budget=2steps", "optim.lr_d=0.004"]  # fmt: skip  # noqa: E501


def test_without_arguments_the_default_is_trained() -> None:
    run = ganherd.train(budget=1, quiet=True)
    assert run.path == Path("runs/00001-digits-wcgan").absolute() and run.recipe.data.source == "digits"


def net_functions() -> tuple[Any, Any]:
    generator, discriminator = local_nets()

    def build(shape: tuple[int, ...]) -> nn.Module:
        return discriminator(shape)

    return partial(generator, latent=8), build


@pytest.mark.parametrize("nets", [local_nets(), net_functions()], ids=["classes", "functions"])
def test_nets_of_a_function_train_and_are_fingerprinted(nets: tuple[Any, Any]) -> None:
    run = ganherd.train(**tiny(), data=(images(), LABELS), nets=nets, run="run")
    names = [run.recipe.nets.generator.name, run.recipe.nets.discriminator.name, run.recipe.data.source]
    assert all(name.startswith("memory:") for name in names)
    objects = json.loads((run.path / "run.json").read_text())["objects"]
    assert set(objects) == set(names) and all(len(digest) == 64 for digest in objects.values())
    assert run.sample(3, label="dog").x.shape == (3, 1, 8, 8)
    assert type(run.mixture.module("cat")).__name__ == "Generator"


@pytest.mark.further
def test_nets_in_memory_train_as_nets_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "my_nets_for_train.py").write_text(
        "import math, torch\nfrom torch import nn\n"
        "class Generator(nn.Module):\n"
        "    def __init__(self, shape, latent):\n"
        "        super().__init__()\n"
        "        self.shape, self.layer = shape, nn.Linear(latent, 6)\n"
        "        self.out = nn.Linear(6, math.prod(shape))\n"
        "    def forward(self, z):\n"
        "        return torch.tanh(self.out(torch.relu(self.layer(z)))).reshape(-1, *self.shape)\n"
    )
    generator, _ = local_nets()
    in_memory = ganherd.train(**tiny(), data="digits", nets={"generator": generator}, run="memory")
    in_file = ganherd.train(**tiny(), data="digits", nets={"generator": "my_nets_for_train:Generator"}, run="file")
    first, second = weights(in_file), weights(in_memory)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_mapping_of_nets_may_hold_classes_with_settings() -> None:
    class Wide(local_nets()[0]):  # type: ignore[misc]
        def __init__(self, shape: tuple[int, ...], latent: int, scale: float = 1.0) -> None:
            super().__init__(shape, latent)
            self.scale = scale

    nets = {"generator": {"name": Wide, "scale": 0.5}, "latent": 5}
    run = ganherd.train(**tiny(), data="digits", nets=nets, run="run")
    module = run.mixture.module("3")
    assert (module.scale, module.layer.in_features) == (0.5, 5)
    assert run.recipe.nets.discriminator.name == "small"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"optim": {"lrg": 1}}, "your settings: unknown key 'optim.lrg'; did you mean 'optim.lr_g'?"),
        ({"optin": {"lr_g": 1}}, "unknown key 'optin'; did you mean 'optim'?"),
        ({"bugdet": "3steps"}, "ganherd.train has no argument 'bugdet'"),
        ({"budget": "3 apples"}, "your settings: train.budget must be"),
        ({"budget": 0}, "above zero"),
        ({"seeds": 0}, "herd.seeds must be"),
        ({"device": "gpu"}, "engine.device"),
        ({"nets": (1, 2, 3)}, "nets has 3 entries: give (Generator, Discriminator)."),
        ({"nets": 5}, "nets is a int: give (Generator, Discriminator)"),
        ({"nets": (nn.Linear(2, 2), nn.Linear)}, "nets.generator is a module: give its class, Linear, or a function"),
        ({"nets": (lambda: 5, nn.Linear)}, "the generator lambda returns a int: it must return a torch.nn.Module"),
        ({"data": (1, 2, 3)}, "data has 3 arrays"),
        ({"data": object()}, "data must be arrays of numbers"),
        ({"data": (np.zeros((4, 3, 2, 8, 8)), None)}, "shape (4, 3, 2, 8, 8)"),
        ({"data": (np.zeros(4), None)}, "shape (4,)"),
        ({"data": (np.zeros((4, 8, 8)), [1, 2])}, "2 labels"),
        ({"data": "nowhere"}, "'nowhere' is neither a known name nor a file"),
        ({"data": [[1.0, 2.0], [3.0]]}, "different shapes: bring all to one size"),
        ({"data": torch.zeros(4, 1, 8, 8).to_sparse()}, "a Tensor cannot be read as one"),
        ({"recipe": 5}, "the recipe is a int: give the name of one, a file, a mapping or a ganherd.Recipe."),
        ({"overrides": "train.batch=8"}, "overrides is a str: give a list of settings such as"),
        ({"overrides": [5]}, "overrides holds a int: give a list of settings such as"),
        ({"overrides": None}, "overrides is a NoneType: give a list of settings such as"),
        ({"budget": 2.5}, "budget is a float: give a number of steps or a text such as 5000steps, 20epochs or 10m."),
        ({"budget": True}, "budget is a bool"),
        ({"optim": [1]}, "optim is a list: give a mapping, such as {'lr_g': 0.0001}."),
        ({"callbacks": ganherd.Callback()}, "callbacks is a Callback: give a list of them."),
        ({"callbacks": [print]}, "not a callback: derive its class from ganherd.Callback"),
        ({"callbacks": [ganherd.Callback]}, "Callback is not a callback: give an instance of it."),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        ganherd.train(**{"run": "run", "quiet": True, **arguments})
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_job_of_several_ranks_refuses_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        UserError, match="Generator is an object of this process, and a job of several ranks cannot share it"
    ):
        ganherd.train(**tiny(), nets=local_nets(), run="run")
    with pytest.raises(UserError, match="data is an object of this process"):
        ganherd.train(**tiny(), data=images(), run="run")


def test_the_command_line_refuses_a_run_with_objects(capsys: pytest.CaptureFixture[str]) -> None:
    ganherd.train(**tiny(), data=(images(), LABELS), nets=local_nets(), run="run")
    for words, sentence in {
        ("train", "--resume", "run", "--budget", "9steps", "--ranks", "2"): "several ranks cannot share",
        ("sample", "run", "-o", "x.npz"): "Generator is an object of the Python process that trained it",
    }.items():
        assert tiny_runs.command(*words) == 2
        err = capsys.readouterr().err
        assert sentence in err and len(err.splitlines()) == 1
    done = subprocess.run(
        [warm_python.python(), "-m", "ganherd", "train", "--resume", "run", "--budget", "9steps", "--trust-code"],
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "is an object of the Python process that trained it: give it again in Python" in done.stderr


def test_import_is_light_and_names_are_complete(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    program = "import ganherd, sys; print(sorted(set(ganherd.__all__) - set(dir(ganherd))), 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment(), "PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[] False", done.stderr
    assert all(getattr(ganherd, name) is not None for name in ganherd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = ganherd.trian
