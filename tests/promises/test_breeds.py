"""Promise 1 for breeds: members with different generators in one herd equal the same GANs trained one by one, also resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
import torch
from safetensors.torch import load_file

import ganherd
from ganherd.herd.breeds import Breeds
from ganherd.herd.engine.engines import Engine, Plan, StackedHerd
from ganherd.herd.rng import Streams
from ganherd.herd.state import base_keys
from ganherd.recipe import recipe_file
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import loop
from ganherd.training.health.repair import repair
from ganherd.training.recording.progress import Progress
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import make_strategy, plan_meetings
from ganherd.util.errors import UserError
from promises.separate import SeparateGan

# batch norm in the narrow one, dropout in the widest; the second is wider than the first and the third
BREEDS = [
    {"generator": {"name": "mlp", "hidden": [7, 6]}, "members": 2},
    {"generator": {"name": "wcgan", "width": 6, "eps": 1e-5}, "members": 2},
    {"generator": {"name": "small", "width": 6, "batch_norm": True}, "members": 1},
]
FUSED = Plan("fused", 100, 1, "cpu", "cpu")


def recipe_of(folder: Path, **sections: Any) -> ganherd.Recipe:
    """Five members of three breeds on a little random data, in float64."""
    random = np.random.default_rng(0)
    path = folder / "data.npz"
    np.savez(path, x=random.integers(0, 256, (20, 1, 9, 10), dtype=np.uint8), y=np.repeat([0, 1], 10))
    recipe: dict[str, Any] = {
        "data": {"source": str(path), "holdout": 0.0, "partition": "diet", "diet": 0.7},
        "nets": {"breeds": BREEDS, "discriminator": {"name": "small", "width": 6}, "latent": 3},
        "optim": {"lr_g": [1e-3, 2e-3, 3e-3, 1e-3, 5e-4], "lr_d": 1e-3},
        "loss": {"name": "non-saturating"},
        "train": {"batch": 4, "precision": "float64"},
    }
    for section, values in sections.items():
        recipe[section] = {**recipe.get(section, {}), **values}
    return recipe_file.load(recipe)


class Alone(SeparateGan):
    """One member out of a herd of breeds, as if its breed had no others."""

    def __init__(self, assembly: PreparedHerd, member: int) -> None:
        herd = assembly.herd
        breed = herd.breed_of(member)
        own = replace(herd, breeds=Breeds([(breed.name, breed.g, 1)]), state=breed.view(herd.state))
        super().__init__(replace(assembly, herd=own), member)

    def go(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            draws = Streams(self.base, step)
            for update in range(self.rules.n_critic):
                self._discriminator_update(draws, step, update)
            self._generator_update(draws, step)


def gaps(herd: StackedHerd, alone: list[Alone]) -> dict[str, float]:
    """The largest difference of each part of the state, relative to its size where that is above 1."""
    found: dict[str, float] = {}
    for member, gan in enumerate(alone):
        state = herd.breed_of(member).view(herd.state)
        for name, value in gan.state().items():
            gap = (state[name][member].double() - value).abs().max() / value.double().abs().max().clamp(min=1.0)
            found[name] = max(found.get(name, 0.0), float(gap))
    return found


@pytest.mark.parametrize(
    "plan", [FUSED, Plan("loop", 1, 1, "cpu"), Plan("fused", 2, 1, "cpu")], ids=["fused", "loop", "chunks"]
)
def test_a_hybrid_herd_equals_its_members_trained_separately(tmp_path: Path, plan: Plan) -> None:
    assembly = assemble(recipe_of(tmp_path, train={"ema": 0.9, "n_critic": 2}, herd={"seeds": 2}))
    assert assembly.herd.num_members == 10 and assembly.members == 5
    alone = [Alone(assembly, member) for member in range(10)]
    Engine(assembly.herd, plan).advance(0, 6, assembly.herd.zero_sums())
    for gan in alone:
        gan.go(0, 6)
    found = gaps(assembly.herd, alone)
    assert {"g.params", "d.params", "g.adam.v", "g.ema"} <= set(found) and any("running_var" in name for name in found)
    assert max(found.values()) < 1e-9, found


def test_breeds_of_one_member_share_the_module_of_the_discriminator_in_turn(tmp_path: Path) -> None:
    """In steps without an update of the discriminator, each breed calls it with the same weights as in its step before."""
    nets = {"breeds": [{**breed, "members": 1} for breed in BREEDS]}
    sections = {"nets": nets, "optim": {"lr_g": [1e-3, 2e-3, 3e-3]}, "train": {"skip_d": 2}}
    assembly = assemble(recipe_of(tmp_path, **sections))
    alone = [Alone(assembly, member) for member in range(3)]
    Engine(assembly.herd, Plan("loop", 1, 1, "cpu")).advance(0, 9, assembly.herd.zero_sums())
    for gan in alone:
        gan.train(9)
    differences = gaps(assembly.herd, alone)
    assert max(differences.values()) < 1e-9, differences


@pytest.mark.parametrize(
    "sections",
    [
        {"loss": {"name": "wasserstein-gp"}},
        {"loss": {"name": ["hinge", "wasserstein", "minimax", "least-squares", "hinge"]}},
        {"optim": {"grad_clip": 0.05}},
        {"nets": {"prior": ["normal", "uniform", "uniform", "normal", "uniform"]}},
        {"train": {"input_noise": [0.1, 0.0, 0.3, 0.2, 0.1], "input_noise_steps": 6}},
    ],
    ids=lambda sections: "-".join(key for values in sections.values() for key in values),
)
def test_a_hybrid_herd_equals_separate_members_with_every_setting(tmp_path: Path, sections: dict[str, Any]) -> None:
    assembly = assemble(recipe_of(tmp_path, **sections))
    alone = [Alone(assembly, member) for member in range(5)]
    Engine(assembly.herd, FUSED).advance(0, 10, assembly.herd.zero_sums())
    for gan in alone:
        gan.go(0, 10)
    found = gaps(assembly.herd, alone)
    assert max(found.values()) < 1e-9, found


def test_swaps_across_breeds_equal_swaps_of_separate_gans(tmp_path: Path) -> None:
    strategy = {"name": "gap", "gap": {"every": "3steps"}}
    assembly = assemble(recipe_of(tmp_path, strategy=strategy))
    herd, recipe = assembly.herd, assembly.recipe
    alone = [Alone(assembly, member) for member in range(5)]
    meetings = make_strategy(assembly, plan_meetings(recipe, assembly.steps_per_epoch, 12))
    engine, met = Engine(herd, FUSED), set()
    for start in range(0, 12, 3):
        for event, facts in meetings.open(start) if start else ():
            assert event == "swap"
            for a, b in facts["pairs"]:
                met.add(frozenset((herd.breed_of(a).name, herd.breed_of(b).name)))
                one, other = alone[a].d, alone[b].d
                kept = [p.detach().clone() for p in one.parameters()]
                with torch.no_grad():  # the weights alone: Adam's moments and batch norm's buffers stay with the slot
                    for p, q, mine in zip(one.parameters(), other.parameters(), kept, strict=True):
                        p.copy_(q)
                        q.copy_(mine)
        engine.advance(start, start + 3, herd.zero_sums())
        for gan in alone:
            gan.go(start, start + 3)
    assert any(len(pair) == 2 for pair in met)  # two of unlike breeds did meet
    found = gaps(herd, alone)
    assert max(found.values()) < 1e-9, found


def test_a_captured_step_equals_the_fused_step(tmp_path: Path) -> None:
    """Breed after breed, with every number that changes as a tensor; here it is executed instead of captured."""
    from ganherd.herd.engine.cuda_graph import GraphEngine

    whole, captured = (assemble(recipe_of(tmp_path, herd={"seeds": 2}, train={"n_critic": 2})).herd for _ in range(2))
    sums = whole.zero_sums()
    Engine(whole, FUSED).advance(0, 4, sums)
    engine = GraphEngine(captured, Plan("graph", 100, 1, "cpu", "cpu"))
    base = base_keys(captured.state)
    engine._base.copy_(torch.from_numpy(base))
    engine._send(base, 0, 4)
    engine._steps(4)
    assert torch.allclose(engine._sums, sums, rtol=1e-9)
    for name, value in whole.state.items():
        assert torch.allclose(captured.state[name].double(), value.double(), rtol=1e-9, atol=1e-12), name


def test_padding_of_rows_is_never_written(tmp_path: Path) -> None:
    herd = assemble(recipe_of(tmp_path, train={"ema": 0.9}, loss={"name": "wasserstein"})).herd
    Engine(herd, FUSED).advance(0, 5, herd.zero_sums())
    widths = [herd.breed_of(member).g.num_params for member in range(herd.num_members)]
    assert max(widths) == herd.state["g.params"].shape[1] and len(set(widths)) == 3
    for name in ("g.params", "g.adam.m", "g.adam.v", "g.ema"):
        for member, width in enumerate(widths):
            assert not herd.state[name][member, width:].any()
            assert herd.state[name][member, :width].any()


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    torch.set_num_threads(1)


def run_of(folder: Path, **settings: Any) -> dict[str, Any]:
    """The little herd of the other suites, as two breeds that swap."""
    made = recipes.noise_recipe(folder, **settings)
    breeds = [
        {"generator": {"name": "small", "width": 8, "batch_norm": True}, "members": 2},
        {"generator": {"name": "mlp", "hidden": [5]}, "members": 1},
    ]
    made["nets"] = {"breeds": breeds, "discriminator": {"name": "small", "width": 8}, "latent": 4}
    made["nets"]["prior"] = ["normal", "uniform", "uniform"]
    made["data"]["partition"] = "all"
    made["strategy"] = {"name": "gap", "gap": {"every": "4steps"}}
    return made


@pytest.mark.further(but=["fused"])
@pytest.mark.parametrize("engine", ["fused", "loop"])
def test_a_resume_within_a_swap_interval_is_exact(tmp_path: Path, engine: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    tiny_runs.train(whole, run_of(tmp_path, budget="18steps", engine=engine))
    tiny_runs.train(cut, run_of(tmp_path, budget="10steps", engine=engine))
    tiny_runs.resume(cut, "18steps")
    run_files.assert_same_run(cut, whole)


def test_a_checkpoint_holds_each_generator_under_its_own_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_runs.train(run, run_of(tmp_path, budget="2steps"))
    tensors = load_file(next(run_files.last_checkpoint(run).glob("*.safetensors")))
    weights = [value for name, value in tensors.items() if name.startswith("g.params/1/") and value.dim() == 3]
    assert weights[0].shape == (1, 5, 4)  # the first layer of the one mlp, without what fills its row up
    assert all(len(value) == 2 for name, value in tensors.items() if name.startswith("g.params/0/"))
    assert "g.params" not in tensors
    assembly = assemble(recipe_file.load(run / "recipe.yaml"))
    found = checkpoint.load(run_files.last_checkpoint(run), assembly.herd.nets)
    assert found.state["g.params"].shape == assembly.herd.state["g.params"].shape
    only = checkpoint.load(run_files.last_checkpoint(run), {"d": assembly.herd.d}, [2])
    assert torch.equal(only.state["d.params"][0], found.state["d.params"][2]) and "g.params" not in only.state


def trainer_of(tmp_path: Path) -> loop.Trainer:
    assembly = assemble(recipe_file.load(run_of(tmp_path)))
    folder = RunFolder.create(tmp_path / "run")
    return loop.Trainer(assembly, Plan("fused", 3, 1, "cpu"), folder, loop.Budget(5), Progress([], quiet=True))


def test_a_reinitialised_member_keeps_its_breed(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    state = trainer.herd.state
    before = {name: value.clone() for name, value in state.items()}
    repair(trainer, 2, "collapse", "reseed")
    width = trainer.herd.breed_of(2).g.num_params
    assert not torch.equal(state["g.params"][2, :width], before["g.params"][2, :width])
    assert not state["g.params"][2, width:].any()
    for name, value in before.items():
        assert torch.equal(state[name][:2], value[:2]), name
    trainer.close()


def test_a_neighbour_is_one_of_the_same_breed_and_prior(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    before = trainer.herd.state["g.params"].clone()
    for member in range(3):  # the second is of the first's breed, with another prior
        repair(trainer, member, "collapse", "neighbour")
    assert torch.equal(trainer.herd.state["g.params"], before) and trainer.state.repairs == [0, 0, 0]
    trainer.herd.state["set.prior"][:] = 0
    repair(trainer, 0, "collapse", "neighbour")
    assert torch.equal(trainer.herd.state["g.params"][0], before[1])
    trainer.close()


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"herd": {"members": 4}}, "herd.members 4 is not the 5 members of nets.breeds"),
        ({"nets": {"generator": "mlp"}}, "leave nets.generator out"),
        ({"nets": {"breeds": [{"generator": "cnn", "members": 1}]}}, "there is no generator 'cnn'"),
        (
            {"nets": {"breeds": [{"generator": {"name": "mlp", "hiden": [3]}, "members": 1}]}},
            "unknown key 'nets.breeds.0.generator.hiden'",
        ),
        ({"nets": {"breeds": [{"generator": "mlp"}]}}, "nets.breeds"),
        ({"nets": {"breeds": 3}}, "nets.breeds must be a list of mappings (generator, members), not 3"),
        ({"nets": {"prior": ["normal", "gaussian"]}}, "nets.prior must be one of normal, uniform"),
        (
            {"strategy": {"name": "cellular", "cellular": {"grid": [1, 5]}}},
            "with nets.breeds they are of different kinds",
        ),
        ({"strategy": {"name": "gap", "gap": {"swap": "generators"}}}, "swap discriminators"),
        ({"train": {"input_noise_decay": "steps"}}, "needs train.input_noise_steps"),
    ],
)
def test_impossible_breeds_are_refused_in_one_sentence(tmp_path: Path, sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        recipe_of(tmp_path, **sections)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_each_member_can_have_its_own_prior(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nets.prior lists 2 values, but the herd has 5 members"):
        assemble(recipe_of(tmp_path, nets={"prior": ["normal", "normal"]}))


def test_breeds_are_recorded_and_read_back(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    assert recipe.nets.generator == recipe.nets.breeds[0].generator and recipe.members == 5
    (tmp_path / "again.yaml").write_text(recipe_file.dump(recipe))
    assert recipe_file.load(tmp_path / "again.yaml") == recipe
