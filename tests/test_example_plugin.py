"""The example package of plug-ins: pip installs it, and its loss, metric, strategy and data source work like ganherd's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import warm_python
import yaml
from installed_plugins import importable, pip_install
from processes import environment
from run_fixtures import Answer
from safetensors.numpy import load_file

Cli = Callable[..., Answer]
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "plugin"
SHORT = ["train.budget=8steps", "strategy.ring.every=3steps", "data.settings.count=40", "train.precision=float64",
         "engine.name=fused", "engine.threads=1", "engine.device=cpu", "run.watch.every=0", "run.scores=false",
         "run.sample_every=0", "run.checkpoint_every=4"]  # fmt: skip
SETS = [f"--set={text}" for text in SHORT]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a copy of the example."""
    folder = tmp_path_factory.mktemp("plugin")
    pip_install(Path(shutil.copytree(EXAMPLE, folder / "source")), folder / "site")
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with importable(site, monkeypatch):
        yield


def state_of(run: str | Path) -> dict[str, np.ndarray]:
    """Return all tensors of a run's newest checkpoint."""
    newest = max((Path(run) / "checkpoints").glob("step-*"))
    parts = [load_file(file) for file in sorted(newest.glob("*.safetensors"))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.usefixtures("brief_classifier")
def test_the_example_trains_resumes_exactly_and_is_scored_and_compared(cli: Cli, installed: None, brief: None) -> None:
    recipe = EXAMPLE / "recipe.yaml"
    assert cli("train", recipe, *SETS, "--run", "whole", "--quiet").code == 0
    moves = [json.loads(line) for line in Path("whole/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in moves if event["event"] == "ring"] == [3, 6]
    assert state_of("whole")["meet.moves"].tolist() == [2, 2, 2, 2]
    written = yaml.safe_load(Path("whole/recipe.yaml").read_text())
    assert written["loss"]["settings"] == {"margin": 0.5} and written["strategy"]["ring"] == {"every": "3steps"}

    assert cli("train", recipe, *SETS, "--set=train.budget=4steps", "--run", "half", "--quiet").code == 0
    assert cli("train", "--resume", "half", "--budget", "8steps", "--quiet", "--trust-code").code == 0
    whole, half = state_of("whole"), state_of("half")
    assert all(np.array_equal(whole[name], half[name]) for name in whole)

    scored = json.loads(cli("score", "whole", "--metrics", "edges", "-n", 20, "--json", "-q", "--trust-code").out)
    (edges,) = [scores["edges"] for scores in [scored["scores"]]]
    assert edges["value"] > 0 and edges["interval"]["low"] < edges["value"] < edges["interval"]["high"]
    assert (edges["samples"], edges["network"], edges["real_samples"]) == (20, "pixels", 32)
    assert edges["settings"] == {"distance": 1}
    table = cli("score", "whole", "--metrics", "edges,edges(distance=3)", "-n", 20, "-q", "--trust-code").out
    assert "edge strength " in table and "edge strength(distance=3)" in table
    both = json.loads(Path("whole/scores.json").read_text())["scores"]
    assert both["edges"]["value"] != both["edges(distance=3)"]["value"]
    usual = json.loads(cli("score", "whole", "-n", 20, "--json", "-q", "--trust-code").out)["scores"]
    assert usual["edges(distance=2)"]["settings"] == {"distance": 2} and "fid" in usual
    answer = cli("compare", "whole", "half", "--metrics", "edges", "-n", 20, "-q", "--trust-code")
    assert answer.code == 0 and "edge strength" in answer.out and "1 is best" in answer.out


@pytest.mark.further
def test_every_rank_imports_the_plugins_itself(cli: Cli, site: Path, installed: None, brief: None) -> None:
    assert cli("train", EXAMPLE / "recipe.yaml", *SETS, "--run", "one", "--quiet").code == 0
    known = environment()
    done = subprocess.run(
        [
            warm_python.python(), "-m", "ganherd", "train", str(EXAMPLE / "recipe.yaml"), *SETS,
            "--run", "two", "--ranks", "2", "-q",
        ],
        env={**known, "PYTHONPATH": f"{site}{os.pathsep}{known.get('PYTHONPATH', '')}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = state_of("one"), state_of("two")
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-9, atol=1e-9)


def test_lists_name_plugins_without_importing_them(cli: Cli, installed: None) -> None:
    keys = json.loads(cli("recipes", "--keys", "loss.name", "--json").out)["keys"]
    assert "relativistic" in next(key["values"] for key in keys if key["key"] == "loss.name")
    schema = cli("recipes", "--schema").out
    assert all(f'"{name}"' in schema for name in ("relativistic", "ring", "blobs"))
    assert "added by the package ganherd-example" in cli("data", "list").out
    assert "'edges'" in cli("score", "nowhere", "--metrics", "edgs").sentence
    assert not any(name.startswith("ganherd_example.") for name in sys.modules)
    message = cli("train", EXAMPLE / "recipe.yaml", "--set=loss.name=relativistc", "--quiet").sentence
    assert message.endswith("did you mean 'relativistic'?")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("loss.settings.margn=1", "unknown key 'loss.settings.margn'; did you mean 'margin'?"),
        ("loss.settings.margin=-1", "loss.settings.margin must be a number of at least 0, not -1"),
        ("data.settings.size=2", "data.settings.size must be a whole number of at least 4 and at most 64, not 2"),
        (
            "run.metrics=[{name: edges, distnce: 2}]",
            "unknown key 'run.metrics.distnce'; did you mean 'distance'?",
        ),
        (
            "run.metrics=[{name: edges, distance: 0}]",
            "run.metrics.distance must be a whole number of at least 1, not 0",
        ),
        ("run.metrics=[{name: fid, distance: 2}]", "the metric fid has no settings: leave them out"),
        ("strategy.ring.evry=2steps", "unknown key 'strategy.ring.evry'; did you mean 'strategy.ring.every'?"),
    ],
)
def test_a_wrong_setting_is_reported_in_a_sentence(cli: Cli, installed: None, setting: str, sentence: str) -> None:
    assert (
        cli("train", EXAMPLE / "recipe.yaml", f"--set={setting}", "--quiet").sentence == f"--set {setting}: {sentence}"
    )


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ("edges(distnce=2)", "unknown key 'edges.distnce'; did you mean 'distance'?."),
        ("edges(distance=0)", "edges.distance must be a whole number of at least 1, not 0."),
        ("edges(2)", "write settings as NAME(key=value), separated by commas."),
        ("fid(n=2)", "the metric fid has no settings: leave them out."),
    ],
)
def test_a_wrong_setting_of_a_metric_is_reported_before_a_run_is_opened(
    cli: Cli, installed: None, metrics: str, sentence: str
) -> None:
    assert cli("score", "nowhere", "--metrics", metrics, "--trust-code").sentence == f"metric {metrics}: {sentence}"


@pytest.mark.further
def test_recipes_name_the_same_objects_without_an_installation(
    cli: Cli, brief: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`package.module:name` finds them in the folder of the recipe."""
    shutil.copytree(EXAMPLE / "ganherd_example", "ganherd_example")
    with importable(Path.cwd() / "nothing", monkeypatch):
        recipe = yaml.safe_load((EXAMPLE / "recipe.yaml").read_text())
        recipe["data"]["source"] = "ganherd_example.blobs:blobs"
        recipe["loss"]["name"] = "ganherd_example.relativistic:Relativistic"
        recipe["strategy"] = {"name": "ganherd_example.ring:Ring", "Ring": {"every": "3steps"}}
        recipe["run"]["metrics"][0]["name"] = "ganherd_example.edges:edges"
        Path("own.yaml").write_text(yaml.safe_dump(recipe))
        sets = [text for text in SETS if "strategy.ring" not in text]
        assert cli("train", "own.yaml", *sets, "--run", "own", "--quiet").code == 0
        names = {plugin["name"] for plugin in json.loads(Path("own/run.json").read_text())["plugins"]}
        assert names == {
            recipe["data"]["source"],
            recipe["loss"]["name"],
            recipe["strategy"]["name"],
            "ganherd_example.edges:edges",
        }
        scored = cli("score", "own", "--metrics", "ganherd_example.edges:edges", "-n", 20, "-q", "--trust-code")
        assert scored.code == 0 and "edge strength" in scored.out
    for name in [name for name in sys.modules if name.startswith("ganherd_example")]:
        del sys.modules[name]


def test_a_recipe_whose_package_is_not_installed_is_refused_in_a_sentence(cli: Cli) -> None:
    sentence = cli("train", EXAMPLE / "recipe.yaml", "--quiet").sentence
    assert "there is none named 'blobs': install the package that it comes from" in sentence
