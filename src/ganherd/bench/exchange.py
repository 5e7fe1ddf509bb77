"""Measure what a GAP swap (members exchange discriminators in pairs) costs: time, bytes, and its share of an epoch."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ganherd.bench import cases
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.host import torch_threads
from ganherd.util.text import size, text_table

Row = JsonObject
SELDOM = 0.5  # swaps per epoch: one every two epochs, which should cost little
OFTEN = 2.0  # swaps per epoch: one every half epoch, at which the results of the paper's DCGANs varied least
LITTLE = 0.01  # largest share of an epoch's time that swaps should take
IMAGES = 50_000  # images per epoch of a member, as in MNIST or CIFAR-10 without held-out images
TRAVELS = ("weights", "all")  # what a swap exchanges: weights only, or also buffers and optimiser state
ON_GPU, ON_CPU = (4, 16, 64), (4, 16)  # default numbers of members
_SWAPS = 5  # least number of measured swaps, after two that warm up


@dataclass(frozen=True)
class ExchangeRequest(cases.BenchmarkRequest):
    """The options of `ganherd bench exchange`: those of all benchmarks, and the number of images in an epoch."""

    images: int = IMAGES  # number of images in an epoch

    def check(self) -> None:
        """Raise a UserError for an impossible request, before torch is loaded."""
        super().check()
        if any(number < 2 for number in self.members or ()):
            raise UserError("A swap needs at least two members.")


def measure(request: ExchangeRequest, log: Callable[[str], None]) -> list[Row]:
    """Measure swaps and steps; return a row for each case, number of members, and kind of swap (see `TRAVELS`)."""
    request.check()
    device, precision, names = request.with_defaults()
    rows = []
    for name in names:
        for members in request.members or (ON_GPU if device.type == "cuda" else ON_CPU):
            log(f"{name}: {members} members…")
            rows += _rows(name, members, request, precision, log)
    return rows


def _rows(name: str, members: int, request: ExchangeRequest, precision: str, log: Callable[[str], None]) -> list[Row]:
    """Measure a case with a number of members; return a row for each kind of swap."""
    from ganherd.bench.cases import as_file
    from ganherd.bench.engine_rates import synchronize
    from ganherd.herd.engine import autotune
    from ganherd.herd.engine.device import set_precision
    from ganherd.herd.engine.engine_trials import measure_rate
    from ganherd.herd.engine.engines import place_state
    from ganherd.herd.state import finite_members
    from ganherd.recipe import recipe_file
    from ganherd.recipe.strategy.gap_config import GapConfig
    from ganherd.strategies.gap.gap import swapped_tensors
    from ganherd.training.setup.assemble import assemble
    from ganherd.training.setup.build_strategy import make_strategy

    case = cases.known(name)
    with as_file(case) as path:
        recipe = recipe_file.load(
            cases.recipe_of(case, members, path, request.device, precision), ["strategy.name=gap"]
        )
        set_precision(recipe)
        assembly = assemble(recipe)
    herd = assembly.herd
    plan = autotune.choose(herd, recipe.engine, log)
    with torch_threads(plan.threads):
        step = herd.num_members / measure_rate(herd, plan, request.seconds)  # seconds
        place_state(herd, plan)
        # the time of a step does not depend on the number of images, so a few random ones are enough
        steps, rows = -(-request.images // recipe.train.batch), []
        for travels in TRAVELS:
            settings = recipe.strategy.model_copy(update={"gap": GapConfig(travels=travels)})
            changed = recipe.model_copy(update={"strategy": settings})
            assembly = replace(assembly, recipe=changed)
            strategy = make_strategy(assembly, {"every": 1, "warmup": 0})
            took: list[float] = []
            while len(took) < 2 + _SWAPS or sum(took) < request.seconds / len(TRAVELS):
                synchronize(herd.device)
                began = time.perf_counter()
                # like the training loop: check that members are finite before they swap
                strategy.on_health_check(len(took) + 1, finite_members(herd.state, herd.infinite_buffers).cpu().numpy())
                ((_, swap),) = strategy.open(len(took) + 1)  # draw the pairs, and exchange
                synchronize(herd.device)
                took.append(time.perf_counter() - began)
            moved = sum(
                herd.state[part][0].numel() * herd.state[part].element_size()
                for part in swapped_tensors(herd.state, "d", travels)
            )
            one = median(took[2:])
            seldom, often = (swaps * one / (steps * step) for swaps in (SELDOM, OFTEN))
            rows.append(
                {
                    "case": name,
                    "members": members,
                    "travels": travels,
                    "device": str(herd.device),
                    "precision": precision,
                    "engine": plan.name,
                    "swaps": len(took) - 2,
                    "bytes": moved * 2 * len(swap["pairs"]),
                    "microseconds": 1e6 * one,
                    "step_microseconds": 1e6 * step,
                    "images": request.images,
                    "steps_per_epoch": steps,
                    "swaps_per_epoch": [SELDOM, OFTEN],
                    "share_of_epoch": [seldom, often],
                    "below_1_percent": [seldom < LITTLE, often < LITTLE],
                }
            )
        return rows


def save(rows: Sequence[Row], path: Path) -> None:
    """Write the rows to a JSON file, with the command, the device and the version of torch."""
    import torch

    gpu = any(row["device"].startswith("cuda") for row in rows)
    facts = {
        "command": " ".join(["ganherd", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "rows": list(rows),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"-o {path} cannot be written: {error.strerror}.") from error


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, followed by an explanation of the columns.

    >>> print(table([]).splitlines()[0])
    case  members  travels  bytes  a swap, µs  a step, µs  steps an epoch  at 0.5 swaps an epoch  at 2 swaps  below 1 %
    """
    lines = [
        [
            "case", "members", "travels", "bytes", "a swap, µs", "a step, µs", "steps an epoch",
            f"at {SELDOM:g} swaps an epoch", f"at {OFTEN:g} swaps", "below 1 %",
        ]
    ]  # fmt: skip
    for row in rows:
        shares = (f"{100 * share:.3f} %" for share in row["share_of_epoch"])
        numbers = (f"{row[name]:,.0f}" for name in ("microseconds", "step_microseconds", "steps_per_epoch"))
        own = (row["case"], str(row["members"]), row["travels"], size(row["bytes"]))
        lines.append([*own, *numbers, *shares, _below(row)])
    text = text_table(lines, right={1, *range(3, 10)})
    images = rows[0]["images"] if rows else IMAGES
    text.append(
        f"Medians. A swap: check that members are finite, and exchange discriminators. A step: one step of all members. In an "
        f"epoch each member sees all {images:,} images (--images). The last columns are the share of an epoch's time that swaps "
        f"take, with one every {1 / SELDOM:g} epochs ({SELDOM:g} swaps an epoch) and one every {1 / OFTEN:g} ({OFTEN:g} swaps)."
    )
    return "\n".join(text)


def _below(row: Row) -> str:
    """Return at which of two rates, 0.5 and 2 swaps per epoch, swaps take less than 1 % of an epoch: "both", "at 0.5" or "no"."""
    seldom, often = row["below_1_percent"]
    return "both" if often else f"at {SELDOM:g}" if seldom else "no"
