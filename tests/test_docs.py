"""The documents say what is true: links lead somewhere, files that they name exist, and commands parse as they stand."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE_BY_READERS = {"my_nets.py", "mine.yaml"}  # what the README tells people to write
MADE_BY_RUNS = {"recipe.yaml"}
_NAMED = re.compile(r"(?<![\w./~-])((?:[\w-]+/)*(?:[\w-]+\.(?:py|yaml|md|toml|txt|css)|[\w-]+/))(?![\w.*{-])")


def blocks(document: Path, *kinds: str) -> list[str]:
    """The fenced code blocks of these kinds."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.M | re.S)
    return [text for kind, text in found if kind in kinds]


def commands() -> Iterator[tuple[str, str]]:
    """(document, command line) for every `ganherd …` in a block of shell, or in a line of text."""
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if found := re.search(r"(?:^|\s)(ganherd [^;)]*)", line.partition(" #")[0]):  # after mpiexec too
                    yield document.name, found[1]
        outside = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
        for line in re.findall(r"`(ganherd [^`]*)`", outside):
            yield document.name, line


COMMANDS = sorted(set(commands()))


def test_the_documents_are_there() -> None:
    assert {"README.md", "CHANGELOG.md", "architecture.md"} <= {document.name for document in DOCUMENTS}
    assert len(COMMANDS) > 20  # the patterns above still find them


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    assert links
    missing = [link for link in local if link and not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(document: Path) -> None:
    """In `code` in running text; the paths of docs/architecture.md are those of the package, or of the repository."""
    outside = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    named = {name for span in re.findall(r"`([^`\n]+)`", outside) for name in _NAMED.findall(f" {span} ")}
    package = ROOT / "src" / "ganherd"
    places = [ROOT, document.parent, package, package / "herd" / "lowering" / "kernels"]
    missing = {name for name in named if not any((place / name).exists() for place in places)}
    assert missing <= MADE_BY_READERS | MADE_BY_RUNS


@pytest.mark.parametrize(("document", "line"), COMMANDS, ids=lambda value: str(value))
def test_every_command_parses(document: str, line: str) -> None:
    """Options and arguments are those of the command; nothing is run."""
    import typer

    from ganherd.cli.main import app

    words = shlex.split(re.sub(r"\s*>.*| #.*", "", line))[1:]
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if not words or words[0] in ("--help", "--version"):
            return  # the program itself, or a group of commands
        name = words.pop(0)
        assert name in command.commands, f"{document}: {line}: there is no command {name}"
        command = command.commands[name]
    if words:  # a command that is only named, as `ganherd report`, has no arguments to look at
        assert command.make_context("ganherd", words).params


@pytest.mark.parametrize(("document", "line"), [c for c in COMMANDS if " train" in c[1]], ids=lambda value: str(value))
def test_every_recipe_and_override_is_valid(document: str, line: str) -> None:
    from ganherd.recipe import recipe_file

    words = shlex.split(re.sub(r"\s*>.*| #.*", "", line))[2:]
    overrides = [value for option, value in pairwise(words) if option == "--set"]
    budgets = [f"train.budget={value}" for option, value in pairwise(words) if option == "--budget"]
    named = words[0] if words and not words[0].startswith("-") and words[0] not in MADE_BY_READERS else None
    assert recipe_file.load(named or recipe_file.DEFAULT, overrides + budgets).train.batch >= 1


def _recipes_of(line: str) -> list[str]:
    """Return the recipes that a command line names: before a colon, if changes follow it."""
    words = shlex.split(re.sub(r"\s*>.*| #.*", "", line))[1:]
    takes = {("train",): 1, ("recipes",): 1, ("launch", "slurm"): 1, ("compare",): 99, ("sweep",): 1}
    for name, most in takes.items():
        if tuple(words[: len(name)]) == name:
            until = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
            return [word.partition(":")[0] for word in words[len(name) : until][:most] if word != "…"]
    return []


@pytest.mark.parametrize(("document", "line"), COMMANDS, ids=lambda value: str(value))
def test_every_recipe_that_a_command_names_exists(document: str, line: str) -> None:
    from ganherd.recipe import recipe_file

    there = {name for name, _ in recipe_file.names()} | MADE_BY_READERS
    for name in _recipes_of(line):
        placeholder = name.isupper() or "/" in name  # NAME, RECIPE, or a run
        assert placeholder or name in there, f"{document}: {line}: there is no recipe {name}"


def test_a_recipe_that_does_not_exist_would_be_noticed() -> None:
    assert _recipes_of("ganherd launch slurm no-such --nodes 2") == ["no-such"]
    assert _recipes_of("ganherd compare one two:train.batch=3 --budget 1m") == ["one", "two"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_recipes_and_python_in_blocks_are_what_they_seem(document: Path) -> None:
    from ganherd.recipe import recipe_file

    for block in blocks(document, "python"):
        assert ast.parse(block).body
    for block in blocks(document, "yaml"):
        assert recipe_file.load(yaml.safe_load(block)).nets.latent >= 1


def test_the_nets_of_the_readme_train_as_a_pair() -> None:
    """The modules that people are told to write make data of the right shape and answer one logit for each."""
    import torch

    (block,) = [block for block in blocks(ROOT / "README.md", "python") if "MyGenerator" in block]
    names: dict[str, type[torch.nn.Module]] = {}
    exec(block, names)  # the README's own text
    x = names["MyGenerator"]((1, 8, 8), latent=16, width=128)(torch.zeros(3, 16))
    assert x.shape == (3, 1, 8, 8)
    assert names["MyDiscriminator"]((1, 8, 8))(x).numel() == 3


def test_names_of_the_python_api_exist() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    api = importlib.import_module("ganherd")
    for name in set(re.findall(r"(?<!\w)ganherd\.(train|load|resume)\b", text)):
        assert inspect.isfunction(getattr(api, name))
        assert name in api.__all__


def test_generated_parts_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for page, text in generate.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"run `python docs/generate.py`: {page.name} is out of date"


def test_every_module_is_in_the_architecture() -> None:
    text, package = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), ROOT / "src" / "ganherd"
    modules = [file.relative_to(package).as_posix() for file in sorted(package.rglob("*.py"))]
    missing = [name for name in modules if not name.endswith("/__init__.py") and f"`{name}`" not in text]
    assert not missing, f"docs/architecture.md lacks a line for {', '.join(missing)}"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.png")), ids=lambda path: path.name)
def test_pictures_are_small_and_used(picture: Path) -> None:
    assert picture.stat().st_size <= 200_000
    assert any(picture.name in document.read_text() for document in DOCUMENTS)
