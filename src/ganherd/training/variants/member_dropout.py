"""The dropout of discriminators as a setting of each member: `nets.discriminator.dropout` as a list, or varied by trials."""

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
    """Build a discriminator in which members can have different probabilities; they all begin with the largest."""
    rates = [rate for trial in _settings(recipe) for rate in (trial if isinstance(trial, list) else [trial])]
    module = build_with_rates(recipe.nets.discriminator, rates, make)
    if any(rates) and not rates_of(module):
        raise UserError(
            f"{KEY} differs among members, and {recipe.nets.discriminator.name} has no nn.Dropout: build one with this setting."
        )
    return module


def set_rates_(state: State, recipe: Recipe, members: int, seats: Sequence[Seat], make: MakeDiscriminator) -> None:
    """Write the probabilities of each member into its state [N, …].

    Args:
        members: The number of members of one replica.
        seats: [N] the seat of each member.
        make: Builds a discriminator.
    """
    rates = [each_value(recipe, KEY, trial, members) for trial in _settings(recipe)]
    names = rates_of(build_varied(recipe, make))
    by_rate = {rate: _layer_rates(recipe, rate, names, make) for rate in {rate for trial in rates for rate in trial}}
    for row, seat in enumerate(seats):
        for name, rate in by_rate[rates[seat.trial][seat.slot]].items():
            state[f"d.buffers.{name}"][row] = rate


def rates_in(state: State, module: nn.Module, row: int) -> State:
    """Return the probabilities [1] of one member, by their names in the state."""
    names = [f"d.buffers.{name}" for name in rates_of(module)]
    return {name: state[name][[row]] for name in names}


def _settings(recipe: Recipe) -> list[float | list[float]]:
    """Return the dropout of each trial."""
    return [trial.nets.discriminator.settings.get("dropout", 0.0) for trial in recipe.each_trial]


def _layer_rates(recipe: Recipe, rate: float, names: dict[str, float], make: MakeDiscriminator) -> dict[str, float]:
    """Return the probability of each dropout layer for a value of the setting, which a net of the user's own may convert."""
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
