"""Mixtures of several breeds: each member samples with its own net and its own prior, and the files keep both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import tiny_recipe
from safetensors.torch import load_file, save_file

import ganherd
from ganherd.herd import rng
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.metrics.ais.ais import decoder_of
from ganherd.mixture.mixture import Mixture
from ganherd.recipe import recipe_file
from ganherd.training.finish import make_mixture
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.util.errors import UserError

BREEDS = {
    "breeds": [
        {"generator": {"name": "small", "width": 6, "batch_norm": True}, "members": 1},
        {"generator": {"name": "mlp", "hidden": [5]}, "members": 2},
    ],
    "discriminator": "small",
    "latent": 4,
    "prior": ["uniform", "normal", "uniform"],
}


def assembled(source: Path, **sections: Any) -> PreparedHerd:
    """Three members of two breeds after two steps, two seeds of them."""
    recipe = tiny_recipe(source, data={"partition": "all"}, herd={"seeds": 2}, **sections)
    recipe["nets"] = {**BREEDS, **sections.get("nets", {})}
    made = assemble(recipe_file.load(recipe))
    Engine(made.herd, Plan("fused", 6, 1, "cpu")).advance(0, 2, made.herd.zero_sums())
    return made


@pytest.fixture(scope="module")
def hybrid(data: Path) -> PreparedHerd:
    return assembled(data)


@pytest.fixture(scope="module")
def mixture(hybrid: PreparedHerd) -> Mixture:
    return make_mixture(hybrid, 2)


def equal(one: Mixture, two: Mixture) -> bool:
    return all(np.array_equal(one.sample(70, None, 4, r).x, two.sample(70, None, 4, r).x) for r in range(2))


def test_a_sample_is_made_by_its_members_own_net_from_its_own_prior(hybrid: PreparedHerd, mixture: Mixture) -> None:
    herd = hybrid.herd
    assert [breed.net.name for breed in mixture.breeds] == ["small", "mlp"]
    assert mixture.prior == ("uniform", "normal", "uniform")
    for replica in range(2):
        for member in (1, 2):
            breed = herd.breed_of(member)
            views = breed.g.views(breed.view(herd.state)["g.ema"])
            own = {name: value[3 * replica + member] for name, value in views.items()}
            key = np.array([rng.key(7, rng.SAMPLE, replica, member, 0, 0)])
            noise = rng.draw(key, (64, 4), mixture.prior[member])[0]
            noise = noise if member == 1 else noise * 2 - 1
            with torch.no_grad():
                x = torch.func.functional_call(breed.g.module.eval(), own, (noise,)) * 127.5 + 127.5
            breed.g.module.train()
            drawn = mixture.alone(member).sample(20, seed=7, replica=replica)
            assert np.array_equal(drawn.x, x.round().clamp(0, 255)[:20].to(torch.uint8).numpy())
            assert set(drawn.member) == {member}


def test_files_give_the_same_mixture_back(mixture: Mixture, tmp_path: Path) -> None:
    mixture.save(tmp_path / "mixture")
    again = ganherd.load(tmp_path)
    assert equal(mixture, again) and again.prior == mixture.prior
    assert equal(mixture, again.to("cpu")) and again.to("meta").breeds[1].device.type == "meta"
    tensors = load_file(tmp_path / "mixture" / "generators.safetensors")
    assert {name.split("/")[0] for name in tensors} == {"0", "1"}
    assert {len(value) for name, value in tensors.items() if name.startswith("1/")} == {4}  # two members, two seeds


def test_one_breed_is_written_as_it_always_was_and_old_files_are_read(data: Path, tmp_path: Path) -> None:
    plain = {"breeds": [], "generator": {"name": "mlp", "hidden": [5]}, "prior": "uniform"}
    made = make_mixture(assembled(data, nets=plain), 2)
    made.save(tmp_path / "mixture")
    path = tmp_path / "mixture" / "mixture.json"
    facts = json.loads(path.read_text())
    assert facts["prior"] == "uniform" and facts["generator"]["name"] == "mlp" and facts["breeds"] == []
    names = set(load_file(tmp_path / "mixture" / "generators.safetensors"))
    assert names == {f"params/{name}" for name in made.breeds[0].params}
    del facts["breeds"]  # a file from before there were breeds
    path.write_text(json.dumps(facts))
    assert equal(made, ganherd.load(tmp_path))


def test_batch_norm_is_estimated_for_the_breed_that_has_it(mixture: Mixture) -> None:
    assert mixture.breeds[1].buffers == {}
    counts = [value for name, value in mixture.breeds[0].buffers.items() if name.endswith("num_batches_tracked")]
    assert counts and all(int(value.min()) >= 10 for value in counts)


def test_a_likelihood_is_that_of_the_members_own_net_and_prior(mixture: Mixture) -> None:
    for member in range(3):
        decoder = decoder_of(mixture, member)
        x = decoder(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))
        assert x.shape == (4, 1, 8, 8)
    breed, own = mixture.generator(2)
    with torch.no_grad():
        u = torch.zeros(1, 4)  # the middle of either prior
        wanted = torch.func.functional_call(breed.module, own, (u,))
    assert torch.allclose(decoder_of(mixture, 2)(u), (wanted + 1) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda facts: facts["breeds"][0].update(members=2), "breeds must have as many members as the mixture"),
        (lambda facts: facts.update(prior=["normal"]), "prior must be one for all members, or one for each"),
        (lambda facts: facts["breeds"].append({"generator": {"name": "mlp"}, "members": 1}), "breeds must have"),
        (lambda facts: facts["breeds"][1]["generator"]["settings"].update(hidden=[6]), "has another shape"),
        (lambda facts: facts["breeds"].reverse(), "do not fit"),
        (lambda facts: facts["breeds"][1]["generator"].update(name="os:system"), "is code that is not ganherd's"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(mixture: Mixture, tmp_path: Path, change: Any, sentence: str) -> None:
    mixture.save(tmp_path / "mixture")
    path = tmp_path / "mixture" / "mixture.json"
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(UserError, match=sentence):
        ganherd.load(tmp_path)


def test_a_tensor_of_no_breed_is_refused(mixture: Mixture, tmp_path: Path) -> None:
    import hashlib

    mixture.save(tmp_path / "mixture")
    path, facts = tmp_path / "mixture" / "generators.safetensors", tmp_path / "mixture" / "mixture.json"
    save_file({**load_file(path), "2/params/more": torch.zeros(2)}, path)
    told = json.loads(facts.read_text())
    facts.write_text(json.dumps({**told, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))
    with pytest.raises(UserError, match="2/params/more is only in one of them"):
        ganherd.load(tmp_path)
