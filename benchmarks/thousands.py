"""Measure herds of thousands: on the device as a whole, and in blocks that visit it from the host's memory.

    python benchmarks/thousands.py -o FILE.json
    python benchmarks/thousands.py wcgan:1000 wcgan:5000/250@20,50
    python benchmarks/thousands.py --device cpu

A herd is CASE:MEMBERS, or CASE:MEMBERS/BLOCK with the members of a block (`auto`: as ganherd chooses it). The numbers after @ are
steps per visit of a block to the device; ganherd's default is 50, the steps between two records. Each herd has a separate
process, and the file is written after each.

A few members are built, and the others start from copies of their weights with separate random streams, because
building thousands takes longer than the measurement; `build_ms_per_member` is what it takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ganherd.bench import cases
from ganherd.bench.engine_rates import peaks, synchronize
from ganherd.herd.batch_feed import Feed
from ganherd.herd.engine import autotune
from ganherd.herd.engine.blocks.block_engine import BlockEngine
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engines import Engine, Plan, StackedHerd, make_engine, place_state
from ganherd.herd.state import bytes_per_member
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError
from provenance import provenance

ON_GPU = ("wcgan:1000", "wcgan:2000", "wcgan:5000/auto@20,50", "mlp:1000", "mlp:10000/625@50,100")
ON_CPU = ("small:6/6@2", "small:6/2@1,2")
STEPS = (50,)  # per visit
BUILT = 100  # members that are built; the others are copies

Row = dict[str, Any]


@dataclass(frozen=True)
class HerdSize:
    """A herd to measure, as it is written in the command."""

    case: str
    members: int
    block: int | None  # members of a block; None: all at once; 0: as ganherd chooses it
    steps: tuple[int, ...]  # per visit

    @classmethod
    def parse(cls, text: str) -> HerdSize:
        """Parse e.g. "wcgan:5000/250@20,50"."""
        try:
            size, _, steps = text.partition("@")
            case, members = size.split(":")
            number, _, block = members.partition("/")
            width = None if not block else 0 if block == "auto" else int(block)
            cases.known(case)
            return cls(case, int(number), width, tuple(map(int, steps.split(","))) if steps else STEPS)
        except ValueError:
            raise UserError(f"{text!r} is not a herd; write e.g. wcgan:1000 or wcgan:5000/250@20,50.") from None


def enlarged(herd: StackedHerd, members: int) -> StackedHerd:
    """Return a herd of more members on the host, which start from copies of the herd's members but have their own streams."""
    rows = torch.arange(members) % herd.num_members
    state = {}
    for name, value in herd.state.items():
        if ".adam." in name:  # zeros that take no memory until they are written
            state[name] = torch.from_numpy(np.zeros((members, *value.shape[1:]), value[:0].numpy().dtype))
        else:
            state[name] = value[rows]
    state["set.slot"] = torch.arange(members)
    plan = herd.feed.plan
    index = np.broadcast_to(plan.index[:1], (members, plan.index.shape[1]))
    feed = Feed(herd.feed.x, herd.feed.y, replace(plan, index=index, count=np.repeat(plan.count[:1], members)))
    return replace(herd, state=state, feed=feed)


def build(size: HerdSize, device: str, precision: str) -> tuple[StackedHerd, Any, float]:
    """Return the herd on the host, the settings of its engine, and the seconds that building a member takes."""
    case = cases.known(size.case)
    built = min(BUILT, size.members)
    with cases.as_file(case) as source:
        recipe = cases.recipe_of(case, built, source, device, precision)
        set_precision(recipe)
        began = time.perf_counter()
        prepared = assemble(recipe)
    each = (time.perf_counter() - began) / built
    return enlarged(prepared.herd, size.members), recipe.engine, each


def plan_of(size: HerdSize, herd: StackedHerd, settings: Any) -> Plan:
    """Return the plan: a captured graph on a GPU, of all members or of a block."""
    if size.block == 0:
        return autotune.choose(herd, settings, lambda text: None)
    name = "graph" if herd.device.type == "cuda" else "fused"
    return Plan(name, size.block or size.members, torch.get_num_threads(), str(herd.device))


def seconds_of(engine: Engine, start: int, stop: int) -> float:
    """Train from one step to another, and return the seconds that it took."""
    synchronize(engine.herd.device)
    began = time.perf_counter()
    engine.advance(start, stop, engine.herd.zero_sums())
    synchronize(engine.herd.device)
    return time.perf_counter() - began


def measure(size: HerdSize, device: str, precision: str) -> list[Row]:
    """Measure a herd in this process: a row for each number of steps per visit."""
    herd, settings, build_seconds = build(size, device, precision)
    plan = plan_of(size, herd, settings)
    num_bytes = bytes_per_member(herd.state)
    began = time.perf_counter()
    place_state(herd, plan)
    # On a CPU the state is always on the device, and blocks are copied within its memory.
    in_blocks = plan.chunk < size.members
    engine = BlockEngine(herd, plan) if in_blocks else make_engine(herd, plan)
    engine.prepare()
    prepared_after = time.perf_counter() - began
    step = 2 * (herd.rules.skip_d + 1)
    warm = seconds_of(engine, 0, step)  # fills caches; writes the optimiser's state on the host for the first time
    rows = []
    for steps in size.steps:
        waited = engine.seconds_waited if isinstance(engine, BlockEngine) else 0.0
        seconds = seconds_of(engine, step, step + steps)
        step += steps
        used, reserved = peaks(herd.device)
        rows.append(
            {
                "case": size.case,
                "members": size.members,
                "engine": plan.name,
                "blocks": len(herd.blocks(plan.chunk)) if isinstance(engine, BlockEngine) else 1,
                "block_members": min(plan.chunk, size.members),
                "steps_per_visit": steps if in_blocks else None,
                "steps": steps,
                "seconds": seconds,
                "member_steps_per_second": size.members * steps / seconds,
                "seconds_waited_for_copies": engine.seconds_waited - waited if isinstance(engine, BlockEngine) else 0.0,
                "state_bytes": num_bytes * size.members,
                "memory_used": used,
                "memory_reserved": reserved,
                "reserved_to_used": reserved / used,
                "precision": precision,
                "build_ms_per_member": 1e3 * build_seconds,
                "prepare_seconds": prepared_after,
                "warm_up_seconds": warm,
            }
        )
    return rows


def describe(row: Row) -> str:
    """Return a row as a line of text."""
    herd = f"{row['case']}, {row['members']:,} members"
    if "error" in row:
        return f"{herd}: {row['error']}"
    blocks = f", {row['blocks']} blocks of {row['block_members']}, {row['steps_per_visit']} steps per visit"
    memory = f"{row['memory_used'] / 2**30:.1f} GiB used, {row['memory_reserved'] / 2**30:.1f} reserved"
    waited = f", waited {row['seconds_waited_for_copies']:.2f} of {row['seconds']:.2f} s for copies"
    copies = (blocks, waited) if row["blocks"] > 1 else ("", "")
    return f"{herd}{copies[0]}: {row['member_steps_per_second']:,.0f} member-steps/s, {memory}{copies[1]}"


def in_own_process(text: str, device: str, precision: str, limit: float) -> list[Row]:
    """Measure a herd in a new process; a row with an error if it fails or takes too long."""
    words = [sys.executable, __file__, text, "--device", device, "--precision", precision, "--here"]
    size = HerdSize.parse(text)
    failed = {"case": size.case, "members": size.members, "block": size.block}
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return [{**failed, "error": f"it took more than {limit:.0f} s"}]
    if done.returncode:
        return [{**failed, "error": f"it ended with status {done.returncode}"}]
    return list(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("herds", nargs="*", help="CASE:MEMBERS[/BLOCK][@STEPS,…]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", help="default: bf16 on a GPU, float32 on a CPU")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that one herd may take")
    parser.add_argument("-o", "--output", type=Path, help="file for the rows, written after each herd")
    parser.add_argument("--here", action="store_true", help="measure in this process, and print the rows as JSON")
    args = parser.parse_args(arguments)
    on_gpu = args.device.startswith("cuda")
    precision = args.precision or ("bf16" if on_gpu else "float32")
    herds = args.herds or (ON_GPU if on_gpu else ON_CPU)
    try:
        for text in herds:
            HerdSize.parse(text)
    except UserError as error:
        parser.error(str(error))
    if args.here:
        print(json.dumps([row for text in herds for row in measure(HerdSize.parse(text), args.device, precision)]))
        return
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    result: dict[str, Any] = {**provenance(), "device": device, "torch": torch.__version__, "rows": []}
    for text in herds:
        for row in in_own_process(text, args.device, precision, args.limit):
            print(describe(row), flush=True)
            result["rows"].append(row)
        if args.output:
            args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
