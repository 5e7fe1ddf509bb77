"""By which scores mixtures can be chosen: those that samples of each generator, looked at once, tell under any weights."""

from __future__ import annotations

import re

from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
LESS = ("fid", "tvd", "kid", "ifid")  # is better
MORE = ("classifier_score", "precision", "density", "coverage", "label_accuracy", "modes", "stacked_modes")
BY = (*LESS, *MORE)
FIELDS = ("fid", "tvd", "kid")  # of a neighbourhood in mixture.json have names of their own; any other is its `value`
LISTED = f"{', '.join(BY)} or a function of your own, package.module:function"
_ALSO = {"histogram": "tvd"}
_NOT = {  # of what `ganherd score` measures
    "recall": "its balls reach from one sample to the next, so they change with every weight",
    "prdc": "it stands for four scores",
    "diversity": "the best of it is 1, so neither less nor more is better",
    "memorisation": "0.05 of it is chance, so neither less nor more is better",
    "inception_score": "it needs a classifier head, which only `ganherd score` takes",
    "ais": "a likelihood is that of nets and not of their samples",
    **dict.fromkeys(("gam", "gam2", "gam_ii"), "it is that of several runs against each other"),
}


def known_score(name: str) -> str:
    """A score's name as mixtures know it; a ValueError says what is wrong with another, and which there are.

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
    """The same for what was typed as an option."""
    try:
        return known_score(name)
    except ValueError as why:
        raise UserError(f"{option}: {why}.") from why


def is_own(name: str) -> bool:
    """Whether it is a function of the user's own: less is better."""
    return ":" in name


def more_is_better(name: str) -> bool:
    """
    >>> more_is_better("fid"), more_is_better("coverage"), more_is_better("my_scores:far")
    (False, True, False)
    """
    return name in MORE
