"""`Herd.step` in a plain loop and in Lightning trains what `ganherd train` trains; its state is read, set and saved exactly."""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import tiny_runs
import torch
from further_tests import EACH_VALUE
from torch import Tensor, nn

import ganherd
from ganherd import UserError
from ganherd.herd.state import base_keys
from ganherd.runs import checkpoint
from ganherd.training.setup.assemble import assemble

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "lightning_loop.py"
STEPS = 10


class Generator(nn.Module):
    def __init__(self, shape: tuple[int, ...], latent: int) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.Sequential(nn.Linear(latent, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 64), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z).reshape(-1, *self.shape)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


SECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "hinge": {"loss": {"name": "hinge"}, "train": {"batch": 8, "ema": 0.9}, "optim": {"lr_g": [1e-3, 2e-3, 5e-4]}},
    "penalty": {"loss": {"name": "wasserstein-gp"}, "train": {"batch": 8, "n_critic": 3}, "optim": {"beta1": 0.0}},
    "skip": {"loss": {"name": "wasserstein"}, "train": {"batch": 8, "skip_d": 1, "order": "g-d"}, "optim": {}},
}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


def recipe(folder: Path, kind: str, engine: str = "fused") -> dict[str, Any]:
    whole = recipes.tiny_recipe(recipes.noise_data(folder / "data.npz"), **SECTIONS[kind])
    whole["nets"] = {"generator": Generator, "discriminator": Discriminator, "latent": 4}
    whole["train"] |= {"budget": f"{STEPS}steps", "precision": "float64", "ema": SECTIONS[kind]["train"].get("ema")}
    whole["engine"]["name"] = engine
    whole["run"] |= {"seed": 5, "watch": {"every": 0}}
    return whole


def trained(folder: Path, kind: str) -> tuple[dict[str, Tensor], list[Any]]:
    """The last checkpoint of `ganherd.train`, and the batches of each of its steps."""
    whole = recipe(folder, kind)
    run = ganherd.train(whole, run=folder / "run", quiet=True)
    prepared = assemble(run.recipe, trust_code=True)
    state = checkpoint.newest(run.folder.checkpoints, prepared.herd.nets)[0].state
    feed, base, n = prepared.herd.feed, base_keys(prepared.herd.state), prepared.herd.rules.n_critic
    batches = [[feed.batch_at(slice(0, 3), base, step * n + c)[0] for c in range(n)] for step in range(STEPS)]
    return state, batches


def herd_of(kind: str, engine: str = "auto") -> ganherd.Herd:
    sections = {**SECTIONS[kind], "train": {**SECTIONS[kind]["train"], "precision": "float64"}}
    return ganherd.Herd(
        Generator, Discriminator, members=3, shape=(1, 8, 8), latent=4, seed=5, engine=engine, **sections
    )


def assert_same(herd: ganherd.Herd, state: dict[str, Tensor]) -> None:
    assert set(herd.state) <= set(state)
    for name, value in herd.state.items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("engine", ["fused", "loop"])
@pytest.mark.parametrize("kind", list(SECTIONS))
def test_a_plain_loop_trains_what_ganherd_train_trains(tmp_path: Path, kind: str, engine: str) -> None:
    state, batches = trained(tmp_path, kind)
    herd = herd_of(kind, engine)
    for step in batches:
        losses = herd.step(step)
        assert all(value.shape == (3,) and torch.isfinite(value).all() for value in losses.values())
    assert herd.step_count == STEPS
    assert_same(herd, state)


def test_the_loop_of_lightning_trains_what_ganherd_train_trains(tmp_path: Path) -> None:
    if not importlib.util.find_spec("lightning"):
        pytest.skip("Lightning is not installed: pip install lightning")
    state, batches = trained(tmp_path, "hinge")
    example = runpy.run_path(str(EXAMPLE), run_name="example")
    module = example["LitHerd"](herd_of("hinge"))
    # members see different batches here: a batch of the loader is [N, B, …]
    loader = torch.utils.data.DataLoader([step[0] for step in batches], batch_size=None, shuffle=False)
    example["trainer"](tmp_path, max_epochs=1).fit(module, loader)
    assert_same(module.herd, state)


def test_the_example_with_lightning_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    if not importlib.util.find_spec("lightning"):
        pytest.skip("Lightning is not installed: pip install lightning")
    example = runpy.run_path(str(EXAMPLE), run_name="example")
    loader = torch.utils.data.DataLoader(list(noise(4)), batch_size=None, shuffle=False)
    whole = example["LitHerd"](herd_of("hinge"))
    example["trainer"](tmp_path / "whole", max_epochs=2).fit(whole, loader)
    half = example["LitHerd"](herd_of("hinge"))
    first = example["trainer"](tmp_path / "half", max_epochs=1)
    first.fit(half, loader)
    first.save_checkpoint(tmp_path / "half.ckpt")
    again = example["LitHerd"](herd_of("hinge"))
    example["trainer"](tmp_path / "again", max_epochs=2).fit(again, loader, ckpt_path=tmp_path / "half.ckpt")
    assert again.herd.step_count == 8
    assert all(torch.equal(value, whole.herd.state[name]) for name, value in again.herd.state.items())


def noise(steps: int, rows: int = 8) -> Iterator[Tensor]:
    random = np.random.default_rng(1)
    for _ in range(steps):
        yield torch.from_numpy(random.uniform(-1, 1, (rows, 1, 8, 8)))


def test_a_saved_herd_continues_exactly(tmp_path: Path) -> None:
    whole, first, again = herd_of("hinge"), herd_of("hinge"), herd_of("hinge")
    batches = list(noise(6))
    for x in batches:
        whole.step(x)
    for x in batches[:3]:
        first.step(x)
    again.load(first.save(tmp_path / "herd.safetensors"))
    copy = herd_of("hinge")
    copy.load_state_dict(first.state_dict())
    for x in batches[3:]:
        again.step(x)
        copy.step(x)
    assert again.step_count == copy.step_count == 6
    for other in (again, copy):
        assert all(torch.equal(value, whole.state[name]) for name, value in other.state.items())


def test_a_copy_of_the_state_does_not_change_with_the_herd() -> None:
    herd = herd_of("hinge")
    before = herd.state_dict()
    herd.step(next(noise(1)))
    assert not torch.equal(before["g.params"], herd.state["g.params"]) and int(before["step"]) == 0


@pytest.mark.parametrize("content", [b"", b"not a file of tensors", b"\xff" * 100])
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "herd.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"herd.safetensors cannot be read"):
        herd_of("hinge").load(tmp_path / "herd.safetensors")


def test_the_state_of_another_herd_is_refused(tmp_path: Path) -> None:
    path = herd_of("penalty").save(tmp_path / "herd.safetensors")
    with pytest.raises(UserError, match="this is the state of another herd: g.ema is missing"):
        herd_of("hinge").load(path)
    single = ganherd.Herd(Generator, Discriminator, members=3, shape=(1, 8, 8), latent=4)
    with pytest.raises(UserError, match=r"another herd: d.adam.m is missing, or has another shape or type"):
        single.load_state_dict(herd_of("penalty").state_dict())


def test_members_start_from_a_users_own_weights() -> None:
    torch.manual_seed(3)
    g, d = Generator((1, 8, 8), 4).double(), Discriminator().double()
    g.layers[1].running_mean.fill_(0.25)
    herd = herd_of("hinge")
    herd.step(next(noise(1)))
    others = herd.state_dict()
    herd.set_weights(g.state_dict(), d.state_dict(), member=1)
    z = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(herd.generator(1)(z), g.eval()(z))
    assert torch.equal(herd.discriminator(1)(g(z)), d.eval()(g(z)))
    assert herd.state["g.adam.t"].tolist() == [1, 0, 1] and not herd.state["d.adam.m"][1].any()
    for name, value in herd.state.items():
        assert torch.equal(value[[0, 2]], others[name][[0, 2]]), name
    herd.set_weights(generator=g.state_dict())
    assert all(torch.equal(herd.generator(m)(z), g(z)) for m in range(3))


class Masked(Discriminator):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.rand(1, 8, 8) > 0.5).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.mask)


def test_weights_leave_buffers_that_they_do_not_contain() -> None:
    herd = ganherd.Herd(Generator, Masked, members=3, shape=(1, 8, 8), latent=4)
    masks = herd.state["d.buffers.mask"].clone()
    assert not torch.equal(masks[0], masks[1])
    herd.set_weights(discriminator=Masked().state_dict())
    assert torch.equal(herd.state["d.buffers.mask"], masks)


def test_weights_of_another_net_are_refused() -> None:
    with pytest.raises(UserError, match=r"these weights do not fit Generator: .*layers.0.weight"):
        herd_of("hinge").set_weights(nn.Linear(2, 2).state_dict())


def test_modules_of_members_are_plain_and_separate() -> None:
    herd = herd_of("penalty")
    module = herd.generator(2)
    assert type(module) is Generator and not module.training
    before = herd.state_dict()
    with torch.no_grad():
        module.layers[0].weight.zero_()
    assert torch.equal(before["g.params"], herd.state["g.params"])


def test_all_members_may_see_one_batch_of_any_size() -> None:
    alike, each = herd_of("hinge"), herd_of("hinge")
    for x in (*noise(2), *noise(1, rows=5)):  # the last batch of an epoch is smaller
        alike.step(x)
        each.step(x.expand(3, *x.shape))
    assert all(torch.equal(value, each.state[name]) for name, value in alike.state.items())


def test_bytes_are_scaled_as_training_scales_them() -> None:
    bytes_, floats = herd_of("hinge"), herd_of("hinge")
    x = torch.randint(0, 256, (8, 1, 8, 8), dtype=torch.uint8)
    bytes_.step(x)
    floats.step((x.double() - 127.5) / 127.5)
    torch.testing.assert_close(bytes_.state["d.params"], floats.state["d.params"], rtol=0, atol=1e-12)


class Labelled(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(classes, 4), nn.Linear(4, 64)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.layer(z + self.embed(y)).reshape(-1, 1, 8, 8)


def test_nets_that_take_labels_get_them() -> None:
    herd = ganherd.Herd(Labelled, Discriminator, members=2, shape=(1, 8, 8), latent=4, classes=3)
    other = ganherd.Herd(Labelled, Discriminator, members=2, shape=(1, 8, 8), latent=4, classes=3)
    x = torch.zeros(8, 1, 8, 8)
    herd.step(x, torch.zeros(8, dtype=torch.int64))
    other.step(x, torch.ones(8, dtype=torch.int64))
    assert not torch.equal(herd.state["g.params"], other.state["g.params"])
    with pytest.raises(UserError, match="this herd has labels: give them as y"):
        herd.step(x)
    with pytest.raises(UserError, match="y must have a label from 0 to 2 for each row of x"):
        herd.step(x, torch.full((8,), 3))
    with pytest.raises(UserError, match="y has fractions: give the numbers of classes"):
        herd.step(x, torch.full((8,), 0.5))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda h: h.step(torch.zeros(8, 1, 8, 9)), "a batch must be B × 1 × 8 × 8 or 3 × B × 1 × 8 × 8, not 8 × 1 × 8 × 9."),
        (lambda h: h.step([torch.zeros(8, 1, 8, 8)] * 2), "a step takes 1 batches"),
        (lambda h: h.step(torch.zeros(0, 1, 8, 8)), "a batch has no rows: give at least one."),
        (lambda h: h.step(torch.zeros(8, 1, 8, 8, dtype=torch.int64)), "a batch has numbers of type int64: give bytes or floats."),
        (lambda h: h.generator(3), "there is no member 3; this herd has 3, counted from 0."),
        (lambda h: ganherd.Herd(Generator, Discriminator, members=2, shape=(1, 8, 8), strategy={}), "has no argument 'strategy'"),
        (lambda h: ganherd.Herd(Generator, Discriminator, members=2, shape=(1, 8, 8), optim={"lrg": 1}), "'optim.lrg'"),
        (lambda h: ganherd.Herd(Generator, Discriminator, members=2, shape=(1, 8, 8), engine="graph"), "engine must be"),
        (lambda h: ganherd.Herd(Generator, Discriminator, members=2, shape=(1, 8, 8), train={"stop": {}}), "train.stop is for"),
        (lambda h: ganherd.Herd(Generator, Discriminator, members=2, shape=(1, 9, 9)), "do not run on data of shape"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        call(herd_of("hinge"))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_settings_of_members_are_part_of_the_state() -> None:
    herd = herd_of("hinge")
    herd.state["set.lr_g"][1] = 0.0
    before = herd.state_dict()
    herd.step(next(noise(1)))
    moved = [not torch.equal(herd.state["g.params"][m], before["g.params"][m]) for m in range(3)]
    assert moved == [True, False, True]


def test_nets_that_cannot_be_fused_train_one_after_another() -> None:
    class Branching(Discriminator):
        def forward(self, x: Tensor) -> Tensor:
            out = self.layers(x)
            return out * 2 if out.detach().sum().item() > 0 else out

    settings: dict[str, Any] = {"members": 2, "shape": (1, 8, 8), "latent": 4}
    herd = ganherd.Herd(Generator, Branching, **settings)
    assert "loop" in repr(herd) and torch.isfinite(herd.step(torch.zeros(4, 1, 8, 8))["loss_d"]).all()
    with pytest.raises(UserError, match=r"Branching cannot be fused .*: use engine='loop'"):
        ganherd.Herd(Generator, Branching, engine="fused", **settings)


@pytest.mark.parametrize("engine", ["fused", "loop"])
def test_a_batch_norm_refuses_a_single_row_in_every_engine(engine: str) -> None:
    normed = {"name": "small", "batch_norm": True}
    herd = ganherd.Herd(normed, "small", members=2, shape=(1, 8, 8), latent=4, engine=engine)
    with pytest.raises(UserError, match="cannot train on batches of one row: Expected more than 1 value per channel"):
        herd.step(torch.randn(1, 1, 8, 8))
    assert torch.isfinite(herd.step(torch.randn(2, 1, 8, 8))["loss_d"]).all()
    plain = ganherd.Herd("small", "small", members=2, shape=(1, 8, 8), latent=4, engine=engine)
    assert torch.isfinite(plain.step(torch.randn(1, 1, 8, 8))["loss_d"]).all()


def test_batches_divide_into_packs() -> None:
    packed = {"name": "small", "packing": 2}
    herd = ganherd.Herd("small", packed, members=2, shape=(1, 8, 8), latent=4)
    with pytest.raises(UserError, match="a batch has 7 rows, which do not divide into packs of 2: give a multiple"):
        herd.step(torch.randn(7, 1, 8, 8))
    assert torch.isfinite(herd.step(torch.randn(8, 1, 8, 8))["loss_d"]).all()
