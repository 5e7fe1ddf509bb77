"""The rooms of the house: layers import only what lies below them, names are unique, folders small, every module documented."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ganherd"

# Bottom first. A layer imports itself and layers listed before it. `ganherd` is the package's own __init__.py.
LAYERS = (
    "util", "register", "viz", "losses", "augment", "nets", "recipe", "data", "herd", "comm", "runs", "features", "metrics",
    "mixture", "strategies", "training", "scoring", "web", "report", "export", "film", "ui", "recommend", "api", "slurm",
    "machine_check", "warm_up", "compare", "sweep", "bench", "ganherd",
    "cli", "__main__",
)  # fmt: skip

MOST_MODULES = 13  # of one folder


def modules() -> dict[str, Path]:
    """Return every module of the package by its name within the package; `ganherd` is the package itself."""
    named = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        named[".".join(parts).removesuffix("__init__").rstrip(".") or "ganherd"] = path
    return named


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module, which is parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Yield the layer of each import of ganherd in a file, imports inside functions included, those for type checkers not."""
    unseen: list[ast.AST] = [tree(path)]
    while unseen:
        node = unseen.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            unseen += node.orelse
            continue
        unseen += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name == "ganherd" or name.startswith("ganherd."):
                layer = name.split(".")[1] if "." in name else "ganherd"
                yield layer if layer in LAYERS else "ganherd"


def test_every_import_points_down() -> None:
    found = set()
    for name, path in modules().items():
        own = LAYERS.index(name.split(".")[0])
        found |= {(name, layer) for layer in imported(path) if LAYERS.index(layer) > own}
    assert found == set()


def test_every_package_is_a_layer() -> None:
    assert {name.split(".")[0] for name in modules()} == set(LAYERS)


def test_no_module_name_occurs_twice() -> None:
    names = Counter(path.stem for path in modules().values() if not path.stem.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_public_class_name_occurs_twice() -> None:
    names: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.setdefault(node.name, []).append(module)
    assert {name: places for name, places in names.items() if len(places) > 1} == {}


def test_folders_are_small() -> None:
    sizes = Counter(path.parent for path in modules().values() if path.stem != "__init__")
    assert {str(folder): count for folder, count in sizes.items() if count > MOST_MODULES} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [name for name, path in modules().items() if not ast.get_docstring(tree(path))]
    assert silent == []
