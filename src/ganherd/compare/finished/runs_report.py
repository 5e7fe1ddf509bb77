"""`ganherd report RUN RUN`: write one page that compares runs: the answer first, then samples, scores and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ganherd.compare import comparison_text
from ganherd.compare.answer import RUNS
from ganherd.compare.entry import names_of
from ganherd.compare.finished.finished_runs import compare_recorded
from ganherd.metrics.statistics.significance import UNDECIDED
from ganherd.report import runs_page
from ganherd.report.gather import gather
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write
from ganherd.util.text import shortened
from ganherd.web.embedded_run import MOST_BYTES


def write(
    paths: Sequence[Path],
    output: Path | None = None,
    trust_code: bool = False,
    log: Callable[[str], None] | None = None,
) -> Path:
    """Write the page, and return its path. Nothing is trained or scored, and no run is changed.

    Args:
        output: The file of the page. None: report-A-vs-B.html in this folder, with the names of the runs.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a comparison needs different runs: name each of them once.")
    if len(paths) > runs_page.MOST_RUNS:
        raise UserError(
            f"one page compares at most {runs_page.MOST_RUNS} runs, and {len(paths)} are named: leave some out."
        )
    names = names_of([path.resolve().name for path in paths])
    runs = dict(zip(names, map(RunFolder.open, paths), strict=True))
    facts = compare_recorded(runs)
    if isinstance(facts, str):
        answers = [facts]
        winners: dict[str, str] = {}
    else:
        basis = facts["bases"][RUNS]
        answers = [facts["answer"], *comparison_text.warnings(facts)]
        metrics = comparison_text.named_metrics(facts, RUNS)
        winners = {metric: basis.get("best", {}).get(metric, UNDECIDED) for metric in metrics}
    stories = []
    for name, run in runs.items():
        if log:
            log(f"reading {name}")
        story = gather(run, trust_code=trust_code, most_bytes=MOST_BYTES // len(runs))
        story.name = name
        if story.embedded:
            story.embedded["facts"] |= {"id": name, "name": name}
        stories.append(story)
    path = output or Path(shortened("report-" + "-vs-".join(names)) + ".html")
    atomic_write(path, runs_page.render(stories, answers, winners), sync=False)
    return path
