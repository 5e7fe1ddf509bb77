"""Exports give the samples of `ganherd sample --portable`, from every packaged generator, in PyTorch, ONNX and JavaScript."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from portable_mixtures import generators, mixture
from torch import Tensor, nn

from ganherd.export import loader
from ganherd.export.onnx_graph import run_onnx_file, write_onnx_file
from ganherd.export.portable_model import check_against, portable_model
from ganherd.export.torch_folder import write_torch_folder
from ganherd.export.web_page import page_of
from ganherd.herd import rng
from ganherd.mixture.mixture import Mixture
from ganherd.nets import catalog
from ganherd.util.errors import UserError

NETS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("small", {"batch_norm": True, "width": 8}, (1, 8, 8)),
    ("mlp", {"hidden": [8]}, (1, 6, 6)),
    ("wcgan", {"width": 4}, (1, 10, 9)),  # the output is cut to this size
    ("wcgan", {"width": 4, "label": True}, (3, 8, 8)),
    ("dcgan", {"width": 2}, (1, 28, 28)),
    ("dcgan", {"width": 2, "label": True}, (1, 28, 28)),
    ("dcgan5", {"width": 2}, (3, 12, 12)),
    ("gran", {"width": 2}, (1, 12, 12)),
    ("toy", {"width": 8}, (2,)),
    ("residual", {"width": 2, "attention": True}, (3, 14, 14)),
    ("conditional", {"width": 2, "attention": True}, (3, 16, 16)),
    ("r3gan", {"width": 8, "blocks": 1, "group": 4}, (3, 14, 14)),
    ("r3gan", {"width": 8, "blocks": 1, "group": 4, "label": True}, (1, 16, 16)),
    ("stylegan", {"width": 4}, (3, 14, 14)),
    ("stylegan", {"width": 4, "label": True}, (1, 16, 16)),
]
SEEDS, LABELLED = range(3, 35), range(100, 109)


def mixture_of(name: str, settings: dict[str, Any], shape: tuple[int, ...]) -> Mixture:
    takes_label = name == "conditional" or settings.get("label", False)
    return mixture(generators(name, settings, shape, 3), shape=shape, takes_label=takes_label)


def in_node(page: str, folder: Path) -> list[tuple[list[float], int, int]]:
    """Return samples, labels and members that the page's own script computes for SEEDS, then for LABELLED with label 1."""
    model, script = (
        page.split(f"<script{kind}>")[1].split("</script>")[0] for kind in (' type="application/json" id="model"', "")
    )
    kernels = script.split("// Controls, the grid")[0].replace('"use strict";', "", 1)
    calls = [[seed, -1] for seed in SEEDS] + [[seed, 1] for seed in LABELLED]
    (folder / "run.js").write_text(
        f"const document = {{ getElementById: () => ({{ textContent: {json.dumps(model)} }}) }};\n{kernels}\n"
        f"const out = {json.dumps(calls)}.map(([seed, label]) => sample(seed, label));\n"
        "console.log(JSON.stringify(out.map((s) => [Array.from(s.x), s.label, s.member])));"
    )
    done = subprocess.run(["node", folder / "run.js"], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def test_every_packaged_generator_is_tested() -> None:
    assert {name for name, _, _ in NETS} == {name for name in catalog.GENERATORS if catalog.GENERATORS.is_own(name)}


@pytest.mark.further("wcgan-label", "conditional", "r3gan", "r3gan-label", "stylegan", "stylegan-label")
@pytest.mark.parametrize(
    ("name", "settings", "shape"), NETS, ids=[f"{n}{'-label' * ('label' in s)}" for n, s, _ in NETS]
)
def test_torch_onnx_and_javascript_give_the_samples_of_ganherd(
    name: str, settings: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    whole = mixture_of(name, settings, shape)
    model = portable_model(whole)
    expected = whole.portable().sample(len(SEEDS), seed=SEEDS.start)
    labelled = whole.portable().sample(len(LABELLED), label=1, seed=LABELLED.start)
    assert len(set(expected.member.tolist())) == 3 and expected.x.std() > (0.2 if whole.is_image else 0.01)
    limit = 1.0 if whole.is_image else 1e-5

    def same(x: Any, reference: np.ndarray) -> bool:
        return bool(np.abs(np.asarray(x, np.float64) - reference).max() <= limit)

    write_torch_folder(model, tmp_path)
    read = loader.load(str(tmp_path / "model.safetensors"))
    x, y = read.sample(SEEDS)
    assert same(x, expected.x) and x.shape == expected.x.shape and y.tolist() == expected.y.tolist()
    assert same(read.sample(LABELLED, 1)[0], labelled.x) and same(read.sample(LABELLED, whole.labels[1])[0], labelled.x)
    assert read.sample([])[0].shape == (0, *expected.x.shape[1:])
    for wrong in (-2, len(whole.labels), "no label"):
        with pytest.raises(ValueError, match="label"):
            read.sample(SEEDS, wrong)

    write_onnx_file(model, tmp_path / "model.onnx")
    x, y, member = run_onnx_file(tmp_path / "model.onnx", SEEDS)
    assert same(x, expected.x) and x.dtype == expected.x.dtype
    assert y.tolist() == expected.y.tolist() and member.tolist() == expected.member.tolist()
    mixed = run_onnx_file(tmp_path / "model.onnx", [*SEEDS, *LABELLED], [-1] * len(SEEDS) + [1] * len(LABELLED))[0]
    assert same(mixed, np.concatenate([expected.x, labelled.x]))
    assert same(run_onnx_file(tmp_path / "model.onnx", [SEEDS[2]])[0], expected.x[2:3])  # a batch of one
    assert same(run_onnx_file(tmp_path / "model.onnx", SEEDS, -2)[0], expected.x)  # any negative label means all

    if shutil.which("node") is None:
        pytest.skip("no Node.js: PyTorch and ONNX were compared, JavaScript was not")
    drawn = in_node(page_of(model), tmp_path)
    assert same([x for x, _, _ in drawn], np.concatenate([expected.x, labelled.x]).reshape(len(drawn), -1))
    assert [y for _, y, _ in drawn] == [*expected.y.tolist(), *labelled.y.tolist()]


def test_portable_sample_depends_on_its_seed_alone() -> None:
    whole = mixture_of(*NETS[0]).portable()
    first, later = whole.sample(100, seed=0), whole.sample(30, seed=70)
    assert np.array_equal(first.x[70:], later.x) and np.array_equal(first.member[70:], later.member)


def test_portable_walk_begins_and_ends_at_the_samples_of_its_seeds() -> None:
    whole = mixture_of(*NETS[0]).portable()
    walk = whole.walk(3, (5, 9), label=1)
    ends = np.concatenate([whole.sample(1, label=1, seed=seed).x for seed in (5, 9)])
    assert np.abs(walk.x[[0, 2]].astype(np.float64) - ends).max() <= 1 and not np.array_equal(walk.x[1], walk.x[0])


def test_portable_noise_is_normal_and_differs_from_the_usual_streams() -> None:
    whole = mixture_of(*NETS[0])
    with rng.using(rng.PORTABLE):
        z = rng.draw(rng.keys(np.zeros(2000, np.int64), np.arange(2000), rng.SAMPLE), (5,), "normal")
    assert abs(float(z.mean())) < 0.03 and abs(float(z.std()) - 1) < 0.03
    assert not np.array_equal(whole.sample(20).x, whole.portable().sample(20).x)


def test_several_breeds_and_one_member_of_them(tmp_path: Path) -> None:
    shape = (1, 8, 8)
    two = mixture(
        generators("small", {"width": 8}, shape, 2), generators("wcgan", {"width": 4}, shape, 1, seed=9), shape=shape
    )
    write_onnx_file(portable_model(two), tmp_path / "two.onnx")
    assert check_against(two, 0, run_onnx_file(tmp_path / "two.onnx", range(64))[0], range(64)) <= 1
    single = portable_model(two, member=2)
    assert single.facts["members"] == [[0, 0]] and single.facts["numbers"] == [2]
    write_onnx_file(single, tmp_path / "single.onnx")
    x, y, member = run_onnx_file(tmp_path / "single.onnx", range(9), 0)  # any label gives the only member
    assert set(member) == {2} and set(y) == {2}
    assert check_against(two.alone(2), 0, x, range(9)) <= 1


def test_replicas_are_exported_one_at_a_time() -> None:
    shape = (1, 8, 8)
    two = mixture(generators("small", {"width": 8}, shape, 6), shape=shape, seeds=[0, 1])
    two.breeds = (
        type(two.breeds[0])(
            two.breeds[0].net, 3, *(getattr(two.breeds[0], k) for k in ("module", "params", "buffers"))
        ),
    )
    images = [portable_model(two, replica).loaded().sample(range(20))[0].numpy() for replica in (0, 1)]
    assert not np.array_equal(*images)
    assert check_against(two, 1, images[1], range(20)) <= 1
    with pytest.raises(UserError, match="exported samples differ"):
        check_against(two, 1, images[0], range(20))


class Sorted(nn.Module):
    """A layer that exports do not know."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1).values


class Unknown(nn.Module):
    """A generator with a layer that exports do not know."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.first, self.order, self.last = nn.Linear(latent, 8), Sorted(), nn.Linear(8, 2)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.last(self.order(self.first(z)))
        return x


class Branching(nn.Module):
    """A generator whose operations depend on its numbers."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.layer = nn.Linear(latent, 2)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layer(z)
        return x if x.sum() > 0 else -x


class InPlace(nn.Module):
    """A generator of a user with an activation in place, a constant and sums with numbers."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(latent, 8), nn.Dropout(0.5), nn.Linear(8, 2)
        self.register_buffer("shift", torch.ones(1, 2))

    def forward(self, z: Tensor) -> Tensor:
        hidden = nn.functional.relu(self.first(z), inplace=True)
        out: Tensor = self.last(self.drop(hidden)) * 0.5 + self.shift + 1
        return torch.sigmoid(out)


class Swish(nn.Module):
    """The generator of the README: linear layers and SiLU."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(latent, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 2)
        )

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.layers(z)
        return x


@pytest.mark.parametrize("kind", ["InPlace", "Swish"])
def test_generators_of_users_give_the_same_samples_in_every_format(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"own_test_nets:" + kind.__name__: kind for kind in (InPlace, Swish)}
    monkeypatch.setattr("ganherd.util.user_code.import_name", own.__getitem__)
    whole = mixture(generators(f"own_test_nets:{kind}", {}, (2,), 3), shape=(2,))
    model = portable_model(whole)
    assert check_against(whole, 0, model.loaded().sample(SEEDS)[0].numpy(), SEEDS) < 1e-5
    write_onnx_file(model, tmp_path / "own.onnx")
    assert check_against(whole, 0, run_onnx_file(tmp_path / "own.onnx", SEEDS)[0], SEEDS) < 1e-5
    if shutil.which("node") is not None:
        expected = whole.portable().sample(len(SEEDS), seed=SEEDS.start).x
        drawn = np.array([x for x, _, _ in in_node(page_of(model), tmp_path)[: len(SEEDS)]])
        assert np.abs(drawn - expected.reshape(len(SEEDS), -1)).max() < 1e-5


def test_generators_that_cannot_be_exported_are_refused_with_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"own_test_nets:" + kind.__name__: kind for kind in (Unknown, Branching)}
    monkeypatch.setattr("ganherd.util.user_code.import_name", own.__getitem__)
    points = {name: mixture(generators(name, {}, (2,), 3), shape=(2,)) for name in own}
    with pytest.raises(
        UserError, match=r"do not know the operation aten.sort.default in its layer order \(Sorted\)"
    ) as error:
        portable_model(points["own_test_nets:Unknown"])
    assert "\n" not in str(error.value)
    with pytest.raises(
        UserError, match="own_test_nets:Branching cannot be exported, because torch.export cannot trace it"
    ) as error:
        portable_model(points["own_test_nets:Branching"])
    assert "\n" not in str(error.value)


def test_page_refuses_what_it_cannot_show() -> None:
    with pytest.raises(UserError, match="not images of 4 channels: use torch or onnx"):
        page_of(portable_model(mixture_of("small", {"width": 4}, (4, 4, 4))))


def test_names_of_a_stranger_cannot_add_code_to_the_page() -> None:
    hostile = "</script><script>alert(1)</script>@SCRIPT@"
    whole = mixture(generators("small", {"width": 4}, (1, 4, 4), 3), shape=(1, 4, 4), labels=("a", "b", hostile))
    page = page_of(portable_model(whole, title=hostile))
    assert page.count("<script") == 2 and "alert(1)</script>" not in page
    assert page.count("// The model of `loader.py` in JavaScript") == 1
    assert "default-src 'none'" in page
