"""The names of the scores by which the weights of a mixture can be chosen.

Only scores that can be computed for any weights from one set of samples of each generator are suitable.
"""

from __future__ import annotations

import re

from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
GOALS = {  # all scores by the goal of their metric
    "lower is better": ("fid", "tvd", "kid", "ifid"),
    "higher is better": ("classifier_score", "precision", "coverage", "label_accuracy", "modes", "stacked_modes"),
    "1 is best": ("density",),
}
BY = tuple(name for names in GOALS.values() for name in names)
FIELDS = ("fid", "tvd", "kid")  # mixture.json has a field for each of these; any other score is `value`
LISTED = f"{', '.join(BY)} or a function of your own, package.module:function"
_ALSO = {"histogram": "tvd", "class_histogram": "tvd"}  # other names of scores
_NOT = {  # metrics of `ganherd score` that cannot choose weights, with the reason
    "recall": "its radii depend on all samples, so they change with every weight",
    "prdc": "it is a group of four scores",
    "diversity": "it measures pixels within each class, and mixtures are weighed by features",
    "memorisation": "it compares samples with single images of the training data",
    **dict.fromkeys(("columns", "correlations"), "it measures columns, and mixtures are weighed by features"),
    "inception_score": "it needs a classifier head, which only `ganherd score` accepts",
    "ais": "a likelihood belongs to nets, not to samples",
    **dict.fromkeys(("gam", "gam2", "gam_ii"), "it compares several runs"),
}


def known_score(name: str) -> str:
    """Return the name of a score in the form that mixture files use.

    Raises:
        ValueError: The score is unknown, or cannot choose weights.

    >>> known_score("Classifier-Score"), known_score("histogram"), known_score("my_scores:far")
    ('classifier_score', 'tvd', 'my_scores:far')
    """
    if _OWN.fullmatch(name):
        return name
    key = name.strip().lower().replace("-", "_")
    key = _ALSO.get(key, key)
    if key in BY:
        return key
    if key in _NOT:
        raise ValueError(f"{key} is no score to weigh generators by, as {_NOT[key]}: choose {LISTED}")
    hint = did_you_mean(key, BY, " ({})")
    raise ValueError(f"{name!r} is no score to weigh generators by{hint}: choose {LISTED}")


def asked_score(option: str, name: str) -> str:
    """Return the name of a score that a command-line option gives, or raise a UserError that names the option."""
    try:
        return known_score(name)
    except ValueError as why:
        raise UserError(f"{option}: {why}.") from why


def is_own(name: str) -> bool:
    """Return whether the name of a score is that of a user's own function; lower values of these are better."""
    return ":" in name
