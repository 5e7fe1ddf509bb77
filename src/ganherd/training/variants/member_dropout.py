"""Let members differ in the dropout of their discriminators.

The recipe's `nets.discriminator.dropout` is then a list with a probability for each member, or trials of a sweep vary
it. Members share one module, in which the probabilities are buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from ganherd.herd.state import Seat, State
from ganherd.nets.catalog import is_packaged
from ganherd.nets.common.varied_dropout import build_with_rates, rates_of
from ganherd.recipe.net_config import NetConfig
from ganherd.recipe.schema import Recipe
from ganherd.training.setup.member_settings import each_value
from ganherd.util.errors import UserError

KEY = "nets.discriminator.dropout"
MakeDiscriminator = Callable[[NetConfig], nn.Module]


def varies(recipe: Recipe) -> bool:
    """Return whether members may differ in the dropout of their discriminators."""
    listed = isinstance(recipe.nets.discriminator.settings.get("dropout"), list)
    return any(KEY in trial for trial in recipe.herd.trials) or (listed and is_packaged(recipe.nets.discriminator.name))


def build_varied(recipe: Recipe, make: MakeDiscriminator) -> nn.Module:
    """Return a discriminator in which members can have different dropout probabilities; all begin with the largest one.

    Args:
        make: Builds a discriminator from its settings.
    """
    rates = [rate for trial in _settings(recipe) for rate in (trial if isinstance(trial, list) else [trial])]
    module = build_with_rates(recipe.nets.discriminator, rates, make)
    if any(rates) and not rates_of(module):
        raise UserError(
            f"{KEY} differs among members, and {recipe.nets.discriminator.name} has no nn.Dropout: build one with this setting."
        )
    return module


def set_rates_(state: State, recipe: Recipe, members: int, seats: Sequence[Seat], make: MakeDiscriminator) -> None:
    """Write the dropout probabilities of each member into the state [n, …].

    Args:
        members: The number of members of one replica.
        seats: [n] the place of each member in its replica, and its trial.
        make: Builds a discriminator from its settings.
    """
    rates = [each_value(recipe, KEY, trial, members) for trial in _settings(recipe)]
    names = rates_of(build_varied(recipe, make))
    by_rate = {rate: _layer_rates(recipe, rate, names, make) for rate in {rate for trial in rates for rate in trial}}
    for row, seat in enumerate(seats):
        for name, rate in by_rate[rates[seat.trial][seat.slot]].items():
            state[f"d.buffers.{name}"][row] = rate


def rates_in(state: State, module: nn.Module, row: int) -> State:
    """Return the dropout probabilities of one member [1], by their names in the state.

    Args:
        module: The discriminator.
        row: The row of the member in the state.
    """
    names = [f"d.buffers.{name}" for name in rates_of(module)]
    return {name: state[name][[row]] for name in names}


def _settings(recipe: Recipe) -> list[float | list[float]]:
    """Return the value of `nets.discriminator.dropout` in each trial: a number, or a list with one for each member."""
    return [trial.nets.discriminator.settings.get("dropout", 0.0) for trial in recipe.each_trial]


def _layer_rates(recipe: Recipe, rate: float, names: dict[str, float], make: MakeDiscriminator) -> dict[str, float]:
    """Return the probability of each dropout layer, by its name, if `nets.discriminator.dropout` has the value `rate`.

    In a packaged net all layers have this probability. A net of the user's own may use another one in each layer, so it
    is built to find out.

    Args:
        names: The dropout layers that the discriminator has in this run.
    """
    net = recipe.nets.discriminator
    if is_packaged(net.name):
        return dict.fromkeys(names, rate)
    layer_rates = rates_of(build_with_rates(net, [rate], make))
    if layer_rates.keys() != names.keys() or 0.0 in layer_rates.values():
        raise UserError(
            f"{KEY} differs among members, and with {rate:g} {net.name} has other layers of nn.Dropout, or one that drops nothing: "
            "vary it among numbers above 0, and build the same layers for all."
        )
    return layer_rates
