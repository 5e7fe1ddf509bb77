"""Show the toy study as a table, as differences with paired intervals, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from ganherd.util.text import text_table
from ganherd.viz import pictures
from ganherd.viz.pictures import DATA, GENERATED, INK
from gap_arms import ARMS, KINDS

_PAIRS = (("gap", "apart"), ("apart", "one"), ("gap", "one"))
_WORDS = {"one": "one GAN", "apart": "four apart", "gap": "GAP ×4"}
_COLOURS = {"one": DATA, "apart": "#e08a1e", "gap": GENERATED}
_SHOWN = {"modes": "modes captured", "represented": "modes with a share", "high_quality": "high quality"}
MODES = {"r15": 15, "grid25": 25, "ring8": 8}
# Modes, share of high quality in percent, reverse KL: as published, of ring8 and of grid25 (2,500 samples, ten trials)
PUBLISHED = {
    "ring8": {
        "GAN (VEEGAN T1)": ("1", "99.3", "–"),
        "ALI (VEEGAN T1)": ("2.8", "0.13", "–"),
        "Unrolled (VEEGAN T1)": ("7.6", "35.6", "–"),
        "VEEGAN (VEEGAN T1)": ("8", "52.9", "–"),
        "GAN (PacGAN T1)": ("6.3 ± 0.5", "98.2 ± 0.2", "0.45 ± 0.09"),
        "ALI (PacGAN T1)": ("6.6 ± 0.3", "97.6 ± 0.4", "0.36 ± 0.04"),
        "PacGAN2 (PacGAN T1)": ("7.9 ± 0.1", "95.6 ± 2.0", "0.07 ± 0.03"),
        "PacGAN3 (PacGAN T1)": ("7.8 ± 0.1", "97.7 ± 0.3", "0.10 ± 0.02"),
        "PacGAN4 (PacGAN T1)": ("7.8 ± 0.1", "95.9 ± 1.4", "0.07 ± 0.02"),
    },
    "grid25": {
        "GAN (VEEGAN T1)": ("3.3", "0.5", "–"),
        "ALI (VEEGAN T1)": ("15.8", "1.6", "–"),
        "Unrolled (VEEGAN T1)": ("23.6", "16", "–"),
        "VEEGAN (VEEGAN T1)": ("24.6", "40", "–"),
        "GAN (PacGAN T1)": ("17.3 ± 0.8", "94.8 ± 0.7", "0.70 ± 0.07"),
        "ALI (PacGAN T1)": ("24.1 ± 0.4", "95.7 ± 0.6", "0.14 ± 0.03"),
        "PacGAN2 (PacGAN T1)": ("23.8 ± 0.7", "91.3 ± 0.8", "0.13 ± 0.04"),
        "PacGAN3 (PacGAN T1)": ("24.6 ± 0.4", "94.2 ± 0.4", "0.06 ± 0.02"),
        "PacGAN4 (PacGAN T1)": ("24.8 ± 0.2", "93.6 ± 0.6", "0.04 ± 0.01"),
    },
}


def values(row: dict[str, Any], kind: str, name: str) -> np.ndarray:
    """Return a value for each seed of an arm; one GAN is also the best and the mixture. NaN if nothing was of high quality."""
    own = [one.get(kind, one["mean"])[name] for one in row["per_seed"]]
    return np.array([np.nan if value is None else value for value in own], float)


def paired(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Return the mean of a - b over seeds with Student's interval, and for how many seeds a is above, equal and below.

    >>> paired(np.array([3.0, 5.0, 4.0]), np.array([1.0, 2.0, 3.0]))["value"]
    2.0
    """
    off = (a - b)[np.isfinite(a - b)]
    n = len(off)
    out: dict[str, Any] = {"value": float(off.mean()) if n else None, "seeds": n}
    out |= {"above": int((off > 0).sum()), "equal": int((off == 0).sum()), "below": int((off < 0).sum())}
    if n > 1:
        reach = float(student.ppf(0.975, n - 1) * off.std(ddof=1) / np.sqrt(n))
        out["interval"] = {"low": out["value"] - reach, "high": out["value"] + reach, "level": 0.95}
    return out


def differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the differences between arms on the same data and seeds, of the mean member, the best and the mixture."""
    out = []
    for data in dict.fromkeys(row["data"] for row in rows):
        arms = {row["arm"]: row for row in rows if row["data"] == data}
        for first, second in _PAIRS:
            for kind in KINDS if {first, second} <= arms.keys() else ():
                numbers = {n: paired(values(arms[first], kind, n), values(arms[second], kind, n)) for n in _SHOWN}
                out.append({"data": data, "arm": first, "minus": second, "kind": kind, **numbers})
    return out


def table(rows: Sequence[dict[str, Any]], compared: Sequence[dict[str, Any]] = ()) -> str:
    """Return means with their standard errors over the seeds, then the differences with their intervals."""
    lines = [
        ("data", "arm", "of", "modes", "with a share", "high quality %", "reverse KL", "seeds", "steps", "settings")
    ]
    for row in rows:
        for kind in KINDS[: 1 if row["arm"] == "one" else 3]:
            cells = [_mean(values(row, kind, n), s, d) for n, s, d in _COLUMNS]
            overrides = " ".join(row["overrides"]) if not compared and kind == "mean" else ""
            seeds, steps = str(len(row["per_seed"])), f"{row['steps']:,}"
            lines.append((row["data"], _WORDS[row["arm"]], kind, *cells, seeds, steps, overrides))
    text = _aligned(lines if not compared else [line[:-1] for line in lines])
    if not compared:
        return text
    head = ("data", "difference", "of", *(f"{words} [95 %]" for words in _SHOWN.values()), "seeds above/equal/below")
    lines = [head]
    for one in compared:
        words = f"{_WORDS[one['arm']]} − {_WORDS[one['minus']]}"
        cells = [_span(one[name], 100 if name == "high_quality" else 1) for name in _SHOWN]
        by_modes = "/".join(str(one["modes"][how]) for how in ("above", "equal", "below"))
        lines.append((one["data"], words, one["kind"], *cells, by_modes))
    return f"{text}\n\n{_aligned(lines)}"


_COLUMNS = (("modes", 1, 2), ("represented", 1, 2), ("high_quality", 100, 1), ("reverse_kl", 1, 2))


def with_published(rows: Sequence[dict[str, Any]], text: str) -> str:
    """Return the table, and below it what others have published for the same data and protocol."""
    lines = [("data", "method", "modes", "high quality %", "reverse KL")]
    for data in dict.fromkeys(row["data"] for row in rows if row["data"] in PUBLISHED):
        lines += [(data, name, *cells) for name, cells in PUBLISHED[data].items()]
        for row in rows:
            for kind in KINDS[: 1 if row["arm"] == "one" else 3] if row["data"] == data else ():
                cells = [_mean(values(row, kind, n), s, d) for n, s, d in _COLUMNS if n != "represented"]
                lines.append((data, f"{_WORDS[row['arm']]}, {kind}: here", *cells))
    return f"{text}\n\n{_aligned(lines)}"


def _mean(each: np.ndarray, scale: float, digits: int) -> str:
    each = each[np.isfinite(each)] * scale
    if not len(each):
        return "–"
    error = f" ± {each.std(ddof=1) / np.sqrt(len(each)):.{digits}f}" if len(each) > 1 else ""
    return f"{each.mean():.{digits}f}{error}"


def _span(one: dict[str, Any], scale: float) -> str:
    if one["value"] is None:
        return "–"
    text = f"{scale * one['value']:+.2f}"
    if "interval" in one:
        text += f" [{scale * one['interval']['low']:+.2f}, {scale * one['interval']['high']:+.2f}]"
    return text


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(text_table(lines))


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a dot for each seed, and the mean as a bar; a line joins the same seed of four separate GANs and GAP."""
    from matplotlib.figure import Figure

    data = list(dict.fromkeys(row["data"] for row in rows))
    figure = Figure(figsize=(11.5, 3.3 * len(data) + 0.7), layout="constrained")
    axes = figure.subplots(len(data), len(_SHOWN), squeeze=False)
    for line, name in zip(axes, data, strict=True):
        arms = {row["arm"]: row for row in rows if row["data"] == name}
        for a, (number, words) in zip(line, _SHOWN.items(), strict=True):
            _panel(a, arms, number)
            a.set_title(f"{name}: {words}", color=INK, fontsize=10, loc="left")
            if number != "high_quality":
                a.axhline(MODES[name], color=INK, lw=0.8, ls=(0, (4, 3)), alpha=0.6)
            else:
                a.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, labelcolor=INK, fontsize=9)
    seeds = len(rows[0]["per_seed"])
    words = f"a dot for each of {seeds} seeds, the same seed joined; bars: means; dashed: all modes"
    figure.supxlabel(words, color=INK, fontsize=9)
    pictures.save(figure, path)


def _panel(axes: Any, arms: dict[str, dict[str, Any]], number: str) -> None:
    for group, kind in enumerate(KINDS):
        here = [arm for arm in ARMS if arm in arms and (arm != "one" or kind == "mean")]
        at = {arm: 3.0 * group + 0.8 * (list(ARMS).index(arm) - 1) for arm in here}
        seen = {arm: values(arms[arm], kind, number) for arm in here}
        if {"apart", "gap"} <= seen.keys():
            axes.plot([at["apart"], at["gap"]], [seen["apart"], seen["gap"]], color=INK, lw=0.6, alpha=0.3)
        for arm in here:
            own = seen[arm][np.isfinite(seen[arm])]
            label = _WORDS[arm] if kind == "mean" else None
            shape = {"s": 18, "alpha": 0.65, "linewidths": 0, "zorder": 3}
            axes.scatter(np.full(len(own), at[arm]), own, color=_COLOURS[arm], label=label, **shape)
            if len(own):
                axes.hlines(own.mean(), at[arm] - 0.28, at[arm] + 0.28, color=_COLOURS[arm], lw=3, zorder=4)
    axes.set_xticks([3.0 * group for group in range(len(KINDS))], ["mean member", "best member", "mixture"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8, length=3)
    axes.grid(axis="y", color=INK, alpha=0.09, lw=0.8)
    axes.set_axisbelow(True)
