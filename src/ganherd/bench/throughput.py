"""Measure for `ganherd bench fusion` how fast different methods ("ways") train N small GANs on the same data.

A way is, for example, plain PyTorch modules one after another, one process per GAN, or one of ganherd's engines; see
`WAYS`. The ceiling is the rate that the machine's arithmetic and memory speed would allow. Rates are in member-steps
(training steps of one GAN) per second.
"""

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
from ganherd.bench.checkout import WHERE, benchmark_module, has_benchmarks, require_checkout
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject

Row = JsonObject
Log = Callable[[str], None]
WAYS = {
    "eager": "plain PyTorch modules, one member after another",
    "processes": "one process per GAN, all at once (ten at most)",
    "streams": "one cuDNN call per member, on streams, in one CUDA graph",
    "grouped": "grouped convolutions (batched products for an MLP) over all members, in a CUDA graph",
    "compiled": "streams through torch.compile; only on request",
    "loop": "ganherd, one member after another",
    "fused": "ganherd, all members at once",
    "graph": "ganherd, all members at once as a CUDA graph",
    "ours": "ganherd, with the engine that it chooses",
}
OURS = ("loop", "fused", "graph", "ours")  # the ways of ganherd itself; the others need a checkout
ON_GPU = ("eager", "processes", "streams", "grouped", "ours")  # the default ways
ON_CPU = ("loop", "fused", "eager")  # `ours` would be the better of the first two
AT_ONCE = 10  # largest number of GANs for the way `processes`
_PATIENCE = 240.0  # extra seconds that a row may take, to compile kernels and compare engines


@dataclass(frozen=True)
class ThroughputRequest(cases.BenchmarkRequest):
    """The options of `ganherd bench fusion`: those of all benchmarks, and the ways to train (keys of `WAYS`)."""

    ways: Sequence[str] | None = None

    def check(self) -> None:
        """Raise a UserError for unknown names and for ways that need a checkout, before torch is loaded."""
        super().check()
        for way in self.ways or ():
            if way not in WAYS:
                raise UserError(f"there is no way {way!r}; there are {', '.join(WAYS)}.")
            if way not in OURS:
                require_checkout(f"the way {way}")


@dataclass
class ThroughputResult:
    """All measured rows, with the machine and its limits."""

    machine: str
    device: str
    precision: str
    rates: dict[str, float]  # measured with a large matrix product and a large copy; empty if not measured
    cases: dict[str, Row] = field(default_factory=dict)  # operations and bytes of a member-step, and ceiling, by case
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def plain(self) -> JsonObject:
        return {**vars(self), "ways": {way: WAYS[way] for way in dict.fromkeys(row["way"] for row in self.rows)}}


def measure(request: ThroughputRequest, log: Log, output: Path | None = None) -> ThroughputResult:
    """Measure each way for each case and number of members, in separate processes.

    Args:
        request: The cases, ways and numbers of members.
        log: Receives the progress.
        output: After each row, all rows so far are written to this file; None: to none.
    """
    request.check()
    device, precision, names = request.with_defaults()
    gpu = device.type == "cuda"
    ways = request.ways or (ON_GPU if gpu else ON_CPU)
    result = ThroughputResult(str(device), str(device), precision, {})
    limits: Any = None
    if has_benchmarks():
        limits = benchmark_module("ceiling", "the ceiling").Limits(device, request.recipe(precision))
        result.machine, result.rates = limits.machine.name, limits.rates
    else:
        left_out = [way for way in ways if way not in OURS]
        ways = tuple(way for way in ways if way in OURS)
        result.notes.append(f"left out: {', '.join(['the ceiling', *left_out])}; {WHERE}")
    for name in names:
        case = cases.CASES[name]
        result.cases[name] = {"about": case.about, **(limits.of_case(case) if limits else {})}
        sizes = request.members or (case.sizes if gpu else case.cpu_sizes)
        for way in ways:
            for row in _rows(name, way, sizes, request.seconds, str(device), precision, gpu, log):
                result.rows.append(row)
                _tell(row, log)
                _compare(result)
                if output:
                    save(result, output)
    # the sort is stable, so the ways keep their order
    result.rows.sort(key=lambda row: (list(cases.CASES).index(row["case"]), row["members"]))
    return result


def _rows(
    name: str, way: str, sizes: Sequence[int], seconds: float, device: str, precision: str, gpu: bool, log: Log
) -> Iterator[Row]:
    """Measure one way; yield a row for each number of members in `sizes` as soon as it is measured.

    On a GPU one process measures all numbers; after a failure, a new process continues with the next number. On a CPU
    each number has its own process, because the peak memory of a process cannot be reset.
    """
    if way == "processes":
        sizes = [min(AT_ONCE, max(sizes))]
    left = list(dict.fromkeys(sizes))
    while left:
        now = left if gpu else left[:1]
        log(f"{name}, {way}: {', '.join(map(str, now))} member{'' if now == [1] else 's'}…")
        words, failed, seen = [name, ",".join(map(str, now)), way, str(seconds), device, precision], None, 0
        with _Process(words, len(now) * (_PATIENCE + 4 * seconds)) as process:
            for row in process.rows():
                seen += 1
                if "error" in row:
                    failed = row
                else:
                    yield row
        if failed is None and seen < len(now):  # the process died or took too long
            why, seen = process.complaint.strip().splitlines(), seen + 1
            failed = {"case": name, "members": now[seen - 1], "way": way, "error": why[-1] if why else "it died"}
        if failed is not None:
            yield failed | ({"detail": process.complaint[-2000:]} if process.complaint else {})
        left = left[seen:]


class _Process:
    """A process of `rows.py`, which prints a line of JSON for each row; a context manager.

    The process is killed after `patience` seconds, and at the end of the block. Then `complaint` has its errors.
    """

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


def _tell(row: Row, log: Log) -> None:
    reached = (
        f"no number: {row['error']}"
        if "error" in row
        else f"{two_digits(row['member_steps_per_second'])} member-steps/s"
    )
    herd = "1 member" if row["members"] == 1 else f"{row['members']} members"
    log(f"  {row['case']}, {herd}, {row['way']}: {reached}")


def two_digits(rate: float) -> str:
    """Return a rate as text with two significant digits, and at least all digits before the point.

    >>> two_digits(0.951), two_digits(1.04), two_digits(9.97), two_digits(1234.5)
    ('0.95', '1.0', '10', '1,234')
    """
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:#.2g}"


def _compare(result: ThroughputResult) -> None:
    """Add derived numbers to every row: operations and bytes per second, ratios to other ways, share of the ceiling.

    Also mark which of ganherd's ways is the chosen one.
    """
    rows = [row for row in result.rows if "error" not in row]
    for row in rows:
        case, rate = result.cases[row["case"]], row["member_steps_per_second"]
        if "flops_per_member_step" in case:
            row["tflops"] = rate * case["flops_per_member_step"] / 1e12
            row["gigabytes_per_second"] = rate * case["least_bytes_per_member_step"] / 1e9
            row["share_of_ceiling"] = [rate / limit for limit in reversed(case["ceiling_member_steps_per_second"])]
        same_size = [other for other in rows if (other["case"], other["members"]) == (row["case"], row["members"])]
        for way in ("eager", "loop"):
            row[f"against_{way}"] = _ratio(rate, [other for other in same_size if other["way"] == way])
        alone = [other for other in rows if (other["case"], other["way"]) == (row["case"], "processes")]
        row["against_processes"] = _ratio(rate, alone)
        own = [other for other in same_size if other["way"] in OURS]
        chosen = [other for other in own if other["way"] == "ours"] or own
        row["chosen"] = bool(chosen) and row is max(chosen, key=lambda other: other["member_steps_per_second"])


def _ratio(rate: float, others: Sequence[Row]) -> float | None:
    return rate / others[0]["member_steps_per_second"] if others else None


def save(result: ThroughputResult, path: Path) -> dict[str, Path]:
    """Write the rows as .json and a chart as .png; return the paths by "rows" and "picture".

    There is no chart if all measurements failed.
    """
    from ganherd.bench.throughput_text import draw

    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"command": " ".join(["ganherd", *sys.argv[1:]]), **result.plain()}
    rows, picture = path.with_suffix(".json"), path.with_suffix(".png")
    rows.write_text(json.dumps(facts, indent=1) + "\n")
    if all("error" in row for row in result.rows):
        return {"rows": rows}
    draw(result, picture)
    return {"rows": rows, "picture": picture}
