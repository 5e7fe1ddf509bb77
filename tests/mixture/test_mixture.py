"""The mixture p(x) = Σ p(x | y_k) p(y_k): its weights, its samples, its batch norm, and its files."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import LABELS, tiny_recipe
from torch import nn

import ganherd
from ganherd.herd import rng
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.mixture import member_sampler, mixture_files, recalibration
from ganherd.mixture.mixture import Mixture
from ganherd.recipe import recipe_file
from ganherd.training.finish import make_mixture
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.util.errors import UserError


def assembled(source: Path, steps: int = 0, **sections: Any) -> PreparedHerd:
    made = assemble(recipe_file.load(tiny_recipe(source, **sections)))
    Engine(made.herd, Plan("loop", 1, 1, "cpu")).advance(0, steps, made.herd.zero_sums())
    return made


def equal(one: Mixture, two: Mixture) -> bool:
    left, right = one.sample(70, seed=4), two.sample(70, seed=4)
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in ("x", "y", "member"))


# -- weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_the_labels_frequencies_in_the_training_data(data) -> None:
    made = make_mixture(assembled(data), 0)
    assert made.weights == pytest.approx([0.5, 0.25, 0.25])  # 40, 20, 20, less a fifth of each
    assert made.label_of.tolist() == [0, 1, 2] and made.labels == LABELS


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("uniform", [1 / 3] * 3), ({"zero": 1, "2": 3}, [0.25, 0, 0.75]), ({"one": 0.2}, [0, 1, 0])],
)
def test_weights_may_be_uniform_or_given(data, given, wanted) -> None:
    made = make_mixture(assembled(data, run={"weights": given}), 0)
    assert made.weights == pytest.approx(wanted)
    drawn = made.sample(300)
    assert set(drawn.y) == {k for k, weight in enumerate(wanted) if weight > 0}
    assert made.sample(3, label="one").y.tolist() == [1, 1, 1]  # by name also where it is never drawn


def test_one_member_alone_is_not_asked_for_labels_of_others(data, tmp_path) -> None:
    alone = make_mixture(assembled(data), 0).alone(2)
    alone.save(tmp_path / "mixture")
    for one in (alone, ganherd.load(tmp_path)):
        assert one.sample(3, label=2).member.tolist() == [2, 2, 2]
        with pytest.raises(UserError, match="no member of the mixture generates the label 'zero' alone"):
            one.sample(3, label="zero")


def test_members_of_no_class_have_equal_weights(data) -> None:
    made = make_mixture(assembled(data, data={"source": str(data), "partition": "all"}, herd={"members": 4}), 0)
    assert made.weights.tolist() == [0.25] * 4
    drawn = made.sample(400)
    assert set(drawn.member) == {0, 1, 2, 3} and set(drawn.y) == {-1}
    with pytest.raises(UserError, match="no member of the mixture generates the label 'one' alone"):
        made.sample(1, label="one")


def test_labels_of_ten_thousand_draws_follow_their_weights(data) -> None:
    made = make_mixture(assembled(data), 0)
    member, y = made.routes(10_000, None, seed=3)  # what `sample` does first, without the images
    assert np.array_equal(member, y)
    counts = np.bincount(y, minlength=3)
    expected = 10_000 * made.weights
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 13.8  # p > 0.001 with two degrees of freedom
    assert np.array_equal(made.sample(200, seed=3).y, y[:200])


# -- samples ----------------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(n=st.integers(1, 150), seed=st.integers(0, 2**40), label=st.sampled_from([None, "zero", 1, "2"]))
def test_image_i_is_the_same_to_the_bit_for_every_n(run, n, seed, label) -> None:
    made = ganherd.load(run)
    longer = made.sample(150, label, seed)
    shorter = made.sample(n, label, seed)
    for name in ("x", "y", "member"):
        assert np.array_equal(getattr(shorter, name), getattr(longer, name)[:n])


def test_sampling_does_not_depend_on_torchs_random_state_or_threads(run) -> None:
    made = ganherd.load(run)
    first = made.sample(80, seed=1)
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert np.array_equal(made.sample(80, seed=1).x, first.x)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not np.array_equal(made.sample(80, seed=2).x, first.x)


def test_a_sample_is_what_its_generator_makes_of_its_noise(data) -> None:
    """The images in the data's own units, out of the running average of the weights."""
    herd = assembled(data, steps=3)
    made = make_mixture(herd, 3)
    module = copy.deepcopy(herd.herd.g.module).eval()
    views = herd.herd.g.views(herd.herd.state["g.ema"])
    module.load_state_dict({name: value[1] for name, value in views.items()})
    key = np.array([rng.key(7, rng.SAMPLE, 0, 1, 2, 0)])
    with torch.no_grad():
        wanted = (module(rng.draw(key, (64, 8), "normal")[0]) * 127.5 + 127.5).round().clamp(0, 255)
    assert np.array_equal(made.sample(20, label="one", seed=7).x, wanted[:20].to(torch.uint8).numpy())
    assert not torch.equal(herd.herd.state["g.ema"], herd.herd.state["g.params"])


@pytest.mark.parametrize("prior", ["normal", "uniform"])
def test_the_prior_of_the_recipe_is_sampled_from(data, prior) -> None:
    nets = {"prior": prior, "latent": 4, "generator": {"name": "small", "width": 4}, "discriminator": "small"}
    made = make_mixture(assembled(data, nets=nets), 0)
    assert made.prior == prior and made.sample(5).x.shape == (5, 1, 8, 8)


def test_impossible_requests_are_refused(run) -> None:
    made = ganherd.load(run)
    for n in (0, -3):
        with pytest.raises(UserError, match="ask for at least 1"):
            made.sample(n)
    with pytest.raises(UserError, match="no label 'three'; it has zero, one, 2"):
        made.sample(1, label="three")
    with pytest.raises(UserError, match="no replica 1"):
        made.sample(1, replica=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"y": [0.0, 1.0]},
            r"y must be 2 whole numbers, .* not float64 .*: pass integers, for example y\.astype\(int\)\.",
        ),
        ({"y": [0]}, r"y must be 2 whole numbers, one for each sample, not int64 of shape \(1,\)"),
        ({"y": [0, 99]}, r"the mixture has no label 99; it has 3 labels, from 0 on"),
        ({"y": [-2, 0]}, r"the mixture has no label -2"),
        ({"member": [0.5, 1.0]}, r"member must be 2 whole numbers"),
    ],
)
def test_samples_need_whole_numbers_as_labels_and_members(run, change: dict[str, Any], message: str) -> None:
    mixture = ganherd.load(run)
    given = {name: np.array(values) for name, values in ({"y": [0, -1], "member": [0, 1]} | change).items()}
    x = np.zeros((2, *mixture.shape), np.uint8)
    with pytest.raises(UserError, match=message):
        repr(mixture.as_samples(x, **given))


def test_a_broken_member_is_named_and_the_others_still_work(run) -> None:
    made = ganherd.load(run)
    next(iter(made.breeds[0].params.values()))[1] = float("nan")
    with pytest.raises(UserError, match="member 1 of the mixture generates numbers that are not finite"):
        made.sample(5, label="one")
    assert len(made.sample(5, label="zero")) == 5


def test_one_member_alone(run) -> None:
    made = ganherd.load(run)
    drawn = made.alone(2).sample(70, seed=4)
    assert set(drawn.member) == {2} and np.array_equal(drawn.x, made.sample(70, label="2", seed=4).x)
    with pytest.raises(UserError, match="no member 3; this mixture has 3"):
        made.alone(3)


@pytest.mark.parametrize("label", [None, "one"])
def test_larger_calls_make_the_same_images_for_every_n(run, label, monkeypatch) -> None:
    """As on a GPU, where many images are made at once: of the same noise as on a CPU."""
    made = ganherd.load(run)
    before = made.sample(300, label, seed=3)
    monkeypatch.setitem(member_sampler._CALL, "cpu", 256)
    longer, shorter = made.sample(300, label, seed=3), made.sample(70, label, seed=3)
    assert np.array_equal(shorter.x, longer.x[:70])
    assert np.array_equal(longer.member, before.member)
    assert np.abs(longer.x.astype(int) - before.x).max() <= 1  # rounding


def test_sampling_says_how_far_it_is(run) -> None:
    made = ganherd.load(run)
    told: list[int] = []
    assert np.array_equal(made.sample(200, seed=1, watch=told.append).x, made.sample(200, seed=1).x)
    assert told == sorted(told) and told[-1] == 200


def test_to_returns_a_copy_on_the_device(run) -> None:
    made = ganherd.load(run)
    assert made.device.type == "cpu" and made.to("cpu") is made
    assert np.array_equal(made.sample(5, device="cpu").x, made.sample(5).x)
    elsewhere = made.to("meta")
    assert elsewhere.device.type == "meta" and made.device.type == "cpu" and elsewhere.labels == made.labels


@pytest.mark.gpu
def test_a_gpu_makes_the_same_images_as_a_cpu_up_to_rounding(run) -> None:
    made = ganherd.load(run)
    here, there = made.sample(1500, seed=2), made.sample(1500, seed=2, device="cuda")
    assert np.array_equal(here.member, there.member) and np.array_equal(here.y, there.y)
    assert np.abs(here.x.astype(int) - there.x).max() <= 1
    again = made.to("cuda").sample(40, seed=2)
    assert np.array_equal(again.x, there.x[:40])


# -- batch norm -------------------------------------------------------------------------------------------------------

WITH_NORM = {"generator": {"name": "small", "width": 6, "batch_norm": True}, "discriminator": "small", "latent": 5}


def test_batch_norm_is_estimated_again_with_the_exported_weights(data) -> None:
    """As good as from a direct pass of as many noises through the averaged weights, member by member."""
    herd = assembled(data, steps=12, nets=WITH_NORM, optim={"lr_g": 0.05})
    assert recalibration.NOISES >= 10_000
    made = make_mixture(herd, 12)
    torch.manual_seed(0)
    z = torch.randn(40_000, 5, dtype=torch.float64)
    for member in range(3):
        module = copy.deepcopy(herd.herd.g.module).double()
        own = {name: value[member].double() for name, value in herd.herd.g.views(herd.herd.state["g.ema"]).items()}
        module.load_state_dict(own, strict=False)
        inputs: dict[str, torch.Tensor] = {}
        norms = {name: part for name, part in module.named_modules() if isinstance(part, nn.BatchNorm1d)}
        for name, norm in norms.items():
            norm.register_forward_hook(lambda _, args, __, name=name, inputs=inputs: inputs.__setitem__(name, args[0]))
        with torch.no_grad():
            module.train()(z)  # one batch of all: its statistics are the true ones
        for name in norms:
            mean, var = inputs[name].mean(0), inputs[name].var(0)
            kept_mean, kept_var = (
                made.breeds[0].buffers[f"{name}.{what}"][member].double() for what in ("running_mean", "running_var")
            )
            assert (kept_mean - mean).abs().max() < 0.05 * var.sqrt().max()
            assert kept_var == pytest.approx(var, rel=0.08)
            trained = herd.herd.state[f"g.buffers.{name}.running_var"][member].double()
            assert (kept_var - var).abs().max() < (
                trained - var
            ).abs().max()  # those of training had followed other weights


def test_estimating_leaves_the_herd_as_it_was(data) -> None:
    herd = assembled(data, steps=2, nets=WITH_NORM)
    before = {name: value.clone() for name, value in herd.herd.state.items()}
    one, two = make_mixture(herd, 2), make_mixture(herd, 2)
    assert all(torch.equal(before[name], value) for name, value in herd.herd.state.items())
    assert herd.herd.g.module.training
    assert equal(one, two)


def test_dropout_is_off_while_batch_norm_is_estimated() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.9), nn.BatchNorm1d(4))
    params = {name: p.detach() for name, p in module.named_parameters()}
    buffers = dict(module.named_buffers())
    found = recalibration.recalibrate_batch_norm(module, params, buffers, 3, "normal", [], 1)
    wanted = (params["0.weight"] ** 2).sum(1)  # of normal noise, with nothing dropped
    assert found["2.running_var"] == pytest.approx(wanted, rel=0.1)
    assert float(buffers["2.running_var"][0]) == 1.0  # the caller's stay


@pytest.mark.parametrize("shares", [[0.95, 0.05], [1 / 1000] * 1000])
def test_statistics_are_estimated_with_the_labels_that_the_generator_learnt_from(shares: list[float]) -> None:
    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.norm = nn.BatchNorm1d(1)

        def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.norm(self.weight * y[:, None].to(z.dtype))

    module = Labelled()
    params = {name: p.detach() for name, p in module.named_parameters()}
    buffers = recalibration.recalibrate_batch_norm(module, params, dict(module.named_buffers()), 3, "normal", shares, 1)
    mean = sum(label * share for label, share in enumerate(shares))
    assert float(buffers["norm.running_mean"][0]) == pytest.approx(mean, rel=0.01)


def test_shares_of_labels_are_those_of_a_members_own_rows(data) -> None:
    y = ganherd.data.dataset.load(recipe_file.load({"data": {"source": str(data)}}).data).y
    everything = assembled(data, data={"partition": "all"}, herd={"members": 2})
    assert np.allclose(everything.label_shares[1], np.bincount(y) / len(y))
    assert np.array_equal(assembled(data).label_shares[1], [0, 1, 0])


# -- files ------------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_what_is_loaded(data, tmp_path) -> None:
    made = make_mixture(assembled(data, steps=2, nets=WITH_NORM, herd={"seeds": 2}), 2)
    made.save(tmp_path / "mixture")
    for again in (ganherd.load(tmp_path), ganherd.load(tmp_path / "mixture")):
        assert equal(made, again)
        assert (again.replicas, again.members, again.step, again.labels) == (2, 3, 2, LABELS)
        assert np.array_equal(again.sample(9, replica=1).x, made.sample(9, replica=1).x)
    assert {p.name for p in (tmp_path / "mixture").iterdir()} == {"mixture.json", "generators.safetensors"}


def test_a_replica_equals_the_run_with_its_seed(data) -> None:
    """Two seeds stacked sample as each does alone."""
    both = make_mixture(assembled(data, steps=2, herd={"seeds": 2}, run={"seed": 5}), 2)
    alone = make_mixture(assembled(data, steps=2, run={"seed": 6}), 2)
    assert both.seeds == [5, 6]
    mine = {name: value[3:] for name, value in both.breeds[0].params.items()}
    assert all(torch.equal(mine[name], value) for name, value in alone.breeds[0].params.items())


def test_a_winner_is_saved_and_loaded(data, tmp_path) -> None:
    made = make_mixture(assembled(data), 1)
    made.save(tmp_path / "mixture")
    assert ganherd.load(tmp_path).winner is None
    tensors = (tmp_path / "mixture" / "generators.safetensors").read_bytes()
    winner = mixture_files.BestMember(member=1, value=0.25)
    mixture_files.set_winner(tmp_path / "mixture", winner)
    again = ganherd.load(tmp_path)
    assert again.winner == winner and np.array_equal(again.sample(9).x, made.sample(9).x)
    assert (tmp_path / "mixture" / "generators.safetensors").read_bytes() == tensors
    again.save(tmp_path / "copy" / "mixture")
    assert ganherd.load(tmp_path / "copy").winner == winner
    mixture_files.set_winner(tmp_path / "mixture", None)
    assert ganherd.load(tmp_path).winner is None and equal(made, ganherd.load(tmp_path))
    with pytest.raises(ValueError):
        mixture_files.set_winner(tmp_path / "mixture", mixture_files.BestMember(member=9, value=0.25))


def tamper(folder: Path, **changes: Any) -> Path:
    path = folder / "mixture" / "mixture.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (facts | changes).items() if v != "gone"}))
    return folder


@pytest.fixture
def copied(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "*.html")))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"labels": "zero"},
        {"labels": ["zero"]},
        {"labels": [1, 2, 3]},
        {"shape": [1, 8]},
        {"shape": [1, 8, -8]},
        {"shape": [1, 9, 8]},
        {"shape": [1, 10**6, 10**6]},
        {"shape": [10**30] * 3},
        {"latent": 10**12},
        {"latent": 0},
        {"latent": 9},
        {"prior": "cauchy"},
        {"offset": float("nan")},
        {"offset": "127"},
        {"scale": 0},
        {"scale": 1e999},
        {"generator": {"name": "small", "settings": {"width": 10**9}}},
        {"generator": {"name": "small", "settings": {"width": 16, "wings": 2}}},
        {"generator": {"name": "nothing"}},
        {"generator": None},
        {"label_of": []},
        {"label_of": [0, 1, 3]},
        {"label_of": [0, 1, -2]},
        {"label_of": [0, 1]},
        {"label_of": [0, 1, 10**30]},
        {"weights": [0.5, 0.5]},
        {"weights": [0, 0, 0]},
        {"weights": [1.5, -0.5, 0]},
        {"weights": [float("inf"), 0, 0]},
        {"label_weights": []},
        {"seeds": []},
        {"seeds": [0, 1]},
        {"seeds": [10**40]},
        {"step": 1.5},
        {"winner": 1},
        {"winner": {"member": 3, "value": 0.5}},
        {"winner": {"member": 0, "replica": 1, "value": 0.5}},
        {"winner": {"member": 0, "value": 0.5, "by": "luck"}},
        {"winner": {"member": 0, "value": 0.5, "more": 1}},
        {"sha256": "0" * 64},
        {"sha256": None},
        {"step": "gone"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_tampered_description_is_refused(copied, changes) -> None:
    with pytest.raises(UserError) as refused:
        ganherd.load(tamper(copied, **changes)).sample(3)
    assert "\n" not in str(refused.value)


def test_a_flipped_bit_is_refused(copied) -> None:
    path = copied / "mixture" / "generators.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not what was written: its sha256 differs"):
        ganherd.load(copied)
    path.unlink()
    with pytest.raises(UserError, match="No such file"):
        ganherd.load(copied)


@pytest.mark.parametrize("spoil", ["missing", "extra", "shape", "type", "empty"])
def test_tensors_that_do_not_fit_the_net_are_refused(copied, spoil) -> None:
    import hashlib

    import safetensors.torch

    path = copied / "mixture" / "generators.safetensors"
    tensors = safetensors.torch.load_file(path)
    name = sorted(tensors)[0]
    match spoil:
        case "missing":
            del tensors[name]
        case "extra":
            tensors["params/wings"] = torch.zeros(3)
        case "shape":
            tensors[name] = tensors[name][:, :1].contiguous()
        case "type":
            tensors[name] = tensors[name].to(torch.int32)
        case "empty":
            tensors = {}
    safetensors.torch.save_file(tensors, path)
    tamper(copied, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(UserError, match="and its net do not fit"):
        ganherd.load(copied)


def test_a_number_that_names_a_label_means_that_label(data) -> None:
    numbered = replace(make_mixture(assembled(data), 0), labels=("1", "2", "5"))
    for label, number in ((1, 0), ("1", 0), (2, 1), (5, 2), (np.int64(5), 2)):
        assert numbered.sample(2, label=label).y.tolist() == [number] * 2
    for label in (0, "0", 4, "4", -1):
        with pytest.raises(UserError, match="the mixture has no label"):
            numbered.sample(2, label=label)
    negative = replace(numbered, labels=("-1", "1", "0.5"))
    assert negative.label_number(-1) == 0 and negative.label_number(1) == 1 and negative.label_number("0.5") == 2
    for label in ("cat", 0, 2, 0.5):
        with pytest.raises(UserError, match="the mixture has no label"):
            negative.label_number(label)
    mixed = replace(numbered, labels=("cat", "2", "dog"))
    assert [mixed.label_number(label) for label in (0, 2, "2", "dog")] == [0, 1, 1, 2]
