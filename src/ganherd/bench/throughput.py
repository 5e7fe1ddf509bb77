"""What fusing buys: every way to train N small GANs on this machine, measured in one run on the same data."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ganherd.bench import cases
from ganherd.bench.checkout import WHERE, has_rivals, rival_module
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject

Row = JsonObject
WAYS = {
    "eager": "plain PyTorch modules, one member after another",
    "processes": "one process per GAN, all at once (ten at most)",
    "streams": "one cuDNN call per member, on streams, in one CUDA graph",
    "grouped": "grouped convolutions (batched products for an MLP) over all members, in a CUDA graph",
    "compiled": "streams through torch.compile; only where it is asked for",
    "loop": "ganherd, one member after another",
    "fused": "ganherd, all members at once",
    "graph": "ganherd, all members at once as a CUDA graph",
    "ours": "ganherd, by the engine that it chooses itself",
}
OURS = ("loop", "fused", "graph", "ours")
ON_GPU = ("eager", "processes", "streams", "grouped", "ours")
ON_CPU = ("loop", "fused", "eager")  # `ours` is the better of the first two
AT_ONCE = 10  # processes; more GANs than that take turns, so their rate is that of ten
_PATIENCE = 240.0  # seconds for a row beside those that are measured: kernels are compiled, engines compared


@dataclass(frozen=True)
class ThroughputRequest:
    """What is to be measured; None leaves it to the device."""

    cases: tuple[str, ...] | None = None
    ways: tuple[str, ...] | None = None
    members: tuple[int, ...] | None = None
    seconds: float = 2.0
    device: str = "auto"
    precision: str | None = None

    def check(self) -> None:
        """A UserError for a name that nobody knows, before torch is loaded."""
        for name in self.cases or ():
            cases.known(name)
        for way in self.ways or ():
            if way not in WAYS:
                raise UserError(f"there is no way {way!r}; there are {', '.join(WAYS)}.")
            if way not in OURS and not has_rivals():
                raise UserError(f"the way {way} needs code that is not installed with ganherd: {WHERE}.")
        self.recipe(self.precision or "float32")

    def recipe(self, precision: str) -> Recipe:
        """A small one that asks for the device and the precision."""
        return cases.recipe_of(cases.CASES["small"], 1, "random", self.device, precision)


@dataclass
class ThroughputResult:
    """All that one run measured."""

    machine: str
    device: str
    precision: str
    rates: dict[str, float]  # of a large matrix product and a large copy on this device
    cases: dict[str, Row] = field(default_factory=dict)  # what a member-step takes, by case
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def plain(self) -> JsonObject:
        return {**vars(self), "ways": {way: WAYS[way] for way in dict.fromkeys(row["way"] for row in self.rows)}}


def measure(
    asked: ThroughputRequest, say: Callable[[str], None], keep: Callable[[ThroughputResult], object] | None = None
) -> ThroughputResult:
    """Case by case and way by way, each in a process of its own; `keep` gets what there is after each."""
    asked.check()
    from ganherd.herd.engine.device import device_of

    device = device_of(asked.recipe("float32"))
    gpu = device.type == "cuda"
    precision = asked.precision or ("bf16" if gpu else "float32")
    ways = asked.ways or (ON_GPU if gpu else ON_CPU)
    found = ThroughputResult(str(device), str(device), precision, {})
    limits: Any = None
    if has_rivals():
        limits = rival_module("ceiling", "the floor").Limits(device, asked.recipe(precision))
        found.machine, found.rates = limits.machine.name, limits.rates
    else:
        left_out = [way for way in ways if way not in OURS]
        ways = tuple(way for way in ways if way in OURS)
        found.notes.append(f"the floor and {', '.join(left_out)} were left out: {WHERE}")
    for name in asked.cases or (cases.ON_GPU if gpu else cases.ON_CPU):
        case = cases.CASES[name]
        if why := cases.missing(case):
            found.notes.append(f"{name} was left out: {why}")
            say(found.notes[-1])
            continue
        found.cases[name] = {"about": case.about, **(limits.of_case(case) if limits else {})}
        sizes = asked.members or (case.sizes if gpu else case.cpu_sizes)
        for way in ways:
            for row in _rows(name, way, sizes, asked.seconds, str(device), precision, gpu, say):
                found.rows.append(row)
                _tell(row, say)
                _compare(found)
                if keep:
                    keep(found)
    found.rows.sort(key=lambda row: (list(cases.CASES).index(row["case"]), row["members"]))  # stable: ways as they came
    return found


def _rows(
    name: str, way: str, sizes: Sequence[int], seconds: float, device: str, precision: str, gpu: bool,
    say: Callable[[str], None],
) -> Iterator[Row]:  # fmt: skip
    """A row for each size, as soon as it is measured. On a GPU one process measures them all, a new one takes over after a failure;
    on a CPU each has its own, since a process cannot forget its peak of memory."""
    if way == "processes":
        sizes = [min(AT_ONCE, max(sizes))]
    left = list(dict.fromkeys(sizes))
    while left:
        now = left if gpu else left[:1]
        say(f"{name}, {way}: {', '.join(map(str, now))} member{'' if now == [1] else 's'}…")
        words, failed, seen = [name, ",".join(map(str, now)), way, str(seconds), device, precision], None, 0
        with _Process(words, len(now) * (_PATIENCE + 4 * seconds)) as process:
            for row in process.rows():
                seen += 1
                if "error" in row:
                    failed = row
                else:
                    yield row
        if failed is None and seen < len(now):  # it died, or took too long
            why, seen = process.complaint.strip().splitlines(), seen + 1
            failed = {"case": name, "members": now[seen - 1], "way": way, "error": why[-1] if why else "it died"}
        if failed is not None:
            yield failed | ({"detail": process.complaint[-2000:]} if process.complaint else {})
        left = left[seen:]


class _Process:
    """One that measures, a line for each row; it is stopped if it takes too long, and never outlives its user."""

    def __init__(self, words: Sequence[str], patience: float) -> None:
        self._command = [sys.executable, "-m", "ganherd.bench.rows", *words]
        self._patience, self.complaint = patience, ""

    def __enter__(self) -> _Process:
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._said, text=True)
        self._late = threading.Timer(self._patience, self._process.kill)
        self._late.start()
        return self

    def rows(self) -> Iterator[Row]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def __exit__(self, *_: object) -> None:
        late = self._late.finished.is_set()
        self._late.cancel()
        self._process.kill()
        self._process.__exit__(None, None, None)
        self._said.seek(0)
        self.complaint = self._said.read() + (f"\nit took longer than {self._patience:.0f} s" if late else "")
        self._said.close()


def _tell(row: Row, say: Callable[[str], None]) -> None:
    reached = (
        f"no number: {row['error']}"
        if "error" in row
        else f"{two_digits(row['member_steps_per_second'])} member-steps/s"
    )
    herd = "1 member" if row["members"] == 1 else f"{row['members']} members"
    say(f"  {row['case']}, {herd}, {row['way']}: {reached}")


def two_digits(rate: float) -> str:
    """Two digits at least, and all of those before the point.

    >>> two_digits(0.951), two_digits(1.04), two_digits(9.97), two_digits(1234.5)
    ('0.95', '1.0', '10', '1,234')
    """
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:#.2g}"


def _compare(found: ThroughputResult) -> None:
    """Puts beside every row what it stands for: operations, bytes, the share of the floor, and how it is to the others."""
    rows = [row for row in found.rows if "error" not in row]
    for row in rows:
        case, rate = found.cases[row["case"]], row["member_steps_per_second"]
        if "flops_per_member_step" in case:
            row["tflops"] = rate * case["flops_per_member_step"] / 1e12
            row["gigabytes_per_second"] = rate * case["least_bytes_per_member_step"] / 1e9
            row["share_of_floor"] = [rate / limit for limit in reversed(case["floor_member_steps_per_second"])]
        beside = [other for other in rows if (other["case"], other["members"]) == (row["case"], row["members"])]
        for way in ("eager", "loop"):
            row[f"against_{way}"] = _ratio(rate, [other for other in beside if other["way"] == way])
        alone = [other for other in rows if (other["case"], other["way"]) == (row["case"], "processes")]
        row["against_processes"] = _ratio(rate, alone)
        own = [other for other in beside if other["way"] in OURS]
        chosen = [other for other in own if other["way"] == "ours"] or own
        row["chosen"] = bool(chosen) and row is max(chosen, key=lambda other: other["member_steps_per_second"])


def _ratio(rate: float, others: Sequence[Row]) -> float | None:
    return rate / others[0]["member_steps_per_second"] if others else None


def save(found: ThroughputResult, path: Path) -> dict[str, Path]:
    """The rows as JSON and the picture as PNG, side by side; `path` names either. What was written, by its kind."""
    from ganherd.bench.throughput_text import draw

    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"command": " ".join(["ganherd", *sys.argv[1:]]), **found.plain()}
    rows, picture = path.with_suffix(".json"), path.with_suffix(".png")
    rows.write_text(json.dumps(facts, indent=1) + "\n")
    if all("error" in row for row in found.rows):
        return {"rows": rows}
    draw(found, picture)
    return {"rows": rows, "picture": picture}
