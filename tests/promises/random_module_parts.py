"""Build a random module step by step, and register what it may consist of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

SHAPE, LATENT, CLASSES = (2, 4, 4), 5, 3


@dataclass
class Draft:
    """A module in the making: lines of its two methods, and the shape of `h` without its batch axis."""

    random: random.Random
    shape: tuple[int, ...]
    labelled: bool
    made: list[str] = field(default_factory=list)  # lines of __init__
    body: list[str] = field(default_factory=list)  # lines of forward
    methods: list[str] = field(default_factory=list)  # lines of further methods
    used: list[str] = field(default_factory=list)  # names of ingredients
    linears: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # by (in, out)
    number: int = 0

    @property
    def channels(self) -> int:
        return self.shape[0]

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    def layer(self, source: str, prefix: str = "l") -> str:
        """Add a layer to __init__ and return its name."""
        self.number += 1
        self.made.append(f"self.{prefix}{self.number} = {source}")
        return f"self.{prefix}{self.number}"

    def linear(self, out: int) -> str:
        name = self.layer(f"nn.Linear({self.channels}, {out}, bias={self.random.random() < 0.8})")
        self.linears.setdefault((self.channels, out), []).append(name)
        return name

    def any_layer(self) -> str:
        """A layer that keeps the shape of `h`."""
        if self.is_image:
            return self.layer(f"nn.Conv2d({self.channels}, {self.channels}, 3, padding=1)")
        return self.linear(self.channels)

    def run(self, *lines: str) -> None:
        self.body.extend(lines)


Ingredient = Callable[[Draft], None]
ROWS: dict[str, Ingredient] = {}  # on h [B, C]
IMAGES: dict[str, Ingredient] = {}  # on h [B, C, H, W]


def on(*places: dict[str, Ingredient], name: str | None = None) -> Callable[[Ingredient], Ingredient]:
    def added(ingredient: Ingredient) -> Ingredient:
        for place in places:
            place[name or ingredient.__name__.replace("_", " ").strip()] = ingredient
        return ingredient

    return added
