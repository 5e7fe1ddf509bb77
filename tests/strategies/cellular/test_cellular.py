"""Cells and their neighbours: the slips of the reference implementation are not here, mixtures evolve, the sick never win."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.features.extract import moments
from ganherd.herd import rng
from ganherd.herd.engine.engines import Plan, make_engine
from ganherd.herd.rng import Streams
from ganherd.herd.state import base_keys
from ganherd.metrics import frechet
from ganherd.mixture import mixture
from ganherd.strategies.cellular.fitness import Side
from ganherd.training import finish
from ganherd.util.errors import UserError
from promises.test_cellular import ITERATIONS, MUSTANGS, SPAN, made, settings, train

# the torus by hand: each cell with the cells to its West, North, East and South
NEAR = {
    0: {0, 2, 6, 1, 3}, 1: {1, 0, 7, 2, 4}, 2: {2, 1, 8, 0, 5},
    3: {3, 5, 0, 4, 6}, 4: {4, 3, 1, 5, 7}, 5: {5, 4, 2, 3, 8},
    6: {6, 8, 3, 7, 0}, 7: {7, 6, 4, 8, 1}, 8: {8, 7, 5, 6, 2},
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    torch.set_num_threads(1)
    yield


# -- what the reference implementation gets wrong -----------------------------------------------------------------------


def test_neighbours_are_those_of_the_cell_and_not_of_its_mirror_image(tmp_path: Path) -> None:
    """The reference gives cell 1 the neighbours of cell 3."""
    _, strategy, events = train(settings(tmp_path, grid=[3, 3]))
    assert {cell: set(row) for cell, row in enumerate(strategy.wiring.table.tolist())} == NEAR
    won = [facts[kind] for name, facts in events if name == "tournament" for kind in ("g", "d")]
    assert len(won) == 2 * ITERATIONS
    assert all(winner in NEAR[cell] for each in won for cell, winner in enumerate(each))
    assert {cell for each in won for cell, winner in enumerate(each) if winner != cell}  # and genes do travel


@pytest.mark.parametrize("each", ["batch", "iteration"])
def test_the_mutated_learning_rate_is_the_one_that_adam_uses(tmp_path: Path, each: str) -> None:
    """Adam's first step moves a weight by the learning rate itself; the reference's Adam goes on with the old one."""
    mutation = {"learning_rate": "lognormal", "strength": 1.0, "probability": 1.0, "each": each}
    assembly, strategy, engine = made(settings(tmp_path, grid=[2, 2], mutation=mutation))
    list(strategy.open(0))
    state = assembly.herd.state
    before = {kind: state[f"{kind}.params"].clone() for kind in ("g", "d")}
    engine.advance(0, 1, assembly.herd.zero_sums())
    for kind, first in (("g", 0.02), ("d", 0.01)):
        moved = (state[f"{kind}.params"] - before[kind]).abs().amax(1)
        torch.testing.assert_close(moved, state[f"set.lr_{kind}"], rtol=1e-4, atol=0)
        assert len({round(rate, 9) for rate in moved.tolist()}) == 4  # each cell its own
        assert not torch.isclose(moved, torch.tensor(first, dtype=moved.dtype)).any()


def test_a_learning_rate_is_inherited_with_the_weights(tmp_path: Path) -> None:
    assembly, strategy, _ = made(settings(tmp_path, grid=[3, 3], mutation={"learning_rate": "off"}))
    rates = torch.linspace(0.001, 0.009, 9, dtype=torch.float64)
    assembly.herd.state["set.lr_g"].copy_(rates)
    ((_, facts),) = list(strategy.open(0))
    assert facts["g"] != list(range(9))
    assert torch.equal(assembly.herd.state["set.lr_g"], rates[facts["g"]])
    assert torch.equal(assembly.herd.state["g.params"], strategy.gathered.local["g.params"][facts["g"]])


def test_cells_have_different_weights_and_samples(tmp_path: Path) -> None:
    """In the reference all cells have the same seed: the same batches, the same noise, the same tournaments."""
    assembly, strategy, _ = made(settings(tmp_path, grid=[3, 3]))
    state, herd = assembly.herd.state, assembly.herd
    for kind in ("g", "d"):
        assert len({tuple(row) for row in state[f"{kind}.params"].tolist()}) == 9
    base = base_keys(state)
    noise = Streams(base, 0).prior((rng.NOISE, 0), (4, 3), "normal", torch.float64)
    assert len({tuple(row) for row in noise.flatten(1).tolist()}) == 9
    assert len({tuple(row) for row in herd.feed.indices(slice(0, 9), base, 0).tolist()}) == 9
    on = strategy._sample(0)
    assert len(set(on.keys.tolist())) == 9 and len({tuple(row) for row in on.rows.tolist()}) == 9
    assert set(on.keys.tolist()).isdisjoint(strategy._sample(1).keys.tolist())  # and apart from iteration to iteration


def test_a_loss_is_drawn_at_every_batch(tmp_path: Path) -> None:
    """In the reference no loss is drawn any more once a generator and a discriminator have been cloned."""
    assembly, strategy, engine = made(settings(tmp_path, grid=[2, 2], mutation={"losses": MUSTANGS}))
    list(strategy.open(0))
    drawn = []
    for step in range(40):
        engine.advance(step, step + 1, assembly.herd.zero_sums())
        drawn.append(assembly.herd.state["set.loss"].tolist())
    counts = np.array(drawn).sum(0)  # of the second loss
    assert ((counts > 8) & (counts < 32)).all() and len({tuple(column) for column in np.array(drawn).T.tolist()}) == 4


def test_events_count_how_often_each_loss_was_drawn(tmp_path: Path) -> None:
    """As the steps really drew them; a name that is listed twice is one."""
    losses = [MUSTANGS[0], MUSTANGS[1], MUSTANGS[0]]
    recipe = settings(tmp_path, grid=[2, 2], mutation={"losses": losses})
    assembly, strategy, engine = made(recipe)
    for iteration in range(2):
        list(strategy.open(iteration * SPAN))
        drawn = []
        for step in range(iteration * SPAN, (iteration + 1) * SPAN):
            engine.advance(step, step + 1, assembly.herd.zero_sums())
            drawn.append(assembly.herd.state["set.loss"].clone())
            if step == SPAN + 1:  # a repair gives a member other draws from here on
                strategy.on_steps_done(0.0, step + 1)
                assembly.herd.state["set.life"][2] += 1
                engine = make_engine(assembly.herd, Plan("fused", 4, 1, "cpu"))
        facts = dict(strategy.close((iteration + 1) * SPAN))["replacement"]
        second = (torch.stack(drawn) == 1).sum(0).tolist()
        assert facts[f"drawn_{MUSTANGS[1]}"] == second
        assert facts[f"drawn_{MUSTANGS[0]}"] == [SPAN - count for count in second]


def test_events_hold_learning_rates_and_losses_of_the_cells(tmp_path: Path) -> None:
    for each in ("iteration", "creation"):
        recipe = settings(tmp_path, grid=[2, 2], mutation={"losses": MUSTANGS, "loss_each": each})
        assembly, _, events = train(recipe)
        state, facts = assembly.herd.state, [facts for name, facts in events if name == "replacement"][-1]
        assert facts["lr_g"] == pytest.approx(state["set.lr_g"].tolist())
        assert facts["lr_d"] == pytest.approx(state["set.lr_d"].tolist())
        assert facts["loss"] == [MUSTANGS[number] for number in state["set.loss"].tolist()]
    _, _, events = train(settings(tmp_path, grid=[2, 2], selection=False))
    assert all("lr_g" in facts and "loss" not in facts for name, facts in events if name == "evaluation")


def test_a_loss_of_creation_stays_with_its_generator(tmp_path: Path) -> None:
    recipe = settings(tmp_path, grid=[3, 3], mutation={"losses": MUSTANGS, "loss_each": "creation"})
    assembly, strategy, _ = made(recipe)
    ((_, facts),) = list(strategy.open(0))
    drawn = strategy.gathered.local["set.loss"]
    assert set(drawn.tolist()) == {0, 1}
    assert torch.equal(assembly.herd.state["set.loss"], drawn[facts["g"]])


# -- fitness --------------------------------------------------------------------------------------------------------------


def test_fitness_changes_no_state_and_does_not_depend_on_the_chunk(tmp_path: Path) -> None:
    assembly, strategy, _ = made(settings(tmp_path, grid=[2, 2]))
    before = {name: value.clone() for name, value in assembly.herd.state.items()}
    sides, on = [strategy._snapshot_side(kind) for kind in ("g", "d")], strategy._sample(0)
    whole = strategy.evaluator.losses(*sides, on)
    assert strategy.evaluator._most is not None and strategy.evaluator._most > 12
    strategy.evaluator._most = 1
    for one, other in zip(whole, strategy.evaluator.losses(*sides, on), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in assembly.herd.state.items())


def test_nets_that_cannot_be_fused_are_judged_one_by_one(tmp_path: Path) -> None:
    _, strategy, _ = made(settings(tmp_path, grid=[2, 2]))
    sides, on = [strategy._snapshot_side(kind) for kind in ("g", "d")], strategy._sample(0)
    whole = strategy.evaluator.losses(*sides, on)
    net = strategy.evaluator._play["d"]

    def refuses(*_: Any) -> Any:
        raise RuntimeError("a choice that depends on its input")

    net._lowered = refuses  # type: ignore[assignment]
    for one, other in zip(whole, strategy.evaluator.losses(*sides, on), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert not net.fused


# -- members that are not finite --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", [1, 2])
def test_a_member_that_is_not_finite_wins_nothing_and_is_healed_by_its_neighbours(
    tmp_path: Path, population: int
) -> None:
    recipe = settings(tmp_path, grid=[3, 3], population=population, mixing={"samples": 20})
    assembly, strategy, engine = made(recipe)
    state, sick = assembly.herd.state, 4 * population
    state["g.params"][sick, 3] = torch.nan
    state["d.adam.v"][0] = torch.inf
    ((_, facts),) = list(strategy.open(0))
    assert sick not in facts["g"] and 0 not in facts["d"]
    assert facts["fitness_g"][sick] == np.inf and facts["fitness_d"][0] == np.inf
    others = [f for m, f in enumerate(facts["fitness_g"]) if m != sick]
    assert np.isfinite(others).all()  # whom it met is not judged by it
    sums = assembly.herd.zero_sums()
    engine.advance(0, SPAN, sums)
    events = dict(strategy.close(SPAN))
    assert all(torch.isfinite(value).all() for value in state.values()) and torch.isfinite(sums).all()
    assert events["replacement"]["g_new"][sick] and np.isfinite(events["mixture"]["after"]).all()


def test_a_member_that_is_not_finite_is_no_opponent(tmp_path: Path) -> None:
    recipe = settings(tmp_path, grid=[3, 3], selection=False, mixing={"samples": 20})
    recipe["run"]["seed"] = 2  # with which its generator meets its own discriminator within the iteration
    assembly, strategy, engine = made(recipe)
    state = assembly.herd.state
    state["d.params"][4] = torch.nan
    list(strategy.open(0))
    rivals = assembly.herd.opponents
    assert rivals is not None
    for cell, (row, count) in enumerate(zip(rivals.table.tolist(), rivals.count.tolist(), strict=True)):
        assert row[0] == cell and set(row[:count]) == (NEAR[cell] if cell == 4 else NEAR[cell] - {4})
    engine.advance(0, SPAN, assembly.herd.zero_sums())
    events = dict(strategy.close(SPAN))
    well = torch.isfinite(state["g.params"]).all(1)
    assert [m for m in range(9) if not well[m]] == [4]  # whom its own discriminator taught
    weights = strategy.state["meet.weights"]
    column = (torch.from_numpy(strategy.wiring.near) == 4).nonzero()
    assert all(weights[row, at] == 0 for row, at in column.tolist() if row != 4)
    assert np.isfinite(np.delete(events["mixture"]["after"], 4)).all()


# -- mixtures -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["fid", "kid"])
def test_weights_evolve_from_iteration_to_iteration(tmp_path: Path, score: str) -> None:
    recipe = settings(tmp_path, grid=[3, 3], mixing={"samples": 30, "generations": 20, "sigma": 0.1, "score": score})
    _, strategy, events = train(recipe)
    found = [facts for name, facts in events if name == "mixture"]
    assert len(found) == ITERATIONS
    assert all(
        after <= before for facts in found for before, after in zip(facts["before"], facts["after"], strict=True)
    )
    assert any(after < before for facts in found for before, after in zip(facts["before"], facts["after"], strict=True))
    weights = strategy.state["meet.weights"]
    torch.testing.assert_close(weights.sum(1), torch.ones(9, dtype=torch.float64))
    assert (weights >= 0).all() and not torch.allclose(weights, torch.full_like(weights, 0.2))
    ended = strategy.neighbourhoods(SPAN * ITERATIONS)
    best = min(ended.all, key=lambda one: getattr(one, score))
    assert (ended.by, ended.best) == (score, [best.cell]) and (best.kid is not None) == (score == "kid")


@pytest.mark.gpu
def test_a_grid_on_the_cpu_scores_its_mixtures_although_there_is_a_gpu(tmp_path: Path) -> None:
    """Features of the data are computed on the GPU, those of generators where the herd is."""
    _, _, events = train(settings(tmp_path, grid=[2, 2], mixing={"samples": 20}))
    scores = [facts["after"] for name, facts in events if name == "mixture"]
    assert len(scores) == ITERATIONS and np.isfinite(scores).all()


def test_equal_weights_score_as_the_pooled_samples_do(tmp_path: Path) -> None:
    """The Fréchet distance of a neighbourhood, by hand: its generators' samples in one heap."""
    assembly, strategy, _ = made(settings(tmp_path, grid=[2, 2], mixing={"samples": 30}))
    scorer, data = strategy.mixtures.scorer, assembly.dataset
    before_and_after = strategy.mixtures.evolve(strategy.wiring, 0, 1)
    features = []
    for cell in range(4):
        module = copy.deepcopy(assembly.herd.g.module).train()
        views = assembly.herd.g.views(assembly.herd.state["g.params"])
        module.load_state_dict({name: value[cell] for name, value in views.items()}, strict=False)
        key = rng.keys(np.zeros(1, np.int64), 3, -rng.MIXING, cell, 0)
        z = Streams(key, 0).prior((rng.NOISE,), (30, 3), "normal", torch.float64)[0]
        with torch.no_grad():
            x = (module(z).float() * data.scale + data.offset).round().clamp(0, 255).to(torch.uint8)
            features.append(scorer.network.module(x)[0])
    real = moments(scorer.network.module(torch.from_numpy(data.x))[0])
    for cell, near in enumerate(([0, 1, 2], [1, 0, 3], [2, 3, 0], [3, 2, 1])):
        pooled = moments(torch.cat([features[m] for m in near]))
        assert before_and_after[cell, 0] == pytest.approx(float(frechet.distance(pooled, real)), rel=1e-6)


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_best_neighbourhood_is_the_mixture_and_all_are_kept(tmp_path: Path, seeds: int) -> None:
    mixing = {"when": "end", "samples": 40, "generations": 30, "sigma": 0.1}
    assembly, strategy, _ = train(settings(tmp_path, grid=[2, 2], seeds=seeds, mixing=mixing))
    found = strategy.neighbourhoods(SPAN * ITERATIONS)
    assert [(one.replica, one.cell) for one in found.all] == [(r, c) for r in range(seeds) for c in range(4)]
    finish.make_mixture(assembly, SPAN * ITERATIONS, found).save(tmp_path / "mixture")
    loaded = mixture.load(tmp_path / "mixture")
    assert loaded.neighbourhoods == found
    for replica in range(seeds):
        own = [one for one in found.all if one.replica == replica]
        best = min(own, key=lambda one: one.fid)
        assert found.best[replica] == best.cell
        weights = loaded.weights_of(replica)
        assert weights[best.members] == pytest.approx(best.weights)
        assert sorted(np.flatnonzero(weights)) == sorted(
            m for m, w in zip(best.members, best.weights, strict=True) if w
        )
        assert set(loaded.sample(200, replica=replica).member) <= set(best.members)
        other = next(one for one in own if one.cell != best.cell)
        assert loaded.neighbourhood(other.cell).weights_of(replica)[other.members] == pytest.approx(other.weights)
    with pytest.raises(UserError, match="no cell 4; this grid has 4"):
        loaded.neighbourhood(4)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_run_may_end_with_the_generators_of_its_best_iteration(tmp_path: Path, seeds: int) -> None:
    """What is kept of a replica is, to the bit, what its cells were when their best mixture had its least distance."""
    mixing = {"samples": 40, "sigma": 0.1, "keep": "best"}
    assembly, strategy, engine = made(settings(tmp_path, grid=[2, 2], seeds=seeds, mixing=mixing))
    sums, was, scores, weights = assembly.herd.zero_sums(), [], [], []
    assert strategy.generators() is None and strategy.neighbourhoods(0).iteration is None  # nothing is kept yet
    for step in range(0, SPAN * 6, SPAN):
        list(strategy.open(step))
        engine.advance(step, step + SPAN, sums)
        scores.append(dict(strategy.close(step + SPAN))["mixture"]["after"])
        was.append({k: v.clone() for k, v in assembly.herd.state.items() if k.startswith(("g.params", "g.buffers"))})
        weights.append(strategy.state["meet.weights"].clone())
    best = np.array(scores).reshape(6, seeds, 4).min(2).argmin(0)  # [R]
    assert set(best.tolist()) != {5}, "a run that gets better and better shows nothing"
    found, kept = strategy.neighbourhoods(SPAN * 6), strategy.generators()
    assert found.iteration == best.tolist() and kept is not None
    for replica, iteration in enumerate(best):
        rows = slice(4 * replica, 4 * replica + 4)
        assert all(torch.equal(kept[name][rows], value[rows]) for name, value in was[iteration].items())
        own = [one.weights for one in found.all if one.replica == replica]
        np.testing.assert_allclose(own, weights[iteration][rows, :3].numpy(), rtol=1e-12)
    exported = finish.exports(assembly, kept)
    made_of = finish.make_mixture(assembly, SPAN * 6, found, exported)
    assert torch.equal(exported["g.params"], kept["g.params"]) and made_of.neighbourhoods == found


def test_individuals_of_a_cell_share_its_data_and_the_best_represents_it(tmp_path: Path) -> None:
    recipe = settings(tmp_path, grid=[2, 2], population=2, mixing={"when": "off", "samples": 20})
    assembly, strategy, _ = train(recipe)
    rows = [assembly.herd.feed.member_rows(member).tolist() for member in range(8)]
    assert all(rows[2 * cell] == rows[2 * cell + 1] for cell in range(4)) and len({tuple(row) for row in rows}) == 4
    fitness = strategy.fitness.reshape(4, 2, 2)
    assert (fitness[:, 0] <= fitness[:, 1]).all()
    found = strategy.neighbourhoods(SPAN * ITERATIONS)
    assert found.all[1].members == [2, 0, 6] and found.all[1].weights == pytest.approx([1 / 3] * 3)


# -- what is told ------------------------------------------------------------------------------------------------------------------


def test_metrics_have_the_profile_and_what_mutates(tmp_path: Path) -> None:
    mutation = {"losses": MUSTANGS, "loss_each": "iteration"}
    assembly, strategy, _ = train(settings(tmp_path, grid=[2, 2], mutation=mutation, mixing={"samples": 20}))
    found = strategy.metrics()
    assert set(found["profile"]) == {"gather", "train", "update", "mutate", "evaluate", "replace", "mixture"}
    assert all(found["profile"][routine] > 0 for routine in ("gather", "evaluate", "replace", "mixture"))
    assert found["lr_g"] == pytest.approx(assembly.herd.state["set.lr_g"].tolist(), rel=1e-6)
    assert set(found["loss"]) <= set(MUSTANGS) and len(found["loss"]) == 4
    assert not any(strategy.metrics()["profile"].values())  # since the last record


def test_a_checkpoint_between_iterations_holds_no_snapshot(tmp_path: Path) -> None:
    _, strategy, _ = train(settings(tmp_path, grid=[2, 2]))
    assert not any(name.startswith("meet.kept.") for name in strategy.state)
    list(strategy.open(SPAN * ITERATIONS))
    assert "meet.kept.g.params" in strategy.state


def test_nets_that_take_no_part_have_nan_losses(tmp_path: Path) -> None:
    _, strategy, _ = made(settings(tmp_path, grid=[2, 2]))
    g, d = strategy._snapshot_side("g"), strategy._snapshot_side("d")
    d = Side(d.state, d.rows, d.real & (np.arange(3) != 1))
    losses = strategy.evaluator.losses(g, d, strategy._sample(0))
    assert np.isnan(losses[0][:, :, 1]).all() and np.isfinite(losses[0][:, :, [0, 2]]).all()
    assert np.isnan(losses[1][:, 1, :]).all() and np.isfinite(losses[1][:, [0, 2], :]).all()
