"""Offer a run as an object: its recipe, records, state, mixture, scores and report, and a method to resume it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.api.given_objects import GivenObjects
from ganherd.nets.catalog import is_strange
from ganherd.recipe import trust
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sources.given_settings import budget_text, check_overrides
from ganherd.recipe.sources.option_override import OptionOverride
from ganherd.runs import run_status
from ganherd.runs.folder import RunFolder, mixture_of, mixture_version
from ganherd.runs.longer_budget import longer_budget
from ganherd.runs.results.verdict_record import VerdictRecord
from ganherd.runs.run_status import PartsStatus, RunStatus
from ganherd.runs.score_entry import Scores
from ganherd.runs.series import long_form
from ganherd.util import files
from ganherd.util.errors import UserError, whole_number
from ganherd.util.paths import from_here, given_path

if TYPE_CHECKING:
    from ganherd.export.write_export import ExportRecord, Format
    from ganherd.mixture.mixture import Mixture
    from ganherd.mixture.samples import Samples
    from ganherd.training.callbacks import Callback
    from ganherd.training.finish import Finisher


class Run:
    """A run, which is training or has ended, opened from its folder. Reading it executes no code from the folder.

    >>> import ganherd
    >>> run = ganherd.train("digits-wcgan", budget=2, run="runs/brief", quiet=True, finishers=())
    >>> run
    <Run runs/brief: finished, step 2>
    >>> sorted(run.metrics())
    ['member', 'metric', 'seed', 'step', 'value']
    >>> ganherd.Run("runs/brief").recipe.train.budget
    '2steps'
    """

    def __init__(
        self,
        path: str | Path,
        *,
        nets: Any = None,
        data: Any = None,
        callbacks: Sequence[Callback] = (),
        trust_code: bool = False,
        _given: GivenObjects | None = None,
        _trained: Recipe | None = None,
    ) -> None:
        """Open a run.

        Args:
            path: The run folder.
            nets: The nets that the run was trained with, as `ganherd.train` takes them. If they were defined in a
                notebook or a function, they are needed for the mixture and to resume the run.
            data: The data that the run was trained with, if it was given as arrays; needed for scores and to resume the
                run.
            callbacks: Objects whose hooks are called if the run is resumed.
            trust_code: Import the nets that the run names and that are not ganherd's own.

        Raises:
            UserError: There is no such run, or it was trained with other nets or data.
        """
        self.folder = RunFolder.open(path)
        self.path = self.folder.path.absolute()
        self.folder = RunFolder(self.path)
        self._callbacks, self._trust_code = callbacks, trust_code
        self._trained = _trained  # the user's own recipe, if it was trained in this process
        self._given = GivenObjects.of(nets, data) if _given is None else _given
        if _given is None:
            self._given.check(self.recipe, self.path)
        self._loaded: tuple[tuple[int, int], Mixture] | None = None  # with time and size of the mixture.json it is from

    # -- what it was and how it is doing ------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, in which every default is written out."""
        return self.folder.recipe

    def status(self) -> RunStatus | PartsStatus:
        """Return state and progress: step, rate, time left, alarms."""
        return run_status.describe(self.path)

    @property
    def scores(self) -> Scores:
        """The recorded scores by the name of their metric; empty if the run was not scored."""
        try:
            content = files.read_json(self.folder.scores_path)["scores"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def verdict(self) -> VerdictRecord | None:
        """The verdict on the quality of the run, such as "good"; None if the run was not judged."""
        return self.folder.verdict

    def metrics(self, most: int | None = None) -> long_form.Columns:
        """Return the recorded numbers in long form, as columns for `pandas.DataFrame(run.metrics())`.

        A row has the step, the metric, the member, the seed of its replica and the value; runs with `herd.trials` also
        have the number of the trial. Member -1 is the whole run.

        Args:
            most: Read about this many records, evenly chosen; None: all.
        """
        if most is not None:
            most = whole_number("most", most, 1)
        herd = self.recipe.herd
        members = max(1, (self.folder.info.members or herd.replicas) // herd.replicas)
        return long_form.columns(self.folder.metrics(most), members, self.recipe.run.seed, herd.seeds, len(herd.trials))

    def events(self) -> list[dict[str, Any]]:
        """Return the recorded events, such as alarms and swaps, as rows for `pandas.DataFrame(run.events())`."""
        return [dict(event) for event in self.folder.events()]

    # -- what it made -------------------------------------------------------------------------------------------------

    @property
    def mixture(self) -> Mixture:
        """The mixture: the trained generators with their weights and labels.

        Nets that are not ganherd's own are built only if the user gave or trained them in this process, or with
        trust_code.
        """
        from ganherd.mixture import mixture, mixture_files

        version = mixture_version(self.path)
        if self._loaded is None or self._loaded[0] != version:
            facts = mixture_files.read_facts(mixture_of(self.path))
            nets = [facts.generator, *(breed.generator for breed in facts.breeds)]
            strange = {net.name for net in nets if is_strange(net.name)}
            is_known = bool(strange) and strange <= self._trusted_names()
            self._loaded = version, mixture.load(self.path, self._trust_code or is_known)
        return self._loaded[1]

    def sample(self, n: int = 64, label: str | int | None = None, seed: int = 0, **settings: Any) -> Samples:
        """Return n samples of the mixture, of any label or one. The arguments are those of `Mixture.sample`."""
        return self.mixture.sample(n, label, seed, **settings)

    def score(self, metrics: Sequence[str] | None = None, samples: int | None = None, **settings: Any) -> Scores:
        """Measure scores, add them to scores.json and return them.

        Args:
            metrics: Names of metrics, such as fid; None: the default ones for the kind of data.
            samples: The number of samples; None: the default number.
            settings: Further arguments of `ganherd.scoring.score_run`.

        Returns:
            The scores by the name of their metric.
        """
        from ganherd.scoring import score_run

        _ = self.mixture  # raises an error if nets are missing or not trusted
        trusted = self._vouched()
        return score_run(self.path, metrics, samples, **{"trust_code": trusted, **settings})

    def report(self) -> Path:
        """Write report.html, one page about the run, and return its path."""
        from ganherd import report

        return report.write(self.folder, trust_code=self._vouched())

    def export(self, path: str | Path, format: Format = "torch", **settings: Any) -> ExportRecord:
        """Write the mixture as files that work without ganherd, and return what was written.

        Args:
            path: A folder for `torch` and `hub`, a file for `onnx` and `html`.
            format: `torch`, `onnx`, `hub` or `html`.
            settings: Further arguments of `ganherd.export.write_export.write_export`: `member`, `replica`, `licence`.
        """
        from ganherd.export.write_export import check_target, write_export

        target = given_path("the target", path)
        check_target(target, format)
        _ = self.mixture  # raises an error if nets are missing or not trusted
        return write_export(self.path, target, format, **{"trust_code": self._vouched(), **settings})

    def check(self, samples: int = 1000, seed: int = 0) -> VerdictRecord:
        """Return the verdict on the run and on each member: the recorded one, or a new one if it is asked for other samples.

        Args:
            samples: The number of samples of each seed that are judged.
            seed: The seed of the samples.
        """
        from ganherd.scoring.verdicts.run_verdict import check_run

        _ = self.mixture  # raises an error if nets are missing or not trusted
        return check_run(self.path, samples, seed, self._vouched(), rejudge=(samples, seed) != (1000, 0))

    def resume(
        self,
        budget: str | int | None = None,
        *,
        overrides: Sequence[str] = (),
        nets: Any = None,
        data: Any = None,
        callbacks: Sequence[Callback] | None = None,
        quiet: bool = False,
        finishers: Sequence[Finisher] | None = None,
    ) -> Run:
        """Resume the run exactly from its last checkpoint, train it to its budget, and return this object.

        Args:
            budget: The new length of the whole run, such as 5000steps, or an addition such as +200steps; None:
                unchanged.
            overrides: Settings that may differ: train.budget, run.scores, run.metrics and data.source.
            nets: The nets of the run, if they were defined in a notebook or a function and are not in this process.
            data: The data of the run, if it was given as arrays that are not in this process.
            callbacks: Objects whose hooks are called; None: those that this object was created with.
            quiet: Print no progress, only warnings.
            finishers: Objects that make files from the trained mixture. Default: member weights, a picture, scores, a
                report.
        """
        from ganherd import api
        from ganherd.training import session

        if nets is not None or data is not None:
            given = GivenObjects.of(nets, data, quiet)
            given.check(self.recipe, self.path)
            self._given = GivenObjects({**self._given.sections, **given.sections}, [*self._given.held, *given.held])
        if callbacks is not None:
            self._callbacks = callbacks
        check_overrides(overrides)
        length = budget_text(budget)
        if length is not None:
            length = longer_budget(self.path, length) if length.startswith("+") else length
            overrides = [*overrides, OptionOverride.of("train.budget", length, f"budget={budget!r}")]
        session.resume(
            self.path,
            overrides,
            quiet,
            self._vouched(),
            finishers=api.FINISHERS if finishers is None else finishers,
            callbacks=self._callbacks,
        )
        return self

    # -- trust --------------------------------------------------------------------------------------------------------

    def _trusted_names(self) -> set[str]:
        """Return the names of nets and modules that the user gave, or that a recipe trained in this process names."""
        nets = self._given.sections.get("nets", {})
        each = (net.get("name") if isinstance(net, dict) else net for net in nets.values())
        own = () if self._trained is None else trust.modules_of(self._trained)
        return {name for name in each if isinstance(name, str)} | set(own)

    def _vouched(self) -> bool:
        """Return whether the user trusts all code that the run names."""
        recipe = self.recipe
        if self._trust_code or (self._trained is not None and trust.vouches_for(self._trained, recipe)):
            return True
        names = set(trust.modules_of(recipe))
        scripts = [name for name in recipe.strategy.settings.networks.values() if trust.script_of(name)]
        return bool(names) and names <= self._trusted_names() and not scripts

    # -- how it is displayed ------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, str]:
        """Return the state, step and verdict in words, or the problem if the run cannot be read."""
        try:
            now = self.status()
        except UserError as error:
            return {"problem": str(error)}
        if isinstance(now, PartsStatus):
            return {"state": "trained in parts"}
        judged = {} if now.verdict is None else {"verdict": now.verdict.word}
        return {"state": now.state, "step": f"step {now.step:,}", **judged}

    def __repr__(self) -> str:
        return f"<Run {from_here(self.path)}: {', '.join(self._facts().values())}>"

    def _repr_html_(self) -> str:
        """Return HTML that a notebook shows for the run: its name, state, verdict and final picture."""
        facts = ", ".join(self._facts().values())
        lines = [f"<b>{html.escape(str(from_here(self.path)))}</b>: {html.escape(facts)}"]
        if (verdict := self.verdict) is not None:
            lines.append(html.escape(verdict.sentence))
        picture = self.folder.samples / "final.png"
        if picture.is_file() and not picture.is_symlink():
            content = base64.b64encode(files.read(picture)).decode()
            lines.append(f'<img src="data:image/png;base64,{content}" alt="samples of the run">')
        return "<br>".join(lines)
