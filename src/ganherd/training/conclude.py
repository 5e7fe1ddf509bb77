"""What comes after the last step: the mixture and all that is made of it, by the first rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganherd import report
from ganherd.mixture import mixture, mixture_files
from ganherd.recipe.trust import covers
from ganherd.runs.folder import RunFolder, mixture_of
from ganherd.training import finish
from ganherd.training.loop import Trainer
from ganherd.util.progress import Progress


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies and what it says."""

    path: Path  # absolute
    scores: dict[str, Any]

    @property
    def mixture(self) -> mixture.Mixture:
        """The mixture; nets that are not ganherd's are built if the recipe that was trained names them."""
        facts = mixture_files.read_facts(mixture_of(self.path))
        return mixture.load(self.path, trust_code=covers(self.folder.recipe, facts))

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)


def conclude(trainer: Trainer, progress: Progress) -> Run:
    """The first rank makes the mixture of the generators that all ranks export; the others wait for it."""
    assembly, folder, seconds = trainer.assembly, trainer.folder, round(trainer.seconds, 3)
    ranks, near = assembly.ranks, trainer.strategy.neighbourhoods(trainer.step)
    own = finish.exports(assembly, trainer.strategy.generators())
    exported = own if ranks.is_single_process else ranks.fetch_to_first(own, range(ranks.num_members))
    if not ranks.is_first:
        trainer.strategy.metrics()
        return Run(folder.path.absolute(), {})
    made = finish.make_mixture(assembly, trainer.step, near, exported)
    made.save(folder.mixture)
    finish.write_picture(folder, made, assembly)
    found = finish.write_scores(folder, made, assembly, progress)
    left = trainer.strategy.metrics().get("profile")  # of what came after the last record
    trainer.event("finish", seconds=seconds, **({"profile": left} if left else {}))
    here = max(trainer.seconds - trainer.seconds_before, 1e-9)  # by this process, as the seconds of its looks
    watch = {**vars(trainer.cadence), "share": round(trainer.watch.seconds / here, 5)}
    folder.write_info(state="finished", seconds=seconds, step=trainer.step, budget=vars(trainer.budget), watch=watch)
    report.write(folder, mixture=made, dataset=assembly.dataset)
    return Run(folder.path.absolute(), found)


def conclude_part(trainer: Trainer) -> Run:
    """Members of a herd whose others are trained elsewhere."""
    seconds, folder = round(trainer.seconds, 3), trainer.folder
    trainer.event("finish", seconds=seconds)
    if trainer.ranks.is_first:
        folder.write_info(state="finished", seconds=seconds, step=trainer.step, budget=vars(trainer.budget))
    return Run(folder.path.absolute(), {})
