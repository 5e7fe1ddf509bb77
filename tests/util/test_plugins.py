"""Strategies, losses, nets, metrics, data sources and engines from outside of the package train like ganherd's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field
from tiny_runs import skip_products
from torch import Tensor, nn

import ganherd
from ganherd import register
from ganherd.data.readers.download import list_sources
from ganherd.herd.checks import plugin_rows
from ganherd.herd.engine.engines import Engine
from ganherd.losses import LossSpec
from ganherd.recipe import recipe_file
from ganherd.recipe.base import Span
from ganherd.recipe.strategy.strategy_settings import StrategySettings
from ganherd.scoring import score_seeds
from ganherd.strategies.strategy import Event, Strategy
from ganherd.util import registry
from ganherd.util.errors import UserError
from ganherd.util.registry import (
    AUGMENTATIONS,
    DATA_SOURCES,
    DISCRIMINATORS,
    ENGINES,
    GENERATORS,
    LOSSES,
    METRICS,
    STRATEGIES,
)

REGISTRIES = (STRATEGIES, LOSSES, GENERATORS, DISCRIMINATORS, METRICS, DATA_SOURCES, AUGMENTATIONS, ENGINES)


class RotateConfig(StrategySettings):
    every: Span = "1epochs"
    by: int = 1

    @property
    def default_members(self) -> int | None:
        return 3

    @property
    def spans(self) -> Mapping[str, str]:
        return {"every": self.every}


class Rotate(Strategy):
    """Pass every discriminator on to the next member."""

    def __init__(self, herd: Any, every: int, by: int) -> None:
        super().__init__()
        self.herd, self.every, self.by = herd, every, by

    @classmethod
    def build(cls, prepared: Any, spans: Mapping[str, int]) -> Strategy:
        return cls(prepared.herd, spans["every"], prepared.recipe.strategy.settings.by)

    def next_after(self, step: int) -> int | None:
        return (step // self.every + 1) * self.every

    def open(self, step: int) -> Iterator[Event]:
        if self.meets_at(step):
            rows = self.herd.state["d.params"]
            rows.copy_(rows.roll(self.by, 0))
            yield "rotate", {"by": self.by}


class FlatGenerator(nn.Module):
    def __init__(self, shape: tuple[int, ...], latent: int, width: int = 4) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.Sequential(
            nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, int(np.prod(shape))), nn.Tanh()
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z).reshape(len(z), *self.shape)


class CountingEngine(Engine):
    calls = 0

    def advance(self, *given: Any, **named: Any) -> int:
        type(self).calls += 1
        return super().advance(*given, **named)


def stripes(settings: None, folder: Path) -> tuple[np.ndarray, np.ndarray, None]:
    x = np.tile(np.arange(16, dtype=np.uint8)[None, :, None, None] % 2 * 255, (24, 1, 1, 4)).reshape(24, 1, 8, 8)
    return x, np.arange(24) % 3, None


class Squared:
    """squares of differences"""

    def d(self, real: Tensor, fake: Tensor) -> Tensor:
        return (fake - real).square().mean(-1)

    def g(self, fake: Tensor) -> Tensor:
        return fake.square().mean(-1)


class FlatSettings(register.Settings):
    width: int = Field(4, ge=1)


class ShadeSettings(register.Settings):
    most: float = Field(0.5, ge=0, le=1)


def shade(x: Tensor, u: Tensor, settings: ShadeSettings) -> Tensor:
    return x - settings.most * u[..., None, None].to(x.dtype)


def brightness(real: np.ndarray, generated: np.ndarray) -> float:
    """mean of the samples"""
    return float(generated.mean() / 255)


@pytest.fixture
def plugins() -> Iterator[None]:
    register.strategy("rotate", settings=RotateConfig)(Rotate)
    register.loss("squared")(Squared)
    register.net("flat", role="generator", settings=FlatSettings)(FlatGenerator)
    register.metric("brightness", direction="nearest", best=0.5)(brightness)
    register.data("stripes", about="striped images")(stripes)
    register.augmentation("shade", settings=ShadeSettings)(shade)
    ENGINES.register("counting", about="counts its calls")(CountingEngine)
    yield
    names = ("rotate", "squared", "flat", "", "brightness", "stripes", "shade", "counting")
    for entries, name in zip(REGISTRIES, names, strict=True):
        entries.unregister(name)


def recipe(**sections: Any) -> dict[str, Any]:
    return {
        "data": {"source": "stripes", "partition": "all"},
        "nets": {
            "latent": 2,
            "generator": {"name": "flat", "width": 3},
            "discriminator": {"name": "small", "width": 3},
        },
        "loss": {"name": "squared"},
        "train": {"budget": "6steps", "batch": 4, "augment": ["flip", {"name": "shade", "most": 0.2}]},
        "strategy": {"name": "rotate", "rotate": {"every": "2steps"}},
        "engine": {"name": "counting", "device": "cpu", "threads": 1},
        "run": {"record_every": 3, "checkpoint_every": 3, "sample_every": 0, "watch": {"every": 0}},
        **sections,
    }


def test_a_run_trains_with_entries_of_every_registry(
    plugins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_products(monkeypatch)
    run = ganherd.train(recipe(), run=tmp_path / "run", quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "rotate"] == [2, 4]
    assert CountingEngine.calls > 0
    written = recipe_file.load(tmp_path / "run" / "recipe.yaml")
    assert written.strategy.model_dump(exclude={"share"}) == {"name": "rotate", "rotate": {"every": "2steps", "by": 1}}
    assert written.members == 3 and written.nets.generator.settings == {"width": 3}
    assert written.model_dump()["train"]["augment"] == ["flip", {"name": "shade", "settings": {"most": 0.2}}]
    recorded = {(plugin.kind, plugin.name): plugin.module for plugin in run.folder.info.plugins or ()}
    kinds = {"strategy": "rotate", "loss": "squared", "generator": "flat", "data source": "stripes"}
    assert recorded == dict.fromkeys({**kinds, "augmentation": "shade", "engine": "counting"}.items(), __name__)
    mixture = ganherd.load(run.path)
    assert mixture.sample(4).x.shape == (4, 1, 8, 8)
    scores = score_seeds(mixture, written_dataset(written), ["brightness"], samples=9)
    assert 0 <= scores["brightness"]["value"] <= 1
    ganherd.resume(run.path, ["train.budget=9steps"], quiet=True)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "rotate"] == [2, 4, 6, 8]


def written_dataset(recipe: Any) -> Any:
    from ganherd.data import load

    return load(recipe.data)


def test_settings_of_a_new_strategy_are_checked_like_others(plugins: None) -> None:
    with pytest.raises(UserError, match=r"unknown key 'strategy.rotate.evry'; did you mean 'strategy.rotate.every'\?"):
        recipe_file.load(recipe(strategy={"name": "rotate", "rotate": {"evry": "2steps"}}))
    with pytest.raises(UserError, match="strategy.rotate.by must be a whole number, not 'x'"):
        recipe_file.load(recipe(strategy={"name": "rotate", "rotate": {"by": "x"}}))
    with pytest.raises(UserError, match="strategy.rotate has no effect with strategy.name gap"):
        recipe_file.load(recipe(strategy={"name": "gap", "rotate": {"by": 2}}))
    with pytest.raises(UserError, match="each sees another class"):
        recipe_file.load(recipe(data={"source": "stripes"}))


def test_names_of_ganherd_cannot_be_taken(plugins: None) -> None:
    with pytest.raises(UserError, match="ganherd has a loss named 'hinge' already"):
        register.loss("hinge")(Squared)
    with pytest.raises(UserError, match="cannot name a loss"):
        register.loss("my loss")(Squared)


def named_wrongly(real: Tensor) -> Tensor:
    return real


class TakesTooMuch(Squared):
    def d(self, real: Tensor, fake: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        return real


class OpensWithoutStep(Strategy):
    def open(self) -> Iterator[Event]:  # type: ignore[override]
        return iter(())


WRONG = [
    (register.loss("x"), named_wrongly, r"the loss x has no d: give it d\(real, fake\) and g\(fake\)"),
    (
        register.loss("x"),
        TakesTooMuch,
        r"d of the loss x must take \(self, real, fake\), and its arguments are \(self, real,",
    ),
    (
        register.loss("x", settings=FlatSettings),
        Squared,
        r"the loss x must take \(settings\), and its arguments are \(\)",
    ),
    (
        register.metric("x", direction="lower"),
        named_wrongly,
        r"the metric x must take \(real, generated\), and its arguments",
    ),
    (register.metric("x", direction="up"), brightness, "has direction 'up': use one of lower, higher, nearest"),
    (register.metric("x", direction="nearest"), brightness, "give the best value"),
    (register.strategy("x"), Squared, "the strategy x must be a class derived from ganherd.register.Strategy"),
    (
        register.strategy("x"),
        OpensWithoutStep,
        r"open of the strategy x must take \(self, step\), and its arguments are",
    ),
    (register.data("x"), named_wrongly, r"the data source x must take \(settings, folder\)"),
    (register.net("x", role="generator"), named_wrongly, "the net x must be a class derived from torch.nn.Module"),
    (register.augmentation("x"), named_wrongly, r"the augmentation x must take \(x, u\)"),
    (register.augmentation("x", numbers=-1), shade, "give a whole number"),
]


@pytest.mark.parametrize(("decorator", "target", "sentence"), WRONG)
def test_a_wrong_signature_is_reported_in_a_sentence(decorator: Any, target: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        decorator(target)
    assert "\n" not in str(caught.value)


def test_a_net_has_the_role_of_a_generator_or_of_a_discriminator() -> None:
    with pytest.raises(UserError, match="the net x has the role 'encoder'"):
        register.net("x", role="encoder")  # type: ignore[arg-type]


class MixesMembers(Squared):
    def d(self, real: Tensor, fake: Tensor) -> Tensor:
        return (fake - real.mean(0)).square().mean(-1)


class OneNumberForAll(Squared):
    def g(self, fake: Tensor) -> Tensor:
        return fake.mean()


class DrawsNumbers(Squared):
    def g(self, fake: Tensor) -> Tensor:
        return (fake * torch.rand_like(fake)).mean(-1)


class HasNoGradient(Squared):
    def g(self, fake: Tensor) -> Tensor:
        return fake.detach().mean(-1)


class NotANumber(Squared):
    def d(self, real: Tensor, fake: Tensor) -> Tensor:
        return (fake - real).mean(-1) * float("nan")


class MixingPenalty(Squared):
    @staticmethod
    def penalty(critic: Any, real: Tensor, fake: Tensor, at: Tensor) -> Tensor:
        return critic(real).mean().expand(len(real))


class TakesProbabilities(Squared):
    def d(self, real: Tensor, fake: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy(real, torch.ones_like(real), reduction="none").mean(-1)


class CountsCalls(Squared):
    """It depends on the number of calls, but not within the first ones."""

    def __init__(self) -> None:
        self.calls = 0

    def g(self, fake: Tensor) -> Tensor:
        self.calls += 1
        return fake.square().mean(-1) * (1.0 if self.calls < 1000 else 2.0)


_CALLS = [0]


class CountsOutside(Squared):
    def g(self, fake: Tensor) -> Tensor:
        _CALLS[0] += 1
        return fake.square().mean(-1)


class FillsCache(Squared):
    def __init__(self) -> None:
        self.cache: dict[Any, Tensor] = {}

    def g(self, fake: Tensor) -> Tensor:
        ones = self.cache.setdefault(fake.shape, torch.ones_like(fake))
        return (ones - fake).square().mean(-1)


def test_a_loss_may_fill_a_cache() -> None:
    plugin_rows.check_loss("x", LossSpec.adopt("x", FillsCache).build())


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (TakesProbabilities, "Losses get logits: use binary_cross_entropy_with_logits"),
        (CountsCalls, "the loss x keeps state from call to call: calls"),
        (CountsOutside, r"the loss x keeps state from call to call: _CALLS \(test_plugins.py, line"),
        (MixesMembers, "d of the loss x mixes members"),
        (OneNumberForAll, r"g of the loss x must return a tensor of shape \(3,\) for 3 members"),
        (DrawsNumbers, "g of the loss x mixes members: .* draw no random numbers"),
        (HasNoGradient, "g of the loss x has no gradient"),
        (MixingPenalty, "penalty of the loss x mixes members"),
        (NotANumber, "d of the loss x returns no finite number"),
    ],
)
def test_a_loss_that_mixes_members_is_refused(loss: type, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        plugin_rows.check_loss("x", LossSpec.adopt("x", loss).build())


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x, u: x - x.mean(0), "the augmentation mixer mixes members"),
        (lambda x, u: x.mean(-1), r"must return a tensor of shape \(3, 5, 3, 8, 8\)"),
        (lambda x, u: x.detach(), "has no gradient"),
        (lambda x, u: x * float("nan"), "returns no finite number"),
        (lambda x, u: _CALLS.append(1) or x * 1.0, "the augmentation mixer keeps state from call to call: _CALLS"),
    ],
)
def test_an_augmentation_that_mixes_members_is_refused(function: Any, sentence: str) -> None:
    register.augmentation("mixer")(function)
    try:
        with pytest.raises(UserError, match=sentence):
            plugin_rows.check_augmentation("mixer", "mixer")
    finally:
        AUGMENTATIONS.unregister("mixer")


def test_built_in_losses_and_augmentations_pass_the_same_checks() -> None:
    for name in LOSSES:
        plugin_rows.check_loss(name, LOSSES[name].build())
    for name in AUGMENTATIONS:
        plugin_rows.check_augmentation(name, name)


def test_settings_of_plugins_are_checked_by_their_models(plugins: None) -> None:
    def refused(**sections: Any) -> str:
        with pytest.raises(UserError) as caught:
            recipe_file.load(recipe(**sections))
        return str(caught.value)

    net = {"latent": 2, "discriminator": "small"}
    message = refused(nets={**net, "generator": {"name": "flat", "wdth": 3}})
    assert message == "recipe: unknown key 'nets.generator.wdth'; did you mean 'width'?"
    message = refused(nets={**net, "generator": {"name": "flat", "width": 0}})
    assert message == "recipe: nets.generator.width must be a whole number of at least 1, not 0"
    message = refused(train={"augment": [{"name": "shade", "most": "x"}]})
    assert message == "recipe: train.augment.most must be a number of at least 0 and at most 1, not 'x'"
    assert refused(train={"augment": ["shad"]}).endswith("cutout, flip, shade); did you mean 'shade'?")
    message = refused(loss={"name": "squared", "settings": {"margin": 1}})
    assert message == "recipe: the loss squared has no settings: leave them out"
    assert "the data source stripes has no settings" in refused(data={"source": "stripes", "settings": {"a": 1}})


def test_an_unknown_name_gets_a_suggestion(plugins: None) -> None:
    assert LOSSES.unknown("squard").endswith("; did you mean 'squared'?")
    with pytest.raises(
        UserError, match=r"there is no loss 'squard' \(there are minimax, .*squared\); did you mean 'squared'\?"
    ):
        recipe_file.load(recipe(loss={"name": "squard"}))


# -- entry points ------------------------------------------------------------------------------------------------------

PLUGIN = """
import numpy as np
import ganherd

@ganherd.register.data("checkers", about="checkered images")
def read(settings, folder):
    return np.indices((20, 1, 8, 8)).sum(0).astype(np.uint8) % 2 * 255, np.arange(20) % 2, None
"""


def install(folder: Path, code: str, points: str) -> None:
    """Put a package into a folder as an installer would."""
    (folder / "checkers_plugin.py").write_text(code)
    info = folder / "ganherd_checkers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ganherd-checkers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    DATA_SOURCES.unregister("checkers")
    sys.modules.pop("checkers_plugin", None)
    registry._entry_points.cache_clear()
    DATA_SOURCES._vouched.discard("checkers")


def test_an_installed_plugin_is_imported_when_its_name_is_used(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(installed, PLUGIN, "[ganherd.data_sources]\ncheckers = checkers_plugin\n")
    skip_products(monkeypatch)
    assert "checkers" in DATA_SOURCES.names() and DATA_SOURCES.is_known("checkers")
    assert "checkers" not in DATA_SOURCES, "nobody has named it yet"
    assert {row["name"]: row["about"] for row in list_sources()}["checkers"] == "added by the package ganherd-checkers"
    assert "checkers_plugin" not in sys.modules, "lists import no plugin"
    nets = {"latent": 2, "generator": {"name": "small", "width": 3}, "discriminator": {"name": "small", "width": 3}}
    engine = {"name": "loop", "device": "cpu", "threads": 1}
    train = {"budget": "6steps", "batch": 4}
    sections = {"loss": {"name": "hinge"}, "strategy": {}, "engine": engine, "nets": nets, "train": train}
    run = ganherd.train(recipe(data={"source": "checkers"}, **sections), run=tmp_path / "run", quiet=True)
    assert "checkers_plugin" in sys.modules
    assert ganherd.load(run.path).sample(2).x.shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "import no_such_module",
            r"the data source 'checkers' of the package ganherd-checkers cannot be imported \(Module",
        ),
        ("", "announces a data source 'checkers', but checkers_plugin does not register it"),
    ],
)
def test_a_plugin_that_fails_is_reported_in_a_sentence(installed: Path, code: str, sentence: str) -> None:
    install(installed, code, "[ganherd.data_sources]\ncheckers = checkers_plugin\n")
    with pytest.raises(
        UserError, match="of the package ganherd-checkers is code that is not ganherd's: give --trust-code"
    ):
        DATA_SOURCES["checkers"]
    DATA_SOURCES.vouch("checkers")
    with pytest.raises(UserError, match=sentence) as caught:
        DATA_SOURCES["checkers"]
    assert "\n" not in str(caught.value)


def test_all_names_are_known_without_torch() -> None:
    names = "STRATEGIES, LOSSES, GENERATORS, DISCRIMINATORS, METRICS, DATA_SOURCES, ENGINES"
    code = f"import sys; from ganherd.util.registry import {names}\n"
    code += f"assert all([one.names() for one in ({names})])\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_entry_of_ganherd_can_be_loaded() -> None:
    for entries in REGISTRIES:
        assert all(entries[name] is not None for name in entries)
    assert torch.is_tensor(LOSSES["hinge"].build().g(torch.zeros(2, 3)))
