"""A run as an object: its records as tables, its mixture, its scores and its report, and how it is trained further."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
import torch
from torch import Tensor, nn

import ganherd
from ganherd import UserError, register
from ganherd.runs import checkpoint
from ganherd.training.setup.assemble import assemble
from ganherd.util.registry import LOSSES


def nets(width: int = 5) -> tuple[Any, Any]:
    class Generator(nn.Module):
        def __init__(self, latent: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(latent, width), nn.BatchNorm1d(width), nn.Linear(width, 64), nn.Tanh()
            )

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return self.layers(z).reshape(-1, 1, 8, 8)

    return Generator, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 1))


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(seed).integers(0, 256, (46, 8, 8), np.uint8), np.repeat([0, 1, 2], [23, 9, 14])


def arguments(budget: str, **run: Any) -> dict[str, Any]:
    recipe = recipes.tiny_recipe("digits", run={"checkpoint_every": 4, "record_every": 3, **run})
    del recipe["data"], recipe["nets"]
    return {"recipe": recipe, "data": data(), "nets": nets(), "budget": budget, "quiet": True}


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.chdir(tmp_path)


def state(run: ganherd.Run) -> dict[str, torch.Tensor]:
    return checkpoint.newest(run.folder.checkpoints, assemble(run.recipe, trust_code=True).herd.nets)[0].state


@pytest.mark.usefixtures("brief")
def test_metrics_are_the_records_in_long_form(tmp_path: Path) -> None:
    run = ganherd.train(
        recipes.noise_recipe(tmp_path, "12steps"), ["herd.seeds=2", "run.seed=7"], run="run", quiet=True
    )
    columns = run.metrics()
    assert len({len(column) for column in columns.values()}) == 1
    rows = {
        (step, metric, seed, member): value
        for step, metric, member, seed, value in zip(
            *(columns[name].tolist() for name in ("step", "metric", "member", "seed", "value")), strict=True
        )
    }
    assert len(rows) == len(columns["step"])
    lines = run_files.json_lines(run.path / "metrics.jsonl")
    for line in lines:
        assert rows[line["step"], "rate", -1, -1] == line["rate"]
        for m, value in enumerate(line["loss_g"]):
            assert rows[line["step"], "loss_g", 7 + m // 3, m % 3] == value
        if "looked" in line and not math.isnan(float(line["spread"][4])):
            assert rows[line["looked"], "spread", 8, 1] == line["spread"][4]
    assert len(run.metrics(most=1)["step"]) < len(columns["step"])


@pytest.mark.usefixtures("brief")
def test_metrics_of_trials_name_the_trial_of_each_member(tmp_path: Path) -> None:
    trials = "herd.trials=[{optim.lr_g: 1e-3}, {optim.lr_g: 2e-3}]"
    recipe = recipes.noise_recipe(tmp_path, "6steps")
    run = ganherd.train(recipe, [trials, "herd.seeds=2", "run.seed=7"], run="run", quiet=True)
    columns = run.metrics()
    last = run_files.json_lines(run.path / "metrics.jsonl")[-1]
    chosen = (columns["metric"] == "loss_g") & (columns["step"] == last["step"])
    rows = {name: columns[name][chosen].tolist() for name in columns}
    assert rows["value"] == last["loss_g"]  # members of a replica, replicas of a trial, trials
    assert rows["trial"] == [0] * 6 + [1] * 6
    assert rows["seed"] == ([7] * 3 + [8] * 3) * 2 and rows["member"] == [0, 1, 2] * 4
    assert set(columns["trial"][columns["metric"] == "rate"].tolist()) == {-1}


@pytest.mark.usefixtures("brief")
def test_pandas_takes_metrics_and_events_in_one_call(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = ganherd.train(recipes.noise_recipe(tmp_path, "6steps"), run="run", quiet=True)
    table = pandas.DataFrame(run.metrics())
    assert table[table.metric == "loss_d"].groupby("member").size().tolist() == [2, 2, 2]
    events = pandas.DataFrame(run.events())
    assert events.event.tolist()[0] == "start" and events.event.tolist()[-1] == "finish"


@pytest.mark.further
@pytest.mark.usefixtures("brief")
def test_a_run_with_objects_is_resumed_exactly_in_the_same_process() -> None:
    whole = ganherd.train(**arguments("14steps"), run="whole")
    half = ganherd.train(**arguments("6steps"), run="half")
    assert half.resume("+8steps", quiet=True) is half
    assert half.status().step == 14 and repr(half.status()).endswith("step 14 of 14>")
    first, second = state(whole), state(half)
    assert all(torch.equal(value, second[name]) for name, value in first.items() if not name.startswith("watch."))
    assert half.mixture.step == 14  # not the one that was loaded before


@pytest.mark.further
@pytest.mark.usefixtures("brief")
def test_another_run_object_needs_the_same_objects_again() -> None:
    import gc

    ganherd.train(**arguments("4steps"), run="run")
    gc.collect()  # of the objects nothing is left
    other = ganherd.Run("run")
    with pytest.raises(UserError, match="Generator is an object of the Python process that trained it: give it again"):
        other.resume(8, quiet=True)
    with pytest.raises(UserError, match="the generator Generator is an object of the Python process"):
        _ = other.mixture
    with pytest.raises(UserError, match="data is an object of the Python process that trained it"):
        ganherd.Run("run", nets=nets()).resume(8, quiet=True)
    with pytest.raises(
        UserError, match=r"nets.generator Generator is not what .*run was trained with \(its code or content"
    ):
        ganherd.Run("run", nets=nets(width=6))
    with pytest.raises(
        UserError, match=r"the data given is not what .* was trained with \(its code or content differs\)"
    ):
        other.resume(8, nets=nets(), data=data(1), quiet=True)
    assert other.status().step == 4
    other.resume(8, nets=nets(), data=data(), quiet=True)
    assert other.status().step == 8 and other.sample(2).x.shape == (2, 1, 8, 8)
    assert ganherd.load("run", nets=nets()).step == 8
    gc.collect()
    assert other.sample(2).x.shape == (2, 1, 8, 8)  # equal objects, which are gone, took nothing along
    assert ganherd.resume("run", ["train.budget=9steps"], nets=nets(), data=data(), quiet=True).status().step == 9


@pytest.mark.usefixtures("brief")
def test_a_failed_request_leaves_the_run_as_it_is() -> None:
    run = ganherd.train(**arguments("4steps"), run="run")
    with pytest.raises(UserError, match="cannot be resumed with this one"):
        run.resume(overrides=["train.batch=9"], quiet=True)
    with pytest.raises(UserError, match="train.budget"):
        run.resume("8 apples", quiet=True)
    with pytest.raises(UserError, match=r"budget is a float: give a number of steps"):
        run.resume(8.5, quiet=True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="overrides is a str"):
        run.resume(overrides="train.budget=9steps", quiet=True)
    assert run.status().state == "finished"


@pytest.mark.usefixtures("brief")
def test_runs_are_listed_and_opened_by_name() -> None:
    one = ganherd.train("digits-wcgan", budget=1, quiet=True)
    two = ganherd.train("digits-wcgan", budget=1, quiet=True)
    (Path("runs") / "broken").mkdir()
    (Path("runs") / "broken" / "run.json").write_text("{")
    assert [run.path for run in ganherd.runs()] == [one.path, two.path]
    assert [run.path for run in ganherd.runs("runs")] == [one.path, two.path]
    (Path("runs") / "broken" / "run.json").unlink()
    assert ganherd.open().path == ganherd.open("00002-digits-wcgan").path == two.path
    assert ganherd.open(one.path).path == one.path
    assert repr(one) == "<Run runs/00001-digits-wcgan: finished, step 1>"
    with pytest.raises(UserError, match="there is no run folder nowhere"):
        ganherd.Run("nowhere")


@pytest.mark.usefixtures("brief")
def test_the_package_of_runs_stays_a_package() -> None:
    import ganherd.runs.folder as folder
    from ganherd.runs import checkpoint as checkpoints

    assert folder.RunFolder and checkpoints.newest and ganherd.runs.folder is folder and ganherd.runs() == []


@pytest.mark.usefixtures("brief")
def test_recipes_and_runs_are_compared_by_a_call() -> None:
    settings = {"budget": "2steps", "seeds": 2, "metrics": ["fid"], "samples": 40, "quiet": True}
    done = ganherd.compare("digits-wcgan", "digits-nonsat", **settings)
    entry = done.facts["bases"]["budget"]["differences"]["digits-nonsat"]["fid"]
    each = [row["scores"]["fid"]["value"] for row in done.facts["bases"]["budget"]["entries"].values()]
    assert entry["value"] == pytest.approx(each[1] - each[0]) and str(done) == done.answer
    assert done.path == Path("comparisons/digits-wcgan-vs-digits-nonsat") and all(
        map(Path.is_file, done.files.values())
    )
    runs = [ganherd.train("digits-wcgan", budget=1, quiet=True, seeds=2) for _ in range(2)]
    again = ganherd.compare(*runs, metrics=["fid"], samples=40, quiet=True)
    assert list(again.facts["bases"]["runs"]["entries"]) == ["00001-digits-wcgan", "00002-digits-wcgan"]
    with pytest.raises(UserError, match="finished runs are compared as they are"):
        ganherd.compare(*runs, budget="2steps")


@pytest.mark.usefixtures("brief")
def test_a_run_is_judged_and_exported(tmp_path: Path) -> None:
    run = ganherd.train("digits-wcgan", budget=1, quiet=True)
    verdict = run.check()
    assert verdict.word != "good" and run.verdict == verdict and len(verdict.members) == 10
    record = run.export(tmp_path / "model")
    assert record.path == tmp_path / "model" and record.members == 10 and (record.path / "loader.py").is_file()
    with pytest.raises(UserError, match="not an empty folder"):
        run.export(tmp_path / "model")


@pytest.mark.usefixtures("brief")
def test_a_run_of_a_stranger_executes_nothing(tmp_path: Path) -> None:
    run = ganherd.train(recipes.noise_recipe(tmp_path, "2steps"), run="run", quiet=True)
    (tmp_path / "evil_for_run.py").write_text("open('victim', 'w')\nclass Net: pass\n")
    text = run.folder.recipe_path.read_text().replace("name: small", "name: evil_for_run:Net")
    run.folder.recipe_path.write_text(text)
    stranger = ganherd.Run("run")
    _ = (
        repr(stranger),
        stranger._repr_html_(),
        stranger.metrics(),
        stranger.events(),
        stranger.status(),
        stranger.recipe,
    )
    with pytest.raises(UserError, match="give --trust-code"):
        stranger.resume(4, quiet=True)
    with pytest.raises(UserError, match="give --trust-code"):
        run.resume(4, quiet=True)  # trained here, but its recipe was changed since
    assert not Path("victim").exists()


def test_a_finished_run_has_scores_a_report_and_shows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = ganherd.train(**arguments("8steps"), run="<b>run")
    assert run.scores["fid"]["value"] > 0 and run.verdict is not None
    assert run.score(["diversity"], samples=50)["diversity"]["samples"] == 50
    run.folder.report_path.unlink()
    assert run.report() == run.path / "report.html" and "Generator" in run.report().read_text()
    page = run._repr_html_()
    assert "&lt;b&gt;run" in page and "<b>run" not in page.replace("<b>&lt;b&gt;run", "")
    assert "data:image/png;base64," in page and run.verdict.word in page
    assert repr(run) == f"<Run <b>run: finished, step 8, {run.verdict.word}>"


@pytest.mark.usefixtures("brief")
def test_a_module_of_the_mixture_is_plain_and_makes_its_samples() -> None:
    run = ganherd.train(**arguments("4steps"), run="run")
    mixture = run.mixture
    module = mixture.module("1")
    assert type(module).__name__ == "Generator" and not module.training
    breed, weights = mixture.generator(1)
    z = torch.randn(6, mixture.latent)
    key = torch.zeros((), dtype=torch.int64)
    assert torch.equal(module(z), breed.evaluated(weights, (z,), key))
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    with torch.no_grad():
        module.layers[0].weight.zero_()
    assert mixture.module("1").layers[0].weight.any()
    assert torch.equal(mixture.module(member=2).layers[0].weight, mixture.generator(2)[1]["layers.0.weight"])
    with pytest.raises(UserError, match="the mixture has no label 'x'"):
        mixture.module("x")
    with pytest.raises(UserError, match="there is no member 9 of replica 0"):
        mixture.module(member=9)


def test_samples_draw_and_save_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)
    run = ganherd.train(recipes.noise_recipe(tmp_path, "2steps"), run=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    samples = run.sample(9, label="1")
    assert repr(samples) == "<9 images of shape (1, 8, 8) of 1>" and repr(run.mixture).startswith(
        "<Mixture of 3 generators"
    )
    picture = samples.grid()
    assert picture.size[0] > 100 and samples._repr_png_().startswith(b"\x89PNG")
    assert run.mixture._repr_png_().startswith(b"\x89PNG")
    assert samples.save(tmp_path / "grid.png").read_bytes() == samples._repr_png_()
    with np.load(samples.save(tmp_path / "out.npz")) as arrays:
        assert np.array_equal(arrays["x"], samples.x)
    assert len(list(samples.save(tmp_path / "images").rglob("*.png"))) == 9


@pytest.mark.usefixtures("brief")
def test_samples_need_no_plugin_that_only_the_training_needs(tmp_path: Path) -> None:
    """A loss that a script registered is unknown in another process; the run is read and sampled there nevertheless."""

    class Simple:
        def d(self, real: Tensor, fake: Tensor) -> Tensor:
            return (fake - real).mean(-1)

        def g(self, fake: Tensor) -> Tensor:
            return -fake.mean(-1)

    register.loss("simple")(Simple)
    try:
        ganherd.train("digits-wcgan", budget=2, loss={"name": "simple"}, run=tmp_path / "run", quiet=True)
    finally:
        LOSSES.unregister("simple")
    for trust_code in (False, True):
        run = ganherd.Run(tmp_path / "run", trust_code=trust_code)
        assert run.recipe.loss.name == "simple" and len(run.sample(2).x) == 2
        with pytest.raises(UserError, match="'simple' was registered by a script"):
            run.resume("+2steps", quiet=True)
