"""Measure weak and strong scaling over ranks, and model larger jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganherd.bench import cases
from ganherd.bench.checkout import process_environment
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import text_table
from ganherd_benchmarks import alpha_beta as ab
from ganherd_benchmarks import scaling_picture

Row = JsonObject
_HEAD = ("scaling", "strategy", "ranks", "members", "steps, ms", "exchange, ms", "received", "efficiency")


@dataclass(frozen=True)
class ScalingRequest:
    """What to measure."""

    case: str = "mlp"
    members: int = 2  # of a rank in weak scaling; strong scaling has as many as the largest job of weak scaling
    ranks: tuple[int, ...] = (1, 2, 4)
    steps: int = 20  # from one exchange to the next
    rounds: int = 5
    device: str = "cpu"

    def check(self) -> None:
        """Raise a UserError for an impossible request, before torch is loaded."""
        cases.known(self.case)
        if self.device not in ("cpu", "cuda"):
            raise UserError(f"--device {self.device}: choose cpu or cuda.")


def measure(request: ScalingRequest, log: Callable[[str], None]) -> JsonObject | None:
    """Return rows and messages. Inside a job, all ranks but the first return None; otherwise ranks are started here."""
    from ganherd.comm.backends.detect import connect, detect

    request.check()
    if (name := detect(os.environ)) != "local":
        from ganherd_benchmarks import scaling_rank

        comm = connect(name)
        ranks = tuple(sorted({n for n in request.ranks if n < comm.world_size} | {comm.world_size}))
        result = scaling_rank.measure(comm, scaling_rank.RankRequest(**{**asdict(request), "ranks": ranks}))
        comm.close()
        return result and _with_efficiency(result, request)
    most = max(request.ranks)
    log(f"{most} ranks on this machine…")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(most)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        words = ["-m", "ganherd_benchmarks.scaling_rank", json.dumps(asdict(request)), str(path)]
        done = subprocess.run([*launch, *words], capture_output=True, text=True, env=process_environment())
        if done.returncode or not path.exists():
            raise UserError(f"the ranks failed: {_reason(done.stderr)}")
        return _with_efficiency(json.loads(path.read_text(encoding="utf-8")), request)


def _reason(said: str) -> str:
    """Return the most informative line of an error.

    >>> _reason("Traceback\\n  File x\\nRuntimeError: no memory\\nroot cause")
    'RuntimeError: no memory'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "Error: " in line), lines[-1] if lines else "no message")


def _with_efficiency(result: Mapping[str, Any], request: ScalingRequest) -> JsonObject:
    """Add the efficiency relative to one rank; if there are more ranks than cores, relative to the cores."""
    one = {(row["kind"], row["strategy"]): row["seconds"] for row in result["rows"] if row["ranks"] == 1}
    for row in result["rows"]:
        first, ranks, cores = one.get((row["kind"], row["strategy"])), row["ranks"], row["cores"]
        if first is None:
            continue
        best = first * max(1.0, ranks / cores) if row["kind"] == "weak" else first / min(ranks, cores)
        row["efficiency"] = best / row["seconds"]
        row["speedup"] = (ranks if row["kind"] == "weak" else 1) * first / row["seconds"]
    return {**result, "asked": asdict(request)}


def model(result: Mapping[str, Any], every: int | None = None) -> JsonObject:
    """Fit a line to the messages, and predict larger jobs.

    Args:
        every: Steps between exchanges; default: as measured.
    """
    if not result["messages"]:
        raise UserError("a model of exchanges needs at least two ranks: give --ranks 1,2.")
    line = ab.fit(*zip(*((row["bytes"], row["seconds"]) for row in result["messages"]), strict=True))
    weak = [row for row in result["rows"] if row["kind"] == "weak"]
    first = min(row["ranks"] for row in weak)
    sizes = {row["strategy"]: row["member_bytes"] for row in weak}
    steps = result["asked"]["steps"]
    compute = next(row["compute_seconds"] for row in weak if row["ranks"] == first) * (every or steps) / steps
    work = ab.RankWork(result["asked"]["members"], compute, sizes["gap"], sizes["cellular"])
    rows = [ab.predict(name, ranks, work, line) for name in ab.STRATEGIES for ranks in (1, 2, 4, *ab.RANKS)]
    facts = {"alpha": line.alpha, "beta": line.beta, "every": every or steps, "compute_seconds": compute}
    return {**facts, "rows": rows, "paper": ab.paper()}


def table(result: Mapping[str, Any]) -> str:
    """Return the rows as a table, with those of the model below."""
    request = result["asked"]
    lines = [
        f"{result['engine']}, {result['hosts']} host{'s' * (result['hosts'] != 1)}, {result['cores']} cores; {request['case']}, an "
        f"exchange every {request['steps']} steps; the slowest rank's time, medians of {request['rounds']}",
        *text_table([_HEAD, *map(_cells, result["rows"])], right=range(2, len(_HEAD))),
    ]
    lines.append(
        "Efficiency: relative to one rank; if there are more ranks than cores, relative to the cores. That of independent members "
        "shows what ranks that share a machine cost each other without messages. Received: bytes for each exchange."
    )
    if "model" in result:
        lines += ["", *_model_lines(result["model"])]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    times = (f"{1e3 * row['compute_seconds']:.1f}", f"{1e3 * row['exchange_seconds']:.2f}")
    counts = (str(row["ranks"]), str(row["members"]))
    return [row["kind"], row["strategy"], *counts, *times, f"{row['bytes']:,}", _percent(row.get("efficiency"))]


def _model_lines(fitted: Mapping[str, Any]) -> list[str]:
    names = list(dict.fromkeys(row["strategy"] for row in fitted["rows"]))
    each = {(row["strategy"], row["ranks"]): row for row in fitted["rows"]}
    lines = [
        f"a message: {1e6 * fitted['alpha']:.0f} µs + {1e9 * fitted['beta']:.3f} ns a byte; the {fitted['every']} steps between "
        f"exchanges: {1e3 * fitted['compute_seconds']:,.0f} ms",
        "weak-scaling efficiency, by the model:",
    ]
    rows = [["ranks", *names]]
    for ranks in sorted({row["ranks"] for row in fitted["rows"]}):
        rows.append([str(ranks), *(_percent(each[n, ranks]["efficiency"]) for n in names)])
    lines += text_table(rows, right=range(len(rows[0])))
    paper = ", ".join(
        f"{row['ranks']} cells {row['minutes']:.1f} min ({_percent(row['efficiency'])})" for row in fitted["paper"]
    )
    return [*lines, f"the cellular paper, Table III, an all-gather: {paper}"]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def save(result: Mapping[str, Any], path: Path) -> None:
    """Write everything as .json, and the plots as .png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    scaling_picture.draw(result, path.with_suffix(".png"))
