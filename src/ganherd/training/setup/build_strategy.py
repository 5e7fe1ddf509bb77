"""The strategy of a run: made from its recipe once its length is known, with every schedule in steps."""

from __future__ import annotations

from typing import Any

from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd.step.pace import paces
from ganherd.recipe.schema import Recipe
from ganherd.recipe.strategy_config import CellularConfig, GapConfig, ShareConfig, in_steps
from ganherd.strategies.strategy import Strategy
from ganherd.training.setup.assemble import PreparedHerd


def plan_meetings(recipe: Recipe, steps_per_epoch: float, steps: int) -> dict[str, int]:
    """The spans of the recipe's strategy in steps: fixed at the start of a run, recorded, and kept when it is extended."""

    def spans(settings: GapConfig | CellularConfig | ShareConfig, *names: str) -> dict[str, int]:
        return {name: in_steps(getattr(settings, name), steps_per_epoch, steps) for name in names}

    if recipe.strategy.name == "gap":
        return spans(recipe.strategy.gap, "every", "warmup")
    if recipe.strategy.name == "cellular":
        return spans(recipe.strategy.cellular, "iteration")
    return spans(recipe.strategy.share, "every") if recipe.strategy.share.layers else {}


def never_meet(recipe: Recipe) -> bool:
    """Whether no number of a member ever depends on another member, however a run goes.

    >>> never_meet(Recipe()), never_meet(Recipe.model_validate({"strategy": {"name": "gap"}, "data": {"partition": "all"}}))
    (True, False)
    """
    policies = {recipe.run.repair.policy, *(policy for name, policy in recipe.run.watch if name != "every")}
    return not recipe.strategy.meets and "neighbour" not in policies


def never_due(recipe: Recipe, spans: dict[str, int], steps: int) -> list[str]:
    """What the recipe plans for after the end of a run of so many steps, a sentence for each."""
    if recipe.strategy.name == "gap" and spans["every"] and (first := _first_swap(recipe.strategy.gap, spans)) > steps:
        told = f"no swap is due: the first would be at step {first:,}, and the run has {steps:,}; make strategy.gap.every shorter"
        return [told]
    if recipe.strategy.name != "cellular":
        return []
    iterations = -(-steps // max(1, spans["iteration"]))
    late = sorted({change.at for change in recipe.strategy.cellular.rewire if change.at >= iterations})
    told = "strategy.cellular.rewire at {} is never reached: the run has {} iterations, counted from 0"
    return [told.format(", ".join(map(str, late)), f"{iterations:,}")] if late else []


def _first_swap(gap: GapConfig, spans: dict[str, int]) -> int:
    """The step of the run at which two members are ready, each by its own steps.

    >>> [_first_swap(Gap(pace=pace), {"every": 30, "warmup": 0}) for pace in ([], [1.0, 0.5, 0.25])]
    [30, 60]
    """
    own = spans["warmup"] + spans["every"]
    speeds = sorted((pace for m, pace in enumerate(paces(gap.pace)) if m not in gap.stay), reverse=True)
    return -(-own // speeds[1]) if len(speeds) > 1 else own


def refuse_impossible(assembly: PreparedHerd) -> None:
    """What the strategy needs and cannot have, before anything is written."""
    if assembly.recipe.strategy.name == "cellular":
        from ganherd.strategies.cellular import requirements

        settings, told = assembly.recipe.strategy.cellular, assembly.herd.g.takes_label
        requirements.refuse_impossible(settings, assembly.dataset, assembly.trusted, told)


def make_strategy(assembly: PreparedHerd, spans: dict[str, int]) -> Strategy:
    """Who meets whom in this run; `spans` as `plan_meetings` made them, or as the run recorded them."""
    settings, herd = assembly.recipe.strategy, assembly.herd
    everyone: dict[str, Any] = {
        "comm": assembly.ranks.member_comm,
        "placement": assembly.ranks.placement,
        "members": assembly.members,
    }
    if settings.name == "gap":
        from ganherd.strategies.gap import gap, paced

        return (paced.PacedGap if settings.gap.pace else gap.Gap)(herd, settings.gap, spans, **everyone)
    if settings.name == "cellular":
        from ganherd.strategies.cellular import cellular

        made = cellular.Cellular(assembly, settings.cellular, spans, **everyone)
        if (
            not assembly.ranks.is_single_process
        ):  # the first rank trains the network that looks at mixtures; the others find it
            ranks, look = assembly.ranks, made.mixtures.mixer.look_at_data
            run_on_all_ranks(ranks.member_comm, lambda: look() if ranks.is_first else None)
        return made
    if settings.share.layers:
        from ganherd.strategies import share

        return share.Share(herd, settings.share, spans, **everyone)
    return Strategy()
