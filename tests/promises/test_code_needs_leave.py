"""Promise 5: code that a run folder names, modules and TorchScript, is loaded only with `--trust-code`."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
import yaml
from recipes import tiny_recipe
from run_fixtures import Answer
from torch import Tensor, nn

import ganherd
from ganherd import UserError
from ganherd.report.figures import class_maps

Cli = Callable[..., Answer]


class Evil(nn.Module):
    """Write into a file of the user's as soon as it is called."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self.victim = victim

    def forward(self, x: Tensor) -> Tensor:
        torch.from_file(self.victim, shared=True, size=5, dtype=torch.uint8).fill_(33)
        return x.flatten(1)[:, :4]


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file outside of the run, and a module of the same stranger that changes it when it is imported."""
    path = tmp_path / "victim"
    path.write_text("hello")
    (tmp_path / "here").mkdir(exist_ok=True)
    (tmp_path / "here" / "evil.py").write_text(f"open({str(path)!r}, 'w').write('PWNED')\n")
    yield path
    assert "evil" not in sys.modules
    assert path.read_text() == "hello", "code of a stranger was executed"


@pytest.fixture(autouse=True)
def _quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of few samples; what t-SNE computes of their features, in seconds, is not looked at."""
    monkeypatch.setattr("sklearn.manifold.TSNE.fit_transform", lambda self, features: features[:, :2])
    monkeypatch.setattr(class_maps, "MAPPED", 20)
    monkeypatch.setattr(class_maps, "COUNTED", 20)


@pytest.fixture
def script(victim: Path, tmp_path: Path) -> str:
    """The same as TorchScript, with the digest that the stranger wrote next to it."""
    path = tmp_path / "evil.pt"
    torch.jit.script(Evil(str(victim))).save(str(path))
    return f"{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A finished cellular run."""
    path = tmp_path_factory.mktemp("grids") / "grid"
    tiny_runs.train(path, grid_recipe(data))
    return path


def grid_recipe(data: Path, **mixing: Any) -> dict[str, Any]:
    cellular = {"grid": [2, 2], "iteration": "3steps", "fitness": {"samples": 8}, "mixing": {"samples": 16} | mixing}
    recipe = tiny_recipe(data, strategy={"name": "cellular", "cellular": cellular}, run={"scores": False})
    return {**recipe, "data": {**recipe["data"], "partition": "all"}}


@pytest.fixture
def hostile_grid(grid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grid, tmp_path / "hostile"))


@pytest.fixture
def hostile(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "hostile"))


def change(folder: Path, path: str, value: Any) -> None:
    """Set a key of the folder's recipe, given with dots."""
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    *outer, last = path.split(".")
    section = recipe
    for key in outer:
        section = section[key]
    section[last] = value
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# -- run folders ----------------------------------------------------------------------------------------------------------

COMMANDS = {
    "resume": ("train", "--resume", "RUN", "--budget", "9steps", "--quiet"),
    "sample": ("sample", "RUN", "-n", "4", "-o", "x.npz"),
    "score": ("score", "RUN", "--metrics", "diversity", "-n", "20", "--quiet"),
    "score neighbourhoods": ("score", "RUN", "--metrics", "fid", "--per", "neighbourhood", "-n", "20", "--quiet"),
    "ensemble": ("ensemble", "RUN", "--size", "1", "-n", "20", "--quiet"),
    "report": ("report", "RUN", "--quiet"),
    "figures": ("figures", "RUN", "-o", "figures", "--quiet"),
    "status": ("status", "RUN"),
}


def answers(cli: Cli, folder: Path) -> dict[str, Answer]:
    found = {name: cli(*(folder if w == "RUN" else w for w in words)) for name, words in COMMANDS.items()}
    assert all("Traceback" not in answer.err for answer in found.values())
    return found


def test_a_digest_in_a_run_folder_is_no_trust(cli: Cli, hostile_grid: Path, script: str) -> None:
    change(hostile_grid, "strategy.cellular.mixing.network", script)
    told = answers(cli, hostile_grid)["resume"].sentence
    assert "is TorchScript that ganherd does not know" in told and "give --trust-code" in told


@pytest.mark.further("network")
@pytest.mark.parametrize("key", ["score", "network"])
def test_mixtures_of_a_run_import_nothing(cli: Cli, hostile_grid: Path, victim: Path, key: str) -> None:
    change(hostile_grid, f"strategy.cellular.mixing.{key}", "evil:Net")
    assert "evil:Net is code that is not ganherd's: give --trust-code" in answers(cli, hostile_grid)["resume"].sentence


@pytest.mark.further
def test_neighbourhoods_of_a_run_import_nothing(cli: Cli, hostile_grid: Path, victim: Path) -> None:
    change(hostile_grid, "strategy.cellular.rewire_by", "evil:rule")
    assert "evil:rule is code that is not ganherd's: give --trust-code" in answers(cli, hostile_grid)["resume"].sentence


@pytest.mark.parametrize("net", ["generator", "discriminator"])
def test_nets_of_a_run_are_not_imported(cli: Cli, hostile: Path, victim: Path, net: str) -> None:
    change(hostile, f"nets.{net}", {"name": "evil:Net", "settings": {}})
    told = [answer.sentence for answer in answers(cli, hostile).values() if answer.code == 2]
    assert any("evil:Net is code that is not ganherd's: give --trust-code" in sentence for sentence in told)
    words = ("--resume", hostile, "--retrain", "zero", "--budget", "2steps", "--quiet")
    assert "give --trust-code" in cli("train", *words).sentence
    assert (
        "give --trust-code" in cli("score", hostile, "--metrics", "gam2", "-n", 20, "-q").sentence
        or net != "discriminator"
    )


def test_the_mixture_of_a_run_in_python_names_what_its_recipe_names(hostile: Path, victim: Path) -> None:

    change_json(hostile / "mixture" / "mixture.json", generator={"name": "evil:Net", "settings": {}})
    with pytest.raises(UserError, match="evil:Net is code that is not ganherd's"):
        _ = ganherd.Run(hostile).mixture


# -- recipes that lie in run folders, or take members from them --------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [(), ("--dry-run",), ("--explain",), ("--members", "0-1", "--run", "new"), ("--ranks", "2")]
)
def test_a_recipe_in_a_run_folder_is_not_the_users_own(
    cli: Cli, hostile: Path, victim: Path, more: tuple[str, ...]
) -> None:
    change(hostile, "nets.generator", {"name": "evil:Net", "settings": {}})
    told = cli("train", hostile / "recipe.yaml", *more, "--quiet").sentence
    assert "belongs to a run and names evil:Net" in told and "give --trust-code" in told
    with pytest.raises(UserError, match="belongs to a run and names evil:Net"):
        ganherd.train(hostile / "recipe.yaml", run="new", quiet=True)


@pytest.mark.parametrize("depth", ["recipe.yaml", "samples/deep/first.yaml"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_first_phase_that_a_run_folder_names_is_not_the_users_own(
    cli: Cli, hostile: Path, victim: Path, data: Path, depth: str, more: tuple[str, ...]
) -> None:
    deep = hostile / "samples" / "deep"
    deep.mkdir(parents=True)
    shutil.copy(victim.parent / "here" / "evil.py", deep)
    first = tiny_recipe(data, data={"partition": "all"}, herd={"members": 1}, nets={"generator": "evil:G"})
    (deep / "first.yaml").write_text(yaml.safe_dump(first))
    outer = tiny_recipe(data, herd={"first": {"recipe": str(deep / "first.yaml"), "share": 0.5}})
    (hostile / "recipe.yaml").write_text(yaml.safe_dump(outer | {"code": [str(deep)]}))
    assert "names evil:G, which is code" in cli("train", hostile / depth, "--run", "new", "--quiet", *more).sentence


def test_a_broken_link_for_a_run_makes_a_run_folder(cli: Cli, data: Path, victim: Path) -> None:
    Path("stranger").mkdir()
    Path("stranger/run.json").symlink_to("nowhere")
    Path("stranger/recipe.yaml").write_text(yaml.safe_dump(tiny_recipe(data, nets={"generator": "evil:G"})))
    assert "names evil:G, which is code" in cli("train", "stranger/recipe.yaml", "--run", "new", "--quiet").sentence


def test_growing_a_run_does_not_vouch_for_it(cli: Cli, hostile: Path, victim: Path, data: Path) -> None:
    change(hostile, "nets.generator", {"name": "evil:Net", "settings": {}})
    assert "belongs to a run and names evil:Net" in cli("train", "--grow", hostile, "--quiet").sentence


def test_a_mixture_that_is_grown_names_no_code(cli: Cli, tmp_path: Path, data: Path, victim: Path) -> None:
    """Its recipe is honest, and its mixture names another net."""
    from recipes import tiny_data

    two = tiny_data(tmp_path / "two.npz", labels=("zero", "one"))
    tiny_runs.train(tmp_path / "grown", tiny_recipe(two))
    change_json(tmp_path / "grown" / "mixture" / "mixture.json", generator={"name": "evil:Net", "settings": {}})
    recipe = tiny_recipe(data, herd={"grow_from": str(tmp_path / "grown")})
    del recipe["nets"]
    Path("own.yaml").write_text(yaml.safe_dump(recipe))
    assert "evil:Net is code that is not ganherd's" in cli("train", "own.yaml", "--run", "new", "--quiet").sentence


def test_a_run_that_members_start_from_names_no_code(cli: Cli, hostile: Path, data: Path, victim: Path) -> None:
    change(hostile, "nets.generator", {"name": "evil:Net", "settings": {}})
    recipe = tiny_recipe(data, herd={"start_from": str(hostile)})
    del recipe["nets"]
    Path("own.yaml").write_text(yaml.safe_dump(recipe))
    told = cli("train", "own.yaml", "--run", "new", "--quiet").sentence
    assert "names the net evil:Net, which is not ganherd's" in told


def test_a_part_that_a_stranger_began_names_no_code(cli: Cli, data: Path, victim: Path) -> None:
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data)))
    assert cli("train", "own.yaml", "--run", "whole", "--members", "0-1", "--quiet").code == 0
    part = Path("whole/parts/000-001")
    change(part, "nets.generator", {"name": "evil:Net", "settings": {}})
    change_json(part / "run.json", state="running")
    told = cli("train", "own.yaml", "--run", "whole", "--members", "0-1", "--quiet").sentence
    assert "names code that this recipe does not (evil:Net)" in told


@pytest.mark.parametrize("where", ["part", "whole"])
def test_folders_of_code_in_a_run_do_not_replace_the_users_modules(
    cli: Cli, data: Path, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    own = "from ganherd.nets.mlp import SmallGenerator as G\n"
    Path("vouched_nets.py").write_text(own)
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "vouched_nets.py").write_text((tmp_path / "here" / "evil.py").read_text() + own)
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data, nets={"generator": "vouched_nets:G"})))
    train = ("train", "own.yaml", "--run", "whole", "--members", "0-1", "--quiet")
    assert cli(*train).code == 0
    part = Path("whole/parts/000-001")
    change(part if where == "part" else Path("whole"), "code", [str(tmp_path / "stranger")])
    change_json(part / "run.json", state="running")
    change_json(Path("whole/run.json"), state="running")
    monkeypatch.delitem(sys.modules, "vouched_nets")  # as in a new process
    cli(*train)  # the fixture checks that nothing of the stranger's was executed
    assert Path(sys.modules["vouched_nets"].__file__ or "").parent == Path.cwd()


@pytest.mark.parametrize("where", ["recipe", "mixture"])
def test_runs_of_a_comparison_are_those_of_its_recipes(cli: Cli, data: Path, victim: Path, where: str) -> None:
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(tiny_recipe(data)))
    words = (
        "compare",
        "a.yaml",
        "b.yaml",
        "--budget",
        "2steps",
        "--seeds",
        1,
        "--metrics",
        "diversity",
        "-n",
        20,
        "-q",
    )
    assert cli(*words, "-o", "both").code == 0
    one = Path("both/budget/a")
    change_json(Path("both/compare.json"), scores={})
    if where == "recipe":
        change(one, "nets.generator", {"name": "evil:Net", "settings": {}})
        assert "names code that this recipe does not (evil:Net)" in cli(*words, "-o", "both").sentence
    else:
        change_json(one / "mixture" / "mixture.json", generator={"name": "evil:Net", "settings": {}})
        assert "names nets that its recipe does not" in cli(*words, "-o", "both").sentence


# -- TorchScript that the user names -----------------------------------------------------------------------------------------


def test_torchscript_in_the_users_own_recipe_needs_the_flag(cli: Cli, data: Path, script: str) -> None:
    Path("own.yaml").write_text(yaml.safe_dump(grid_recipe(data, network=script)))
    for more in ((), ("--dry-run",), ("--explain",)):
        told = cli("train", "own.yaml", *more, "--quiet").sentence
        assert "strategy.cellular.mixing.network" in told and "give --trust-code" in told
    with pytest.raises(UserError, match="give --trust-code"):
        ganherd.train("own.yaml", run="new", quiet=True)
    words = ("compare", "own.yaml", "own.yaml", "--budget", "2steps", "-q")
    assert "give --trust-code" in cli(*words).sentence


def test_torchscript_on_the_command_line_needs_the_flag(
    cli: Cli, run: Path, grid: Path, data: Path, script: str
) -> None:
    Path("own.yaml").write_text(yaml.safe_dump(tiny_recipe(data)))
    for words in (
        ("score", run, "--metrics", "fid", "-n", 20),
        ("score", "--real", data, "--fake", run, "--metrics", "fid", "-n", 20),
        ("ensemble", grid, "--size", 1, "-n", 20),
        ("compare", "own.yaml", "own.yaml", "--budget", "2steps"),
    ):
        assert "give --trust-code" in cli(*words, "--network", script, "--quiet").sentence


@pytest.mark.further
def test_trusted_torchscript_is_used_by_a_run_and_its_resume(cli: Cli, data: Path, tmp_path: Path) -> None:
    class Seen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1).flatten(1)[:, :8000:1000]

    path = tmp_path / "honest.pt"
    torch.jit.script(Seen()).save(str(path))
    Path("own.yaml").write_text(yaml.safe_dump(grid_recipe(data, network=str(path))))
    assert cli("train", "own.yaml", "--run", "new", "--quiet", "--trust-code").code == 0
    more = ("train", "--resume", "new", "--budget", "9steps", "--quiet")
    assert "give --trust-code" in cli(*more).sentence
    assert cli(*more, "--trust-code").code == 0
