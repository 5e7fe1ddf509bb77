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
from tiny_runs import skip_products
from torch import Tensor, nn

import ganherd
from ganherd.data.arrays import RawData
from ganherd.data.readers.download import list_sources
from ganherd.herd.engine.engines import Engine
from ganherd.losses.adversarial import Loss
from ganherd.nets.catalog import Setting
from ganherd.recipe import recipe_file
from ganherd.recipe.base import Span
from ganherd.recipe.strategy.strategy_settings import StrategySettings
from ganherd.scoring import score_seeds
from ganherd.strategies.strategy import Event, Strategy
from ganherd.util import registry
from ganherd.util.errors import UserError
from ganherd.util.registry import DATA_SOURCES, DISCRIMINATORS, ENGINES, GENERATORS, LOSSES, METRICS, STRATEGIES

REGISTRIES = (STRATEGIES, LOSSES, GENERATORS, DISCRIMINATORS, METRICS, DATA_SOURCES, ENGINES)


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


def stripes(settings: Any) -> RawData:
    x = np.tile(np.arange(16, dtype=np.uint8)[None, :, None, None] % 2 * 255, (24, 1, 1, 4)).reshape(24, 1, 8, 8)
    return RawData(x, np.arange(24) % 3)


@pytest.fixture
def plugins() -> Iterator[None]:
    STRATEGIES.register("rotate", settings=RotateConfig)(Rotate)
    LOSSES.register(
        "squared", Loss(lambda real, fake: (fake - real).square().mean(-1), lambda fake: fake.square().mean(-1))
    )
    GENERATORS.register("flat", about="a small MLP", settings={"width": Setting("int", 4, "hidden width", minimum=1)})(
        FlatGenerator
    )
    METRICS.register("brightness", about="mean of the samples", best=0.5, direction="nearest")(
        lambda context: {
            "value": float(context.x.mean()) if hasattr(context, "x") else 0.5,
            "samples": 9,
            "network": "",
        }
    )
    DATA_SOURCES.register("stripes", about="striped images")(stripes)
    ENGINES.register("counting", about="counts its calls")(CountingEngine)
    yield
    for one, name in zip(
        REGISTRIES, ("rotate", "squared", "flat", "", "brightness", "stripes", "counting"), strict=True
    ):
        one.unregister(name)


def recipe(**sections: Any) -> dict[str, Any]:
    return {
        "data": {"source": "stripes", "partition": "all"},
        "nets": {
            "latent": 2,
            "generator": {"name": "flat", "width": 3},
            "discriminator": {"name": "small", "width": 3},
        },
        "loss": {"name": "squared"},
        "train": {"budget": "6steps", "batch": 4},
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
    assert written.strategy.model_dump() == {"name": "rotate", "rotate": {"every": "2steps", "by": 1}}
    assert written.members == 3 and written.nets.generator.settings == {"width": 3}
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
        LOSSES.register("hinge", LOSSES["minimax"])
    with pytest.raises(ValueError, match="cannot name a loss"):
        LOSSES.register("my loss", LOSSES["minimax"])


def test_an_unknown_name_gets_a_suggestion(plugins: None) -> None:
    assert LOSSES.unknown("squard").endswith("; did you mean 'squared'?")
    with pytest.raises(
        UserError, match=r"there is no loss 'squard' \(there are minimax, .*squared\); did you mean 'squared'\?"
    ):
        recipe_file.load(recipe(loss={"name": "squard"}))


# -- entry points ------------------------------------------------------------------------------------------------------

PLUGIN = """
import numpy as np
from ganherd.data.arrays import RawData
from ganherd.util.registry import DATA_SOURCES

@DATA_SOURCES.register("checkers", about="checkered images")
def read(settings):
    return RawData(np.indices((20, 1, 8, 8)).sum(0).astype(np.uint8) % 2 * 255, np.arange(20) % 2)
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
    registry._announced.cache_clear()


def test_an_installed_plugin_is_imported_when_its_name_is_used(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(installed, PLUGIN, "[ganherd.data_sources]\ncheckers = checkers_plugin\n")
    skip_products(monkeypatch)
    assert "checkers" in DATA_SOURCES.names() and "checkers" in DATA_SOURCES and "checkers" not in list(DATA_SOURCES)
    assert {row["name"]: row["about"] for row in list_sources()}["checkers"] == "added by the package ganherd-checkers"
    assert "checkers_plugin" not in sys.modules, "lists import no plugin"
    nets = {"latent": 2, "generator": {"name": "small", "width": 3}, "discriminator": {"name": "small", "width": 3}}
    engine = {"name": "loop", "device": "cpu", "threads": 1}
    sections = {"loss": {"name": "hinge"}, "strategy": {}, "engine": engine, "nets": nets}
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
    for one in REGISTRIES:
        assert all(one[name] is not None for name in one)
    assert torch.is_tensor(LOSSES["hinge"].g(torch.zeros(2, 3)))
