"""Write reports of runs: one self-contained HTML file with a summary, samples, curves, scores, events and settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.report.gather import gather
from ganherd.report.run_page import render
from ganherd.util import files

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.mixture.mixture import Mixture
    from ganherd.runs.folder import RunFolder


def write(
    run: str | Path | RunFolder,
    *,
    mixture: Mixture | None = None,
    dataset: Dataset | None = None,
    trust_code: bool = False,
    draw: bool = False,
    progress: Callable[[str], None] | None = None,
    output: Path | None = None,
) -> Path:
    """Write the report of a run, and return its path. The run may still be training.

    Args:
        run: The run folder.
        mixture: The mixture (trained generators) of the run; None: load it.
        dataset: The data of the run; None: load it.
        trust_code: Whether code that the run names, such as a user's nets, may be imported.
        draw: Draw missing maps first, which takes some seconds; otherwise the page shows the existing ones.
        progress: Receives lines about the progress.
        output: The file of the page. None: report.html in the run folder.
    """
    if isinstance(run, (str, Path)):
        from ganherd.runs.folder import RunFolder

        run = RunFolder.open(run)
    path = output or Path(run.path) / "report.html"
    page = render(gather(run, mixture, dataset, trust_code, draw, progress))
    files.atomic_write(path, page, sync=False)
    return path
