"""Discriminators that see several samples: what the deviation and packs are, for every net, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recipes
import run_files
import tiny_runs
import torch
from torch import nn

from ganherd.nets import build_discriminator, catalog, class_extraction
from ganherd.nets.common.sample_groups import MinibatchDeviation, append_deviation, pack, unpack
from ganherd.nets.conditional import ConditionalDiscriminator
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import NetConfig
from ganherd.util.errors import UserError

NAMES = sorted(catalog.DISCRIMINATORS.names())
PLAIN = sorted(name for name in NAMES if not catalog.DISCRIMINATORS[name].labelled)
CLASSES = 3


def build(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    known = catalog.DISCRIMINATORS[name].settings
    narrow = {"hidden": [4]} if "hidden" in known else {"width": 4}
    off = {key: False for key in ("batch_norm", "spectral") if key in known} | (
        {"dropout": 0.0} if "dropout" in known else {}
    )
    return build_discriminator(
        NetConfig(name=name, settings={**narrow, **off, **settings}), shape(name), CLASSES
    ).double()


def shape(name: str) -> tuple[int, ...]:
    return (3, 28, 28) if name == "dcgan" else (3, 9, 8)


def judge(d: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
    """Logits, of class 0 if the net takes a label."""
    out = d(x, torch.zeros(len(x), dtype=torch.int64)) if name == "conditional" else d(x)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", NAMES)
def test_deviation_reaches_the_logit_of_every_net_by_a_weight_that_starts_at_0(name: str) -> None:
    d, plain = build(name, minibatch_std=4), build(name)
    x = torch.randn(8, *shape(name), dtype=torch.float64)
    assert torch.allclose(judge(d, name, x), judge(plain, name, x), rtol=1e-12)
    (layer,) = (module[1] for module in d.modules() if isinstance(module, nn.Sequential) and len(module) == 2
                and isinstance(module[0], MinibatchDeviation))  # fmt: skip
    judge(d, name, x).sum().backward()
    assert layer.weight.grad[:, -1].abs().max() > 0
    with torch.no_grad():
        layer.weight[:, -1] = 1.0
        same, other = judge(d, name, x), judge(d, name, torch.cat([x[:4], 3 * x[4:]]))
    assert torch.allclose(other[:4], same[:4], rtol=1e-12)  # another group
    assert (same - judge(plain, name, x)).abs().min() > 1e-6


def test_deviation_is_the_mean_over_features_of_the_deviation_over_a_group() -> None:
    x = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    out = append_deviation(x, 4)  # groups of 3: 4 does not divide 6
    assert torch.equal(out[:, :2], x) and out.shape == (6, 3, 3, 3)
    for group in (slice(0, 3), slice(3, 6)):
        expected = x[group].var(0, correction=0).add(1e-8).sqrt().mean()
        assert torch.allclose(out[group, 2], expected.expand(3, 3, 3), rtol=1e-12)


@pytest.mark.parametrize("name", PLAIN)
def test_a_pack_has_one_logit_that_depends_on_all_its_samples_and_no_others(name: str) -> None:
    d = build(name, packing=2)
    x = torch.randn(4, *shape(name), dtype=torch.float64, requires_grad=True)
    logits = d(x)
    assert logits.shape == (4,) and torch.equal(logits[0::2], logits[1::2])
    (slope,) = torch.autograd.grad(logits[0], x)
    reached = slope.flatten(1).abs().sum(1) > 0
    assert reached.tolist() == [True, True, False, False]


def test_packs_that_are_not_full_take_samples_from_the_start() -> None:
    x = torch.arange(5.0)[:, None]
    assert pack(x, 3).tolist() == [[0, 1, 2], [3, 4, 0]] and pack(x[:1], 3).tolist() == [[0, 0, 0]]
    assert unpack(torch.tensor([7.0, 8.0]), 3, 5).tolist() == [7, 7, 7, 8, 8]


@pytest.mark.parametrize(("name", "settings"), [("conditional", {}), ("acgan", {}), ("r3gan", {"label": True})])
def test_packing_refuses_labels(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"packing joins samples of different labels, and {name} takes labels"):
        build(name, packing=2, **settings)


def test_batches_must_divide_into_packs() -> None:
    nets = {"discriminator": {"name": "small", "packing": 3}}
    assert recipe_file.load({"nets": nets, "train": {"batch": 63}}).nets.packing == 3
    with pytest.raises(UserError, match="train.batch 64 does not divide into packs of 3.*take a multiple of 3"):
        recipe_file.load({"nets": nets, "train": {"batch": 64}})


@pytest.mark.parametrize("spectral", [False, True])
def test_the_discriminator_of_a_class_keeps_the_deviation(spectral: bool) -> None:
    whole = build("conditional", minibatch_std=4, spectral=spectral)
    assert isinstance(whole, ConditionalDiscriminator)
    nn.init.ones_(whole.get_parameter("head.1.weight"))
    x = torch.randn(4, *shape("conditional"), dtype=torch.float64)
    whole.train()(x, torch.zeros(4, dtype=torch.int64))
    own = build("residual", minibatch_std=4, spectral=spectral)
    own.load_state_dict(class_extraction.discriminator(whole, 1))
    bias = whole.get_parameter("head.1.bias")
    theirs = whole.eval()(x, torch.ones(4, dtype=torch.int64)) - bias
    factor = own.get_parameter("head.1.weight").norm() if spectral else 1.0
    assert torch.allclose((own.eval()(x) - bias) * factor, theirs, rtol=1e-9)


@pytest.mark.further(but=["{'packing': 2}"])
@pytest.mark.parametrize("group", [{"packing": 2}, {"minibatch_std": 4}], ids=str)
def test_k_steps_and_k_resumed_steps_equal_2k_steps(
    tmp_path: Path, group: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 3."""
    tiny_runs.skip_products(monkeypatch)

    def recipe(budget: str) -> dict[str, Any]:
        settings = recipes.noise_recipe(tmp_path, budget)
        settings["nets"] = {**settings["nets"], "discriminator": {"name": "small", "width": 8, **group}}
        return settings

    tiny_runs.train(tmp_path / "whole", recipe("28steps"))
    tiny_runs.train(tmp_path / "halves", recipe("10steps"))
    tiny_runs.resume(tmp_path / "halves", "28steps")
    run_files.assert_same_run(tmp_path / "halves", tmp_path / "whole")
