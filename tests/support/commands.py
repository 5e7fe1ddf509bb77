"""Commands in this process, quicker than processes of their own, and runs for them to read; suites import the fixtures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small import small_data, small_recipe


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line that a user's mistake is worth; anything else is a failure."""
        assert self.code == 2, self
        assert self.out == "", self
        lines = [line for line in self.err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("ganherd: "), self
        assert "Traceback" not in self.err
        return lines[0].removeprefix("ganherd: ")


def shared(factory: pytest.TempPathFactory) -> Path:
    """A folder that all suites of a session share, so that what they read is trained once."""
    path = factory.getbasetemp() / "shared"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's cache is read or written; the classifier of the data is trained once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GANHERD_CACHE", str(shared(tmp_path_factory) / "cache"))
        yield


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Answer]:
    """`cli("sample", run, "-n", 3)` is what the shell would get, with an empty folder to stand in."""
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


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(shared(tmp_path_factory) / "small.npz")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path, own_cache: None) -> Path:
    """A finished run of three members, one for each class. Read it, or copy it; leave it as it is."""
    return _trained(shared(tmp_path_factory) / "run", small_recipe(data))


@pytest.fixture(scope="session")
def seeds_run(tmp_path_factory: pytest.TempPathFactory, data: Path, own_cache: None) -> Path:
    """The same with two seeds stacked."""
    return _trained(shared(tmp_path_factory) / "seeds", small_recipe(data, herd={"seeds": 2}))


def _trained(path: Path, recipe: dict[str, Any]) -> Path:
    import ganherd

    if not path.exists():
        ganherd.train(recipe, run=path, quiet=True)
    return path
