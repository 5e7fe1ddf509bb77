"""The report of a run: one self-contained HTML file with pictures, curves, scores, events and settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.report.gather import gather
from ganherd.report.page import render

if TYPE_CHECKING:
    from ganherd.data.source import Dataset
    from ganherd.mixture import Mixture
    from ganherd.run.folder import RunFolder


def write(
    run: str | Path | RunFolder,
    *,
    mixture: Mixture | None = None,
    dataset: Dataset | None = None,
    trust_code: bool = False,
    draw: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Writes report.html into the run's folder and says where; the run may still be going on.

    A mixture or dataset at hand saves loading it again. `draw`: makes the maps too, which takes some seconds, where they
    are not there yet; otherwise the page shows those that are.
    """
    if isinstance(run, (str, Path)):
        from ganherd.run.folder import RunFolder

        run = RunFolder.open(run)
    path = Path(run.path) / "report.html"
    aside = path.with_name("report.html.new")
    page = render(gather(run, mixture, dataset, trust_code, draw, progress))
    aside.unlink(missing_ok=True)
    with aside.open("x", encoding="utf-8", errors="replace") as handle:
        handle.write(page)
    os.replace(aside, path)
    return path
