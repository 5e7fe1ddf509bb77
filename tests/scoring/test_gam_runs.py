"""GAM-II on runs: the discriminators that they saved judge the generators of the others' mixtures."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
import torch
import yaml
from torch import Tensor, nn

import ganherd
from ganherd import nets
from ganherd.data.dataset import load as load_data
from ganherd.recipe.schema import DataConfig
from ganherd.runs.folder import RunFolder
from ganherd.scoring import score, score_runs
from ganherd.scoring.gam_judges import Judges, load_judges
from ganherd.scoring.gam_runs import contest
from ganherd.util.errors import UserError


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
        patch.setattr("ganherd.api.FINISHERS", ())
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
    assert "critic " in text and "against plain (avg, best members differ by " in text
    entry = found.entry("critic")
    assert (
        json.loads(json.dumps(entry)) == entry and entry["samples"] == 300 and list(entry["per_member"]) == ["0", "1"]
    )
    assert entry["interval"]["low"] <= entry["value"] <= entry["interval"]["high"]


@pytest.mark.usefixtures("brief_classifier")
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
    assert "GAM-II" in text.splitlines()[2] and "battles won" in text and "*" in text
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


@pytest.mark.further
def test_a_run_of_several_seeds_is_judged_by_their_numbers(tmp_path: Path) -> None:
    """Those of the recipe, not the places of the replicas."""
    for name, seed, seeds in (("one", 1, 1), ("two", 6, 2)):
        recipe = _recipe("non-saturating", seed)
        ganherd.train({**recipe, "herd": {**recipe["herd"], "seeds": seeds}}, run=tmp_path / name, quiet=True)
    entry = contest([tmp_path / "one", tmp_path / "two"], samples=100).entry("two")
    assert list(entry["per_member"]) == ["0 of seed 6", "1 of seed 6", "0 of seed 7", "1 of seed 7"]


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


@pytest.mark.further
def test_members_of_a_class_each_need_another_run(tmp_path: Path) -> None:
    """They met no discriminator but their own; the sentence does not say that they did."""
    recipe = _recipe("non-saturating", 1, partition="by-class") | {"herd": {}}
    ganherd.train(recipe, run=tmp_path / "classes", quiet=True)
    with pytest.raises(
        UserError, match="of classes generate one class each, and there is no other judge of that class: name another"
    ):
        contest([tmp_path / "classes"], samples=50)


# -- judges with batch norm -----------------------------------------------------------------------------------------------


def _normed(folder: Path, steps: int) -> Path:
    """Train two DCGANs whose discriminators have batch norm, and return their run."""
    digits = load_data(DataConfig(source="digits"))
    large = np.pad(np.kron(digits.x, np.ones((1, 1, 3, 3), np.uint8)), ((0, 0), (0, 0), (2, 2), (2, 2)))  # 28 pixels
    np.savez(folder / "large.npz", x=large, y=digits.y)
    recipe = _recipe("non-saturating", 1, source=str(folder / "large.npz"))
    net = {"name": "dcgan5", "width": 4}
    recipe["nets"] = {"latent": 16, "generator": net, "discriminator": net}
    recipe["optim"] = {"lr_g": 1e-3, "lr_d": 1e-3, "beta1": 0.5}
    recipe["train"] = {"batch": 32, "budget": f"{steps}steps"}
    recipe["run"] |= {"checkpoint_every": 0, "watch": {"every": 0}}
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        ganherd.train(recipe, run=folder / "run", quiet=True)
    return folder / "run"


@pytest.mark.further
def test_trained_judges_with_batch_norm_know_real_from_fake(tmp_path: Path) -> None:
    normed = _normed(tmp_path, 80)
    found = contest([normed], samples=500)
    assert (found.real_errors < 0.5).all() and (np.diag(found.verdict.errors) < 0.9).all()
    assert "batch norm by the statistics of what they look at" in str(found)
    assert "batch norm" in found.entry("run")["judges_mode"]


def test_running_statistics_do_not_decide(tmp_path: Path) -> None:
    """They follow both real and fake batches, of weights that moved; those of a net that was swapped are another's."""
    normed = _normed(tmp_path, 8)
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


class MergedInEvaluation(nn.Module):
    """Its weight is merged when `eval()` is called, as nets with re-parametrised layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.randn(4)) for _ in range(2))
        self.merged = torch.zeros(4)

    def train(self, mode: bool = True) -> MergedInEvaluation:
        self.merged = (self.one + self.other).detach()
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.one + self.other if self.training else self.merged)


def test_each_judge_is_loaded_before_it_is_put_into_evaluation_mode() -> None:
    alone = [MergedInEvaluation() for _ in range(2)]
    params = {
        name: torch.stack([dict(one.named_parameters())[name].detach() for one in alone]) for name in ("one", "other")
    }
    judges = Judges(MergedInEvaluation(), params, {}, ["hinge"] * 2, 0.0, 1.0, 0)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for member, net in enumerate(alone):
        expected = net.eval()(torch.from_numpy(x)).detach().double().numpy()
        assert np.allclose(judges.logits(member, x, np.zeros(5, np.int64)), expected)
