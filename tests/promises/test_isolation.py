"""Promise 4: a member that turns NaN, diverges or collapses is named and repaired, and no other member's numbers change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from further_tests import EACH_VALUE
from recipes import tiny_data, tiny_recipe
from torch import nn

from ganherd import Herd
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.herd.state import State
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget
from ganherd.training.loop import Trainer
from ganherd.training.recording.progress import Progress
from ganherd.training.setup.assemble import assemble
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import RunFailed

STEPS, SICK, AT = 12, 3, 5  # steps of the run; who falls ill, and after which step
SMALL = ["nets.generator.width=16", "nets.discriminator.width=16", "train.batch=16", "train.n_critic=1"]
WCGAN = [
    "nets.generator={name: wcgan, width: 8}",
    "nets.discriminator={name: wcgan, width: 4}",
    "nets.latent=8",
    "loss.name=wasserstein",
    "train.batch=8",
    "train.n_critic=1",
]
EVERY = ["run.record_every=2", "run.checkpoint_every=4", "run.sample_every=0"]

Poison = Callable[[State], None]


def herd_after(
    path: Path, overrides: list[str], engine: str = "fused", poison: Poison | None = None, from_step: int = AT
) -> Trainer:
    """A trainer after its last step, in which `poison` was let into the state once, or after every advance from then on."""
    recipe = recipe_file.load("digits-wcgan", [*EVERY, *overrides])
    assembly = assemble(recipe)
    plan = Plan(engine, assembly.herd.num_members, 1, "cpu")
    trainer = Trainer(assembly, plan, RunFolder.create(path), Budget(STEPS), Progress([], quiet=True))
    if poison:
        trainer.engine = _Poisoned(trainer.engine, poison, from_step)  # type: ignore[assignment]
    trainer.train(StopRequest())
    return trainer


class _Poisoned:
    """An engine that does its work and then spoils it, once."""

    def __init__(self, engine: Engine, poison: Poison, at: int, again: bool = False) -> None:
        self.engine, self.poison, self.at, self.again, self.done = engine, poison, at, again, False

    def advance(self, start: int, stop: int, sums: torch.Tensor, *rest: object) -> int:
        step = start
        if start < self.at <= stop and not self.done:
            step = self.engine.advance(start, self.at, sums)
            self.poison(self.engine.herd.state)
            self.done = not self.again
        return self.engine.advance(step, stop, sums, *rest)  # type: ignore[arg-type]


def nan_weights(state: State) -> None:
    state["g.params"][SICK, 7] = float("nan")


def inf_weights(state: State) -> None:
    state["d.params"][SICK, 0] = float("inf")


def nan_moments(state: State) -> None:
    state["d.adam.v"][SICK] = float("nan")


def nan_average(state: State) -> None:
    state["g.ema"][SICK, 3] = float("nan")


def huge_weights(state: State) -> None:
    state["d.params"][SICK] *= 30.0  # finite everywhere, but its loss leaves all bounds


def others(state: State) -> dict[str, torch.Tensor]:
    keep = [m for m in range(len(state["set.seed"])) if m != SICK]
    return {name: value[keep] for name, value in state.items()}


def assert_others_identical(healthy: Trainer, poisoned: Trainer) -> None:
    left, right = others(healthy.herd.state), others(poisoned.herd.state)
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different  # to the bit, in float32
    for one, two in zip(healthy.folder.metrics(), poisoned.folder.metrics(), strict=True):
        for key in ("loss_g", "loss_d", "real", "fake"):
            assert [v for m, v in enumerate(one[key]) if m != SICK] == [v for m, v in enumerate(two[key]) if m != SICK]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trainer]:
    """The unpoisoned run of each setting, trained once."""
    known: dict[str, Trainer] = {}

    def get(overrides: list[str], engine: str = "fused") -> Trainer:
        name = f"{engine} {overrides}"
        if name not in known:
            known[name] = herd_after(tmp_path_factory.mktemp("healthy") / "run", overrides, engine)
        return known[name]

    return get


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("engine", ["fused", "loop"])
@pytest.mark.parametrize(
    ("poison", "called"),
    [
        (nan_weights, "nan"),
        (inf_weights, "nan"),
        (nan_moments, "nan"),
        (nan_average, "nan"),
        (huge_weights, "diverged"),
    ],
)
def test_a_non_finite_member_is_named_and_repaired_and_no_other_changes(
    tmp_path: Path, healthy: Callable[..., Trainer], poison: Poison, called: str, engine: str
) -> None:
    poisoned = herd_after(tmp_path / "run", SMALL, engine, poison)
    assert_others_identical(healthy(SMALL, engine), poisoned)

    events = poisoned.folder.events()
    found = [e for e in events if e["event"] == called]
    assert [(e["step"], e["member"], e["name"]) for e in found] == [
        (6, SICK, f"member {SICK} (3)")
    ]  # at the next record
    repair = next(e for e in events if e["event"] == "repair")
    assert (repair["member"], repair["from_step"], repair["life"]) == (SICK, 4, 1)  # the last good checkpoint
    assert repair["lr_g"] == repair["lr_d"] == 5e-4 / 2
    assert len([e for e in events if e["event"] == "repair"]) == 1

    state = poisoned.herd.state
    assert all(torch.isfinite(v[SICK]).all() for v in state.values() if v.is_floating_point())
    assert float(state["set.lr_g"][SICK]) == 5e-4 / 2 and int(state["set.life"][SICK]) == 1
    assert poisoned.step == STEPS
    # it really went on: from step 4, in the six steps after the repair
    assert int(state["g.adam.t"][SICK]) == 4 + STEPS - 6
    assert not torch.equal(state["g.params"][SICK], healthy(SMALL, engine).herd.state["g.params"][SICK])


@pytest.mark.further("g.params")
@pytest.mark.parametrize("part", ["g.params", "d.params", "d.buffers.layers.6.running_var"])
def test_nan_does_not_leak_through_fused_convolutions_or_batch_norm(
    tmp_path: Path, healthy: Callable[..., Trainer], part: str
) -> None:
    def poison(state: State) -> None:
        assert part in state
        state[part][SICK] = float("nan")

    # nobody repairs it, so that it goes on through every layer for the rest of the run
    told = [*WCGAN, "run.repair.policy=tell"]
    poisoned = herd_after(tmp_path / "run", told, poison=poison)
    assert_others_identical(healthy(WCGAN), poisoned)
    if part != "d.buffers.layers.6.running_var":
        assert not torch.isfinite(poisoned.herd.state["g.params"][SICK]).any()


def test_two_non_finite_members_are_repaired_independently(tmp_path: Path, healthy: Callable[..., Trainer]) -> None:
    def both(state: State) -> None:
        nan_weights(state)
        state["d.params"][8] = float("nan")

    poisoned = herd_after(tmp_path / "run", SMALL, poison=both)
    assert [e["member"] for e in poisoned.folder.events() if e["event"] == "repair"] == [SICK, 8]
    ours, theirs = poisoned.herd.state["g.params"], healthy(SMALL).herd.state["g.params"]
    assert [m for m in range(10) if not torch.equal(ours[m], theirs[m])] == [SICK, 8]


def test_a_second_repair_halves_again_and_the_limit_stops_the_run(tmp_path: Path) -> None:
    """Poisoned after every advance, a member is repaired as often as the recipe allows; then the run says who and why."""

    def start(path: Path, limit: int) -> Trainer:
        recipe = recipe_file.load("digits-wcgan", [*EVERY, *SMALL, f"run.repair.limit={limit}"])
        assembly = assemble(recipe)
        plan = Plan("fused", assembly.herd.num_members, 1, "cpu")
        trainer = Trainer(assembly, plan, RunFolder.create(path), Budget(STEPS), Progress([], quiet=True))
        trainer.engine = _Always(trainer.engine)  # type: ignore[assignment]
        return trainer

    class _Always(_Poisoned):
        def __init__(self, engine: Engine) -> None:
            super().__init__(engine, nan_weights, 0)

        def advance(self, start: int, stop: int, sums: torch.Tensor, *rest: object) -> int:
            stop = self.engine.advance(start, stop, sums)
            self.poison(self.engine.herd.state)
            return stop

    trainer = start(tmp_path / "limited", 2)
    with pytest.raises(RunFailed, match=r"member 3 \(3\) cannot continue: it turned NaN at step 6, after 2 repairs"):
        trainer.train(StopRequest())
    repairs = [e for e in trainer.folder.events() if e["event"] == "repair"]
    assert [(e["lr_g"], e["life"]) for e in repairs] == [(5e-4 / 2, 1), (5e-4 / 4, 2)]
    with pytest.raises(RunFailed, match="after 0 repairs"):
        start(tmp_path / "none", 0).train(StopRequest())


def test_policy_stop_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"member 3 \(3\) cannot continue: it turned NaN at step 6") as failed:
        herd_after(tmp_path / "run", [*SMALL, "run.repair.policy=stop"], poison=nan_weights)
    assert "optim.lr_g" in str(failed.value)  # and what to try
    events = RunFolder(tmp_path / "run").events()
    assert [e["event"] for e in events][-1] == "nan"
    assert not [e for e in events if e["event"] == "repair"]


def test_policy_tell_only_reports(tmp_path: Path, healthy: Callable[..., Trainer]) -> None:
    poisoned = herd_after(tmp_path / "run", [*SMALL, "run.repair.policy=tell"], poison=nan_weights)
    assert_others_identical(healthy(SMALL), poisoned)
    assert {e["event"] for e in poisoned.folder.events()} == {"checkpoint", "nan"}
    assert {e["member"] for e in poisoned.folder.events() if e["event"] == "nan"} == {SICK}
    assert poisoned.step == STEPS


def test_a_collapsed_member_raises_the_alarm(tmp_path: Path) -> None:
    def collapse(state: State) -> None:
        state["g.params"][SICK] = 0.0  # the same image for every noise
        state["g.ema"][SICK] = 0.0

    poisoned = herd_after(tmp_path / "run", [*SMALL, "run.watch.every=2"], poison=collapse, from_step=6)
    alarms = [e for e in poisoned.folder.events() if e["event"] == "alarm"]
    assert [(e["step"], e["what"], e["member"]) for e in alarms] == [(10, "collapse", SICK)]  # at the third look, once
    assert alarms[0]["spread"] == 0.0


def test_a_repaired_member_survives_a_resume(tmp_path: Path) -> None:
    """The new learning rate, stream and count of repairs are part of the checkpoint."""
    from ganherd.runs import checkpoint

    poisoned = herd_after(tmp_path / "run", SMALL, poison=nan_weights)
    kept = checkpoint.load(checkpoint.path_of(poisoned.folder.checkpoints, STEPS), poisoned.herd.nets)
    assert kept.meta.repairs == [int(m == SICK) for m in range(10)]
    assert float(kept.state["set.lr_d"][SICK]) == 5e-4 / 2 and int(kept.state["set.life"][SICK]) == 1


@pytest.mark.usefixtures("brief_classifier")
def test_a_run_finishes_with_a_member_that_was_not_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixture has all other members; asking for the missing one is an error that names it."""
    import ganherd
    from ganherd.util.errors import UserError

    plain = Engine.advance

    def advance(self: Engine, *words: object) -> int:
        step = plain(self, *words)  # type: ignore[arg-type]
        if "g.ema" in self.herd.state:  # not the small herd that is compared with plain PyTorch before
            for part in ("g.params", "g.ema"):
                self.herd.state[part][1] = float("nan")
        return step

    monkeypatch.setattr(Engine, "advance", advance)
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    recipe = tiny_recipe(tiny_data(tmp_path / "small.npz"), run={"repair": {"policy": "tell"}})
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True)
    assert run.folder.info.state == "finished" and run.folder.events()[-1]["event"] == "finish"
    assert "member 1 of the mixture" in run.scores["skipped"]["diversity"]
    made = ganherd.load(run.path)
    assert len(made.sample(5, label="zero")) == 5
    with pytest.raises(UserError, match="member 1 of the mixture generates numbers that are not finite"):
        made.sample(5, label="one")


class _CriticWithNorms(nn.Module):
    """Spectral norm, batch norm, and a buffer that no pass changes."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 3, 2, 1))
        self.layers = nn.Sequential(first, nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1))
        self.register_buffer("scale", torch.full((1, 8, 8), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x * self.scale)


@pytest.mark.parametrize("engine", ["fused", "loop"])
@pytest.mark.parametrize(
    ("common", "others"),
    [
        ({"r1_weight": [0, 0]}, {"r1_weight": [0, 1]}),
        ({"r1_weight": [0, 0], "slope_noise": 0.1}, {"r1_weight": [0, 1], "slope_noise": 0.1}),
        ({"consistency_weight": [0, 0]}, {"consistency_weight": [0, 1]}),
        ({"name": ["hinge", "hinge"]}, {"name": ["hinge", "wasserstein-gp"]}),
        ({"name": ["hinge", "hinge"]}, {"name": ["hinge", "relativistic-pairing"]}),
    ],
    ids=["r1", "slope-noise", "consistency", "penalty", "relativistic"],
)
def test_a_term_of_another_members_loss_does_not_move_spectral_norms_or_batch_norms(
    engine: str, common: dict[str, Any], others: dict[str, Any]
) -> None:
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tanh()
    states = []
    for loss in (common, others):
        herd = Herd(
            {"name": "wcgan", "width": 2},
            _CriticWithNorms,
            members=2,
            shape=(1, 8, 8),
            latent=4,
            engine=engine,
            loss={"name": "hinge", **loss},
            train={"precision": "float64"},
            optim={"lr_g": 2e-3, "lr_d": 2e-3, "eps": 1e-3},
        )
        for _ in range(5):
            herd.step(x)
        states.append({name: value.clone() for name, value in herd.state.items() if name[:2] in ("g.", "d.")})
    for name, value in states[0].items():
        if value.is_floating_point():
            assert torch.allclose(value[0], states[1][name][0], rtol=0, atol=1e-12), name
    moved = [
        name for name, value in states[0].items() if not torch.allclose(value[1].double(), states[1][name][1].double())
    ]
    assert {"g.params", "d.params"} <= set(moved) and any(name.startswith("d.buffers") for name in moved)
