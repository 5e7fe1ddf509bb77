"""Compare recipes or finished runs that are named, and write the files of the comparison: what `ganherd.compare` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.compare import comparison_page, contenders
from ganherd.compare.answer import answer
from ganherd.compare.compare_recipes import ComparisonRequest
from ganherd.compare.compare_recipes import compare as compare_recipes
from ganherd.compare.finished import finished_runs
from ganherd.recipe.sources.given_settings import budget_text, check_overrides
from ganherd.util.errors import UserError
from ganherd.util.paths import given_path

if TYPE_CHECKING:
    from ganherd.api.run import Run
    from ganherd.compare.comparison_record import Comparison


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison and its files."""

    path: Path  # its folder
    facts: Comparison  # the content of compare.json
    files: Mapping[str, Path]  # `picture`, `page` and `data`

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        return self.facts.get("answer") or answer(self.facts)

    def __str__(self) -> str:
        """Return the answer."""
        return self.answer


def compare(
    *recipes: str | Path | Run,
    budget: str | int | None = None,
    seeds: int = 3,
    metrics: Sequence[str] | None = None,
    samples: int | None = None,
    network: str | None = None,
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    path: str | Path | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> ComparisonResult:
    """Train and score recipes under equal budgets, and compare them; or compare finished runs as they are.

    If it is interrupted, the same call continues.

    Args:
        recipes: Names or files of recipes, also with settings (`digits-wcgan:optim.lr_g=1e-4`); or finished runs.
        budget: The budget of each recipe for all its seeds together. Default: that of the recipes.
        seeds: The number of seeds of each recipe.
        metrics: Names of metrics. Default: those of `ganherd score`.
        samples: The number of samples for each score.
        network: The network of the feature scores.
        vary: Settings whose values are compared, such as `train.batch=16,32`: all combinations.
        overrides: Settings of all recipes, such as `engine.device=cpu`.
        path: The folder of the comparison. Default: one below comparisons, named after what is compared.
        trust_code: Whether to run code that is not ganherd's own.
        quiet: Whether to print nothing.
    """
    check_overrides(overrides)
    check_overrides(vary, "vary")
    names, length = [str(getattr(one, "path", one)) for one in recipes], budget_text(budget)
    folder = None if path is None else given_path("the folder", path)
    scoring = (metrics, samples, network, trust_code)
    if finished_runs.are_runs(names):
        if budget or vary or overrides:
            raise UserError("finished runs are compared as they are: budget, vary and overrides are for recipes.")
        facts, where = finished_runs.compare_runs(names, folder, *scoring, quiet)
    else:
        those = contenders.contenders(names, vary)
        request = ComparisonRequest.of(those, length, seeds, overrides, *scoring)
        where = folder or Path("comparisons") / contenders.folder_name(those)
        facts = compare_recipes(request, where, quiet)
    return ComparisonResult(where, facts, comparison_page.write(facts, where))
