"""Conditional nets, and discriminators that predict classes: from the recipe to the mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.herd.state import buffers_of, takes_label
from ganherd.mixture import mixture
from ganherd.nets import build_discriminator, build_generator
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import NetConfig
from ganherd.runs import checkpoint
from ganherd.training.finish import make_mixture
from ganherd.training.recording.preview import Preview
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError

TOLD = {
    "generator": {"name": "wcgan", "width": 4, "eps": 1e-5, "label": True},
    "discriminator": {"name": "wcgan", "width": 2, "eps": 1e-5, "label": True},
}


def told(folder: Path, **sections: Any) -> dict[str, Any]:
    return tiny_recipe(tiny_data(folder / "data.npz"), nets={**TOLD, "latent": 4}, **sections)


@pytest.mark.parametrize(("name", "shape"), [("wcgan", (3, 32, 32)), ("dcgan", (1, 28, 28))])
def test_labels_are_off_by_default(name: str, shape: tuple[int, ...]) -> None:
    plain = build_generator(NetConfig(name=name), shape, 100, 10), build_discriminator(NetConfig(name=name), shape, 10)
    assert not any(takes_label(net) for net in plain)
    if name == "wcgan":
        assert [sum(p.numel() for p in net.parameters()) for net in plain] == [1_051_139, 98_401]
    asked = NetConfig(name=name, settings={"label": True})
    g, d = build_generator(asked, shape, 100, 10).eval(), build_discriminator(asked, shape, 10).eval()
    z, y = torch.randn(1, 100).repeat(10, 1), torch.arange(10)
    for net, given in ((g, z), (d, g(z, y)[:1].repeat(10, 1, 1, 1))):
        out = net(given, y).flatten(1) if net is g else net(given, y)[:, None]
        assert len(out) == 10 and (out[1:] - out[:1]).abs().amax(1).min() > 0  # every class makes a difference
    with pytest.raises(UserError, match="set its label to false"):
        build_generator(asked, shape, 100)


def test_a_per_class_member_gets_its_class_as_label(tmp_path: Path) -> None:
    """In the preview, in batch norm's statistics and in samples alike."""
    assembly = assemble(recipe_file.load(told(tmp_path)))
    herd = assembly.herd
    with torch.no_grad():  # the label outweighs the noise, so that it cannot be mistaken
        herd.g.views(herd.state["g.params"])["net.layers.0.weight"][:, :, 4:] *= 200
        herd.state["g.ema"].copy_(herd.state["g.params"])
    made = make_mixture(assembly, 0)
    assert not made.takes_label and made.label_of.tolist() == [0, 1, 2]
    drawn = made.sample(64, label="one")
    assert set(drawn.member.tolist()) == {1} and set(drawn.y.tolist()) == {1}
    preview = Preview(assembly)
    preview.look(0)
    for member in range(3):
        breed, own = made.generator(member)
        off = []  # what the kept statistics make against those of each label
        for other in range(3):
            y = torch.full((512,), other)
            module = breed.module.train()
            z = torch.randn(512, 4, generator=torch.Generator().manual_seed(member))
            with torch.no_grad():
                found = torch.func.functional_call(module, {k: v.clone() for k, v in own.items()}, (z, y))
                module.eval()
                kept = torch.func.functional_call(module, own, (z, y))
            off.append(float((found - kept).abs().mean()))
        assert 2 * off[member] < sorted(off)[1], off
        with torch.no_grad():
            rows = {k: v[member] for k, v in herd.g.views(herd.state["g.ema"]).items()}
            buffers = {k: v[member] for k, v in buffers_of(herd.state, "g").items()}
            shown = torch.func.functional_call(
                herd.g.module.eval(), {**rows, **buffers}, (torch.zeros(1, 4), torch.tensor([member]))
            )
        nearest = (preview.images.float() - shown[None]).square().flatten(2).mean((1, 2))
        assert int(nearest.argmin()) == member


def test_a_conditional_net_generates_the_requested_class(tmp_path: Path) -> None:
    recipe = told(tmp_path, data={"partition": "all"}, herd={"members": 1}, train={"budget": "2steps"})
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True)
    made = mixture.load(run.path)
    assert made.takes_label
    assert set(made.sample(8, label="2").y.tolist()) == {2}
    counts = np.bincount(made.sample(2000).y, minlength=3) / 2000  # p(y) of the data: 40, 20, 20
    assert abs(counts - [0.5, 0.25, 0.25]).max() < 0.05


@pytest.mark.further
def test_an_auxiliary_classifier_teaches_the_generator_its_classes(tmp_path: Path) -> None:
    """From recipe to scores: labels and the discriminator's predictions agree more often than by chance."""
    nets = {
        "generator": {"name": "conditional", "width": 4},
        "discriminator": {"name": "acgan", "width": 8, "spectral": False},
    }
    recipe = tiny_recipe(
        tiny_data(tmp_path / "data.npz"),
        nets={**nets, "latent": 4},
        data={"partition": "all"},
        herd={"members": 1},
        loss={"name": "non-saturating", "r1_weight": 1.0, "class_weight": 2.0},
        optim={"lr_g": 2e-3, "lr_d": 2e-3, "beta1": 0.0},
        train={"budget": "200steps", "batch": 32},
        run={"record_every": 50, "watch": {"every": 50}, "validation": 8, "checkpoint_every": 0},
    )
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True)
    assert run.mixture.takes_label
    drawn = run.mixture.sample(300)
    images = (drawn.x.astype(np.float32) - run.mixture.offset) / run.mixture.scale
    assembly = assemble(run.folder.recipe)
    last, _ = checkpoint.newest(run.folder.checkpoints, assembly.herd.nets)
    d = assembly.herd.d
    state = {k: v[0] for k, v in d.views(last.state["d.params"]).items()}
    state |= {k: last.state[f"d.buffers.{k}"][0] for k in d.buffers}
    with torch.no_grad():
        said = torch.func.functional_call(d.module.eval(), state, (torch.from_numpy(images),))[1].argmax(1)
    assert (said.numpy() == drawn.y).mean() > 0.8


def test_classes_need_labels(tmp_path: Path) -> None:
    path = tmp_path / "plain.npz"
    np.savez(path, x=np.zeros((20, 1, 8, 8), np.uint8))
    recipe = tiny_recipe(path, data={"partition": "all", "holdout": 0.0}, nets={"discriminator": "acgan"})
    with pytest.raises(UserError, match="the discriminator acgan uses labels, but this data has no labels"):
        assemble(recipe_file.load(recipe))
