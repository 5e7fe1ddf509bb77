"""`ganherd train --explain`: how each layer would run, here and on a GPU, and why; nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from recipes import tiny_recipe

from ganherd.herd.rng import HAS_TRITON

ALL, EACH, VMAP = "PyTorch on all members", "PyTorch member by member", "vmap"
BY_KERNEL = "kernel" if HAS_TRITON else ALL
NETS = '''
import torch
from torch import nn

class G(nn.Module):
    def __init__(self, shape, latent):
        super().__init__()
        self.shape, self.first, self.bound = tuple(shape), nn.Linear(latent, 64), nn.Threshold(0.1, 0.0)
        self.wide = nn.Conv2d(1, 1, 7, padding=3)
    def forward(self, z):
        return torch.sinc(self.wide(self.bound(self.first(z)).reshape(-1, *self.shape)))

class InPlace(G):
    def forward(self, z):
        return super().forward(z).mul_(0.5)

class ShiftsByHand(G):
    def __init__(self, shape, latent):
        super().__init__(shape, latent)
        self.conv, self.shift = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Parameter(torch.zeros(4))
        self.last = nn.Conv2d(4, 1, 3, padding=1)
    def forward(self, z):
        h = self.first(z).reshape(-1, *self.shape)
        return self.last(torch.relu(self.conv(h) + self.shift.view(1, -1, 1, 1)))

class Turns(G):
    def forward(self, z):
        return super().forward(z if z.mean() > 5 else -z)
'''  # fmt: skip


@pytest.fixture
def explain(cli, data):
    """The facts about the recipe with these changes, after looking that nothing was left behind."""

    def asked(*words: object, **sections: dict) -> dict:
        Path("explained_nets.py").write_text(NETS)
        Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data, **sections)))
        answer = cli("train", "mine.yaml", "--run", "new", "--explain", "--json", *words)
        assert answer.code == 0, answer
        assert not Path("new").exists() and not Path("runs").exists()
        return json.loads(answer.out)

    return asked


def hows(net: dict, where: str) -> dict[str, tuple[str, str]]:
    return {layer["layer"]: (layer["what"], layer[where]["how"]) for layer in net["layers"]}


def test_layers_of_convolutional_nets(explain) -> None:
    wcgan = {"generator": {"name": "wcgan", "width": 4}, "discriminator": {"name": "wcgan", "width": 2}}
    found = explain(nets=wcgan, loss={"name": "wasserstein"})
    assert found["device"] == "cpu" and found["one_by_one"] == ""
    g, d = found["nets"]
    assert (g["role"], d["role"]) == ("generator", "discriminator") and g["parameters"] > 0
    here, gpu = hows(g, "here"), hows(g, "gpu")
    assert here["layers.0"] == ("Linear", ALL) and gpu["layers.0"] == ("Linear", BY_KERNEL)  # with an unflattening
    assert here["layers.5"] == ("Conv2d", EACH)
    assert gpu["layers.5"] == ("Conv2d", "kernel" if HAS_TRITON else EACH)
    upsample = next(layer for layer in g["layers"] if layer["layer"] == "layers.4")
    assert upsample["gpu"] == {"how": "with its neighbour", "why": "a part of layers.5"}
    assert hows(d, "gpu")["layers.2"] == ("Dropout", "with its neighbour" if HAS_TRITON else ALL)
    assert "kernel" not in {how for _, how in here.values()} and g["no_kernels"]["here"]


def test_a_parameter_that_is_added_to_a_convolution_is_a_part_of_it_on_a_gpu(explain) -> None:
    g, _ = explain("--trust-code", nets={"generator": "explained_nets:ShiftsByHand"})["nets"]
    here, gpu = hows(g, "here"), hows(g, "gpu")
    assert here.keys() == gpu.keys() and here["conv"] == ("Conv2d", EACH)
    assert gpu["conv"][1] == ("with its neighbour" if HAS_TRITON else EACH)
    assert gpu["add"] == ("add", "kernel" if HAS_TRITON else ALL)
    assert gpu["last"] == ("Conv2d", "kernel" if HAS_TRITON else EACH)


def test_the_pass_of_a_penalty_is_named_where_kernels_run(explain) -> None:
    """There dropouts are operations of their own."""
    wcgan = {"name": "wcgan", "width": 2, "batch_norm": False}
    g, d = explain(nets={"discriminator": wcgan}, loss={"name": "wasserstein-gp"})["nets"]
    by_kernel = [what for what, how in hows(d, "gpu").values() if how == "kernel"]
    assert not HAS_TRITON or by_kernel == ["Conv2d"] * 4 + ["Linear"]
    assert not g["penalty"] and (not HAS_TRITON or "differentiated twice: there 9 kernel" in d["penalty"])
    g, d = explain(train={"precision": "float64"})["nets"]
    assert {how for _, how in hows(g, "gpu").values()} == {ALL} and "float64" in g["no_kernels"]["gpu"]


@pytest.mark.parametrize(("train", "by"), [({}, ALL), ({"batch": 10}, BY_KERNEL), ({"precision": "bf16"}, BY_KERNEL)])
def test_linear_layers_by_batch_and_precision(explain, train, by) -> None:
    """PyTorch's own product where all sizes are multiples of 4, in float32."""
    g, _ = explain(train=train)["nets"]
    linear = [layer["gpu"] for layer in g["layers"] if layer["what"] == "Linear"]
    assert linear and {layer["how"] for layer in linear} == {by}
    assert by != ALL or not HAS_TRITON or all("a kernel adds the biases" in layer["why"] for layer in linear)


def test_what_has_no_kernel_is_named_with_the_reason(explain) -> None:
    (g, _) = explain("--set", "nets.generator={name: 'explained_nets:G', settings: {}}")["nets"]
    assert hows(g, "gpu")["bound"] == ("Threshold", VMAP)
    assert hows(g, "gpu")["sinc"] == ("sinc", VMAP)
    assert hows(g, "gpu")["wide"] == ("Conv2d", EACH)
    why = {layer["layer"]: layer["gpu"]["why"] for layer in g["layers"]}
    assert "Threshold has no operation for all members" in why["bound"]
    assert not HAS_TRITON or "no kernel for its size" in why["wide"]


@pytest.mark.parametrize(("name", "why"), [("InPlace", "in place, with mul_"), ("Turns", "cannot be traced")])
def test_a_net_whose_graph_is_not_known_runs_as_a_whole(explain, name, why) -> None:
    found = explain("--set", f"nets.generator={{name: 'explained_nets:{name}', settings: {{}}}}")
    (only,) = found["nets"][0]["layers"]
    assert only["gpu"]["how"] == VMAP and why in only["gpu"]["why"]
    assert bool(found["one_by_one"]) == (name == "Turns")  # vmap refuses a choice that depends on the data


def test_for_people(cli) -> None:
    answer = cli("train", "--explain", "--set", "engine.device=cpu")
    assert answer.code == 0 and not Path("runs").exists()
    for word in ("generator SmallGenerator", "here (cpu)", "on a GPU", "layers.0", "Linear", "Nothing was trained"):
        assert word in answer.out
    assert "--explain is for new runs" in cli("train", "--resume", "run", "--explain").sentence
