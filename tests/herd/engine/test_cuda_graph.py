"""On a GPU the graph engine equals the fused engine, in float64 to 1e-9."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ganherd.herd.engine import cuda_graph, device_memory
from ganherd.herd.engine.engines import Plan, make_engine, place_state
from ganherd.herd.lowering.lower import lower
from ganherd.herd.state import Blueprint
from ganherd.nets import build_discriminator, build_generator
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import NetConfig
from ganherd.training.setup.assemble import assemble
from ganherd.training.setup.build_strategy import plan_meetings
from ganherd.training.setup.member_settings import schedules_of

pytestmark = pytest.mark.gpu


def trained(tmp_path, engine: str, stops: list[int], **sections):
    """The herd's state and sums after advancing from stop to stop."""
    path = tmp_path / "data.npz"
    if not path.exists():
        random = np.random.default_rng(0)
        np.savez(path, x=random.integers(0, 256, (60, 1, 17, 18), dtype=np.uint8), y=np.repeat([0, 1, 2], [30, 10, 20]))
    recipe: dict = {
        "data": {"source": str(path), "holdout": 0.0},
        "nets": {
            "generator": {"name": "wcgan", "width": 6, "eps": 1e-5},
            "discriminator": {"name": "wcgan", "width": 3, "eps": 1e-5},
            "latent": 3,
        },
        "loss": {"name": "non-saturating"},
        "train": {"batch": 4, "precision": "float64", "ema": 0.9},
        "engine": {"device": "cuda"},
    }
    for section, values in sections.items():
        recipe[section] = {**recipe.get(section, {}), **values}
    assembly = assemble(recipe_file.load(recipe), trust_code=True)
    spans = plan_meetings(assembly.recipe, assembly.steps_per_epoch, stops[-1])
    assembly.herd.rules = replace(assembly.herd.rules, schedules=schedules_of(assembly.recipe, spans))
    plan = Plan(engine, 3, 1, "cuda")
    place_state(assembly.herd, plan)
    sums = assembly.herd.zero_sums()
    running = make_engine(assembly.herd, plan)
    for start, stop in zip([0, *stops], stops, strict=False):
        assert running.advance(start, stop, sums) == stop
    return assembly.herd.state, sums


def hold_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Two states to rounding."""
    for name, value in one.items():
        gap = (value.double() - other[name].double()).abs().max() / value.double().abs().max().clamp(min=1.0)
        assert gap < 1e-9, (name, float(gap))


_AUGMENTED = {"augment": ["colour", "translation", "cutout"], "flip": True}
_SOUND = {
    "nets": {"generator": {"name": "residual", "width": 3}, "discriminator": {"name": "residual", "width": 3}},
    "loss": {"name": "hinge"},
    "train": _AUGMENTED,
}
_TOLD = {
    "generator": {"name": "conditional", "width": 3},
    "discriminator": {"name": "conditional", "width": 3, "body": "plain"},
}
_ADAPTIVE = {"augment": ["colour"], "augment_probability": 0.3, "augment_target": 0.1, "augment_images": 40}
_SCHEDULES = [
    {"keys": ["optim.lr_g", "optim.lr_d"], "shape": "linear", "start": "2steps", "over": "6steps", "last": 0.1}
]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"train": {"n_critic": 2}},
        {"train": {"skip_d": 2}},
        {"train": {"fakes": "shared"}},
        {"train": {"fakes": "shared", "order": "g-d", "skip_d": 1}},
        {"train": {"fakes": "shared", "n_critic": 2}},
        {"train": {"input_noise": 0.2, "input_noise_steps": 9, "order": "g-d"}},
        {"loss": {"name": ["wasserstein", "hinge", "wasserstein-gp"]}, "optim": {"grad_clip": 0.5}},
        _SOUND,
        {**_SOUND, "data": {"partition": "all"}, "herd": {"members": 3}, "nets": _TOLD},
        {"loss": {"name": "relativistic-pairing", "r1_weight": 1.0, "r2_weight": [0.5, 1.0, 2.0]}},
        {"loss": {"name": "hinge", "r1_weight": [1.0, 2.0, 0.0], "r2_weight": 1.0, "slope_noise": 0.5}},
        {"loss": {"name": "hinge", "r1_weight": 1.0, "r1_every": 3}, "train": {"skip_d": 1}},
        {"loss": {"name": "hinge", "lecam_weight": [0.0, 1.0, 0.3], "lecam_start": 3}},
        {"loss": {"name": "hinge", "consistency_weight": [1.0, 0.0, 5.0], "consistency_weight_fake": 2.0}},
        {"loss": {"name": "hinge"}, "train": _ADAPTIVE},
        {"optim": {"weight_decay": [0.0, 1.0, 30.0]}, "train": {"schedules": _SCHEDULES, "ema": [0.5, 0.9, 0.99]}},
    ],
    ids=[
        *(
            "plain",
            "n_critic",
            "skip_d",
            "shared",
            "shared_g-d",
            "shared_n_critic",
            "input_noise",
            "losses",
            "sound",
            "told",
            "relativistic",
        ),
        *("slope_noise", "lazy", "lecam", "consistency", "adaptive", "schedules"),
    ],
)
def test_graph_equals_fused(tmp_path, sections, monkeypatch):
    monkeypatch.setattr(cuda_graph, "_SHORT", float("inf"))  # with the graph of several periods
    fused, fused_sums = trained(tmp_path, "fused", [20], **sections)
    graph, graph_sums = trained(
        tmp_path, "graph", [7, 20], **sections
    )  # stops within a period and within an unrolled graph
    hold_equal(fused, graph)
    assert (fused_sums - graph_sums).abs().max() < 1e-6


class SharedGenerator(nn.Module):
    """Convolutions that share a bias, one that is called twice, and one whose weight a dilated convolution reads too."""

    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.shape, self.start = shape, nn.Linear(latent, 16 * shape[1] * shape[2])
        self.one, self.two, self.twice, self.both = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))
        self.two.bias = self.one.bias
        self.last = nn.Conv2d(16, shape[0], 3, padding=1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        h = self.start(z).reshape(-1, 16, *self.shape[1:])
        h = torch.tanh(self.twice(torch.relu(self.twice(torch.relu(self.two(torch.relu(self.one(h))))))))
        h = self.both(h) + functional.conv2d(h, self.both.weight, padding=2, dilation=2)
        return torch.tanh(self.last(torch.relu(h)))


def test_gradients_on_a_parallel_stream_are_added_to_others_of_the_same_parameter(tmp_path):
    """With kernels, in float32: the graph computes weight gradients on a separate stream, `fused` has no streams."""
    generator = {"name": f"{__name__}:SharedGenerator"}
    nets = {"generator": generator, "discriminator": {"name": "wcgan", "width": 16, "eps": 1e-5}, "latent": 3}
    sections = {"nets": nets, "train": {"precision": "float32", "ema": None}}
    fused, _ = trained(tmp_path, "fused", [5], **sections)
    graph, _ = trained(tmp_path, "graph", [5], **sections)
    for name, value in fused.items():
        gap = (value.double() - graph[name].double()).abs().max() / value.double().abs().max().clamp(min=1e-3)
        assert gap < 1e-4, (name, float(gap))


def test_a_graph_of_one_period_equals_fused(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_graph, "_SHORT", 0.0)
    (one, sums), (other, other_sums) = (trained(tmp_path, engine, [1, 7, 30]) for engine in ("graph", "fused"))
    hold_equal(one, other)
    assert (sums - other_sums).abs().max() < 1e-6


def test_capture_with_a_backup_on_the_host_gives_the_same_state(tmp_path, monkeypatch):
    beside, _ = trained(tmp_path, "graph", [9])
    monkeypatch.setattr(device_memory, "_LARGE", 0.0)
    on_host, _ = trained(tmp_path, "graph", [9])
    hold_equal(beside, on_host)  # two runs that are alike differ by 1e-11 too: cuDNN's sums in float64


def test_fused_on_a_gpu_equals_the_loop(tmp_path):
    loop, _ = trained(tmp_path, "loop", [10])
    fused, _ = trained(tmp_path, "fused", [10])
    hold_equal(loop, fused)


@pytest.mark.parametrize("name", ["wcgan", "dcgan", "residual"])
@pytest.mark.parametrize("role", ["generator", "discriminator"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_a_module_run_by_kernels_equals_the_plain_module(name, role, dtype, tolerance):
    """Compare outputs and gradients of three members with plain modules in float64.

    If the sign of numbers near zero matters, as in residual nets, gradients are as close as those of PyTorch in that precision.
    """
    torch.manual_seed(0)
    quiet = {"dropout": 0.0} if (name, role) == ("wcgan", "discriminator") else {}
    shape, net = (3, 32, 32), NetConfig(name=name, settings=quiet)
    build = build_generator if role == "generator" else build_discriminator
    modules = [build(net, shape, *([20] if role == "generator" else [])).cuda() for _ in range(3)]
    blueprint = Blueprint(modules[0])
    rows = torch.stack([blueprint.flatten_parameters(m) for m in modules]).requires_grad_()
    buffers = {k: torch.stack([dict(m.named_buffers())[k] for m in modules]) for k in blueprint.buffers}
    x = torch.randn(3, 16, *((20,) if role == "generator" else shape), device="cuda")
    keys = torch.zeros(3, dtype=torch.int64, device="cuda")
    lowered = lower(modules[0], "triton")
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours, moved = lowered(blueprint.views(rows), buffers, lambda: keys, x)
    grad = torch.randn(ours.shape, device="cuda")
    (ours_grad,) = torch.autograd.grad(ours.float(), rows, grad)
    for i, module in enumerate(modules):
        plain = copy.deepcopy(module)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            usual = torch.autograd.grad(plain(x[i]).float(), list(plain.parameters()), grad[i])
        module.double()
        theirs = module(x[i].double())
        grads = torch.autograd.grad(theirs, list(module.parameters()), grad[i].double())
        flat = torch.cat([g.reshape(-1) for g in grads])
        assert (ours[i].double() - theirs).norm() / theirs.norm() < tolerance
        usual_gap = (torch.cat([g.reshape(-1) for g in usual]).double() - flat).norm() / flat.norm()
        most = max(3 * tolerance, 1.1 * usual_gap) if name == "residual" else 3 * tolerance
        assert (ours_grad[i].double() - flat).norm() / flat.norm() < most
        for key, buffer in module.named_buffers():
            assert torch.allclose(moved[key][i].double(), buffer.double(), rtol=30 * tolerance, atol=tolerance), key
