"""Count the members and parameters of one recipe of a comparison, and the images that its steps see."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ganherd.herd.step.pace import Pace
from ganherd.recipe.schema import Recipe, parse_budget

BUDGET, IMAGES = "budget", "images"  # the two bases of a comparison, and the folders of their runs


@dataclass(frozen=True)
class TrainedSteps:
    """The steps of a training, and those of its first phase if the recipe has two phases (`herd.first`)."""

    steps: int
    first: int = 0


@dataclass(frozen=True)
class Entry:
    """The size of a recipe's herd and of its data, which are known before anything trains."""

    recipe: Recipe
    members: int  # of one seed
    parameters: int  # of one seed: generators and discriminators of all members
    generators: tuple[int, ...]  # parameters of one generator of each breed
    discriminator: int  # parameters of one
    pace: Pace  # of each member of one seed
    digest: str  # of the data
    data: str  # its name
    rows: str  # what is in it: images or points
    steps_per_epoch: float
    first: Entry | None = None  # of the recipe that is trained before it

    def images(self, steps: int) -> int:
        """Return how many real images the discriminators of one seed have seen after these steps, counted each time."""
        train, spacing = self.recipe.train, self.recipe.train.skip_d + 1
        updates = [int(steps * pace) for pace in self.pace]
        return sum(-(-steps // spacing) for steps in updates) * train.n_critic * train.batch

    def steps(self, images: int, most: int) -> int:
        """Return the most steps, up to `most`, that see no more than this many images; at least one."""
        return max(1, bisect_right(range(most + 1), images, key=self.images) - 1)

    def planned(self) -> TrainedSteps | None:
        """Return the steps of the recipe's budget; None if that is a time."""
        from ganherd.training.variants import phases

        if parse_budget(self.recipe.train.budget)[0] == "seconds":
            return None
        if self.first is None:
            return TrainedSteps(self._steps_of(self.recipe.train.budget))
        budget, first = phases.after(self.recipe).train.budget, self.first.recipe.train.budget
        return TrainedSteps(self._steps_of(budget), self.first._steps_of(first))

    def _steps_of(self, budget: str) -> int:
        """Return the steps of a budget that is given in steps or epochs."""
        from ganherd.training.budget import Timing, plan_budget

        return plan_budget(budget, self.steps_per_epoch, lambda: Timing(0.0)).steps

    def seen(self, trained: TrainedSteps) -> int:
        """Return how many real images the discriminators of one seed have seen in all phases."""
        return self.images(trained.steps) + (self.first.images(trained.first) if self.first else 0)

    def shorter(self, images: int, trained: TrainedSteps) -> TrainedSteps:
        """Return the steps that see no more than this many images; two phases are shortened by the same factor."""
        if self.first is None:
            return TrainedSteps(self.steps(images, trained.steps))
        part = min(1.0, images / self.seen(trained))
        first = self.first.steps(int(part * self.first.images(trained.first)), trained.first)
        return TrainedSteps(self.steps(images - self.first.images(first), trained.steps), first)


def shorter_trainings(entries: Mapping[str, Entry], trained: Mapping[str, TrainedSteps]) -> dict[str, TrainedSteps]:
    """Return the steps of the recipes that train once more, up to the fewest images that any recipe has seen."""
    least = min(entry.seen(trained[name]) for name, entry in entries.items())
    wanted = {name: entry.shorter(least, trained[name]) for name, entry in entries.items()}
    return {name: steps for name, steps in wanted.items() if steps != trained[name]}


def look_at(recipe: Recipe) -> Entry:
    """Assemble the herd of a recipe once, to count its members and parameters."""
    from ganherd.training.setup.assemble import assemble
    from ganherd.training.variants import phases

    if phases.pending(recipe) is None:
        first, assembly = None, assemble(recipe, trust_code=True)
    else:
        before = phases.before(recipe)
        first, assembly = look_at(before), phases.foreseen(phases.after(recipe), before)
    herd, members = assembly.herd, assembly.members
    breeds = herd.breeds.all
    return Entry(
        recipe=recipe,
        members=members,
        parameters=sum(breed.g.num_params * len(breed.slots) for breed in breeds) + herd.d.num_params * members,
        generators=tuple(breed.g.num_params for breed in breeds),
        discriminator=herd.d.num_params,
        pace=assembly.pace[:members],
        digest=assembly.dataset.digest,
        data=assembly.dataset.name,
        rows=assembly.dataset.kind,
        steps_per_epoch=assembly.steps_per_epoch,
        first=first,
    )


def names_of(sources: list[str]) -> list[str]:
    """Return a short, unique name for each recipe, from its own name or its file.

    No name is equal to that of another recipe's first phase.

    >>> names_of(["digits-wcgan", "mine.yaml", "old/mine.yaml", "mine-first.yaml"])
    ['digits-wcgan', 'mine', 'mine-2', 'mine-first-2']
    """
    names: list[str] = []
    for source in sources:
        name = stem = Path(source).name.removesuffix(".yaml") or "recipe"
        number = 1
        while {name, f"{name}-first", name.removesuffix("-first")} & set(names):
            number += 1
            name = f"{stem}-{number}"
        names.append(name)
    return names
