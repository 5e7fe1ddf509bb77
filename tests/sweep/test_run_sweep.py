"""`ganherd sweep`: trials of one run equal the same settings trained alone, the worse half stops, and a sweep can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from recipes import tiny_recipe

import ganherd
from ganherd.mixture.mixture import Mixture
from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.sweep import halving, ranking, run_sweep, sweep_plan, sweep_record
from ganherd.sweep.optuna_sampler import propose_round
from ganherd.sweep.run_sweep import SweepRequest, sweep
from ganherd.sweep.search_space import parse_dimension
from ganherd.training import loop
from ganherd.training.setup import member_settings
from ganherd.util.errors import Interrupted, UserError

RATES = "optim.lr_g=1e-4,1e-3,1e-2,1e-1,3e-2,3e-3"


@pytest.fixture(autouse=True)
def early_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halving, "FEWEST_STEPS", 1)


@pytest.fixture
def recipe(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe of three members in double precision, in the current folder."""
    monkeypatch.chdir(tmp_path)
    settings = tiny_recipe(
        data,
        train={"precision": "float64", "augment": ["translation"]},
        engine={"name": "fused", "chunk": None},
        run={"watch": {"every": 0}},
    )
    Path("little.yaml").write_text(yaml.safe_dump(settings))
    return "little.yaml"


def request(recipe: str, *vary: str, **settings: Any) -> SweepRequest:
    chosen = {"budget": "6steps", "score": "kid", "samples": 30, **settings}
    return SweepRequest(recipe, vary, **chosen)


def weights(mixture: Mixture, replica: int = 0) -> list[torch.Tensor]:
    """All weights of one replica's generators."""
    return [
        value for member in range(mixture.members) for _, value in sorted(mixture.generator(member, replica)[1].items())
    ]


@pytest.mark.further
def test_each_trial_equals_the_same_settings_trained_alone(recipe: str, tmp_path: Path) -> None:
    """Promise 1, for every setting that trials may differ in, with two seeds."""
    trials: list[dict[str, Any]] = [
        {"optim.lr_g": 1e-4, "optim.lr_d": 1e-3, "loss.name": "hinge", "loss.gp_weight": 5.0, "loss.r1_weight": 0.0,
         "optim.beta1": 0.0, "optim.beta2": 0.9, "train.ema": None, "train.augment_probability": 1.0, "train.input_noise": 0.0,
         "nets.discriminator.dropout": 0.0},
        {"optim.lr_g": 5e-4, "optim.lr_d": 1e-4, "loss.name": "wasserstein-gp", "loss.gp_weight": 10.0, "loss.r1_weight": 1.0,
         "optim.beta1": 0.5, "optim.beta2": 0.99, "train.ema": 0.9, "train.augment_probability": 0.3, "train.input_noise": 0.1,
         "nets.discriminator.dropout": 0.3},
    ]  # fmt: skip
    base = yaml.safe_load(Path(recipe).read_text())
    together = ganherd.train(
        {**base, "herd": {"trials": trials, "seeds": 2}}, run=tmp_path / "together", quiet=True, finishers=()
    )
    stacked = together.mixture
    assert stacked.seeds == [0, 1, 0, 1]
    for number, trial in enumerate(trials):
        overrides = [f"{key}={'null' if value is None else value}" for key, value in trial.items()]
        alone = ganherd.train(
            base, [*overrides, "herd.seeds=2"], run=tmp_path / f"alone-{number}", quiet=True, finishers=()
        )
        for seed in range(2):
            pairs = zip(weights(stacked, 2 * number + seed), weights(alone.mixture, seed), strict=True)
            assert all(torch.allclose(ours, theirs, rtol=0, atol=1e-9) for ours, theirs in pairs)


def test_schedules_of_a_sweep_are_those_of_a_trial_that_is_trained_to_the_end(recipe: str, tmp_path: Path) -> None:
    """A rate that falls over the whole run has not reached zero where the first half stops."""
    falling = "train.schedules=[{keys: [optim.lr_g, optim.lr_d], last: 0}]"
    record = sweep(request(recipe, RATES, overrides=[falling]), tmp_path / "out", quiet=True)
    assert record.steps == [(3, 6), (6, 4)]
    trial = record.rungs[-1].scores[0].trial
    settings = [falling, f"optim.lr_g={record.trials[trial]['optim.lr_g']}", "train.budget=6steps"]
    alone = ganherd.train(
        recipe, [*settings, "run.repair.policy=tell"], run=tmp_path / "alone", quiet=True, finishers=()
    )
    pairs = zip(weights(ganherd.load(tmp_path / "out" / "run-00"), trial), weights(alone.mixture), strict=True)
    assert all(torch.allclose(ours, theirs, rtol=0, atol=1e-9) for ours, theirs in pairs)


@pytest.mark.further
def test_the_better_half_goes_on_and_equals_itself_alone(recipe: str, tmp_path: Path) -> None:
    record = sweep(request(recipe, RATES), tmp_path / "out", quiet=True)
    assert record.is_finished and record.steps == [(3, 6), (6, 4)]
    first, last = record.rungs
    better = sorted(sorted(range(6), key=lambda t: sweep_plan.cost_of(first.scores[t].value, "kid"))[:4])
    assert first.left == better == [score.trial for score in last.scores] and len(first.scores) == 6
    assert sweep_record.read(tmp_path / "out") == record
    mixture = ganherd.load(tmp_path / "out" / "run-00")
    for trial, steps in [(better[0], 6), (next(t for t in range(6) if t not in better), 3)]:
        rate = record.trials[trial]["optim.lr_g"]
        settings = [f"optim.lr_g={rate}", f"train.budget={steps}steps", "run.repair.policy=tell"]
        alone = ganherd.train(recipe, settings, run=tmp_path / f"alone-{trial}", quiet=True, finishers=())
        pairs = zip(weights(mixture, trial), weights(alone.mixture), strict=True)
        # weights only: the statistics of batch norm of a stopped trial are re-estimated alike
        assert all(torch.allclose(ours, theirs, rtol=0, atol=1e-9) for ours, theirs in pairs)


def test_a_stopped_sweep_continues_and_finds_the_same(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweep(request(recipe, RATES), tmp_path / "whole", quiet=True)
    tick = loop.Trainer.tick

    def stop_at(number: int) -> Callable[[loop.Trainer, int], None]:
        def acting(self: loop.Trainer, step: int) -> None:
            tick(self, step)
            if step == number:
                raise Interrupted("stopped")

        return acting

    for number in (2, 5):  # before the first rung, and after it
        monkeypatch.setattr(loop.Trainer, "tick", stop_at(number))
        with pytest.raises(Interrupted, match="same command"):
            sweep(request(recipe, RATES), tmp_path / "parts", quiet=True)
    monkeypatch.setattr(loop.Trainer, "tick", tick)
    again = run_sweep.resume(tmp_path / "parts", quiet=True)
    assert again.rungs == whole.rungs and again.steps == whole.steps
    assert run_sweep.resume(tmp_path / "parts", quiet=True) == again  # a finished one stays as it is


def test_other_nets_train_in_runs_of_their_own_and_are_ranked_together(recipe: str, tmp_path: Path) -> None:
    record = sweep(request(recipe, "train.batch=4,8", "optim.lr_g=1e-4,1e-2"), tmp_path / "out", quiet=True)
    assert [group.trials for group in record.groups] == [[0, 1], [2, 3]]
    assert [score.trial for score in record.rungs[-1].scores] == [0, 1, 2, 3]
    batches = [
        ganherd.recipe.recipe_file.load(tmp_path / "out" / run / "recipe.yaml").train.batch
        for run in ("run-00", "run-01")
    ]  # type: ignore[attr-defined]
    assert batches == [4, 8]


def test_a_trial_that_breaks_does_not_harm_the_others(recipe: str, tmp_path: Path) -> None:
    wanted = request(recipe, "optim.lr_g=1e-4,1e200", overrides=["engine.name=fused"])
    record = sweep(wanted, tmp_path / "out", quiet=True)
    good, broken = record.rungs[-1].scores
    assert good.value is not None and broken.value is None and broken.why


@pytest.mark.further
def test_the_command_answers_in_a_sentence_and_leaves_the_winner(cli, recipe: str) -> None:
    result = cli("sweep", recipe, "--vary", RATES, "--budget", "6steps", "--score", "kid", "-n", "30", "-o", "out")
    assert result.code == 0 and "Best: lr_g " in result.out and "ganherd train little.yaml --set" in result.out
    best = yaml.safe_load(Path("out/best.yaml").read_text())
    assert (
        best["train"]["budget"] == "6steps"
        and best["herd"]["trials"] == []
        and f"lr_g {best['optim']['lr_g']:.4g}" in result.out
    )
    assert Path("out/sweep.png").read_bytes().startswith(b"\x89PNG")
    assert ganherd.load("out/best").sample(3, label="one").x.shape == (3, 1, 8, 8)
    again = cli("sweep", "--resume", "out", "--json")
    assert json.loads(again.out)["answer"] in result.out.replace("\n", " ")


def test_progress_is_few_lines_on_stderr(cli, recipe: str) -> None:
    words = ("sweep", recipe, "--vary", RATES, "--budget", "6steps", "--score", "kid", "-n", "30")
    lines = cli(*words, "-o", "out").err.splitlines()
    tasks = [line.partition(":")[0] for line in lines if line.startswith(("training", "scoring"))]
    first, second = (
        [f"training {n} of 2", f"training {n} of 2 done", f"scoring {n} of 2"] for n in (1, 2)
    )  # two rungs
    assert tasks == [*first, *second] and "training 2 of 2: 4 trials" in lines
    assert any(line.startswith("step 6: best lr_g") for line in lines) and len(lines) <= 12
    assert cli(*words, "-o", "quiet", "--quiet").err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["digits-wcgan"], "settings to vary"),
        (["digits-wcgan", "--vary", "optim.lr=1,2"], "optim.lr"),
        (["digits-wcgan", "--vary", "optim.lr_g=1e-4,1e-3", "--score", "gam2"], "compares runs"),
        (["digits-wcgan", "--vary", "optim.lr_g=1e-4,-1"], "optim.lr_g"),
        (["digits-wcgan", "--vary", "train.budget=5steps,9steps"], "give --budget"),
        (["digits-wcgan", "--vary", "herd.seeds=1,2"], "give --seeds"),
        (["digits-wcgan", "--vary", "data.source=digits,r15"], "scored against the same data"),
        (["cifar10-perclass", "--vary", "optim.lr_g=1e-4,1e-3"], "first"),
        (["--resume", "nowhere"], "no sweep"),
        ([], "name the recipe"),
    ],
)
def test_mistakes_are_one_sentence(cli, words: list[str], says: str) -> None:
    result = cli("sweep", *words)
    assert result.code == 2 and says in result.err and len(result.err.strip().splitlines()) == 1
    assert not Path("sweeps").exists()


def test_a_folder_holds_one_sweep(recipe: str, tmp_path: Path) -> None:
    sweep(request(recipe, "optim.lr_g=1e-4,1e-3"), tmp_path / "out", quiet=True)
    with pytest.raises(UserError, match="other settings"):
        sweep(request(recipe, "optim.lr_g=1e-4,1e-2"), tmp_path / "out", quiet=True)


def test_the_work_to_set_up_trials_grows_with_their_number(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    with_setting = Recipe._with_setting

    def counted(self: Recipe, *values: Any) -> Recipe:
        calls.append(values)
        return with_setting(self, *values)

    def work(trials: int) -> int:
        _, (planned,) = sweep_plan.plan(request(recipe, "optim.lr_g=1e-5..1e-2", trials=trials))
        calls.clear()
        member_settings.settings_of(planned, 3)
        return len(calls)

    monkeypatch.setattr(Recipe, "_with_setting", counted)
    assert work(40) == 2 * work(20) > 0


def test_a_damaged_record_is_refused_in_a_sentence(recipe: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    record = sweep(request(recipe, "optim.lr_g=1e-4,1e-3"), folder, quiet=True).model_dump()
    rung = record["rungs"][0]
    for damage, says in [
        ({"rungs": [{**rung, "scores": []}]}, "the scores at step 6 are not those of its trials"),
        ({"rungs": [{**rung, "left": [7]}]}, "the scores at step 6 are not those of its trials"),
        ({"rungs": [], "steps": [(-1, 2)]}, "its rungs do not follow each other"),
        ({"seeds": "two"}, "seeds: Input should be a valid integer"),
    ]:
        (folder / "sweep.json").write_text(json.dumps({**record, **damage}))
        with pytest.raises(UserError, match=rf"is not what ganherd writes \({says}") as caught:
            run_sweep.resume(folder, quiet=True)
        assert "\n" not in str(caught.value)


def test_a_second_process_changes_nothing_of_a_sweep_that_runs(recipe: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sweep(request(recipe, "optim.lr_g=1e-4,1e-3"), folder, quiet=True)
    before = (folder / "sweep.json").read_bytes()
    with RunFolder(folder).lock(), pytest.raises(UserError, match="another process"):
        sweep(request(recipe, "optim.lr_g=1e-4,1e-3"), folder, quiet=True)
    assert (folder / "sweep.json").read_bytes() == before


def test_halving_waits_if_members_meet_in_any_of_the_runs(recipe: str) -> None:
    record, _ = sweep_plan.plan(
        request(recipe, "strategy.name=independent,gap", overrides=["data.partition=all", "herd.members=2"])
    )
    assert not record.halves


def test_trials_of_shared_settings_are_refused_in_the_recipe(recipe: str) -> None:
    with pytest.raises(UserError, match=r"cannot vary train\.batch"):
        ganherd.train({**yaml.safe_load(Path(recipe).read_text()), "herd": {"trials": [{"train.batch": 3}]}})


def test_a_strangers_sweep_imports_nothing(cli, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the recipe that sweep.json names, nor its overrides, nor its score, nor the runs in its folder."""
    sweep(request(recipe, "optim.lr_g=1e-4,1e-3"), Path("out"), quiet=True)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("evil.py").write_text("from pathlib import Path\nPath('harm').touch()\nNet = score = None\n")
    record = json.loads(Path("out/sweep.json").read_text())
    fresh = {**record, "steps": [], "rungs": []}
    changes: list[dict[str, Any]] = [
        {"overrides": ["nets.generator=evil:Net"]}, {"score": "evil:score"}, {"overrides": ["loss.name=evil:score"]},
    ]  # fmt: skip
    for change in changes:
        Path("out/sweep.json").write_text(json.dumps({**fresh, **change}))
        answer = cli("sweep", "--resume", "out")
        assert answer.code == 2 and len(answer.err.strip().splitlines()) == 1
    # a finished one whose mixture was exchanged
    Path("out/sweep.json").write_text(json.dumps(record))
    path = Path("out/run-00/mixture/mixture.json")
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "generator": {"name": "evil:Net", "settings": {}}}))
    answer = cli("sweep", "--resume", "out")
    assert answer.code == 2 and "names nets that its recipe does not" in answer.err
    path.write_text(json.dumps(facts))
    # a run of the folder that was exchanged: its recipe is not the one that was typed
    Path("out/sweep.json").write_text(json.dumps(fresh))
    own = yaml.safe_load(Path("out/run-00/recipe.yaml").read_text())
    own["nets"]["generator"] = {"name": "evil:Net", "settings": {}}
    Path("out/run-00/recipe.yaml").write_text(yaml.safe_dump(own))
    with pytest.raises(UserError, match="evil"):
        sweep(request(recipe, "optim.lr_g=1e-4,1e-3"), Path("out"), quiet=True)
    assert not Path("harm").exists()


@pytest.mark.further
def test_optuna_proposes_rounds_from_scores_and_a_stopped_sweep_finds_the_same(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    wanted = request(
        recipe,
        "optim.lr_g=1e-5..1e-1",
        "loss.name=hinge,minimax",
        trials=7,
        budget="3steps",
        sampler="optuna",
        rounds=3,
    )
    whole = sweep(wanted, tmp_path / "whole", quiet=True)
    assert whole.is_finished and [len(scores) for scores in whole.round_scores] == [3, 2, 2]
    assert [group.trials for group in whole.groups] == [[0, 1, 2], [3, 4], [5, 6]]
    assert len({str(trial) for trial in whole.trials}) == 7
    assert whole.trials[:3] == sweep_plan.plan(request(recipe, *wanted.vary, trials=3))[0].trials
    train_to, stops = run_sweep._train_to, [1, 2]

    def stop(state: Any, group: Any, *rest: Any) -> None:
        if stops and group.run == f"run-0{stops[0]}":
            stops.pop(0)
            raise Interrupted("stopped")
        train_to(state, group, *rest)

    monkeypatch.setattr(run_sweep, "_train_to", stop)
    for _ in range(2):
        with pytest.raises(Interrupted):
            sweep(wanted, tmp_path / "parts", quiet=True)
    parts = run_sweep.resume(tmp_path / "parts", quiet=True)
    assert parts.trials == whole.trials and parts.rungs == whole.rungs
    other = sweep_plan.plan(
        wanted, [[entry.model_copy(update={"value": 1.0 / (1 + entry.trial)}) for entry in whole.round_scores[0]]]
    )
    assert other[0].trials[3:] != whole.trials[3:5]


@pytest.mark.parametrize(("trials", "rounds"), [(4, 2), (6, 3), (7, 3), (8, 4), (40, 4)])
def test_few_trials_make_fewer_rounds(recipe: str, trials: int, rounds: int) -> None:
    pytest.importorskip("optuna")
    wanted = request(recipe, "optim.lr_g=1e-5..1e-1", trials=trials, sampler="optuna")
    assert sweep_plan.plan(wanted)[0].rounds == rounds


def test_any_seed_proposes_a_round() -> None:
    pytest.importorskip("optuna")
    dimension = parse_dimension("optim.lr_g=1e-5..1e-1")
    assert propose_round([dimension], [{"optim.lr_g": 1e-3}], {0: 1.0}, 2, seed=10**12, number=1)


def test_a_herd_of_several_per_class_saves_no_sprites_of_many_members(recipe: str) -> None:
    wanted = request(recipe, "optim.lr_g=1e-5..1e-1", trials=9, seeds=10, overrides=["herd.per_class=3"])
    (planned,) = sweep_plan.plan(wanted)[1]
    assert planned.run.sprites == 0


def test_a_step_of_a_few_members_measures_a_large_herd(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ganherd.herd.engine import autotune
    from ganherd.training.setup.assemble import assemble

    _, (planned,) = sweep_plan.plan(request(recipe, "optim.lr_g=1e-5..1e-2", trials=6))
    herd = assemble(planned).herd
    assert autotune.measured_members(herd) is herd
    monkeypatch.setattr(autotune, "_MOST_MEASURED", 5)
    few = autotune.measured_members(herd)
    assert few.num_members == 5 < herd.num_members
    plan = autotune._candidates(herd, planned.engine)[0]
    assert autotune.measure_rate(few, plan, 1e-9) > 0


def test_messages_name_the_options_of_a_sweep(cli, recipe: str) -> None:
    def sentence(*words: str) -> str:
        return cli("sweep", recipe, "--budget", "4steps", *words).sentence

    assert sentence("--vary", "optim.lrg=1e-4,1e-3").startswith("--vary optim.lrg=1e-4,1e-3: unknown key 'optim.lrg'")
    assert sentence("--vary", "train.batch=0,8").startswith("--vary train.batch=0,8: train.batch must be")
    assert sentence("--vary", "optim.lr_g=-1,2").startswith("--vary: optim.lr_g cannot be -1")
    assert "herd.members is 5" in sentence("--vary", "herd.members=5,6") and not Path("sweeps").exists()
    for_optuna = ("--vary", "train.ema=0.1..0.9", "--sampler", "optuna")
    assert "2 to 3 rounds" in sentence(*for_optuna, "--trials", "6", "--rounds", "4")
    assert sentence(*for_optuna, "--trials", "3") == "--sampler optuna needs at least 4 trials: raise --trials."
    resumed = cli("sweep", "--resume", "out", "--sampler", "optuna").sentence
    assert resumed == "--sampler is recorded in the sweep: leave it out with --resume."
    for option, *value in (("--seeds", "3"), ("--score", "kid"), ("-n", "50"), ("--seed", "7"), ("--no-halving",)):
        message = cli("sweep", "--resume", "out", option, *value).sentence
        assert message == f"{option} is recorded in the sweep: leave it out with --resume."
    assert "choose even or optuna" in sentence("--vary", "train.ema=0.1..0.9", "--sampler", "tpe")
    Path("full").mkdir()
    with RunFolder("full").lock():
        assert "choose another -o" in sentence("--vary", "optim.lr_g=1e-4,1e-3", "-o", "full")


def test_a_setting_without_effect_has_no_best_value(recipe: str, tmp_path: Path) -> None:
    """The gradient penalty is no part of the loss, so both trials are the same GANs."""
    wanted = request(recipe, "loss.gp_weight=1,5", overrides=("loss.name=hinge",))
    record = sweep(wanted, tmp_path / "out", quiet=True)
    assert ranking.answer(record).startswith("None is best: all 2 trials that trained as long have KID ")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([2.0, 1.0], "Best: b, with FID 1.000. Its"),
        ([2.0, 1.0, 1.0], "Best: b, with FID 1.000. c has exactly the same FID. Its"),
        ([2.0, 1.0, 1.0, 1.0], "Best: b, with FID 1.000. 2 other trials have exactly the same FID. Its"),
        ([1.0, 1.0, 1.0], "None is best: all 3 trials that trained as long have FID 1.000, so"),
    ],
)
def test_trials_with_exactly_the_best_score_are_counted(values: list[float], says: str) -> None:
    scores = [sweep_record.TrialScore(trial=number, value=value) for number, value in enumerate(values)]
    rung = sweep_record.RungResult(step=9, scores=scores, left=[])
    record = sweep_record.SweepRecord.model_construct(score="fid", names=["a", "b", "c", "d"], rungs=[rung], seeds=1)
    assert ranking.answer(record).startswith(says)
