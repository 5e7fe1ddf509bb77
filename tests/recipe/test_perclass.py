"""The per-class recipes: what the papers say stands in them, their nets are the tables', and all of them train."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import processes
import pytest
import run_files
import tiny_runs
import torch

import ganherd
from ganherd import nets
from ganherd.herd.engine.engines import Plan, make_engine
from ganherd.recipe.recipe_file import load
from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.variants.phases import before

W = ["cifar10-wcgan-paper", "cifar100-wcgan-paper", "imagenet-wcgan-paper", "mnist-wcgan-paper"]
DC = ["cifar10-dccgan-paper", "cifar100-dccgan-paper", "imagenet-dccgan-paper"]
READINGS = ["cifar10-wcgan-literal", "cifar10-wgan"]
SOUND = ["cifar10-perclass", "cifar100-perclass", "folder-perclass"]
ALL_CLASSES = ["cifar10-all", "cifar100-all"]
FUSED = Plan("fused", 8, 1, "cpu", "cpu")

SIZES = {  # parameters of the generator and of the discriminator, as the tables count them at each size
    (3, 32, 32): (1_051_139, 98_401),
    (1, 28, 28): (856_065, 98_113),
    (3, 64, 64): (3_533_315, 99_937),
}


def shape_of(name: str) -> tuple[int, int, int]:
    return {"mnist": (1, 28, 28), "image": (3, 64, 64), "folde": (3, 64, 64)}.get(name[:5], (3, 32, 32))


def parameters(recipe: Recipe, shape: tuple[int, int, int]) -> tuple[int, int]:
    with torch.device("meta"):
        g = nets.build_generator(recipe.nets.generator, shape, recipe.nets.latent, 0)
        d = nets.build_discriminator(recipe.nets.discriminator, shape, 0)
    return sum(p.numel() for p in g.parameters()), sum(p.numel() for p in d.parameters())


def made(folder: Path, name: str) -> str:
    """A little random data like what the recipe is for: two classes, as an .npz; folders of images where it says so."""
    shape, random = shape_of(name), np.random.default_rng(0)
    x, y = random.integers(0, 256, (12, *shape), np.uint8), np.repeat([0, 1], 6)
    if name[:5] not in ("image", "folde"):
        np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        return str(folder / "data.npz")
    from PIL import Image

    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        place = folder / "pictures" / ("cat", "dog")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{number}.png")
    return str(folder / "pictures")


def narrow(folder: Path, name: str, *more: str) -> Recipe:
    """The recipe on made data, with nets and batches that train in a blink; everything else is its own."""
    widths = (4, 2) if load(name).nets.generator.name == "wcgan" else (2, 2)
    return load(
        name,
        [
            f"data.source={made(folder, name)}",
            f"nets.generator.width={widths[0]}",
            f"nets.discriminator.width={widths[1]}",
            "herd.start_from=",
            "train.batch=4",
            "train.precision=float32",
            "train.budget=2steps",
            "engine={name: fused, chunk: 8, threads: 1, device: cpu}",
            *more,
        ],
    )


def trained(recipe: Recipe, steps: int = 2) -> PreparedHerd:
    assembly = assemble(recipe)
    make_engine(assembly.herd, FUSED).advance(0, steps, assembly.herd.zero_sums())
    return assembly


# -- what the papers say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*W, *DC, "cifar10-wcgan-literal"])
def test_a_paper_recipe_says_what_the_paper_and_the_authors_code_say(name: str) -> None:
    recipe = load(name)
    optim, train, d = recipe.optim, recipe.train, recipe.nets.discriminator.settings
    assert (optim.lr_g, optim.lr_d, optim.beta1, optim.beta2) == (2e-4, 2e-4, 0.5, 0.999)
    assert (train.budget, train.batch, train.n_critic, train.order, train.ema) == ("1000epochs", 100, 1, "g-d", None)
    assert (recipe.data.partition, recipe.herd.members, recipe.nets.latent) == ("by-class", None, 100)
    assert (d["dropout"], d["batch_norm"]) == (0.25, True)
    eps = {recipe.nets.generator.settings["eps"], d["eps"]}
    if name in DC:
        assert recipe.loss.name == "non-saturating" and eps == {0.8}
    else:
        assert (recipe.loss.name, recipe.loss.clip, recipe.loss.clip_what) == ("wasserstein", 0.01, "all")
        assert eps == ({0.8} if name == "cifar10-wcgan-literal" else {1e-5})


def test_the_other_wasserstein_reading_has_a_penalty_five_critic_updates_and_no_batch_norm_in_the_critic() -> None:
    recipe = load("cifar10-wgan")
    assert (recipe.loss.name, recipe.train.n_critic) == ("wasserstein-gp", 5)
    assert recipe.nets.discriminator.settings["batch_norm"] is False
    assert parameters(recipe, (3, 32, 32)) == (1_051_139, 98_401 - 2 * (32 + 64 + 128))


@pytest.mark.parametrize("name", [*W, *DC, "cifar10-wcgan-literal"])
def test_the_nets_are_the_tables(name: str) -> None:
    assert parameters(load(name), shape_of(name)) == SIZES[shape_of(name)]


@pytest.mark.parametrize("name", [*SOUND, *ALL_CLASSES])
def test_a_sound_recipe_has_what_works_on_few_images(name: str) -> None:
    recipe = load(name)
    d, train = recipe.nets.discriminator, recipe.train
    assert (recipe.nets.generator.name, d.name, d.settings["spectral"]) == ("residual", "residual", True)
    assert (recipe.loss.name, train.flip) == ("hinge", True)
    assert (train.batch, train.ema) == ((128, 0.9998) if name in ALL_CLASSES else (64, 0.999))
    assert train.augment == ([] if name in ALL_CLASSES else ["colour", "translation", "cutout"])
    assert train.augment_target == (0.2 if name in ("cifar10-perclass", "cifar100-perclass") else None)
    assert train.budget == ("20m" if name == "cifar100-perclass" else "10m")
    assert all(1e6 < count < 5e6 for count in parameters(recipe, (3, 32, 32)))


# -- they train ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*W, *DC, *READINGS, *SOUND, *ALL_CLASSES])
def test_it_trains_two_steps(tmp_path: Path, name: str) -> None:
    recipe = narrow(tmp_path, name)
    before = assemble(recipe).herd
    after = trained(recipe).herd
    assert after.num_members == (1 if name in ALL_CLASSES else 2)
    for key in ("g.params", "d.params"):
        assert torch.isfinite(after.state[key]).all()
        assert (after.state[key] != before.state[key]).any(1).all()  # every member has learnt


@pytest.mark.parametrize("name", ["cifar10-wcgan-paper", "cifar10-dccgan-paper"])
@pytest.mark.parametrize("partition", ["by-class", "all"])
def test_a_switch_feeds_the_label(tmp_path: Path, name: str, partition: str) -> None:
    switch = ["nets.generator.label=true", "nets.discriminator.label=true", f"data.partition={partition}"]
    recipe = narrow(tmp_path, name, *switch)
    assert not load(name).nets.generator.settings["label"] and recipe.nets.discriminator.settings["label"]
    herd = trained(recipe).herd
    assert herd.num_members == (2 if partition == "by-class" else 1)
    assert herd.g.takes_label and herd.d.takes_label and torch.isfinite(herd.state["g.params"]).all()


def test_recipes_are_found_by_their_other_names() -> None:
    assert load("cifar10-wcgan-wgan") == load("cifar10-wgan")
    assert load("cifar10-speedrun") == load("cifar10-perclass")
    assert load("cifar10-speedrun-first") == load("cifar10-conditional")


@pytest.mark.parametrize("size", [32, 128])
def test_a_folder_trains_at_any_size(tmp_path: Path, size: int) -> None:
    assembly = trained(narrow(tmp_path, "folder-perclass", f"data.size={size}"), 1)
    assert assembly.dataset.shape == (3, size, size) and assembly.dataset.labels == ("cat", "dog")
    assert torch.isfinite(assembly.herd.state["g.params"]).all()


def test_as_printed_it_does_not_train(tmp_path: Path) -> None:
    """Once the critic is clipped, hardly anything of it reaches the generator: Adam's second moment shows the gradient."""

    def gradient(name: str) -> float:
        state = trained(narrow(tmp_path, name, "nets.generator.width=8", "nets.discriminator.width=16"), 4).herd.state
        return float(state["g.adam.v"].sqrt().mean())

    assert gradient("cifar10-wcgan-literal") < 1e-4 * gradient("cifar10-wcgan-paper")


# -- first one GAN, then one for each class -----------------------------------------------------------------------------


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.setattr("ganherd.mixture.recalibration.NOISES", 512)  # of which batch norm's statistics are estimated
    yield
    torch.set_num_threads(1)


@pytest.mark.further(but=["cifar100-perclass-cifar100-all"])
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("name", "first"), [("cifar10-perclass", "cifar10-conditional"), ("cifar100-perclass", "cifar100-all")]
)
def test_one_command_trains_both_phases(tmp_path: Path, name: str, first: str) -> None:
    """The GAN over all classes, then every class from it."""
    recipe = narrow(tmp_path, name, "run.watch.every=0", "train.budget=8steps")
    assert recipe.herd.first is not None and recipe.herd.first.recipe == first
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True)
    one, each = RunFolder(tmp_path / "run-first"), run.folder
    steps = {"cifar10-perclass": (6, 2), "cifar100-perclass": (4, 4)}[name]
    assert (one.info.step, each.info.step) == steps
    assert one.info.data == each.info.data
    assert each.recipe.herd.start_from == str(one.path) and each.recipe.herd.first is None
    if first == "cifar100-all":  # nets that know no class are taken as they are
        ended, begun = run_files.last_checkpoint(one.path), each.checkpoints / "step-00000000"
        sources, found = ({k.partition("/")[2]: v for k, v in run_files.tensors(p).items()} for p in (ended, begun))
        taken = [key for key in found if key.startswith(("g.params", "g.ema", "d.params", "g.buffers", "d.buffers"))]
        assert len(taken) > 30
        assert all(torch.equal(row, sources[key][0]) for key in taken for row in found[key])


def test_the_two_phases_have_the_same_nets() -> None:
    for data in ("cifar10", "cifar100", "mnist", "fashion-mnist"):
        assert load(f"{data}-all").nets == load(f"{data}-perclass").nets
    assert (
        before(load("cifar10-perclass")).model_dump()
        == load("cifar10-conditional", ["train.budget=420s", "run.scores=false"]).model_dump()
    )


# -- a hundred classes on a CPU -----------------------------------------------------------------------------------------

_HUNDRED = """
import os, resource, signal, sys
from ganherd.cli.main import main
from ganherd.training.loop import Trainer

tick = Trainer.tick

def stop_after_two(self, step):
    tick(self, step)
    herd, train = self.herd, self.prepared.recipe.train
    assert (herd.num_members, herd.g.num_params, herd.d.num_params, train.batch) == (100, 1_051_139, 98_401, 100)
    if step == 2:
        os.kill(os.getpid(), signal.SIGTERM)

Trainer.tick = stop_after_two
sys.argv = ["ganherd", *sys.argv[1:]]
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts in other units elsewhere")
def test_a_hundred_of_the_papers_nets_train_on_a_cpu_within_4_gib(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(100), 500)
    x = random.integers(0, 256, (len(y), 3, 32, 32), np.uint8)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])
    sets = [f"data.source={tmp_path / 'data.npz'}", "train.precision=float32", "engine.memory=1GiB"]
    sets += ["engine.name=fused", "engine.threads=1"]  # nothing to measure
    words = ["train", "cifar100-wcgan-paper", "--run", str(tmp_path / "run"), *(w for s in sets for w in ("--set", s))]
    command = [sys.executable, "-c", _HUNDRED, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=processes.environment())
    assert done.returncode == 75, done.stderr  # stopped after two steps, with a checkpoint
    assert run_files.steps(tmp_path / "run") == [0, 2]
    assert int(done.stdout.split()[-1]) < 4 << 30
