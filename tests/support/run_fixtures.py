"""Fixtures for all tests: commands that run in this process, and finished runs for them to read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from recipes import noise_data, noise_recipe, tiny_data, tiny_recipe


@dataclass(frozen=True)
class Answer:
    """What a shell would get from a command."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """Return the message of a user's mistake, which has to be one line."""
        assert self.code == 2, self
        assert self.out == "", self
        lines = [line for line in self.err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("ganherd: "), self
        assert "Traceback" not in self.err
        return lines[0].removeprefix("ganherd: ")


def shared(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all tests of a session share, so that what they read is trained once."""
    path = factory.getbasetemp() / "shared"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Answer]:
    """Return a function that runs a command in an empty folder: `cli("sample", run, "-n", 3)`."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*words: object) -> Answer:
        from ganherd.cli.main import main

        monkeypatch.setattr(sys, "argv", ["ganherd", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands and `ganherd.train` end with the mixture: the test looks neither at scores nor at the report."""
    tiny_runs.skip_products(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _short_measurements() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.shorten_measurements(patch)
        yield


@pytest.fixture
def brief_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train classifiers for 20 steps in place of 500: the test does not depend on what they have learnt."""
    tiny_runs.shorten_classifiers(monkeypatch)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of `tiny_data`."""
    return tiny_data(shared(tmp_path_factory) / "small.npz")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """Return a finished run of three members, one per class, with the pictures that a first `ganherd report` draws.

    Tests may read or copy it, but must not change it.
    """
    path = shared(tmp_path_factory) / "run"
    if not path.exists():
        from ganherd import report

        report.write(_trained(path, tiny_recipe(data, run={"sprites": None})), draw=True)
    return path


@pytest.fixture(scope="session")
def seeds_run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """Return a run like `run` with two stacked seeds. Tests must not change it."""
    return _trained(shared(tmp_path_factory) / "seeds", tiny_recipe(data, herd={"seeds": 2}))


def _trained(path: Path, recipe: dict[str, Any]) -> Path:
    import ganherd

    if not path.exists():
        ganherd.train(recipe, run=path, quiet=True)
    return path


@pytest.fixture(scope="session")
def shown_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three finished runs: one per class with scores, a grid, and swaps on points. Tests must not change them."""
    import ganherd
    from ganherd.api import ScoreFinisher

    folder = tmp_path_factory.mktemp("shown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ganherd.mixture.recalibration.NOISES", 1024)
        tiny_runs.shorten_classifiers(patch)
        settings = noise_recipe(folder, "30steps", sample_every=10)
        ganherd.train(settings, run=folder / "classes", quiet=True, finishers=[ScoreFinisher()])
        data = noise_data(folder / "grid.npz")
        cellular = {"grid": [2, 3], "iteration": "4steps", "fitness": {"samples": 16}}
        grid = tiny_recipe(
            data,
            data={"partition": "all"},
            strategy={"name": "cellular", "cellular": cellular},
            train={"budget": "24steps"},
            run={"record_every": 4, "sprites": None},
        )
        tiny_runs.train(folder / "grid", grid)
        points = tiny_recipe(
            "ring8",
            data={"partition": "all"},
            herd={"members": 4},
            strategy={"name": "gap", "gap": {"every": "5steps", "warmup": "5"}},
            train={"budget": "30steps"},
            run={"record_every": 5, "sprites": None},
        )
        points["nets"] = {"latent": 4, "generator": {"name": "toy"}, "discriminator": {"name": "toy"}}
        tiny_runs.train(folder / "points", points)
    return folder
