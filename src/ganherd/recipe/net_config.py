"""The section `nets` of a recipe: generator and discriminator, breeds, and the noise that generators start from.

A breed is all members that share a generator architecture.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ganherd.recipe.base import Section, refuse
from ganherd.util.registry import Settings

if TYPE_CHECKING:
    from ganherd.nets.catalog import Role

Prior = Literal["normal", "uniform"]


class NetConfig(Section):
    """A net by name with its settings; `package.module:Class` names your own."""

    name: str
    settings: Settings = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """Accept `mlp` as a short form of {name: mlp}, and settings that are written next to the name."""
        return value if isinstance(value, NetConfig) else named_with_settings(value, "a net", "mlp", "activation: tanh")


def named_with_settings(value: Any, what: str, name: str, setting: str = "strength: 0.5") -> Settings:
    """Return an entry of a recipe in its long form {name, settings}.

    It may be written as its name, or as a mapping with its settings next to the name or under `settings`.

    Args:
        value: The entry as it is written.
        what: What the entry is, for messages.
        name: An example of a name, for messages.
        setting: An example of a setting, for messages.

    Raises:
        ValueError: The entry has another form.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"must name {what}, such as {name} or {{name: {name}, {setting}}}")
    inner, others = value.get("settings"), {k: v for k, v in value.items() if k not in ("name", "settings")}
    if not isinstance(inner, dict | None):
        raise ValueError(f"must have a mapping as its settings, such as {{name: {name}, settings: {{{setting}}}}}")
    if twice := sorted(set(inner or {}) & set(others)):
        raise ValueError(f"must have its setting {twice[0]!r} once: next to the name or under settings")
    return {"name": value["name"], "settings": plain({**(inner or {}), **others})}


def plain(value: Any) -> Any:
    """Return settings as plain data that YAML can hold, so that a recipe can be written and read back equal.

    Raises:
        ValueError: A value is not text, a finite number, a truth value, null, or a list or mapping of these.
    """
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"must have settings of text, finite numbers, true or false and lists of these ({value!r} is none)"
    )


class BreedConfig(Section):
    """Members that share a generator architecture."""

    generator: NetConfig
    members: int = Field(ge=1)  # number of members


class NetsConfig(Section):
    """The nets of the members, and the noise that generators start from."""

    # generator and discriminator of all members: a name, {name: mlp, activation: tanh}, or package.module:Class of your own
    generator: NetConfig = Field(NetConfig(name="small"), validate_default=True)
    discriminator: NetConfig = Field(NetConfig(name="small"), validate_default=True)
    # members with different generators, such as [{generator: dcgan, members: 2}, {generator: gran, members: 2}]
    breeds: list[BreedConfig] = []
    # layers or parameters of the discriminator that are not trained, by how their names begin (FreezeD, with herd.start_from)
    frozen: list[str] = []
    latent: int = Field(32, ge=1)  # random numbers from which a generator makes one sample
    # distribution of these numbers, one for all or one per member: N(0, 1), or uniform in [-1, 1]
    prior: Prior | Annotated[list[Prior], Field(min_length=1)] = "normal"

    @property
    def all(self) -> list[NetConfig]:
        """All nets that the recipe names."""
        return [self.generator, self.discriminator, *(breed.generator for breed in self.breeds)]

    @property
    def thawed(self) -> NetsConfig:
        """The same nets without frozen layers: a herd that starts from others inherits all but `frozen`."""
        return self.model_copy(update={"frozen": []})

    @model_validator(mode="before")
    @classmethod
    def _the_first_of_the_breeds(cls, value: Any) -> Any:
        """Set nets.generator to that of the first breed if it is not given, so that it need not be written twice."""
        if isinstance(value, dict) and "generator" not in value:
            match value.get("breeds"):
                case [{"generator": first}, *_] | [BreedConfig(generator=first), *_]:
                    return {**value, "generator": first}
        return value

    @field_validator("generator", "discriminator")
    @classmethod
    def _in_catalog(cls, net: NetConfig, info: ValidationInfo) -> NetConfig:
        role: Role = "generator" if info.field_name == "generator" else "discriminator"
        return known(net, role, f"nets.{role}")

    @field_validator("breeds")
    @classmethod
    def _all_in_catalog(cls, breeds: list[BreedConfig]) -> list[BreedConfig]:
        return [
            BreedConfig(
                generator=known(breed.generator, "generator", f"nets.breeds.{i}.generator"), members=breed.members
            )
            for i, breed in enumerate(breeds)
        ]

    @model_validator(mode="after")
    def _one_first(self) -> NetsConfig:
        if self.breeds and self.generator != self.breeds[0].generator:
            raise refuse(
                "nets.generator nets.breeds",
                "nets.generator is not the generator of the first of nets.breeds: leave nets.generator out",
            )
        return self

    def each(self, members: int) -> list[tuple[NetConfig, int]]:
        """Return each generator with the number of members that have it, in the order of the members.

        Without breeds, `members` members have the same generator.
        """
        return [(breed.generator, breed.members) for breed in self.breeds] or [(self.generator, members)]

    def prior_of(self, member: int) -> Prior:
        """Return the distribution of a member's noise."""
        return self.prior[member % len(self.prior)] if isinstance(self.prior, list) else self.prior

    @property
    def packing(self) -> int:
        """The number of samples that the discriminator judges together as one input (PacGAN); 1 for users' own nets."""
        from ganherd.nets.catalog import is_packaged  # here, because building nets needs recipes

        return int(self.discriminator.settings.get("packing", 1)) if is_packaged(self.discriminator.name) else 1

    @property
    def alike(self) -> bool:
        """Whether all generators have the same architecture and prior, so that one can replace another."""
        return len(self.breeds) < 2 and (isinstance(self.prior, str) or len(set(self.prior)) == 1)


def known(net: NetConfig, role: Role, key: str) -> NetConfig:
    """Return a net with all its settings, defaults included; raise an error for unknown names and wrong settings.

    Args:
        net: The net as the recipe names it.
        role: `generator` or `discriminator`.
        key: The key of the net in the recipe, for messages.
    """
    from ganherd.nets import catalog  # here, because building nets needs recipes
    from ganherd.recipe.plugins.plugin_settings import check_model

    try:
        settings = catalog.check(role, net.name, net.settings, key)
        if (model := catalog.settings_model(role, net.name)) is not None:
            settings = check_model(model, settings, key)
        return NetConfig(name=net.name, settings=settings)
    except catalog.WrongNet as error:
        raise refuse(f"{key}.settings.{error.setting}" if error.setting else key, str(error)) from None
