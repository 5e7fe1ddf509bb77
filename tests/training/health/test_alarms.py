"""Alarms during training: the right one for each GAN that fails, none for a healthy one, each reported once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recipes
import run_files
import tiny_runs
import torch
from hypothesis import given
from hypothesis import strategies as st

from ganherd.herd.engine.engines import Plan
from ganherd.herd.state import members_of
from ganherd.recipe import recipe_file
from ganherd.runs import run_status, status_text
from ganherd.runs.folder import RunFolder
from ganherd.runs.records import LOOK_SCORES
from ganherd.training import loop
from ganherd.training.health.alarms import ALARMS, LIMITS, Alarms
from ganherd.training.health.monitor import Monitor, _called, below
from ganherd.training.health.repair import repair
from ganherd.training.recording.progress import Progress
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import RunFailed, UserError

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FAILING = ["collapsed", "cycling", "dead critic, BCE", "dead critic, Wasserstein", "memorising", "diverged"]
HEALTHY = ["healthy, Wasserstein", "healthy, non-saturating"]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)


# -- the right alarm --------------------------------------------------------------------------------------------------


def alarms_of(kind: str, folder: Path, seed: int, seeds: int, steps: int | None = None) -> list[dict[str, int]]:
    """For each GAN of the kind the step at which each alarm began."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import alarms
        import failing_gans

        trainer = alarms.train(failing_gans.recipe(kind, folder, seed, seeds, steps), folder / "run")
        result: list[dict[str, int]] = failing_gans.first_alarms(trainer.folder.events(), trainer.herd.num_members)
    return result


@pytest.mark.further(but=["collapsed", "dead critic, BCE"])
@pytest.mark.parametrize("kind", FAILING)
def test_a_gan_made_to_fail_raises_its_alarm(tmp_path: Path, kind: str) -> None:
    right = {"dead critic, BCE": "dead_critic", "dead critic, Wasserstein": "dead_critic", "collapsed": "collapse"}
    result = alarms_of(kind, tmp_path, seed=10, seeds=2)
    assert len(result) == 2
    for alarms in result:
        assert right.get(kind, kind) in alarms
        # a generator that plays against a discriminator that never learns soon makes one image only
        assert set(alarms) - {right.get(kind, kind)} <= ({"collapse"} if kind == "dead critic, BCE" else set())


@pytest.mark.further
def test_a_healthy_gan_raises_none(tmp_path: Path) -> None:
    assert alarms_of(HEALTHY[0], tmp_path, seed=10, seeds=1, steps=300) == [{}] * 10


@pytest.mark.long
@pytest.mark.parametrize("kind", FAILING)
def test_every_seed_that_fails_raises_its_alarm(tmp_path: Path, kind: str) -> None:
    """Seeds that the limits were not tuned on."""
    right = {"dead critic, BCE": "dead_critic", "dead critic, Wasserstein": "dead_critic", "collapsed": "collapse"}
    result = alarms_of(kind, tmp_path, seed=20, seeds=10)
    assert [right.get(kind, kind) in alarms for alarms in result] == [True] * 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", HEALTHY)
def test_no_healthy_seed_raises_any(tmp_path: Path, kind: str) -> None:
    assert alarms_of(kind, tmp_path, seed=20, seeds=10) == [{}] * 100


# -- told once --------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["bad", "good", "unknown"]), max_size=40), st.sampled_from(ALARMS[2:]))
def test_an_alarm_is_told_when_it_begins_and_when_it_ends(looks: list[str], what: str) -> None:
    book, number = Alarms(3), ALARMS.index(what)
    patience, ill, row = LIMITS.patience[number], False, 0
    last = ""
    for look in looks:
        bad, known = torch.zeros(3, 4, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)
        bad[1, number - 2], known[1, number - 2] = look == "bad", look != "unknown"
        begun, over = book.note(2, bad, known)
        if look != "unknown":
            row = row + 1 if look == last else 1
            last = look
        begins, ends = not ill and last == "bad" and row >= patience, ill and last == "good" and row >= patience
        assert (begun, over) == ([(1, what)] * begins, [(1, what)] * ends)
        ill = (ill or begins) and not ends
        assert book.is_ill(1) == ill and not book.is_ill(0)


def sick(settings: dict[str, Any], run: Path, member: int = 1, at: int = 6, until: int = 99) -> Path:
    """Trains a little herd in which one generator makes the same image for every noise, for some steps."""
    tick = loop.Trainer.tick
    saved: list[torch.Tensor] = []

    def poison(self: loop.Trainer, step: int) -> None:
        tick(self, step)
        if step == at:
            saved.append(self.herd.state["g.params"][member].clone())
        if at <= step < until and not self.state.repairs[member]:
            self.herd.state["g.params"][member] = 0.0
        if step == until:
            self.herd.state["g.params"][member] = saved[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Trainer, "tick", poison)
        tiny_runs.train(run, settings)
    return run


def test_a_collapse_that_passes_is_told_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = recipes.noise_recipe(tmp_path, "20steps", watch={"every": 1})
    run = sick(settings, tmp_path / "run", until=12)
    reported = [e for e in RunFolder(run).events() if e["event"] in ("alarm", "calm") and e["what"] == "collapse"]
    assert [(e["step"], e["event"], e["member"]) for e in reported] == [(8, "alarm", 1), (14, "calm", 1)]
    assert reported[0]["spread"] == 0.0 and reported[0]["name"] == "member 1 (1)"
    assert tiny_runs.command("status", run) == 0
    output = capsys.readouterr().out
    assert "step 8: member 1 (1) collapse\n" in output and "step 14: member 1 (1) collapse is over\n" in output
    assert "not well now" not in output


def test_who_is_ill_is_told_by_status_and_the_display(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sick(recipes.noise_recipe(tmp_path, "12steps", watch={"every": 1}), tmp_path / "run")
    facts = run_status.describe(run)
    assert [(e["what"], e["member"]) for e in facts.active_alarms] == [("collapse", 1)]
    assert "not well now: member 1 (1) (collapse)" in status_text.text(facts)
    progress = Progress(["a", "b", "c", "d", "e"])
    progress.say_alarms(300, [(0, "dead_critic"), (1, "collapse"), (2, "collapse"), (3, "collapse"), (4, "collapse")])
    assert capsys.readouterr().err.splitlines() == [
        "step 300: collapse: b, c, d and 1 more",
        "step 300: dead critic: a",
    ]
    for change, shown in ((progress.alarm, "dead critic"), (progress.calm, "")):
        change(0, "dead_critic")
        with progress._console.capture() as captured:
            progress._console.print(progress._view())
        assert ("dead critic" in captured.get()) == bool(shown)


def test_scores_of_the_looks_stand_in_the_metrics(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "12steps"))
    lines = RunFolder(tmp_path / "run").metrics()
    assert [(line["step"], line.get("looked")) for line in lines] == [(3, None), (6, 4), (9, 8), (12, 12)]
    for line in lines[1:]:
        assert all(len(line[name]) == 3 for name in LOOK_SCORES)


# -- what follows -----------------------------------------------------------------------------------------------------


def last_state(run: Path) -> dict[str, torch.Tensor]:
    return {k: v for k, v in run_files.tensors(run_files.last_checkpoint(run)).items() if "/watch." not in k}


def shared(folder: Path, policy: str = "tell", **run: Any) -> dict[str, Any]:
    """Three members that share the data."""
    settings = recipes.noise_recipe(folder, "14steps", watch={"every": 1, "collapse": policy}, **run)
    settings["data"]["partition"], settings["herd"] = "all", {"members": 3}
    return settings


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The same herd, without any alarm."""
    folder = tmp_path_factory.mktemp("untouched")
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        tiny_runs.train(folder / "run", shared(folder))
    return last_state(folder / "run")


@pytest.mark.parametrize("policy", ["tell", "rollback", "reseed", "neighbour"])
def test_a_collapsed_member_is_treated_as_the_recipe_says_and_no_other_changes(
    tmp_path: Path, policy: str, untouched: dict[str, torch.Tensor]
) -> None:
    run = sick(shared(tmp_path, policy), tmp_path / "run")
    result = last_state(run)
    for name, value in result.items():
        assert torch.equal(value[[0, 2]], untouched[name][[0, 2]]), name
    repairs = [e for e in RunFolder(run).events() if e["event"] == "repair"]
    key = next(k.partition("/")[0] for k in result) + "/set."
    if policy == "tell":
        assert not repairs and int(result[f"{key}life"][1]) == 0
        return
    (repair,) = repairs
    assert (repair["step"], repair["member"], repair["policy"], repair["life"]) == (8, 1, policy, 1)
    assert int(result[f"{key}life"][1]) == 1
    assert float(result[f"{key}lr_g"][1]) == 2e-4 / (2 if policy == "rollback" else 1)
    expected = {"rollback": ("from_step", 7), "neighbour": ("from_member", 2)}.get(policy)
    assert expected is None or repair[expected[0]] == expected[1]


def test_a_member_that_starts_anew_has_the_weights_of_its_next_life(tmp_path: Path) -> None:
    from ganherd.herd.state import Seat, new_state
    from ganherd.training.setup.assemble import makers

    recipe = recipe_file.load(recipes.noise_recipe(tmp_path))
    assembly = assemble(recipe)
    folder = RunFolder.create(tmp_path / "run")
    trainer = loop.Trainer(assembly, Plan("fused", 3, 1, "cpu"), folder, loop.Budget(5), Progress([], quiet=True))
    before = {name: value.clone() for name, value in trainer.herd.state.items()}
    trainer.herd.state["g.adam.t"][2] = 7
    repair(trainer, 2, "collapse", "reseed")
    make_g, make_d = makers(recipe, assembly.dataset.shape, 3, False)
    fresh = new_state(make_g, make_d, [Seat(0, 2, life=1)], {}, torch.float32, True)[2]
    for name, value in fresh.items():
        assert torch.equal(trainer.herd.state[name][2], value[0]), name
    assert not torch.equal(before["g.params"][2], trainer.herd.state["g.params"][2])
    assert float(trainer.herd.state["set.lr_g"][2]) == float(before["set.lr_g"][2])
    trainer.close()


def test_a_member_with_two_alarms_at_once_is_repaired_once_for_the_first(tmp_path: Path) -> None:
    recipe = recipe_file.load(
        recipes.noise_recipe(tmp_path, watch={"every": 1, "cycling": "rollback", "collapse": "reseed"})
    )
    folder = RunFolder.create(tmp_path / "run")
    plan = Plan("fused", 3, 1, "cpu")
    trainer = loop.Trainer(assemble(recipe), plan, folder, loop.Budget(5), Progress([], quiet=True))
    bad, known = torch.zeros(3, 4, dtype=torch.bool), torch.ones(3, 4, dtype=torch.bool)
    bad[2] = True
    trainer.state.alarms.state["watch.bad"][2] = max(LIMITS.patience)  # they were all bad long enough
    trainer.health.raise_alarms(trainer, 2, bad, known)
    trainer.close()
    reported = [(e["event"], e.get("what"), e.get("policy")) for e in folder.events()]
    assert reported == [("alarm", what, None) for what in ALARMS[2:]] + [("repair", None, "reseed")]


def test_policy_stop_ends_the_run_and_says_what_to_try(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"member 1 cannot continue: its samples are hardly varied.*; try a lower"):
        sick(shared(tmp_path, "stop"), tmp_path / "run")
    assert RunFolder(tmp_path / "run").info.state == "failed"


def test_after_the_limit_an_alarm_is_only_told(tmp_path: Path) -> None:
    run = sick(shared(tmp_path, "rollback", repair={"limit": 0}), tmp_path / "run")
    events = [e["event"] for e in RunFolder(run).events()]
    assert events.count("alarm") == 1 and "repair" not in events


@pytest.mark.parametrize("key", ["run.watch.collapse", "run.watch.cycling", "run.repair.policy"])
def test_a_neighbour_of_another_class_is_refused_when_the_recipe_is_read(key: str) -> None:
    with pytest.raises(UserError, match=f"{key} cannot be neighbour with data.partition by-class") as refused:
        recipe_file.load("digits-wcgan", [f"{key}=neighbour"])
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=f"{key} cannot be neighbour in a herd of one member"):
        recipe_file.load("digits-wcgan", ["data.partition=all", f"{key}=neighbour"])
    recipe_file.load("digits-wcgan", ["data.partition=all", "herd.members=2", f"{key}=neighbour"])


# -- watching is exact, cheap and changes nothing ---------------------------------------------------------------------


@pytest.mark.further("wcgan")
@pytest.mark.parametrize("net", recipes.NETS)
def test_watching_changes_nobody(tmp_path: Path, net: str) -> None:
    for every in (0, 1):
        tiny_runs.train(
            tmp_path / f"run-{every}", recipes.noise_recipe(tmp_path, "9steps", net, watch={"every": every})
        )
    left, right = (last_state(tmp_path / f"run-{every}") for every in (0, 1))
    assert all(left[name].numpy().tobytes() == right[name].numpy().tobytes() for name in left)


@pytest.mark.parametrize("net", recipes.NETS)
def test_a_look_leaves_the_state_and_the_dice_alone_and_sees_the_same_twice(tmp_path: Path, net: str) -> None:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path, net=net)))
    before = {name: value.clone() for name, value in assembly.herd.state.items()}
    dice = torch.get_rng_state()
    watches = [Monitor(assembly), Monitor(assembly)]
    for watch in watches:
        watch.look(4)
    assert all(torch.equal(assembly.herd.state[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), dice)
    for name, value in watches[0].state.items():
        assert value.numpy().tobytes() == watches[1].state[name].numpy().tobytes()


def test_a_member_that_is_not_finite_spoils_no_other_member_scores(tmp_path: Path) -> None:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path)))
    watch = Monitor(assembly)
    watch.look(1)
    whole = watch.scores()
    assembly.herd.state["g.params"][1] = float("nan")
    watch.look(2)
    for name, values in watch.scores().items():
        assert values[1] != values[1], name
        if name != "returns":  # which looks back
            assert str([values[0], values[2]]) == str([whole[name][0], whole[name][2]]), name


@pytest.mark.parametrize("net", ["small", "wcgan"])
def test_a_look_at_a_member_is_the_same_in_any_company(tmp_path: Path, net: str) -> None:
    """To 1e-11, though its weights are float32: which members are computed together depends on the ranks."""
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path, net=net)))
    together = Monitor(assembly)
    together.look(1)
    for member in range(3):
        alone = Monitor(assembly.only([member], members_of(assembly.herd.state, [member])))
        alone.look(1)
        for name, value in alone.state.items():
            assert torch.allclose(value[0], together.state[name][member], 1e-11, 1e-11), name


def test_logits_that_differ_by_rounding_are_ties() -> None:
    one = torch.tensor([[1.0, 1.0 + 1e-12, 1.0 - 1e-12]], dtype=torch.float64)
    assert below(one, one.flip(1)).tolist() == [0.5]
    assert below(one, one + 1e-6).tolist() == [1.0]
    assert below(1e-15 * one, 2e-15 * one).tolist() == [1.0]  # small is not equal


def test_a_net_that_only_runs_in_its_own_precision_is_looked_at_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path)))
    wide, own = Monitor(assembly), Monitor(assembly)
    wide.look(1)

    def refusing(net: Any, batched: Any, mapped: bool) -> torch.Tensor:
        if next(iter(batched[0].values())).dtype == torch.float64:
            raise RuntimeError("expected m1 and m2 to have the same dtype")
        return _called(net, batched, mapped)

    monkeypatch.setattr("ganherd.training.health.monitor._called", refusing)
    own.look(1)
    assert torch.allclose(own.state["watch.sketch"], wide.state["watch.sketch"], 1e-3, 1e-3)
    assert not torch.equal(own.state["watch.sketch"], wide.state["watch.sketch"])


def test_memory_that_runs_out_never_changes_how_members_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assemble(recipe_file.load(recipes.noise_recipe(tmp_path)))
    expected, watch = Monitor(assembly), Monitor(assembly)
    expected.look(0)

    def out(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr("ganherd.training.health.monitor._called", out)
        with pytest.raises(torch.OutOfMemoryError):
            watch.look(0)
    watch.look(0)
    assert watch._ways.values() and list(watch._ways.values()) == list(expected._ways.values())
    for name, value in expected.state.items():
        assert torch.equal(watch.state[name], value), name


def test_an_illness_survives_a_resume(tmp_path: Path) -> None:
    """An alarm is reported once, although the run was stopped and resumed between its beginning and its end."""
    settings = recipes.noise_recipe(tmp_path, "12steps", watch={"every": 1})
    run = sick(settings, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        tick = loop.Trainer.tick

        def still(self: loop.Trainer, step: int) -> None:
            tick(self, step)
            self.herd.state["g.params"][1] = 0.0

        patch.setattr(loop.Trainer, "tick", still)
        tiny_runs.resume(run, "20steps")
    assert [e["step"] for e in RunFolder(run).events() if e["event"] == "alarm" and e["what"] == "collapse"] == [8]


@pytest.mark.parametrize(
    ("watch", "sentence"),
    [
        *((watch, "(watch") for watch in (3, {}, {"every": -1, "first": 0}, {"every": "often", "first": 0})),
        ({"every": 4}, "does not say how often the members are looked at"),
    ],
)
def test_a_run_that_does_not_say_how_often_it_looks_is_refused(
    tmp_path: Path, watch: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "1steps"))
    RunFolder(tmp_path / "run").write_info(watch=watch)
    assert tiny_runs.command("train", "--resume", tmp_path / "run") == 2
    output = capsys.readouterr().err
    assert sentence in output
    assert "it cannot be resumed exactly" in output
