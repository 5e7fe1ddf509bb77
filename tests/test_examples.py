"""The examples run as they stand, with a small budget, in a folder of their own."""

from __future__ import annotations

import importlib.util
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
    assert printed == str(here / "runs/00001-digits-wcgan/own_nets.png")
    assert Path(printed).read_bytes().startswith(b"\x89PNG")
    assert "generator:\n    name: memory:MyGenerator_" in (here / "runs/00001-digits-wcgan/recipe.yaml").read_text()


def test_nets_of_a_script_are_told_apart_when_the_run_is_loaded_elsewhere(own_nets) -> None:
    path = own_nets[0] / "runs/00001-digits-wcgan"
    for trust in (False, True):
        with pytest.raises(
            UserError, match="the generator MyGenerator is an object of the Python process that trained it"
        ):
            ganherd.load(path, trust_code=trust)


def test_nets_of_a_script_are_given_again(own_nets) -> None:
    path = own_nets[0] / "runs/00001-digits-wcgan"
    names = runpy.run_path(str(EXAMPLES / "own_nets.py"), run_name="not_main")
    nets = (names["MyGenerator"], names["MyDiscriminator"])
    assert ganherd.load(path, nets=nets).sample(2, label="7").x.shape == (2, 1, 8, 8)


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


def test_lightning_loop(tmp_path) -> None:
    if not importlib.util.find_spec("lightning"):
        pytest.skip("Lightning is not installed: pip install lightning")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "lightning_loop.py"), "1"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "<Herd of 10 members, step 28, fused on cpu> torch.Size([4, 1, 8, 8])"
