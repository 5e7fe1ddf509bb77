"""The documents say what is true: links lead somewhere, files that they name exist, and commands parse as they stand."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import environment

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BY_HAND = [
    path for path in DOCUMENTS if path.name not in ("modules.md", "recipe.md", "commands.md")
]  # the others are generated
MADE_BY_READERS = {
    "my_nets.py",
    "my_plugins.py",
    "mine.yaml",
    "pictures",
    "table.csv",
    "rows.csv",
    "pictures-64",
    "birds-{000..009}.tar",
}  # what the documents tell people to write or to have
MADE_BY_RUNS = {
    "recipe.yaml", "checkpoints/", "samples/", "sprites/", "mixture/", "ranks/", "parts/", "site/", "made/",
    "best.yaml", "best/", "sweeps/", "run-00/",
}  # fmt: skip
LONGEST_PARAGRAPH = 80  # words
_NAMED = re.compile(r"(?<![\w./~-])((?:[\w-]+/)*(?:[\w-]+\.(?:py|yaml|md|toml|txt|css)|[\w-]+/))(?![\w.*{-])")


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path, *kinds: str) -> list[str]:
    """The fenced code blocks of these kinds."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.M | re.S)
    return [text for kind, text in found if kind in kinds]


def links_of(document: Path) -> list[str]:
    """Return the targets of all links outside of code."""
    outside = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"\]\(([^)\s]+)\)", outside)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    outside = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", outside, flags=re.M)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def paragraphs(document: Path) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, without code, tables and headings."""
    outside = re.sub(r"^```.*?^```$", "\n", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", outside):
        text = block.strip()
        if text and not text.startswith(("|", "#", "<!--")):
            yield re.sub(r"\]\([^)]*\)", "]", text)


def commands() -> Iterator[tuple[str, str]]:
    """(document, command line) for every `ganherd …` in a block of shell, or in a line of text."""
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if found := re.search(r"(?:^|\s)(ganherd [^;)]*)", line.partition(" #")[0]):  # after mpiexec too
                    yield name_of(document), found[1]
        outside = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
        for line in re.findall(r"`(ganherd [^`]*)`", outside):
            yield name_of(document), line


COMMANDS = sorted(set(commands()))


def test_the_documents_are_there() -> None:
    assert {"README.md", "CHANGELOG.md", "docs/architecture.md", "docs/index.md"} <= {
        name_of(each) for each in DOCUMENTS
    }
    assert len(COMMANDS) > 20  # the patterns above still find them


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = [link for link in links_of(document) if not re.match(r"[a-z]+:", link)]
    missing = [link for link in links if not (document.parent / link.partition("#")[0]).exists()]
    assert not missing
    for link in links:
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"


def test_pages_are_linked() -> None:
    assert sum(len(links_of(document)) for document in DOCUMENTS) > 200  # the pattern still finds them
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in DOCUMENTS for link in links_of(page)}
    assert not [page for page in (ROOT / "docs").rglob("*.md") if page not in linked | {ROOT / "docs" / "index.md"}]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_file_that_is_named_exists(document: Path) -> None:
    """In `code` in running text; the paths of docs/architecture.md are those of the package, or of the repository."""
    outside = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    named = {name for span in re.findall(r"`([^`\n]+)`", outside) for name in _NAMED.findall(f" {span} ")}
    package = ROOT / "src" / "ganherd"
    places = [
        ROOT,
        document.parent,
        ROOT / "docs",
        package,
        package / "herd",
        package / "herd" / "lowering" / "kernels",
    ]
    missing = {name for name in named if not any((place / name).exists() for place in places)}
    assert missing <= MADE_BY_READERS | MADE_BY_RUNS


@pytest.mark.parametrize(("document", "line"), COMMANDS, ids=lambda value: str(value))
def test_every_command_parses(document: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and arguments are those of the command; nothing is run."""
    monkeypatch.setattr("ganherd.runs.run_names.named_run", Path)  # no run has the name @last here

    from ganherd.cli.main import command_group

    words = shlex.split(re.sub(r"\s*>.*| #.*", "", line))[1:]
    command: Any = command_group()
    while hasattr(command, "commands"):
        if not words or words[0] in ("--help", "--version", "--install-completion"):
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
    budgets = [f"train.budget={value.removeprefix('+')}" for option, value in pairwise(words) if option == "--budget"]
    named = (
        words[0]
        if words and not words[0].startswith("-") and words[0] not in MADE_BY_READERS and not words[0].isupper()
        else None
    )
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
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
    assert block in blocks(ROOT / "docs/how-to/own-nets.md", "python")
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


def test_every_module_is_in_the_reference() -> None:
    text, package = (ROOT / "docs/reference/modules.md").read_text(encoding="utf-8"), ROOT / "src" / "ganherd"
    modules = [file.relative_to(package).as_posix() for file in sorted(package.rglob("*.py"))]
    missing = [name for name in modules if not name.endswith("/__init__.py") and f"`{name}`" not in text]
    assert not missing, f"docs/reference/modules.md lacks a line for {', '.join(missing)}"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.png")), ids=lambda path: path.name)
def test_pictures_are_small_and_used(picture: Path) -> None:
    assert picture.stat().st_size <= 200_000
    assert any(picture.name in document.read_text() for document in DOCUMENTS)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("document", BY_HAND, ids=name_of)
def test_paragraphs_are_short(document: Path) -> None:
    long = [text for text in paragraphs(document) if len(text.split()) > LONGEST_PARAGRAPH]
    assert not long, f"{len(long[0].split())} words: {long[0][:100]}…"


def members_of_classes(code: Iterable[str]) -> dict[str, set[str]]:
    """The words in the definition of each class, those of its bases included."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for text in code:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                own[node.name] = set(re.findall(r"\w+", ast.get_source_segment(text, node) or ""))
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]

    def whole(name: str) -> set[str]:
        return own.get(name, set()).union(*(whole(base) for base in bases.get(name, [])))

    return {name: whole(name) for name in own}


def test_every_name_of_the_code_exists() -> None:
    """Classes with their members, and functions that the pages about the code name in backticks."""
    code = [file.read_text(encoding="utf-8") for file in (ROOT / "src" / "ganherd").rglob("*.py")]
    words, missing = {"scancel", *re.findall(r"\w+", "\n".join(code))}, {}  # scancel is a command of Slurm
    members = members_of_classes(code)
    for page in [
        *(ROOT / "docs" / "explanation").glob("*.md"),
        ROOT / "docs/architecture.md",
        ROOT / "docs/how-to/extend.md",
        ROOT / "docs/how-to/hangs.md",
    ]:
        outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        names = re.findall(r"`((?:[A-Z][a-z]\w+|[a-z]+_\w*|[a-z]+|_\w+)(?:\.[a-z_]+)?)(?:\(\))?`", outside)
        pairs = [name.partition(".")[::2] for name in names]
        missing[page.name] = [
            f"{first}.{second}" if second else first
            for first, second in pairs
            if first not in words or (second and second not in members.get(first, words))
        ]
    assert not [f"{page}: {name}" for page, names in missing.items() for name in names]


def test_every_key_of_a_recipe_has_a_meaning() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \|.*\| ([^|]*) \|$", (ROOT / "docs/reference/recipe.md").read_text("utf-8"), re.M
    )
    assert len(rows) > 80
    assert not [key for key, meaning in rows if not meaning.strip()]


def test_every_event_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M))
    named = set(events_of_code())
    assert len(named) > 15  # the patterns still find them
    assert named <= listed, f"docs/reference/events.md lacks {', '.join(sorted(named - listed))}"
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src" / "ganherd").rglob("*.py"))
    assert not [name for name in listed if f'"{name}"' not in code]


def events_of_code() -> Iterator[str]:
    """Yield the names of events that the code gives as literals."""
    folders = [ROOT / "src" / "ganherd" / name for name in ("comm", "strategies", "training")]
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="event" | "_report"), args=[first, *_]):
                    words: list[ast.AST] = list(ast.walk(first))
                case ast.Call(func=ast.Attribute(attr="add"), args=[_, second, *_]):
                    words = [second]
                case ast.Yield(value=ast.Tuple(elts=[first, *_])):
                    words = [first]
                case _:
                    continue
            yield from (word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str))


@pytest.mark.docs
def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment(NO_MKDOCS_2_WARNING="1"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)", page.read_text("utf-8")
        )
        assert not loaded, f"{page.name} loads {loaded[0]}"
