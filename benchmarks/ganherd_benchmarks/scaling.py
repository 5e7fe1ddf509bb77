"""Measure weak and strong scaling over ranks, and model larger jobs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganherd.bench import cases
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import text_table
from ganherd_benchmarks import alpha_beta as ab
from ganherd_benchmarks import launchers, scaling_picture

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
    with TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        words = [json.dumps({**asdict(request), "launched": time.monotonic()}), str(path)]
        launchers.run(launchers.command("torchrun", most, "ganherd_benchmarks.scaling_rank", words))
        return _with_efficiency(json.loads(path.read_text(encoding="utf-8")), request)


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


def model(result: Mapping[str, Any], every: int | None = None, run_steps: int = 20_000) -> JsonObject:
    """Fit lines to messages, records and checkpoints, and predict larger jobs.

    Args:
        every: Steps between exchanges; default: as measured.
        run_steps: Steps of the run that has to bear the start. Records and checkpoints are as frequent as by default.
    """
    if not result["messages"]:
        raise UserError("a model of exchanges needs at least two ranks: give --ranks 1,2.")
    line = ab.fit(*zip(*((row["bytes"], row["seconds"]) for row in result["messages"]), strict=True))
    waits = _waits(result, run_steps)
    weak = [row for row in result["rows"] if row["kind"] == "weak"]
    first = min(row["ranks"] for row in weak)
    sizes = {row["strategy"]: row["member_bytes"] for row in weak}
    steps = result["asked"]["steps"]
    every = every or steps
    compute = next(row["compute_seconds"] for row in weak if row["ranks"] == first) * every / steps
    work = ab.RankWork(result["asked"]["members"], compute, sizes["gap"], sizes["cellular"])
    rows = [
        ab.predict(name, ranks, work, line, waits, every) for name in ab.STRATEGIES for ranks in (1, 2, 4, *ab.RANKS)
    ]
    facts = {"alpha": line.alpha, "beta": line.beta, "every": every, "compute_seconds": compute, "waits": asdict(waits)}
    return {**facts, "rows": rows, "measured": _measured(result, waits, compute, every), "paper": ab.paper()}


def _waits(result: Mapping[str, Any], run_steps: int) -> ab.Waits:
    """Fit what ranks wait for to the measured rows; unequal steps to jobs in which every rank has a core."""
    from ganherd.recipe.sections.run_config import RunConfig

    rows, run, request = result["waits"], RunConfig(), result["asked"]
    quiet = [row for row in rows if row["ranks"] <= result["cores"]] or rows[:1]
    several = [row for row in rows if row["ranks"] > 1]  # a single rank has nothing to gather
    return ab.Waits(
        record=ab.fit([row["ranks"] for row in several], [row["record_seconds"] for row in several]),
        checkpoint=ab.fit([row["checkpoint_bytes"] for row in rows], [row["checkpoint_seconds"] for row in rows]),
        member_bytes=rows[0]["checkpoint_bytes"] // (rows[0]["ranks"] * request["members"]),
        start=result["start_seconds"],
        spread=max(row["spread_seconds"] for row in quiet),
        spread_steps=request["steps"],
        record_every=run.record_every,
        checkpoint_every=run.checkpoint_every,
        run_steps=run_steps,
    )


def _measured(result: Mapping[str, Any], waits: ab.Waits, compute: float, every: int) -> list[Row]:
    """Return the efficiency with the measured exchange and waits, of jobs in which every rank has a core."""
    each = {row["ranks"]: row for row in result["waits"]}
    points = []
    for row in result["rows"]:
        if row["kind"] != "weak" or not 1 < row["ranks"] <= row["cores"]:
            continue
        own = each[row["ranks"]]
        shares = own["record_seconds"] / waits.record_every + own["checkpoint_seconds"] / waits.checkpoint_every
        seconds = compute + row["exchange_seconds"] + every * (shares + waits.start / waits.run_steps)
        points.append({"strategy": row["strategy"], "ranks": row["ranks"], "efficiency": compute / seconds})
    return points


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
        _waits_line(fitted["waits"]),
        "weak-scaling efficiency, by the model: the share of a run that is steps",
    ]
    rows = [["ranks", *names]]
    for ranks in sorted({row["ranks"] for row in fitted["rows"]}):
        rows.append([str(ranks), *(_percent(each[n, ranks]["efficiency"]) for n in names)])
    lines += text_table(rows, right=range(len(rows[0])))
    paper = ", ".join(
        f"{row['ranks']} cells {row['minutes']:.1f} min ({_percent(row['efficiency'])})" for row in fitted["paper"]
    )
    return [*lines, f"the cellular paper, Table III, an all-gather: {paper}"]


def _waits_line(waits: Mapping[str, Any]) -> str:
    record, saved = waits["record"], waits["checkpoint"]
    return (
        f"a record every {waits['record_every']} steps: {1e3 * record['alpha']:.2f} ms + {1e3 * record['beta']:.3f} ms a rank; a "
        f"checkpoint every {waits['checkpoint_every']}: {1e3 * saved['alpha']:.0f} ms + {1e9 * saved['beta']:.2f} ms a MB of the "
        f"herd; the start: {waits['start']:.1f} s of a run of {waits['run_steps']:,} steps; {waits['spread_steps']} steps of a "
        f"rank vary by ± {1e3 * waits['spread']:.1f} ms"
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def save(result: Mapping[str, Any], path: Path) -> None:
    """Write everything as .json, and the plots as .png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    scaling_picture.draw(result, path.with_suffix(".png"))
