"""What a user sees of the guard: an engine that would train a net wrongly is not used, and the reason is given."""

from __future__ import annotations

import json
import math
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from recipes import tiny_recipe
from tiny_runs import skip_products

from ganherd.herd.checks import guard
from ganherd.herd.checks.agreement import Agreement
from ganherd.herd.checks.guard import GuardReport
from ganherd.herd.lowering.network import NetworkCall
from ganherd.nets import catalog
from ganherd.recipe import recipe_file
from ganherd.training.setup import net_guard
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.util.errors import UserError
from ganherd.util.user_code import is_installed

NETS = '''
import math
from torch import nn

class D(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), 1)
    def forward(self, x):
        return self.layer(x.flatten(1))
'''  # fmt: skip

ASKS = '''
import math
from torch import nn

class D(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), 1)
    def forward(self, x):
        scale = 2 if self.layer.weight.requires_grad else 1
        return self.layer(x.flatten(1)) * scale
'''  # fmt: skip

DEVIATION = '''
def deviation(x):
    return x.reshape(8, -1, x.shape[1]).std(0).repeat(8, 1)
'''  # fmt: skip


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Lets engines differ on the discriminator, and returns the names of the nets that were compared since."""
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    skip_products(monkeypatch)

    def lets(**differ: str) -> list[str]:
        names: list[str] = []

        def check(task, extent=None):
            names.append(task.role)
            own = differ if task.role == "discriminator" else {}
            return GuardReport(
                "little", {name: Agreement(float(name in own), own.get(name, "")) for name in guard.ENGINES}
            )

        monkeypatch.setattr(guard, "check", check)
        return names

    return lets


@pytest.fixture
def recipe(cli, data) -> Iterator[Path]:
    Path("guarded_nets.py").write_text(NETS)
    nets = {"discriminator": {"name": "guarded_nets:D", "settings": {}}}
    path = Path("mine.yaml")
    path.write_text(yaml.safe_dump(tiny_recipe(data, nets=nets, engine={"name": "auto"}, train={"budget": "2steps"})))
    sys.modules.pop("guarded_nets", None)
    yield path
    sys.modules.pop("guarded_nets", None)


def assembled(path: Path) -> PreparedHerd:
    return assemble(recipe_file.load(path), trust_code=True)


def test_an_engine_that_differs_is_not_used(cli, recipe, compared) -> None:
    compared(fused="its output differs by 1.0e-01")
    answer = cli("train", recipe, "--run", "new", "--set", "run.scores=false")
    assert answer.code == 0, answer
    assert (
        "D: for all members at once it is not what it is in plain PyTorch: its output differs by 1.0e-01" in answer.err
    )
    assert json.loads(Path("new/run.json").read_text())["engine"]["name"] == "loop"


def test_an_engine_that_differs_and_was_asked_for_is_refused(cli, recipe, compared) -> None:
    compared(fused="its output differs by 1.0e-01")
    told = cli("train", recipe, "--run", "new", "--set", "engine.name=fused").sentence
    assert "its output differs by 1.0e-01" in told and "set it to loop" in told
    assert not Path("new").exists()


def test_a_net_that_even_loop_trains_wrongly_is_refused_with_the_likely_cause(cli, recipe, compared) -> None:
    compared(loop="its output differs by 1.0e-01", fused="its output differs by 2.0e-01")
    told = cli("train", recipe, "--run", "new").sentence
    assert told.startswith(
        "The discriminator guarded_nets:D cannot be trained as plain PyTorch trains it: with the engine loop,"
    )
    assert "its output differs by 1.0e-01. Likely cause: " in told
    assert not Path("new").exists()


def test_a_net_that_reads_requires_grad_is_refused_with_that_cause(cli, recipe) -> None:
    Path("guarded_nets.py").write_text(ASKS)
    message = cli("train", recipe, "--run", "new").sentence
    assert "its output differs by" in message
    assert "Likely cause: its output depends on requires_grad (guarded_nets.py, line 10)" in message
    assert "Leave requires_grad out of forward" in message and "Python state" not in message
    assert not Path("new").exists()


def test_pictures_and_scores_of_a_net_that_differs_are_made_one_by_one_too(recipe, compared) -> None:
    compared(fused="its output differs by 1.0e-01")
    herd = assembled(recipe)
    net_guard.examine(herd)
    assert "its output differs" in herd.herd.d.traits.why_not_fused and not NetworkCall(herd.herd.d).fused
    assert NetworkCall(herd.herd.g).fused


def test_explain_shows_each_net_with_each_engine(cli, recipe, compared) -> None:
    compared(fused="its output differs by 1.0e-01")
    g, d = json.loads(cli("train", recipe, "--explain", "--json").out)["nets"]
    assert g["guard"]["engines"]["fused"] == {"difference": 0.0, "why": ""}
    assert d["guard"]["engines"]["fused"] == {"difference": 1.0, "why": "its output differs by 1.0e-01"}
    text = cli("train", recipe, "--explain").out
    assert text.count("compared with plain PyTorch (little)") == 2
    assert "fused: not used, its output differs by 1.0e-01" in text and "loop: equal" in text


def test_explain_shows_engines_that_fail_as_json(cli, recipe, compared, monkeypatch) -> None:
    failed = GuardReport("little", dict.fromkeys(guard.ENGINES, Agreement(math.nan, "it fails: ValueError")))
    compared()
    monkeypatch.setattr(guard, "check", lambda task, extent=None: failed)
    _, d = json.loads(cli("train", recipe, "--explain", "--json").out)["nets"]
    assert d["guard"]["engines"]["loop"] == {"difference": None, "why": "it fails: ValueError"}


def test_an_engine_that_fails_is_not_called_different(cli, recipe, compared) -> None:
    compared(fused="it fails: vmap: no rule; guarded_nets.py, line 9")
    answer = cli("train", recipe, "--run", "new", "--set", "run.scores=false")
    why = "D: it cannot run for all members at once: vmap: no rule; guarded_nets.py, line 9"
    assert answer.code == 0 and f"the nets cannot be fused ({why})" in answer.err, answer


def test_explain_finds_nets_next_to_the_recipe(cli, recipe, compared, monkeypatch) -> None:
    Path("elsewhere").mkdir()
    Path("elsewhere/guarded_nets.py").write_text("another = True")
    monkeypatch.chdir("elsewhere")
    for way in ("--explain", "--dry-run"):
        answer = cli("train", Path("..") / recipe, way)
        assert answer.code == 0, answer


def test_a_net_that_compares_groups_of_eight_samples_trains(cli, recipe, compared) -> None:
    Path("guarded_nets.py").write_text(
        NETS.replace("x.flatten(1)", "x.flatten(1) + deviation(x.flatten(1))") + DEVIATION
    )
    words = ["--set", "train.batch=16", "--set", "run.scores=false"]
    assert cli("train", recipe, "--run", "new", *words).code == 0
    assert "loop: equal" in cli("train", recipe, "--explain", *words).out


def test_without_a_home_folder_a_net_is_compared_each_time(recipe, compared, monkeypatch) -> None:
    def no_home(kind: str) -> Path:
        raise UserError("The home folder is unknown.")

    names, herd = compared(), assembled(recipe)
    monkeypatch.setattr(net_guard, "cache_folder", no_home)
    for _ in range(2):
        list(net_guard.checked(herd))
    assert len(names) == 4


def test_looking_for_a_known_result_moves_no_random_generator(recipe, compared) -> None:
    compared()
    herd, before = assembled(recipe), torch.get_rng_state()
    list(net_guard.checked(herd))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_change_in_a_project_that_is_a_virtual_environment_is_noticed(recipe, compared, monkeypatch) -> None:
    paths = sysconfig.get_paths() | {"data": str(Path.cwd()), "purelib": str(Path.cwd() / "lib")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    for file, installed in (("nets.py", False), ("library.py", False), ("lib/package.py", True)):
        assert is_installed(str(Path.cwd() / file)) == installed


def test_a_run_is_not_continued_with_an_engine_that_differs(cli, recipe, compared) -> None:
    compared()
    words = ["--set", "engine.name=fused", "--set", "run.scores=false"]
    assert cli("train", recipe, "--run", "new", *words).code == 0
    compared(fused="its output differs by 1.0e-01")
    assert cli("train", "--resume", "new", "--trust-code", "--budget", "3steps").code == 0  # as compared before
    for file in (Path("../cache/guard")).iterdir():
        file.unlink()
    told = cli("train", "--resume", "new", "--trust-code", "--budget", "4steps").sentence
    assert "its output differs by 1.0e-01" in told and "train the recipe again in a new run" in told


def test_a_net_is_compared_once_and_again_when_its_source_changes(recipe, compared) -> None:
    names, herd = compared(fused="it differs"), assembled(recipe)
    first = [report for _, report in net_guard.checked(herd)]
    assert names == ["generator", "discriminator"]
    assert [report for _, report in net_guard.checked(herd)] == first and len(names) == 2
    with Path(sys.modules["guarded_nets"].__file__ or "").open("a") as file:
        file.write("# changed\n")
    list(net_guard.checked(herd))
    assert names == ["generator", "discriminator", "discriminator"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"extent": 1, "engines": {"loop": 3}}', '{"engines": {}}'])
def test_a_damaged_cache_is_not_believed(recipe, compared, content: str) -> None:
    names, herd = compared(), assembled(recipe)
    list(net_guard.checked(herd))
    for file in Path("../cache/guard").iterdir():
        file.write_text(content)
    list(net_guard.checked(herd))
    assert len(names) == 4


def test_a_refusal_is_not_remembered(recipe, compared) -> None:
    names, herd = compared(loop="it differs", fused="it differs"), assembled(recipe)
    for _ in range(2):
        list(net_guard.checked(herd))
    assert names == ["generator", "discriminator", "discriminator"]


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (role, name)
        for role in ("generator", "discriminator")
        for name, spec in catalog.specs(role).items()
        if not spec.sizes or 8 in spec.sizes  # the data has 8 pixels
    ],
)
def test_every_packaged_net_is_the_same_with_every_engine(role, name, cli, data, compared, monkeypatch) -> None:
    nets = {role: {"name": name}, "latent": 4}
    herd = assemble(recipe_file.load(tiny_recipe(data, nets=nets, loss={"name": "wasserstein-gp"})))
    monkeypatch.setenv("GANHERD_CACHE", "nothing")
    for task, report in net_guard.checked(herd):
        assert not any(result.why for result in report.results.values()), (task, report)
