"""List the packaged recipes by task: what each trains, on what data, for how long, and on which device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe
from ganherd.util.files import JsonObject

POINTS, TABLES = ("ring8", "grid25", "r15"), ("wine", "breast_cancer")
_FOLDER = "path/to/"


@dataclass(frozen=True)
class ListedRecipe:
    """One line of the list of recipes."""

    name: str
    about: str  # what the recipe trains
    task: str  # a title of `TASKS`
    device: str  # the device that the recipe was made for: CPU or GPU
    length: str  # the budget, such as 20epochs
    data: str  # the name of the data source, or `a folder`

    def as_json(self) -> JsonObject:
        """Return what `ganherd recipes --json` prints about the recipe."""
        return asdict(self)


# Titles of tasks, each with a test of a recipe and its name. A recipe belongs to the first task whose test it passes.
TASKS: tuple[tuple[str, Callable[[str, Recipe], bool]], ...] = (
    ("Your own images (`ganherd train FOLDER` chooses one)", lambda name, _: name.startswith("folder-")),
    ("First steps: small digits that come with ganherd", lambda name, _: name.startswith("digits-")),
    ("Points in the plane: how many modes are found", lambda _, recipe: recipe.data.source in POINTS),
    (
        "Tables: rows of any number of columns (`ganherd train table.csv`)",
        lambda _, recipe: recipe.data.source in TABLES,
    ),
    ("One GAN for each class", lambda _, recipe: recipe.data.partition == "by-class"),
    ("Grids of cells that coevolve", lambda _, recipe: recipe.strategy.name == "cellular"),
    (
        "GAP: members that swap discriminators, and single GANs to compare with",
        lambda name, recipe: recipe.strategy.name == "gap" or "-gan" in name,
    ),
    ("One GAN for all classes: baselines, and what members start from", lambda name, _: True),
)


def list_recipes(word: str = "") -> list[ListedRecipe]:
    """Return the packaged recipes whose name contains a word, in the order of their tasks; the default comes first in its task."""
    rows = []
    for name, about in recipe_file.names():
        if word in name:
            recipe = recipe_file.load(name)
            task = next(title for title, fits in TASKS if fits(name, recipe))
            source = recipe.data.source
            data = "a folder" if source.startswith(_FOLDER) else source
            rows.append(ListedRecipe(name, about, task, _device(recipe), recipe.train.budget, data))
    order = [title for title, _ in TASKS]
    return sorted(rows, key=lambda row: order.index(row.task))


def _device(recipe: Recipe) -> str:
    """Return the device that a recipe was made for: a GPU if it advises against others or uses the precision of one."""
    return "GPU" if recipe.engine.without_gpu or recipe.train.precision in ("tf32", "bf16") else "CPU"
