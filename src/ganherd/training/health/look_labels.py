"""Labels and one-line explanations, for users, of the scores that a look (a health check of the members) computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LookLabel:
    """The label of a score, and a phrase that explains its values."""

    label: str
    about: str
    is_share: bool = False

    def value(self, number: Any) -> str:
        """Return a value of the score as text; a dash if it is not a finite number.

        >>> LOOK_LABELS["spread"].value(0.981), LOOK_LABELS["tells"].value(0.834), LOOK_LABELS["tells"].value(math.nan)
        ('0.98', '83 %', '–')
        """
        if not isinstance(number, (int, float)) or not math.isfinite(number):
            return "–"
        return f"{100 * number:.0f} %" if self.is_share else f"{number:.2f}"


LOOK_LABELS: Mapping[str, LookLabel] = {
    "spread": LookLabel("variety", "1 is as varied as the data, 0 is always the same"),
    "returns": LookLabel("novelty", "near 0, samples return to earlier ones"),
    "tells": LookLabel("real or fake", "how often the discriminator is right; 50 % is guessing", is_share=True),
    "differs": LookLabel(
        "unlike data", "how often nearest neighbours are of one kind; 50 % is as good as data", is_share=True
    ),
    "copies": LookLabel("copies", "samples that are very near to one training image", is_share=True),
}


def explained(*names: str) -> str:
    """Return the labels and explanations of some scores, in one line.

    >>> explained("spread")
    'variety: 1 is as varied as the data, 0 is always the same'
    """
    return " · ".join(f"{LOOK_LABELS[name].label}: {LOOK_LABELS[name].about}" for name in names)
