"""What fusing buys: member-steps per second and memory of each engine, for several sizes of a herd, in one run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ganherd.errors import UserError
from ganherd.run.progress import size

# One pair of nets each, on random data of that size; `settings` are overrides of the default recipe.
CASES: dict[str, tuple[str, list[str]]] = {
    "mlp": (
        "the MLP of the cellular paper (64-256-256-784), batch 100, non-saturating",
        [
            "nets.generator=mlp",
            "nets.discriminator=mlp",
            "nets.latent=64",
            "train.batch=100",
            "loss.name=non-saturating",
        ],
    ),
    "small": ("the default's nets (8 px), batch 64, gradient penalty", ["train.batch=64"]),
    "wcgan": (
        "W-CGAN's Tables 1 and 2 at 32 px, batch 64, weight clipping",
        [
            "nets.generator=wcgan",
            "nets.discriminator=wcgan",
            "nets.latent=100",
            "train.batch=64",
            "loss.name=wasserstein",
        ],
    ),
    "dcgan": (
        "DCGAN at 64 px, batch 128, non-saturating",
        [
            "nets.generator=dcgan",
            "nets.discriminator=dcgan",
            "nets.latent=100",
            "train.batch=128",
            "loss.name=non-saturating",
        ],
    ),
}
SHAPES = {"mlp": (1, 28, 28), "small": (1, 8, 8), "wcgan": (3, 32, 32), "dcgan": (3, 64, 64)}


def measure(
    net: str,
    sizes: Sequence[int],
    seconds: float,
    device: str,
    precision: str,
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each size and engine; every row runs in a process of its own, so that its peak memory is its own."""
    if net not in CASES:
        raise UserError(f"there is no benchmark of {net!r}; there are {', '.join(CASES)}.")
    rows: list[dict[str, Any]] = []
    for members in sizes:
        found = []
        for engine in ("loop", "fused", *(("graph",) if _has_gpu(device) else ())):
            if say:
                say(f"{net}: {members} members, {engine}…")
            command = [
                sys.executable,
                "-m",
                "ganherd.bench.one",
                net,
                str(members),
                engine,
                str(seconds),
                device,
                precision,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise UserError(
                    f"the benchmark of {members} members with {engine} failed: {done.stderr.strip().splitlines()[-1]}"
                )
            import json

            found.append(json.loads(done.stdout))
        best = max(found, key=lambda row: row["member_steps_per_second"])
        for row in found:
            row["against_loop"] = row["member_steps_per_second"] / found[0]["member_steps_per_second"]
            row["chosen"] = row is best
        rows += found
    return rows


def _has_gpu(device: str) -> bool:
    import torch

    return device != "cpu" and torch.cuda.is_available()


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"{rows[0]['net']}: {CASES[rows[0]['net']][0]}; {rows[0]['machine']}", ""]
    lines.append(
        f"{'members':>7}  {'engine':<6}  {'threads':>7}  {'member-steps/s':>14}  {'× loop':>6}  {'images/s':>10}  "
        f"{'peak memory':>11}"
    )
    for row in rows:
        lines.append(
            f"{row['members']:>7}  {row['engine']:<6}  {row['threads']:>7}  {row['member_steps_per_second']:>14,.0f}  "
            f"{row['against_loop']:>6.2f}  {row['images_per_second']:>10,.0f}  {size(row['peak_bytes']):>11}"
            + ("  <- chosen" if row["chosen"] else "")
        )
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Member-steps per second over the number of members, a line for each engine."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for engine in dict.fromkeys(row["engine"] for row in rows):
        own = [row for row in rows if row["engine"] == engine]
        axes.plot([r["members"] for r in own], [r["member_steps_per_second"] for r in own], "o-", label=engine)
    axes.set(
        xscale="log",
        xlabel="members of the herd",
        ylabel="member-steps/s",
        title=f"{rows[0]['net']} on {rows[0]['machine']}",
    )
    axes.set_xticks(
        sorted({row["members"] for row in rows}), [str(n) for n in sorted({row["members"] for row in rows})]
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
