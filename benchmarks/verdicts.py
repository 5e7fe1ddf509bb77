"""Judge herds of known kinds, and count how often the verdict is right. Writes JSON.

python benchmarks/verdicts.py --jobs 16 -o benchmarks/results/verdicts.json    the table: all data sets, seeds from 1000 on
python benchmarks/verdicts.py --seed 0 --scale 0.3 --only digits               the seeds that limits were tuned on

Every training and every kind of herd is a task for one process with one thread, so that the number of processes changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import ganherd
from ganherd.features.material import ScoringContext
from ganherd.features.real_features import RealFeatures
from ganherd.scoring.verdicts.joining import judge_herd
from ganherd.scoring.verdicts.measurement import EvidenceCollector
from provenance import commit
from verdict_data import DATA, UNSEEN
from verdict_herds import RIGHT, Builder, Herd
from verdict_training import Training, Trainings

Row = dict[str, Any]
SAMPLES = 1000  # of each herd, as `ganherd train` draws


@dataclass(frozen=True)
class Task:
    """What one process does: train once, or judge the herds of a kind; the trainings must be finished then."""

    data: str
    folder: Path
    seed: int
    scale: float
    training: Training | None = None
    kind: str = ""

    def run(self) -> tuple[list[Row], float]:
        """Return the rows of the herds, none for a training, and the seconds of CPU time."""
        torch.set_num_threads(1)
        began = time.process_time()
        trainings = Trainings(self.data, self.folder / f"{self.data}-{self.seed}", self.seed, self.scale)
        rows: list[Row] = []
        if self.training:
            trainings.train(self.training)
        else:
            collectors: dict[int, EvidenceCollector] = {}
            rows = [row_of(self.data, herd, collectors) for herd in Builder(trainings).herds(self.kind)]
        return rows, time.process_time() - began


def row_of(name: str, herd: Herd, collectors: dict[int, EvidenceCollector]) -> Row:
    """Return the row of a herd: its verdict, and whether it is right.

    Args:
        collectors: Those of the data of earlier herds, by the id of the data set; a new one is added.
    """
    if id(herd.data) not in collectors:
        collectors[id(herd.data)] = EvidenceCollector(RealFeatures(herd.data))
    collector = collectors[id(herd.data)]
    reference = collector.reference
    material = ScoringContext(herd.mixture, herd.data, samples=SAMPLES, replica=herd.replica, against=reference)
    began = time.process_time()
    evidence, parts = collector.herd(material), list(collector.parts(material))
    verdict = judge_herd(evidence, parts, herd.courses, steps=herd.mixture.step, network=reference.network.name)
    seconds = time.process_time() - began
    right = verdict.word in RIGHT[herd.kind]
    if herd.bad_member is not None:
        bad = [member.member for member in verdict.members if member.word not in ("good", "cannot be judged")]
        right = right and bad == [herd.bad_member]
    return {
        "data": name,
        "kind": herd.kind,
        "how": herd.how,
        "seed": herd.seed,
        "verdict": verdict.word,
        "right": right,
        "reason": verdict.reason,
        "cpu_seconds": round(seconds, 2),
        "members": dict(Counter(member.word for member in verdict.members)),
        "bad_member": herd.bad_member,
        "evidence": verdict.evidence,
        "alarms": dict(Counter(alarm for course in herd.courses for alarm in course.began)),
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of the table: herds and right verdicts by kind, and the errors that matter most."""
    broken, healthy = [r for r in rows if r["kind"] != "healthy"], [r for r in rows if r["kind"] == "healthy"]
    return {
        "herds": len(rows),
        "right": sum(r["right"] for r in rows),
        "healthy": len(healthy),
        "healthy_called_broken": sum(r["verdict"] not in ("good", "cannot be judged") for r in healthy),
        "broken": len(broken),
        "broken_trained": sum(r["how"] == "trained" for r in broken),
        "broken_called_good": sum(r["verdict"] == "good" for r in broken),
        "kinds": {
            kind: {
                "right_verdicts": sorted(RIGHT[kind]),
                "herds": sum(r["kind"] == kind for r in rows),
                "trained": sum(r["kind"] == kind and r["how"] == "trained" for r in rows),
                "right": sum(r["right"] for r in rows if r["kind"] == kind),
                "verdicts": dict(Counter(r["verdict"] for r in rows if r["kind"] == kind)),
            }
            for kind in RIGHT
        },
        "data": {
            name: [sum(r["right"] for r in rows if r["data"] == name), sum(r["data"] == name for r in rows)]
            for name in DATA
        },
    }


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Return rows by data set and kind; within a kind they stay in the order in which herds are built."""
    names, kinds = list(DATA), list(RIGHT)
    return sorted(rows, key=lambda row: (names.index(row["data"]), kinds.index(row["kind"])))


def finished(pool: ProcessPoolExecutor, tasks: Sequence[Task], log: Callable[[str], None]) -> Iterator[list[Row]]:
    """Run tasks in the processes of the pool, and yield the rows of each when it is finished; log what it took."""
    waiting: dict[Future[tuple[list[Row], float]], Task] = {pool.submit(task.run): task for task in tasks}
    for future in as_completed(waiting):
        task, (rows, seconds) = waiting[future], future.result()
        name = f"trained {task.training.name}" if task.training else f"judged {task.kind}"
        log(f"{task.data}: {name}, {seconds:.0f} s of CPU time")
        yield rows


def table(names: Sequence[str], folder: Path, seed: int, scale: float, jobs: int) -> list[Row]:
    """Train and judge the herds of these data sets in parallel, and return a row for each."""

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes of the pool
    os.environ["GANHERD_CACHE"] = str(folder / "cache")
    trainings: list[Task] = []
    for name in names:
        known = Trainings(name, folder / f"{name}-{seed}", seed, scale)
        trainings += [Task(name, folder, seed, scale, training=training) for training in known.all()]
    by_kind = [Task(name, folder, seed, scale, kind=kind) for name in names for kind in RIGHT]
    rows: list[Row] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for _ in finished(pool, trainings, log):
            pass
        for more in finished(pool, by_kind, log):
            rows += more
            for row in more:
                mark = " " if row["right"] else "*"
                text = (
                    f"{mark} {row['data']:<8} {row['kind']:<22} {row['how']:<8} {row['seed']:<5} {row['verdict']:<16}"
                )
                log(f"{text} {row['reason']}")
    return ordered(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the healthy herds")
    parser.add_argument("--only", choices=list(DATA), action="append")
    parser.add_argument("--jobs", type=int, default=1, help="processes that work at the same time")
    parser.add_argument("--runs", type=Path, help="folder that keeps the trained herds; they are not trained again")
    parser.add_argument("-o", type=Path, help="the JSON file, for example benchmarks/results/verdicts.json")
    args = parser.parse_args()
    commands = [" ".join(["python", "benchmarks/verdicts.py", *sys.argv[1:]])]
    with tempfile.TemporaryDirectory() as folder:
        rows = table(args.only or list(DATA), (args.runs or Path(folder)).resolve(), args.seed, args.scale, args.jobs)
    if args.only and args.o and args.o.exists():  # the table is completed, one data set after another
        before = json.loads(args.o.read_text())
        rows = ordered([*rows, *(row for row in before["rows"] if row["data"] not in args.only)])
        commands += before["commands"]
    totals = summary(rows)
    print(json.dumps(totals, indent=1))
    if args.o:
        facts = {
            "commands": commands,
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
            "machine": {
                "machine": platform.machine(),
                "python": platform.python_version(),
                "ganherd": ganherd.__version__,
                "torch": torch.__version__,
            },
            "seeds": {"first": args.seed, "tuned_on": "seeds below 1000", "used_for_nothing_else": UNSEEN},
        }
        args.o.parent.mkdir(parents=True, exist_ok=True)
        args.o.write_text(json.dumps({**facts, **totals, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
