"""The notebooks run from their first to their last cell in a fresh kernel, and show what they promise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.notebook
NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
PICTURES = {"first-herd": 3, "own-nets-and-data": 2, "read-and-compare-runs": 3}  # cells that show one


def pictures(notebook: Any) -> int:
    """Return how many cells show a picture: as PNG, or inside of the HTML of a run."""
    shown = 0
    for cell in notebook.cells:
        data = [output.get("data", {}) for output in cell.get("outputs", ())]
        shown += any("image/png" in one or "<img" in one.get("text/html", "") for one in data)
    return shown


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_fresh_kernel(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebooks")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebooks")
    monkeypatch.setitem(os.environ, "IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert pictures(notebook) >= PICTURES[path.stem]
    assert list((tmp_path / "runs").glob("*/mixture/mixture.json"))


def test_notebooks_are_committed_without_results() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PICTURES)
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
