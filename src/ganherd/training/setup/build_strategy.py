"""Build the strategy of a run from its recipe, once the number of steps is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ganherd.recipe.base import in_steps
from ganherd.recipe.schema import Recipe
from ganherd.recipe.strategy_config import SHARE
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.share import Share
from ganherd.strategies.strategy import Strategy
from ganherd.strategies.user_strategy import build_user_strategy
from ganherd.strategies.with_share import WithShare
from ganherd.training.setup.member_settings import schedule_spans
from ganherd.util.errors import UserError
from ganherd.util.registry import STRATEGIES, load_target

if TYPE_CHECKING:
    from ganherd.herd.breeds import Breeds
    from ganherd.herd.state import Blueprint
    from ganherd.training.setup.assemble import PreparedHerd


def plan_meetings(recipe: Recipe, steps_per_epoch: float, steps: int) -> dict[str, int]:
    """Return the spans of the recipe's strategy and schedules, e.g. between two swaps, as numbers of steps by name.

    They are recorded in run.json, and stay the same when the run is extended.

    Args:
        steps: The expected length of the run, of which a span may be a share.
    """
    spans = {**recipe.strategy.spans, **schedule_spans(recipe)}
    return {name: in_steps(span, steps_per_epoch, steps) for name, span in spans.items()}


def never_meet(recipe: Recipe) -> bool:
    """Return whether no member ever depends on another one, not even through a repair.

    >>> never_meet(Recipe()), never_meet(Recipe.model_validate({"strategy": {"name": "gap"}, "data": {"partition": "all"}}))
    (True, False)
    """
    return not recipe.strategy.meets and "neighbour" not in recipe.run.policies.values()


def strategy_class(recipe: Recipe) -> type[Strategy]:
    """Return the class of the recipe's strategy."""
    strategy: type[Strategy] = load_target(STRATEGIES[recipe.strategy.name].target)
    return strategy


def check_nets(recipe: Recipe, breeds: Breeds, d: Blueprint, members: int) -> None:
    """Raise a UserError if the settings of the strategy, or the layers that members share, do not fit the nets."""
    strategy_class(recipe).check_nets(recipe.strategy.settings, breeds, d, members)
    Share.check_nets(recipe.strategy.added_share, breeds, d, members)


def make_strategy(prepared: PreparedHerd, spans: dict[str, int]) -> Strategy:
    """Return the strategy of a run.

    Args:
        spans: The steps between meetings by name, from `plan_meetings` or as run.json records them.
    """
    config = prepared.recipe.strategy
    own = strategy_class(prepared.recipe)
    if STRATEGIES.is_own(config.name):
        strategy = own.build(prepared, spans)
    else:
        strategy = build_user_strategy(config.name, own, prepared, spans)
    if config.added_share.layers:
        ranks = MemberRanks.of(prepared, across_classes=True)
        share = Share(prepared.herd, config.added_share, {"every": spans[SHARE]}, ranks)
        strategy = WithShare(config.name, strategy, share)
    if wrong := [name for name in strategy.state if not name.startswith("meet.")]:
        raise UserError(
            f"the strategy {config.name} has a tensor {wrong[0]!r} in its state: let its name begin with meet."
        )
    return strategy
