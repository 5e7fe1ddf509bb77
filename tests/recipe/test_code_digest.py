"""The digest of a user's code, by which a resumed run notices changes, covers all files of the user that it imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganherd.recipe import recipe_file
from ganherd.recipe.plugins.recipe_plugins import code_digest, plugins_of

FILES = {
    "digest_net.py": "import torch\nimport digest_tools.layers\nfrom digest_values import GAIN\n"
    "def late():\n    import digest_late\n",
    "digest_values.py": "GAIN = 1.0\n",
    "digest_tools/__init__.py": "",
    "digest_tools/layers.py": "from . import shapes\n",
    "digest_tools/shapes.py": "from .deeper.more import SIZE\n",
    "digest_tools/deeper/__init__.py": "",
    "digest_tools/deeper/more.py": "import digest_net\n\nSIZE = 3\n",
    "digest_late.py": "LATE = 1\n",
    "digest_other.py": "import digest_late\n",
}


def write(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    yield imported(tmp_path, monkeypatch)
    forget()


def imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Import the net from a folder, as a new process would, and return its digest."""
    forget()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.import_module("digest_net")
    return code_digest("digest_net")


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("digest_")]:
        del sys.modules[name]


@pytest.mark.parametrize("file", [name for name in FILES if name not in ("digest_late.py", "digest_other.py")])
def test_a_change_of_any_imported_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str, file: str
) -> None:
    (tmp_path / file).write_text(FILES[file] + "# changed\n")
    assert imported(tmp_path, monkeypatch) != digest
    (tmp_path / file).write_text(FILES[file])
    assert imported(tmp_path, monkeypatch) == digest


def test_other_files_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    for file in ("digest_late.py", "digest_other.py"):
        (tmp_path / file).write_text("# changed\n")
    assert imported(tmp_path, monkeypatch) == digest
    importlib.invalidate_caches()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("digest_late")
    assert code_digest("digest_net") == digest


def test_a_folder_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    write(tmp_path / "a" / "moved")
    assert imported(tmp_path / "a" / "moved", monkeypatch) == digest


def test_a_file_that_is_no_python_any_more_counts_as_it_is(tmp_path: Path, digest: str) -> None:
    (tmp_path / "digest_net.py").write_text("def (")
    assert code_digest("digest_net") not in ("", digest)


def test_code_that_only_a_trial_uses_is_code_of_the_recipe() -> None:
    """Otherwise run.json would not record it, and a resume would not notice that it changed."""
    recipe = {
        "loss": {"name": "hinge", "consistency_augment": ["mine:shift"]},
        "herd": {"trials": [{"loss.name": "mine:Loss", "loss.consistency_weight": weight} for weight in (0.0, 1.0)]},
    }
    names = [name for _, name in plugins_of(recipe_file.load(recipe, is_own=False))]
    assert names == ["mine:Loss", "mine:shift"]
