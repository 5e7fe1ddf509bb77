"""Promise 1: N members trained fused give the same weights as N GANs trained one by one."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from further_tests import EACH_VALUE

from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import plan_meetings
from ganherd.training.setup.member_settings import schedules_of
from ganherd.util.registry import LOSSES
from promises.separate import SeparateGan

SCHEDULES = [  # every setting, shape and span
    {"keys": ["optim.lr_g", "optim.lr_d"], "over": "3steps", "first": 0.0, "last": 1.0},
    {"keys": ["optim.lr_g"], "shape": "cosine", "start": "2steps", "over": "0.5run", "last": 0.1},
    {"keys": ["loss.gp_weight", "loss.r1_weight"], "last": 0.5},
    {"keys": ["optim.beta1", "optim.beta2"], "shape": "cosine", "over": "2epochs", "last": 0.3},
    {"keys": ["train.augment_probability"], "shape": "step", "start": "4steps", "first": 0.2, "last": 0.7},
]
NETS = {  # narrow versions of every net, on images that it can make
    "small": (
        {
            "generator": {"name": "small", "width": 6, "batch_norm": True},
            "discriminator": {"name": "small", "width": 6},
        },
        (1, 5, 5),
    ),
    "mlp": (
        {
            "generator": {"name": "mlp", "hidden": [7, 6]},
            "discriminator": {"name": "mlp", "hidden": [6, 7], "activation": "tanh"},
        },
        (1, 4, 6),
    ),
    "toy": ({"generator": {"name": "toy", "width": 5}, "discriminator": {"name": "toy", "width": 5}}, (2,)),
    "wcgan": (
        {
            "generator": {"name": "wcgan", "width": 6, "eps": 1e-5},
            "discriminator": {"name": "wcgan", "width": 3, "eps": 1e-5},
        },
        (1, 17, 18),
    ),
    "wcgan-as-printed": (
        {"generator": {"name": "wcgan", "width": 6}, "discriminator": {"name": "wcgan", "width": 3}},
        (1, 17, 18),
    ),
    "dcgan": (
        {"generator": {"name": "dcgan", "width": 2}, "discriminator": {"name": "dcgan", "width": 2}},
        (1, 28, 28),
    ),
    "dcgan5": (
        {
            "generator": {"name": "dcgan5", "width": 2, "depth": 2},
            "discriminator": {"name": "dcgan5", "width": 2},
        },
        (1, 13, 14),
    ),
    "gran": (
        {
            "generator": {"name": "gran", "width": 2, "first": 3},
            "discriminator": {"name": "dcgan5", "width": 2, "first_norm": False},
        },
        (1, 13, 14),
    ),
    "toy-pacgan": (
        {
            "generator": {"name": "toy", "width": 6, "init": "normal"},
            "discriminator": {"name": "toy", "width": 5, "layers": 3, "activation": "maxout", "batch_norm": False},
        },
        (2,),
    ),
    "residual": (
        {
            "generator": {"name": "residual", "width": 2, "attention": True},
            "discriminator": {"name": "residual", "width": 2, "attention": True},
        },
        (3, 9, 8),
    ),
    "residual-of-one-width": (
        {
            "generator": {"name": "residual", "width": 3, "growth": 1, "attention": True},
            "discriminator": {"name": "residual", "width": 3, "growth": 1, "smallest": 5, "flat_blocks": 2},
        },
        (3, 9, 8),
    ),
    "r3gan": (
        {
            "generator": {"name": "r3gan", "width": 4, "blocks": 1, "group": 2},
            "discriminator": {"name": "r3gan", "width": 4, "blocks": 1, "group": 2},
        },
        (3, 9, 8),
    ),
    "r3gan-with-labels": (
        {
            "generator": {"name": "r3gan", "width": 4, "blocks": 2, "group": 4, "label": True},
            # an odd number: clipped to ±0.01, an even number of weights cancels out exactly, at the kink of LeakyReLU
            "discriminator": {"name": "r3gan", "width": 5, "blocks": 2, "group": 5, "label": True},
        },
        (1, 8, 7),
    ),
    "stylegan": (
        {"generator": {"name": "stylegan", "width": 4}, "discriminator": {"name": "stylegan", "width": 4}},
        (3, 9, 8),
    ),
    "stylegan-with-labels": (
        {
            "generator": {"name": "stylegan", "width": 2, "growth": 2, "mapping": 1, "label": True},
            "discriminator": {"name": "stylegan", "width": 2, "growth": 2, "label": True},
        },
        (1, 8, 7),
    ),
    "conditional": (
        {
            "generator": {"name": "conditional", "width": 2},
            "discriminator": {"name": "conditional", "width": 2},
        },
        (1, 8, 7),
    ),
    "acgan": (
        {
            "generator": {"name": "conditional", "width": 2},
            "discriminator": {"name": "acgan", "width": 2},
        },
        (1, 8, 7),
    ),
    "wcgan-with-labels": (
        {
            "generator": {"name": "wcgan", "width": 6, "eps": 1e-5, "label": True},
            "discriminator": {"name": "wcgan", "width": 3, "eps": 1e-5, "label": True},
        },
        (1, 17, 18),
    ),
    "dcgan-with-labels": (
        {
            "generator": {"name": "dcgan", "width": 2, "label": True},
            "discriminator": {"name": "dcgan", "width": 2, "label": True},
        },
        (1, 28, 28),
    ),
}


def herd_of(tmp_path, net: str, **sections) -> PreparedHerd:
    """Three members by class on a little random data of unequal classes, in float64."""
    nets, shape = NETS[net]
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [9, 4, 7])
    if len(shape) == 1:
        x = random.normal(size=(20, 2)).astype(np.float32) + y[:, None]
    else:
        x = random.integers(0, 256, (20, *shape), dtype=np.uint8)
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y)
    recipe: dict = {
        "data": {"source": str(path), "holdout": 0.0},
        "nets": {**nets, "latent": 3},
        "optim": {"lr_g": [1e-3, 2e-3, 3e-3], "lr_d": 1e-3},
        "train": {"batch": 4, "precision": "float64"},
    }
    if net in ("toy", "wcgan-as-printed"):
        # Batch norm over four samples in the critic leaves gradients near 0, and Adam would blow their rounding up to whole steps.
        recipe["optim"]["eps"] = 1e-2
    for section, values in sections.items():
        recipe[section] = {**recipe.get(section, {}), **values}
    prepared = assemble(recipe_file.load(recipe))
    spans = plan_meetings(prepared.recipe, prepared.steps_per_epoch, 10)
    prepared.herd.rules = replace(prepared.herd.rules, schedules=schedules_of(prepared.recipe, spans))
    return prepared


_TRAINED: dict[tuple[str, ...], list[dict[str, torch.Tensor]]] = {}


def trained_separately(assembly: PreparedHerd, steps: int) -> list[dict[str, torch.Tensor]]:
    """The members' states after some steps in plain PyTorch; engines that train the same herd are compared with the same."""
    recipe = assembly.recipe.model_dump(exclude={"data": {"source"}, "engine": True})
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in assembly.herd.state.values())).hexdigest()
    herd = (repr(recipe), assembly.dataset.digest, weights, str(steps))
    if herd not in _TRAINED:
        alone = [SeparateGan(assembly, member) for member in range(assembly.herd.num_members)]
        for gan in alone:
            gan.train(steps)
        _TRAINED[herd] = [gan.state() for gan in alone]
    return _TRAINED[herd]


def differences(assembly: PreparedHerd, steps: int, plan: Plan) -> dict[str, float]:
    """The largest difference of every part of the state after some steps, relative to its size where that is above 1."""
    alone = trained_separately(assembly, steps)
    Engine(assembly.herd, plan).advance(0, steps, assembly.herd.zero_sums())
    found: dict[str, float] = {}
    for member, state in enumerate(alone):
        for name, value in state.items():
            ours = assembly.herd.state[name][member].double()
            gap = (ours - value).abs().max() / value.double().abs().max().clamp(min=1.0) if value.numel() else 0.0
            found[name] = max(found.get(name, 0.0), float(gap))
    return found


FUSED = Plan("fused", 3, 1, "cpu", "cpu")


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("net", NETS)
def test_fused_equals_separate_for_every_net_and_loss(tmp_path, net, loss):
    """Ten steps of each net by a plain loss and by one with second derivatives; what is special to a loss shows in three."""
    steps = 10 if loss in ("non-saturating", "wasserstein-gp") else 3
    found = differences(herd_of(tmp_path, net, loss={"name": loss}), steps, FUSED)
    assert {"g.params", "d.params", "g.adam.m", "d.adam.v"} <= set(found)
    assert max(found.values()) < 1e-9, found


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("loss", ["non-saturating", "wasserstein-gp"])
@pytest.mark.parametrize("net", NETS)
def test_every_net_can_be_fused_in_bf16(tmp_path, net, loss):
    herd = herd_of(tmp_path, net, loss={"name": loss}, train={"batch": 4, "precision": "bf16"}).herd
    said: list[str] = []
    settings = recipe_file.load({"engine": {"name": "fused", "threads": 1, "device": "cpu"}}).engine
    assert autotune.choose(herd, settings, said.append).name == "fused"
    Engine(herd, FUSED).advance(0, 2, herd.zero_sums())
    assert not said
    assert all(torch.isfinite(value).all() for value in herd.state.values())


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"n_critic": 3}},
        {"train": {"skip_d": 1}},
        {"train": {"order": "g-d"}},
        {"train": {"fakes": "shared"}},
        {"train": {"fakes": "shared", "order": "g-d", "skip_d": 1}},
        {"train": {"fakes": "shared", "n_critic": 2}},
        {"train": {"fakes": "shared", "order": "g-d", "n_critic": 3, "skip_d": 1}},
        {"train": {"ema": 0.9}},
        {"train": {"input_noise": [0.1, 0.0, 0.3], "input_noise_steps": 6}},
        {"train": {"input_noise": 0.3, "input_noise_steps": 6, "input_noise_decay": "steps", "input_noise_on": "real"}},
        {"optim": {"grad_clip": 0.05}},
        {"optim": {"beta1": [0.0, 0.5, 0.9], "beta2": [0.9, 0.99, 0.999], "eps": 1e-6}},
        {"loss": {"name": ["hinge", "wasserstein-gp", "wasserstein"]}},
        {"loss": {"name": "wasserstein", "clip": 0.02, "clip_what": "weights"}},
        {"loss": {"name": "hinge", "r1_weight": 3.0}},
        {"train": {"flip": True, "augment": ["colour", "translation", "cutout"]}},
        {"train": {"augment": ["colour", "translation"], "augment_probability": 0.5}},
        {"train": {"augment": ["colour"], "augment_probability": [0.0, 0.4, 1.0], "ema": [0.5, 0.9, 0.99]}},
        {"loss": {"name": "wasserstein-gp", "gp_weight": [1.0, 10.0, 3.0], "r1_weight": [0.0, 1.0, 3.0]}},
        {"optim": {"weight_decay": [0.0, 1.0, 30.0]}},
        {"train": {"schedules": [{"keys": ["optim.lr_g", "optim.lr_d"], "shape": "inverse", "last": 0.2}]}},
        {"loss": {"name": "relativistic-pairing", "r1_weight": 1.0, "r2_weight": [0.5, 1.0, 2.0]}},
        {"loss": {"name": "hinge", "r1_weight": [1.0, 2.0, 0.0], "r2_weight": 1.0, "slope_noise": 0.5}},
        {"loss": {"name": "hinge", "r1_weight": [1.0, 2.0, 0.0], "r2_weight": 0.5, "r1_every": 3}},
        {"loss": {"name": "hinge", "r1_weight": 1.0, "r1_every": 2}, "train": {"skip_d": 1, "n_critic": 2}},
        {"loss": {"name": "hinge", "r1_weight": 1.0, "slope_noise": 0.5, "r1_every": 4}},
        {"loss": {"name": "hinge", "lecam_weight": [0.0, 1.0, 0.3], "lecam_start": 3}},
        {"loss": {"name": "hinge", "consistency_weight": [1.0, 0.0, 5.0], "consistency_weight_fake": 2.0}},
        {
            "loss": {"name": "hinge"},
            "train": {"augment": ["colour"], "augment_probability": 0.3, "augment_target": 0.1, "augment_images": 40},
        },
        {
            "train": {"schedules": SCHEDULES, "augment": ["colour"]},
            "loss": {"name": "wasserstein-gp", "r1_weight": 1.0},
        },
        {"nets": {"prior": "uniform"}},
        {"nets": {"frozen": ["layers.0"]}, "optim": {"weight_decay": 1.0}},
        {"nets": {"prior": ["uniform", "normal", "uniform"]}},
        {"data": {"partition": "diet", "diet": 0.5}, "herd": {"members": 3}},
        {"data": {"partition": "all"}, "herd": {"members": 3}},
    ],
    ids=lambda sections: "-".join(key for values in sections.values() for key in values),
)
def test_fused_equals_separate_for_every_setting_of_the_step(tmp_path, sections):
    found = differences(herd_of(tmp_path, "wcgan", **sections), 10, FUSED)
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize(
    "sections",
    [
        {"optim": {"l2_weight": [0.0, 0.1, 1.0], "grad_clip": 0.05}},
        {"nets": {"frozen": ["layers.0"]}, "optim": {"l2_weight": 1.0}},
    ],
    ids=["each-member", "frozen"],
)
def test_fused_equals_separate_with_l2(tmp_path, sections):
    """Nets without a bias in front of a batch norm: its gradient is 0 but for rounding, which Adam and L2 would amplify."""
    alike = herd_of(tmp_path, "mlp", **sections)
    before = alike.herd.state["g.params"].clone()
    gaps = differences(alike, 10, FUSED)
    assert max(gaps.values()) < 1e-9, gaps
    (tmp_path / "without").mkdir()
    without = herd_of(tmp_path / "without", "mlp", **{**sections, "optim": {**sections["optim"], "l2_weight": 0.0}})
    assert torch.equal(without.herd.state["g.params"], before)
    differences(without, 10, FUSED)
    assert not torch.allclose(alike.herd.state["g.params"][2], without.herd.state["g.params"][2])


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize(
    "sections",
    [
        {"loss": {"name": "non-saturating", "class_weight": 0.5, "class_weight_g": 0.1}},
        {"train": {"n_critic": 2}},
        {"train": {"skip_d": 1, "order": "g-d"}},
        {"train": {"fakes": "shared", "order": "g-d"}},
        {"train": {"fakes": "shared", "n_critic": 2}},
        {"loss": {"name": "hinge", "r1_weight": 3.0}},
        {"train": {"flip": True, "augment": ["colour", "translation", "cutout"]}},
        # a generator that is not told the class pays for it all the same
        {"nets": {"generator": {"name": "residual", "width": 2}}},
    ],
    ids=lambda sections: "-".join(key for values in sections.values() for key in values),
)
@pytest.mark.parametrize("plan", [FUSED, Plan("loop", 1, 1, "cpu")], ids=["fused", "loop"])
def test_fused_equals_separate_for_a_discriminator_that_predicts_classes(tmp_path, sections, plan):
    """AC-GAN: every member on all classes."""
    shared = {"data": {"partition": "all"}, "herd": {"members": 3}}
    found = differences(herd_of(tmp_path, "acgan", **shared, **sections), 10, plan)
    assert max(found.values()) < 1e-9, found


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("group", [{"packing": 2}, {"minibatch_std": 4}, {"packing": 2, "minibatch_std": 2}], ids=str)
@pytest.mark.parametrize(
    ("net", "loss"),
    [
        ("toy-pacgan", {"name": "non-saturating"}),
        ("dcgan", {"name": "wasserstein-gp"}),
        ("residual", {"name": "relativistic-pairing", "r1_weight": 1.0, "r2_weight": 0.5}),
        ("r3gan", {"name": "non-saturating", "r1_weight": 1.0, "slope_noise": 0.1, "consistency_weight": 1.0}),
        ("stylegan", {"name": "non-saturating", "r1_weight": 1.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("plan", [FUSED, Plan("loop", 1, 1, "cpu")], ids=["fused", "loop"])
def test_fused_equals_separate_for_discriminators_of_several_samples(tmp_path, net, loss, group, plan):
    d = {**NETS[net][0]["discriminator"], **group}
    gaps = differences(herd_of(tmp_path, net, nets={"discriminator": d}, loss=loss), 5, plan)
    assert max(gaps.values()) < 1e-9, gaps


@pytest.mark.parametrize("plan", [Plan("loop", 1, 1, "cpu"), Plan("fused", 2, 1, "cpu")], ids=["loop", "chunks"])
def test_every_engine_equals_separate(tmp_path, plan):
    found = differences(herd_of(tmp_path, "wcgan"), 10, plan)
    assert max(found.values()) < 1e-9, found


def test_float32_agrees_to_rounding(tmp_path):
    """Ten steps of float32: outputs of fused and separate generators agree to 1e-4."""
    assembly = herd_of(tmp_path, "small", train={"batch": 4, "precision": "float32"})
    alone = [SeparateGan(assembly, member) for member in range(3)]
    Engine(assembly.herd, FUSED).advance(0, 10, assembly.herd.zero_sums())
    z = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    for member, gan in enumerate(alone):
        gan.train(10)
        views = {k: v[member] for k, v in assembly.herd.g.views(assembly.herd.state["g.params"]).items()}
        buffers = {k: assembly.herd.state[f"g.buffers.{k}"][member] for k in assembly.herd.g.buffers}
        ours = torch.func.functional_call(assembly.herd.g.module.eval(), {**views, **buffers}, (z,))
        assert (ours - gan.g.eval()(z)).abs().max() < 1e-4


def test_a_replica_equals_the_run_with_its_seed(tmp_path):
    """--seeds 3 stacks what three runs with seeds 5, 6 and 7 would give."""
    stacked = herd_of(tmp_path, "mlp", herd={"seeds": 3}, run={"seed": 5})
    Engine(stacked.herd, Plan("fused", 9, 1, "cpu", "cpu")).advance(0, 10, stacked.herd.zero_sums())
    for replica in range(3):
        single = herd_of(tmp_path, "mlp", run={"seed": 5 + replica})
        Engine(single.herd, FUSED).advance(0, 10, single.herd.zero_sums())
        rows = stacked.herd.state["g.params"][3 * replica : 3 * replica + 3]
        assert (rows - single.herd.state["g.params"]).abs().max() < 1e-9
    assert (stacked.herd.state["g.params"][0] - stacked.herd.state["g.params"][3]).abs().max() > 1e-3
