"""GAM and GAM-II: the right judges, the right thresholds, the right words; and on runs, the discriminators they saved."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import ganherd
import little
from ganherd import nets
from ganherd.data.source import load as load_data
from ganherd.errors import UserError
from ganherd.recipe import Data
from ganherd.run.folder import RunFolder
from ganherd.scores import gam, gam_table, score, score_runs
from ganherd.scores.gam import Player, called_real, gam2, helps, met_matrix, threshold
from ganherd.scores.gam_judges import load_judges
from ganherd.scores.gam_runs import contest


def paper() -> list[Player]:
    """The ten models of the paper's tables: four single ones, four of a GAP herd, two of a combined herd."""
    groups = ["single"] * 4 + ["gap4"] * 4 + ["c4"] * 2
    return [Player(group, i) for i, group in enumerate(groups)]


def test_the_papers_ten_models_have_six_judges_and_eight() -> None:
    met = met_matrix(paper(), other_runs=True, swaps=[True] * 10)
    assert (~met).sum(0).tolist() == [6] * 8 + [8] * 2


def test_within_one_run_independent_members_judge_all_others_and_herds_that_meet_none() -> None:
    players = [Player("a", m, herd) for herd in range(2) for m in range(3)]
    assert (~met_matrix(players, False, [False] * 6)).sum(0).tolist() == [5] * 6
    # replicas never met, so the other replica's three judge
    assert (~met_matrix(players, False, [True] * 6)).sum(0).tolist() == [3] * 6


def test_members_of_different_classes_do_not_judge_each_other() -> None:
    players = [Player(run, m, 0, label=m) for run in "ab" for m in range(3)]
    met = met_matrix(players, True, [False] * 6)
    assert np.argwhere(~met).tolist() == [[0, 3], [1, 4], [2, 5], [3, 0], [4, 1], [5, 2]]


def test_average_and_worst_by_hand() -> None:
    rng = np.random.default_rng(0)
    errors, met = rng.random((10, 10)), met_matrix(paper(), True, [True] * 10)
    found = gam2(errors, met)
    for m in range(10):
        allowed = [errors[j, m] for j in range(10) if not met[j, m]]
        assert found.average[m] == pytest.approx(np.mean(allowed)) and found.worst[m] == min(allowed)
    assert found.winner == int(np.argmax(found.average))


def test_a_generator_that_met_everybody_has_no_score() -> None:
    found = gam2(np.full((2, 2), 0.3), np.array([[True, False], [True, True]]))
    assert math.isnan(found.average[0]) and found.average[1] == 0.3 and found.winner == 1
    assert gam2(np.full((1, 1), 0.3), np.ones((1, 1))).winner is None


def test_error_rates_are_shares_above_each_judges_own_threshold() -> None:
    logits = np.array([[[-1.0, 0.0, 1.0, 2.0]] * 2, [[-1.0, 0.0, 1.0, 2.0]] * 2])  # [J, M, n]
    assert called_real(logits, np.array([0.0, -0.5])).tolist() == [[0.5, 0.5], [0.75, 0.75]]  # 0 itself is not above 0
    with pytest.raises(UserError, match="NaN"):
        called_real(np.array([[np.nan]]), np.zeros(1))


@pytest.mark.parametrize(
    ("loss", "at", "says"),
    [
        ("minimax", 0.0, "probability 0.5"),
        ("non-saturating", 0.0, "probability 0.5"),
        ("hinge", 0.0, "logit 0"),
        ("least-squares", 0.5, "logit 0.5"),
        ("wasserstein", 5.0, "midpoint"),
        ("wasserstein-gp", 5.0, "midpoint"),
    ],
)
def test_every_loss_has_a_stated_threshold(loss: str, at: float, says: str) -> None:
    found, words = threshold(loss, np.array([9.0, 11.0]), np.array([-1.0, 1.0]))
    assert found == at and says in words


def test_words() -> None:
    single = np.array([0.352, 0.395])
    assert helps(np.array([0.430, 0.476]), single) == "strongly helps"  # the paper's MNIST row
    assert helps(np.array([0.380, 0.423]), single) == "helps"
    assert helps(np.array([0.108, 0.180]), single) == "does not help"
    assert helps(np.array([np.nan]), single) == "cannot be judged"


def test_the_battle_of_two_needs_judges_that_are_alike() -> None:
    errors = np.array([[0.0, 0.2], [0.5, 0.0]])  # judge 0 errs less on generator 1 than judge 1 on generator 0
    won = gam.gam(errors, np.array([0.10, 0.105]), 0, 1)
    assert (
        won.winner == 0 and won.sample_ratio == pytest.approx(0.4) and won.test_ratio == pytest.approx(0.952, abs=1e-3)
    )
    assert gam.gam(errors, np.array([0.10, 0.105]), 1, 0).winner == 1
    assert gam.gam(errors, np.array([0.1, 0.4]), 0, 1).winner is None
    assert gam.gam(errors, np.zeros(2), 0, 1).winner == 0
    assert gam.gam(np.zeros((2, 2)), np.zeros(2), 0, 1).winner is None


def test_a_judge_that_says_the_same_of_all_is_named() -> None:
    players = [Player("a", 0), Player("b", 0), Player("c", 0)]
    verdict = gam2(np.array([[1.0, 1.0, 1.0], [0.3, 0.3, 0.4], [0.0, 0.0, 0.0]]), np.eye(3, dtype=bool))
    text = gam_table.table(players, verdict, np.array([0.0, 0.2, 1.0]), 10_000, 500)
    assert "the judge of member 0 of a calls everything real, and praises all" in text
    assert "the judge of member 0 of c calls everything fake" in text
    assert "of member 0 of b" not in text.split("the best by avg")[0]
    assert "10,000 samples" in text and "500 held-out" in text


def test_the_table_says_once_which_run_the_others_are_held_against() -> None:
    players = [Player("a", 0), Player("b", 0), Player("c", 0)]
    verdict = gam2(np.full((3, 3), 0.3), np.eye(3, dtype=bool))
    text = gam_table.table(players, verdict, np.full(3, 0.2), 10_000, 500)
    assert text.count("a is the baseline: the first run given\n") == 1
    assert text.index("a is the baseline") < text.index("b does not help against a")
    alone = gam_table.table(
        players[:1], gam2(np.full((1, 1), 0.3), np.zeros((1, 1), bool)), np.full(1, 0.2), 10_000, 500
    )
    assert "baseline" not in alone


def test_each_kind_of_generator_has_a_baseline() -> None:
    players = [Player("a", 0, kind="x"), Player("b", 0, kind="x"), Player("b", 1, kind="y"), Player("c", 0, kind="y")]
    text = gam_table.table(players, gam2(np.full((4, 4), 0.3), np.eye(4, dtype=bool)), np.full(4, 0.2), 10_000, 500)
    assert "a (x) is the baseline: the first run given with this kind" in text
    assert "b (y) is the baseline: the first run given with this kind" in text


# -- runs ---------------------------------------------------------------------------------------------------------


def _recipe(loss: str, seed: int, **data: Any) -> dict[str, Any]:
    return {
        "data": {"source": "digits", "partition": "all", **data},
        "herd": {"members": 2},
        "nets": {
            "latent": 4,
            "generator": {"name": "small", "width": 8, "batch_norm": True},
            "discriminator": {"name": "small", "width": 8},
        },
        "loss": {"name": loss},
        "train": {"batch": 16, "budget": "12steps"},
        "engine": {"name": "fused", "threads": 1, "device": "cpu"},
        "run": {"record_every": 6, "checkpoint_every": 6, "sample_every": 0, "seed": seed},
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:  # what comes after the mixture is not needed here
        patch.setattr("ganherd.report.write", lambda *_, **__: None)
        patch.setattr("ganherd.run.finish.write_scores", lambda *_: {})
        patch.setattr("ganherd.run.finish.write_picture", lambda *_: None)
        for name, loss, seed in (("plain", "non-saturating", 1), ("critic", "wasserstein", 2)):
            ganherd.train(_recipe(loss, seed), run=folder / name, quiet=True)
    return {name: folder / name for name in ("plain", "critic")}


def _judge_by_hand(run: Path, member: int, x: np.ndarray) -> np.ndarray:
    """The discriminator's logits, its weights read from the file by their own names."""
    from safetensors.torch import load_file

    recipe = RunFolder.open(run).recipe
    module = nets.build_discriminator(recipe.nets.discriminator, (1, 8, 8)).eval()
    (file,) = (run / "checkpoints" / "step-00000012").glob("*.safetensors")
    tensors = load_file(file)
    own = {n.removeprefix("d.params/"): v[member] for n, v in tensors.items() if n.startswith("d.params/")}
    own |= {n.removeprefix("d.buffers."): v[member] for n, v in tensors.items() if n.startswith("d.buffers.")}
    module.load_state_dict(own)
    with torch.no_grad():
        return module((torch.from_numpy(x).float() - 127.5) / 127.5).double().numpy()


def test_two_runs_judge_each_other_as_by_hand(runs: dict[str, Path]) -> None:
    found = contest(list(runs.values()), samples=300, seed=5)
    data = load_data(RunFolder.open(runs["plain"]).recipe.data)
    fakes = []
    for run in runs.values():
        mixture = ganherd.load(run)
        fakes += [dataclasses.replace(mixture, weights=np.eye(2)[m]).sample(300, seed=5).x for m in range(2)]
    for j, (run, member) in enumerate((run, m) for run in runs.values() for m in range(2)):
        real = _judge_by_hand(run, member, data.x_test)
        own = _judge_by_hand(run, member, fakes[j])
        at = 0.0 if run.name == "plain" else (real.mean() + own.mean()) / 2
        assert found.thresholds[j][0] == pytest.approx(at, abs=1e-5)
        assert found.real_errors[j] == pytest.approx((real <= at).mean(), abs=0.004)
        for m in range(4):
            assert found.verdict.errors[j, m] == pytest.approx(
                (_judge_by_hand(run, member, fakes[m]) > at).mean(), abs=0.007
            )
    assert found.verdict.judges.tolist() == [2] * 4  # those of the other run
    text = str(found)
    assert "judges in evaluation mode" in text and "midpoint" in text and "take 10,000" in text and "seed 5" in text
    assert "critic " in text and "against plain (avg)" in text
    entry = found.entry("critic")
    assert (
        json.loads(json.dumps(entry)) == entry and entry["samples"] == 300 and list(entry["per_member"]) == ["0", "1"]
    )
    assert entry["interval"]["low"] <= entry["value"] <= entry["interval"]["high"]


def test_the_command_marks_the_best_member_of_each_run(runs: dict[str, Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(run, tmp_path / name)) for name, run in runs.items()]
    told: list[str] = []
    marked: list[str] = []
    found = score_runs(copies, ["gam2", "diversity", "GAM"], samples=200, seed=5, progress=told.append)
    by_hand = contest(list(runs.values()), samples=200, seed=5)
    for copy, rows in zip(copies, ([0, 1], [2, 3]), strict=True):
        kept = json.loads((copy / "scores.json").read_text())["scores"]
        assert kept == found.runs[str(copy)] and list(kept) == ["diversity", "gam2", "gam"]
        entry = kept["gam2"]
        assert list(entry["per_member"].values()) == pytest.approx(by_hand.verdict.average[rows].tolist())
        assert (entry["samples"], entry["seed"], entry["per_member_samples"]) == (200, 5, {"0": 200, "1": 200})
        winner = ganherd.load(copy).winner
        first, second = entry["per_member"].values()
        if first == second:  # of equals none is the best
            assert winner is None
        else:
            assert winner is not None and (winner.replica, winner.by, winner.value) == (0, "gam2", max(first, second))
            assert winner.member == (0 if first > second else 1)
            marked.append(copy.name)
        fights = kept["gam"]
        assert fights["won"] + fights["tied"] + fights["lost"] == 4
        assert fights["value"] == (fights["won"] + fights["tied"] / 2) / 4
    assert marked and sum(found.runs[str(copy)]["gam"]["value"] for copy in copies) == 1
    text = str(found)
    assert "gam2" in text.splitlines()[2] and "GAM-II" in text and "battles won" in text and "*" in text
    assert any("4 judges" in line for line in told)
    assert set(found.facts()["runs"]) == {str(copy) for copy in copies}


def test_gam_asks_for_another_run_and_gam2_does_not(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs["plain"], tmp_path / "copy"))
    with pytest.raises(UserError, match="at least two"):
        score_runs([copy], ["gam"], samples=16)
    with pytest.raises(UserError, match="named twice"):
        score_runs([copy, copy], ["gam2"], samples=16)
    found = score_runs([copy], ["gam-ii"], samples=64)
    assert found.runs[str(copy)]["gam2"]["judges"] == [1, 1] and "scores" in found.facts()


def test_of_one_mixture_alone_it_is_left_out(runs: dict[str, Path]) -> None:
    data = load_data(RunFolder.open(runs["plain"]).recipe.data)
    found = score(ganherd.load(runs["plain"]), data, ["gam2"], samples=8)
    assert "ganherd score --metrics gam2 RUN RUN" in found["skipped"]["gam2"]


def test_of_equals_none_is_the_best() -> None:
    verdict = gam2(np.full((2, 2), 0.3), np.eye(2, dtype=bool))
    assert verdict.winner is None
    entry = gam.entry([Player("a", 0), Player("a", 1)], verdict, "a", np.zeros(2), 50)
    assert entry["best_member"] is None and entry["best_value"] is None and entry["value"] == pytest.approx(0.3)


def test_the_best_of_a_run_of_two_kinds_is_picked_by_the_same_judges() -> None:
    """Lenient judges praise a generator of their kind; by all judges the other one is better."""
    players = [Player("a", 0, kind="x"), Player("a", 1, kind="y"), Player("b", 0, kind="x"), Player("c", 0, kind="y")]
    errors = np.zeros((4, 4))
    errors[2, :2], errors[3, :2] = (0.2, 0.0), (0.9, 0.5)  # of b's strict judge, and of c's lenient one
    met = [met_matrix(players, True, [False] * 4, across) for across in (False, True)]
    verdict = gam2(errors, *met)
    assert verdict.average[:2].tolist() == [0.2, 0.5] and verdict.across[:2].tolist() == pytest.approx([0.55, 0.25])
    entry = gam.entry(players, verdict, "a", np.zeros(4), 50)
    assert entry["best_member"] == 0 and entry["best_value"] == pytest.approx(0.55)
    assert entry["best_by"] == "the judges of every kind that they did not meet"
    assert list(entry["per_member"].values()) == [0.2, 0.5]  # the numbers stay those of each kind's judges
    assert entry["by_judge"] == {"member 0 of b": [0.2, None], "member 0 of c": [None, 0.5]}
    assert "best_by" not in gam.entry(players, verdict, "b", np.zeros(4), 50)


def test_of_several_classes_none_is_the_best() -> None:
    """Members of different classes have different judges; of one class the better one is named."""
    errors = np.array([[0.0, 0, 0.1, 0.2], [0.0, 0, 0.3, 0.3], [0.1, 0.2, 0, 0], [0.3, 0.4, 0, 0]])
    for labels, best in (((0, 1, 0, 1), None), ((3, 3, 3, 3), 1)):
        players = [Player(run, m, label=label) for run, m, label in zip("aabb", (0, 1, 0, 1), labels, strict=True)]
        verdict = gam2(errors, met_matrix(players, True, [False] * 4))
        assert gam.entry(players, verdict, "a", np.zeros(4), 50)["best_member"] == best
        text = gam_table.table(players, verdict, np.full(4, 0.2), 10_000, 500)
        assert ("the best by avg is member 1 of a" in text) == (best is not None)


def test_judges_and_generators_of_several_seeds_are_told_apart() -> None:
    players = [Player("a", 0), Player("b", 0, herd=0, seed=6), Player("b", 0, herd=1, seed=7)]
    verdict = gam2(np.array([[0.0, 0, 0], [0.2, 0, 0], [0.8, 0, 0]]), met_matrix(players, True, [False] * 3))
    entry = gam.entry(players, verdict, "a", np.zeros(3), 50)
    assert entry["by_judge"] == {"member 0 of seed 6 of b": [0.2], "member 0 of seed 7 of b": [0.8]}
    assert entry["value"] == pytest.approx(0.5)
    assert list(gam.entry(players, verdict, "b", np.zeros(3), 50)["per_member"]) == ["0 of seed 6", "0 of seed 7"]


def test_a_run_of_several_seeds_is_judged_by_their_numbers(tmp_path: Path) -> None:
    """Those of the recipe, not the places of the replicas."""
    for name, seed, seeds in (("one", 1, 1), ("two", 6, 2)):
        recipe = _recipe("non-saturating", seed)
        ganherd.train({**recipe, "herd": {**recipe["herd"], "seeds": seeds}}, run=tmp_path / name, quiet=True)
    entry = contest([tmp_path / "one", tmp_path / "two"], samples=100).entry("two")
    assert list(entry["per_member"]) == ["0 of seed 6", "1 of seed 6", "0 of seed 7", "1 of seed 7"]


def test_the_interval_covers_what_was_simulated() -> None:
    """Error rates of two judges that err on the same samples: the worst case that it is made for."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        rate = (rng.random((2, 400)) < 0.3).mean(1)  # of two generators
        errors = np.stack([rate, rate])
        span = gam.interval(errors, np.ones((2, 2), bool), 400)
        assert span is not None
        inside += span["low"] <= 0.3 <= span["high"]
    assert 0.92 <= inside / 300 <= 0.98


def test_one_run_is_judged_by_its_own_members_that_never_met(runs: dict[str, Path]) -> None:
    found = contest([runs["plain"]], samples=64)
    assert found.verdict.judges.tolist() == [1, 1]
    assert found.verdict.average[0] == found.verdict.errors[1, 0] == found.verdict.worst[0]


def test_a_damaged_checkpoint_is_passed_over_and_told(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs["plain"], copy)
    (file,) = (copy / "checkpoints" / "step-00000012").glob("*.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert load_judges(copy, (1, 8, 8), 10).step == 6
    assert "judges of step 6, generators of step 12" in str(contest([copy, runs["critic"]], samples=64))


def test_a_strangers_run_executes_nothing(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "stranger"
    shutil.copytree(runs["plain"], copy)
    recipe = yaml.safe_load((copy / "recipe.yaml").read_text())
    recipe["nets"]["discriminator"] = {"name": "strange_judge:Judge", "settings": {}}
    (copy / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "strange_judge.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--trust-code"):
        contest([copy, runs["critic"]], samples=16)


def test_runs_that_cannot_be_compared_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="all different"):
        contest([runs["plain"], runs["plain"]])
    with pytest.raises(UserError, match="no run folder"):
        contest([tmp_path / "nothing"])


# -- judges with batch norm -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two DCGANs whose discriminators have batch norm, trained until they know real from fake."""
    digits = load_data(Data(source="digits"))
    folder = tmp_path_factory.mktemp("normed")
    large = np.pad(np.kron(digits.x, np.ones((1, 1, 3, 3), np.uint8)), ((0, 0), (0, 0), (2, 2), (2, 2)))  # 28 pixels
    np.savez(folder / "large.npz", x=large, y=digits.y)
    recipe = _recipe("non-saturating", 1, source=str(folder / "large.npz"))
    net = {"name": "dcgan5", "width": 4}
    recipe["nets"] = {"latent": 16, "generator": net, "discriminator": net}
    recipe["optim"] = {"lr_g": 1e-3, "lr_d": 1e-3, "beta1": 0.5}
    recipe["train"] = {"batch": 32, "budget": "80steps"}
    recipe["run"] |= {"checkpoint_every": 0, "watch": {"every": 0}}
    with pytest.MonkeyPatch.context() as patch:
        little.be_brief(patch)
        ganherd.train(recipe, run=folder / "run", quiet=True)
    return folder / "run"


def test_trained_judges_with_batch_norm_know_real_from_fake(normed: Path) -> None:
    found = contest([normed], samples=500)
    assert (found.real_errors < 0.5).all() and (np.diag(found.verdict.errors) < 0.9).all()
    assert "batch norm by the statistics of what they look at" in str(found)
    assert "batch norm" in found.entry("run")["judges_mode"]


def test_running_statistics_do_not_decide(normed: Path) -> None:
    """They follow both real and fake batches, of weights that moved; those of a net that was swapped are another's."""
    data = load_data(RunFolder.open(normed).recipe.data)
    judges = load_judges(normed, data.shape, len(data.labels))
    before = judges.logits(0, data.x_test, data.y_test)
    for name, value in judges.buffers.items():
        if "running" in name:
            value.add_(5.0)
    kept = {name: value.clone() for name, value in judges.buffers.items()}
    assert np.array_equal(judges.logits(0, data.x_test, data.y_test), before)
    assert all(torch.equal(value, kept[name]) for name, value in judges.buffers.items())  # looking changes nothing
    with pytest.raises(UserError, match="two samples at least"):
        judges.logits(0, data.x_test[:1], data.y_test[:1])


@pytest.mark.data("mnist")
@pytest.mark.long
def test_judges_of_mnist_know_real_from_fake(tmp_path: Path) -> None:
    """After 400 steps their running statistics have them call every real image fake."""
    little_nets = [f"nets.{net}.width=16" for net in ("generator", "discriminator")]
    plain = ["engine.device=cpu", "run.sample_every=0", "run.watch.every=0"]
    settings = ["herd.members=2", "train.batch=50", "train.budget=400steps", *little_nets, *plain]
    ganherd.train("mnist-gan-d", settings, run=tmp_path / "run", quiet=True)
    found = contest([tmp_path / "run"], samples=2000)
    assert (found.real_errors < 0.5).all() and (np.diag(found.verdict.errors) < 0.9).all()
