"""One recipe of a comparison: its size, and how many images so many steps of it see."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from ganherd.recipe import Recipe


@dataclass(frozen=True)
class Entry:
    """What is known of a recipe before it trains."""

    recipe: Recipe
    members: int  # of one seed
    parameters: int  # of one seed: generators and discriminators of all members
    generators: tuple[int, ...]  # parameters of one generator of each breed
    discriminator: int  # parameters of one
    pace: tuple[Fraction, ...]  # of each member of one seed, where they differ
    digest: str  # of the data
    data: str  # its name

    def images(self, steps: int) -> int:
        """Real images that the discriminators of one seed have been shown after so many steps, counted each time."""
        train, period = self.recipe.train, self.recipe.train.skip_d + 1
        made = [int(steps * pace) for pace in self.pace] or [steps] * self.members
        return sum(-(-steps // period) for steps in made) * train.n_critic * train.batch

    def steps(self, images: int, most: int) -> int:
        """The most steps, up to `most`, that see no more than so many images; at least one."""
        return max(1, bisect_right(range(most + 1), images, key=self.images) - 1)


def look_at(recipe: Recipe) -> Entry:
    """Assembles the herd once, and lets it go again."""
    from ganherd.run.assemble import assemble

    assembly = assemble(recipe, trust_code=True)
    herd, members = assembly.herd, assembly.members
    breeds = herd.breeds.all
    return Entry(
        recipe=recipe,
        members=members,
        parameters=sum(breed.g.size * len(breed.slots) for breed in breeds) + herd.d.size * members,
        generators=tuple(breed.g.size for breed in breeds),
        discriminator=herd.d.size,
        pace=tuple(herd.pace[:members]),
        digest=assembly.dataset.digest,
        data=assembly.dataset.name,
    )


def names_of(sources: list[str]) -> list[str]:
    """Short names of recipes: that of a packaged one or of its file, each different.

    >>> names_of(["digits-wcgan", "mine.yaml", "old/mine.yaml"])
    ['digits-wcgan', 'mine', 'mine-2']
    """
    found: list[str] = []
    for source in sources:
        name = stem = Path(source).name.removesuffix(".yaml") or "recipe"
        number = 1
        while name in found:
            number += 1
            name = f"{stem}-{number}"
        found.append(name)
    return found
