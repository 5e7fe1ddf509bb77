"""The examples run as they stand, with a small budget, in a folder of their own."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from processes import environment

import ganherd
from ganherd.util.errors import UserError

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def own_nets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which examples/own_nets.py was run as a script, and what it printed last."""
    here = tmp_path_factory.mktemp("here")
    done = subprocess.run(
        [warm_python.python(), str(EXAMPLES / "own_nets.py"), "3"],
        cwd=here, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return here, done.stdout.strip()


def test_own_nets_train_and_draw_a_grid(own_nets) -> None:
    here, printed = own_nets
    assert printed == str(here / "runs/00001-run/own_nets.png")
    assert Path(printed).read_bytes().startswith(b"\x89PNG")
    assert "generator:\n    name: __main__:MyGenerator" in (here / "runs/00001-run/recipe.yaml").read_text()


def test_nets_of_a_script_are_told_apart_when_the_run_is_loaded_elsewhere(own_nets) -> None:
    path = own_nets[0] / "runs/00001-run"
    with pytest.raises(UserError, match="__main__:MyGenerator is code that is not ganherd's: give --trust-code"):
        ganherd.load(path)
    with pytest.raises(
        UserError, match="MyGenerator was defined in the script or notebook that trained it, and is not in"
    ):
        ganherd.load(path, trust_code=True)


def test_nets_of_a_script_are_found_where_they_are_defined_again(own_nets, monkeypatch) -> None:
    path = own_nets[0] / "runs/00001-run"
    names = runpy.run_path(str(EXAMPLES / "own_nets.py"), run_name="not_main")
    monkeypatch.setattr(sys.modules["__main__"], "MyGenerator", names["MyGenerator"], raising=False)
    assert ganherd.load(path, trust_code=True).sample(2, label="7").x.shape == (2, 1, 8, 8)


def test_own_nets_is_short() -> None:
    """A person reads it at a glance: the two modules and the recipe are about thirty lines of code."""
    lines = (EXAMPLES / "own_nets.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 40


def test_python_api(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["python_api.py", "3"])
    runpy.run_path(str(EXAMPLES / "python_api.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert f"trained in {tmp_path}/runs/00001-digits-wcgan" in out
    assert "16 sevens of shape (1, 8, 8)" in out
    assert "label accuracy" in out and "diversity" in out and "500" in out


def test_classes_that_no_run_could_find_again_are_refused(tmp_path) -> None:
    from torch import nn

    class Local(nn.Module):
        pass

    with pytest.raises(UserError, match=r"nets.generator: Local is defined inside of a function"):
        ganherd.train({"nets": {"generator": Local}}, run=tmp_path / "run")
    with pytest.raises(UserError, match="nets.discriminator is a module: give its class, Linear"):
        ganherd.train({"nets": {"discriminator": nn.Linear(2, 2)}}, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
