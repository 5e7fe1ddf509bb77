"""Promise 5: a run folder from a stranger executes nothing, and its faults are reported in one sentence."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from recipes import tiny_data, tiny_recipe
from run_fixtures import Answer

from ganherd.runs import checkpoint

COMMANDS = {
    "sample": ("sample", "RUN", "-o", "x.npz"),
    "score": ("score", "RUN", "--quiet"),
    "report": ("report", "RUN"),
    "status": ("status", "RUN"),
    "resume": ("train", "--resume", "RUN", "--budget", "9steps", "--quiet"),
}


class Canary:
    """Sings when it is unpickled: a file that must never appear."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "canary"
    with open(path, "w"):  # the trap works where it may
        pass
    path.unlink()
    pickle.loads(pickle.dumps(Canary(path))).close()
    assert path.exists()
    path.unlink()
    yield path
    assert not path.exists(), "something in the folder was executed"


@pytest.fixture
def hostile(run: Path, tmp_path: Path) -> Path:
    """A copy of an honest run, for a test to spoil."""
    return Path(shutil.copytree(run, tmp_path / "hostile"))


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(change(facts)))


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def sign(path: Path, **changes: Any) -> None:
    """Changes a checkpoint's facts so that its own check still holds: the attacker can do so too."""

    def again(facts: dict[str, Any]) -> dict[str, Any]:
        facts = {k: v for k, v in facts.items() if k != "check"} | changes
        return {**facts, "check": checkpoint._check(facts)}

    edit(path / "state.json", again)


def only_checkpoint(folder: Path) -> Path:
    for step in sorted((folder / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(step)
    return newest(folder)


def refused(
    cli: Callable[..., Answer], folder: Path, *commands: str, others: tuple[str, ...] = tuple(COMMANDS)
) -> dict[str, str]:
    """What these commands refuse with, in one sentence; the others may work without the spoilt part, or refuse too."""
    told = {}
    for name in dict.fromkeys((*commands, *others)):
        answer = cli(*(folder if word == "RUN" else word for word in COMMANDS[name]))
        assert "Traceback" not in answer.err
        if name in commands or answer.code != 0:
            told[name] = answer.sentence
    return {name: told[name] for name in commands}


def test_an_honest_run_is_read_by_every_command(cli, hostile) -> None:
    assert refused(cli, hostile) == {}
    assert (hostile / "report.html").exists()


def test_a_pickle_instead_of_the_generators_is_refused(cli, hostile, canary) -> None:
    payload = pickle.dumps({"params/layers.0.weight": Canary(canary)})
    (hostile / "mixture" / "generators.safetensors").write_bytes(payload)
    told = refused(cli, hostile, "sample", "score", others=("report",))
    assert "is not a safetensors file" in told["sample"]
    edit(hostile / "mixture" / "mixture.json", lambda f: f | {"sha256": hashlib.sha256(payload).hexdigest()})
    told = refused(cli, hostile, "sample", "score")
    assert "is not a safetensors file" in told["sample"]


def test_a_pickle_instead_of_a_checkpoint_is_refused(cli, hostile, canary) -> None:
    import torch

    step = only_checkpoint(hostile)
    (weights,) = step.glob("*.safetensors")
    torch.save({"g.params": Canary(canary)}, weights)
    sign(step, files={weights.name: hashlib.sha256(weights.read_bytes()).hexdigest()})
    told = refused(cli, hostile, "resume")
    assert "there is no whole checkpoint" in told["resume"]


@pytest.mark.parametrize(
    "name", ["../../../evil.safetensors", "/etc/passwd", "herd-000-002.safetensors/../../x", "evil.pkl"]
)
def test_a_checkpoint_cannot_name_files_outside_of_it(cli, hostile, canary, name) -> None:
    step = only_checkpoint(hostile)
    (hostile.parent / "evil.safetensors").write_bytes(pickle.dumps(Canary(canary)))
    sign(step, files={name: hashlib.sha256(b"").hexdigest()})
    told = refused(cli, hostile, "resume", others=())
    assert "that no checkpoint has" in told["resume"]


@pytest.mark.parametrize(
    "changes",
    [
        {"sums": [[1]]},
        {"sums": "x"},
        {"repairs": [-1, 0, 0]},
        {"repairs": None},
        {"bytes": {"metrics": -5, "events": 0}},
        {"bytes": {"metrics": 10**15, "events": 0}},
        {"bytes": []},
        {"best": ["a", "../.."]},
        {"last_good": "../../x"},
        {"recorded": 1.5},
        {"names": ["g.params"]},
        {"files": {}},
        {"files": ["herd-000-002.safetensors"]},
        {"step": "x"},
        {"seconds": {}},
    ],
    ids=str,
)
def test_a_checkpoint_with_forged_facts_is_refused(cli, hostile, changes) -> None:
    before = (hostile / "metrics.jsonl").read_bytes()
    sign(only_checkpoint(hostile), **changes)
    assert refused(cli, hostile, "resume", others=())["resume"]
    assert (hostile / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!!python/module:evil"])
def test_a_recipe_with_yaml_tags_is_refused(cli, hostile, canary, tag) -> None:
    text = (hostile / "recipe.yaml").read_text()
    (hostile / "recipe.yaml").write_text(text.replace("about: ''", f"about: {tag} ['touch {canary}']"))
    told = refused(cli, hostile, "score", "resume")
    assert "is not allowed in a recipe" in told["resume"]


@pytest.mark.parametrize("name", ["os:system", "evil:Net", "ganherd.nets.../evil:Net", "builtins:exec", "pickle:loads"])
def test_foreign_code_is_not_imported(cli, hostile, canary, monkeypatch, name) -> None:
    """Not from the library, not from the run's folder, not from the folder that the command runs in."""
    for folder in (hostile, Path.cwd()):
        (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")
    recipe = yaml.safe_load((hostile / "recipe.yaml").read_text())
    recipe["nets"]["generator"] = {"name": name, "settings": {}}
    (hostile / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    edit(hostile / "mixture" / "mixture.json", lambda f: f | {"generator": {"name": name, "settings": {}}})
    told = refused(cli, hostile, "sample", "score", "resume")
    assert all(f"generator {name} is code that is not ganherd's: give --trust-code" in t for t in told.values())
    monkeypatch.chdir(hostile)
    assert "--trust-code" in cli("sample", ".", "-o", "x.npz").sentence
    assert "evil" not in sys.modules


def test_pickled_arrays_are_refused_as_data(cli, hostile, canary, tmp_path) -> None:
    source = tmp_path / "pickled.npz"
    np.savez(source, x=np.array([Canary(canary)], dtype=object), y=np.zeros(1, np.int64))
    recipe = yaml.safe_load((hostile / "recipe.yaml").read_text())
    recipe["data"]["source"] = str(source)
    (hostile / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    told = refused(cli, hostile, "score", "resume")
    assert "cannot be read as an .npz file of plain arrays" in told["score"]
    assert "plain arrays" in cli("data", "inspect", source).sentence


@pytest.mark.parametrize(
    "source", ["../../../../../../../../etc/passwd", "/dev/zero", "/proc/self/environ", "hostile/run.json"]
)
def test_a_data_source_without_data_is_refused(cli, hostile, source) -> None:
    recipe = yaml.safe_load((hostile / "recipe.yaml").read_text())
    recipe["data"]["source"] = source
    (hostile / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert refused(cli, hostile, "score", "resume", others=())["score"]


@pytest.mark.parametrize(
    "link", ["report.html.new", "scores.json.new", "metrics.jsonl", "samples/final.png", "checkpoints/x"]
)
def test_nothing_is_written_through_a_link(cli, hostile, tmp_path, link) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (hostile / link).unlink(missing_ok=True)
    (hostile / link).symlink_to(victim)
    told = refused(cli, hostile, "score", "report", "resume")
    assert "is a link" in told["report"]
    assert victim.read_text() == "mine"


ODD = ["", "null", "[]", "7", '"x"', "{}", "{" * 5, "[" * 100_000, "\x00", '{"step": 1e999}', f'{{"step": {"9" * 5000}}}',
       '{"budget": {"steps": NaN}}', '{"engine": {"name": "x", "chunk": -1, "threads": 1e9}}']  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=lambda t: t[:20])
@pytest.mark.parametrize("file", ["run.json", "mixture/mixture.json", "events.jsonl", "state.json"])
def test_malformed_json_is_refused(cli, hostile, file, text) -> None:
    target = only_checkpoint(hostile) / file if file == "state.json" else hostile / file
    target.write_text(text + "\n")
    must = {"run.json": ["status", "resume"], "mixture/mixture.json": ["sample"], "state.json": ["resume"]}
    assert (
        refused(cli, hostile, *must.get(file, ["status"]), others=("report",) if text in ("null", "{}") else ())
        is not None
    )


@pytest.mark.parametrize("value", [None, "x", [1], {"a": 1}, -1, 1e308, True], ids=str)
def test_a_report_survives_odd_values(cli, hostile, value) -> None:
    """It is most wanted of runs that went wrong: what cannot be drawn is left out with a note."""
    lines = [json.loads(line) for line in (hostile / "metrics.jsonl").read_text().splitlines()]
    odd = [{key: value if key != "step" else line["step"] for key in line} for line in lines]
    (hostile / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in odd))
    edit(hostile / "run.json", lambda facts: dict.fromkeys(facts, value))
    edit(
        hostile / "scores.json",
        lambda facts: {"scores": {k: dict.fromkeys(v, value) for k, v in facts["scores"].items()}},
    )
    assert cli("report", hostile).code == 0
    assert "<h1>" in (hostile / "report.html").read_text()


@pytest.mark.usefixtures("brief_classifier")
def test_html_in_names_stays_text(cli, run, tmp_path) -> None:
    """Labels, the recipe, the host and the events come from the author of the run."""
    import ganherd

    evil = "<script>alert(1)</script>"
    labels = (evil, "$\\frac{", "[/bold] ../../up")
    source = tiny_data(tmp_path / "labels.npz", labels)
    path = ganherd.train(
        tiny_recipe(source, run={"sprites": None}) | {"about": evil}, run=tmp_path / "run", quiet=True
    ).path
    facts = {"host": evil, "command": evil, "versions": {evil: evil}, "recipe": evil, "changes": [f"about={evil}"]}
    edit(path / "run.json", lambda f: f | facts)
    edit(path / "sprites" / "index.json", lambda f: f | {"names": [evil] * 3, "labels": [evil] * 3})
    edit(
        path / "scores.json",
        lambda f: {"scores": f["scores"] | {evil: {"value": evil, "samples": evil, "network": evil}}},
    )
    with (path / "events.jsonl").open("a") as events:
        events.write(
            json.dumps({"step": 6, "event": "alarm", "member": 0, "name": evil, "what": evil, evil: evil}) + "\n"
        )
        events.write(json.dumps({"step": 6, "event": evil, "member": evil, "name": {evil: evil}}) + "\n")
    assert cli("report", path).code == 0
    page = (path / "report.html").read_text()
    assert "alert(1)" in page  # it is told,
    assert page.lower().count("<script") == 2 and "<script>alert" not in page and "onerror" not in page  # as text,
    data, script = re.findall(r"<script type=[^>]+>(.*?)</script>", page, re.DOTALL)
    assert "<" not in data and json.loads(data)[0]["facts"]["names"] == [evil] * 3
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "alert(1)" not in script  # and the only script that may run is ganherd's own
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page
    assert cli("report", path, run, "-o", "both.html").code == 0
    both = Path("both.html").read_text()
    assert both.lower().count("<script") == 2 and "<script>alert" not in both and "alert(1)" in both
    assert cli("status", path).code == 0
    assert cli("sample", path, "-o", "folder/").code == 0
    assert sorted(p.name for p in Path("folder").iterdir()) == [
        "$_frac{",
        "[_bold] .._.._up",
        "_script_alert(1)__script_",
    ]
    assert cli("sample", path, "--per-class", "2", "-o", "grid.png").code == 0


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("mixture", {"weights": [1e308, 1e308, 1e308]}),
        ("mixture", {"label_weights": [1e308, 1e308, 1e308]}),
        ("mixture", {"latent": 10**30}),
        ("mixture", {"step": 10**30}),
        ("run", {"engine": {"name": "loop", "chunk": 3, "threads": 1.5, "device": "cpu"}}),
        ("run", {"engine": {"name": "loop", "chunk": 1.5, "threads": 1, "device": "cpu"}}),
        ("run", {"engine": {"name": "loop", "chunk": 3, "threads": 4096, "device": "cpu"}}),
        ("run", {"engine": {"name": "loop", "chunk": 3, "threads": 1, "device": "meta"}}),
        ("run", {"engine": {"name": "loop", "chunk": 3, "threads": 1, "device": ["cpu"]}}),
        ("run", {"budget": {"steps": -5, "deadline": None}}),
        ("run", {"budget": {"steps": 6, "deadline": float("nan")}}),
        ("run", {"members": 10**30}),
        ("state", {"step": 10**30}),
        ("state", {"step": -5}),
        ("state", {"step": 5}),
        ("state", {"seconds": float("nan")}),
        ("state", {"seconds": -1.0}),
        ("state", {"recorded": 10**30}),
    ],
    ids=str,
)
def test_a_forged_number_is_refused_in_one_sentence(cli, hostile, file, changes) -> None:
    if file == "state":
        sign(only_checkpoint(hostile), **changes)
    else:
        edit(hostile / {"run": "run.json", "mixture": "mixture/mixture.json"}[file], lambda facts: facts | changes)
    command = "sample" if file == "mixture" else "resume"
    (told,) = refused(cli, hostile, command, others=()).values()
    assert "is not what ganherd writes" in told or "is of another step" in told


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
def test_weights_that_are_no_floats_are_refused(cli, hostile, dtype) -> None:
    import safetensors.torch
    import torch

    step = only_checkpoint(hostile)
    (weights,) = step.glob("*.safetensors")
    kind = getattr(torch, dtype)
    held = {k: v.to(kind) if "params" in k else v for k, v in safetensors.torch.load(weights.read_bytes()).items()}
    weights.write_bytes(safetensors.torch.save(held))
    sign(step, files={weights.name: hashlib.sha256(weights.read_bytes()).hexdigest()})
    assert "there is no whole checkpoint" in refused(cli, hostile, "resume", others=())["resume"]


@pytest.mark.usefixtures("brief_classifier")
def test_names_of_classes_and_files_do_not_steer_the_terminal(cli, tmp_path) -> None:
    """Neither from a run, nor from a folder of data, nor in a report."""
    from PIL import Image

    import ganherd

    evil = "a\x1b[2J\x1b]0;evil\x07\x9b31m"
    for label in (evil, "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (8, 8), 40 * number).save(tmp_path / "images" / label / f"{number}\x1b[1m.png")
        (tmp_path / "images" / label / "\x1b[7mno image.txt").write_text("x")
    recipe = tiny_recipe(tmp_path / "images", run={"scores": False})
    recipe["data"]["bad_images"] = "skip"
    path = ganherd.train(recipe, run=tmp_path / "run", quiet=True).path
    for words in (
        ("data", "inspect", tmp_path / "images"),
        ("data", "prepare", tmp_path / "images", "--size", 8, "--jobs", 1, "-o", "made"),
        ("status", path),
        ("sample", path, "-n", 4, "-o", "x\x1b[1m.npz"),
        ("sample", path, "--label", evil + "?", "-o", "y.npz"),
        ("report", path),
        ("train", "--resume", path, "--budget", "7steps"),
    ):
        answer = cli(*words)
        shown = answer.out + answer.err
        assert shown and not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown), words
    page = (path / "report.html").read_bytes().decode()
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in page)


def test_names_do_not_steer_the_terminal(cli, hostile) -> None:
    edit(hostile / "run.json", lambda f: f | {"host": "\x1b[2J\x1b]0;evil\x07"})
    answer = cli("status", hostile)
    assert answer.code == 0 and "\x1b" not in answer.out
    assert "\x1b" not in cli("sample", hostile, "--label", "\x1b[2J", "-o", "x.npz").sentence


def test_names_are_no_markup_of_the_progress_display() -> None:
    from rich.console import Console

    from ganherd.training.recording.progress import Progress

    shown = Console(file=io.StringIO(), force_terminal=True, width=80)
    shown.print(Progress(["member 0 ([/bold] [red]x)"])._view())
    assert "[/bold] [red]x" in shown.file.getvalue()  # type: ignore[attr-defined]


NETS = """
import torch
from torch import nn
class G(nn.Module):
    def __init__(self, shape, latent, width=4):
        super().__init__()
        self.shape, self.net = shape, nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 64))
    def forward(self, z):
        return torch.tanh(self.net(z)).reshape(-1, *self.shape)
class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    def forward(self, x):
        return self.net(x)
"""


def test_honest_foreign_nets_work_when_they_are_trusted(cli, data, monkeypatch) -> None:
    Path("honest_nets.py").write_text(NETS)
    monkeypatch.delitem(sys.modules, "honest_nets", raising=False)
    words = [
        f"--set=nets.generator.name=honest_nets:{'G'}",
        "--set=nets.generator.width=3",
        "--set=nets.discriminator.name=honest_nets:D",
    ]
    Path("mine.yaml").write_text(
        yaml.safe_dump(tiny_recipe(data, nets={"generator": "small", "discriminator": "small"}))
    )
    answer = cli("train", "mine.yaml", *words, "--run", "own", "--json", "--quiet")  # one's own recipe is trusted
    assert json.loads(answer.out)["state"] == "finished"
    for name, command in COMMANDS.items():
        words = ["own" if word == "RUN" else word for word in command]
        if name in ("sample", "score", "resume"):
            assert "give --trust-code" in cli(*words).sentence
        answer = cli(*words, *(["--trust-code"] if name != "status" else []))
        assert answer.code == 0, answer
    page = Path("own/report.html").read_text()
    assert "could not be read" not in page
    monkeypatch.delitem(sys.modules, "honest_nets", raising=False)
