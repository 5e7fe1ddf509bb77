"""Judge herds of known kinds, and count how often the verdict is right. Writes JSON.

python benchmarks/verdicts.py -o benchmarks/results/verdicts.json    the table: all data sets, seeds from 1000 on
python benchmarks/verdicts.py --seed 0 --scale 0.3 --only digits     the seeds that limits were tuned on; never on `letters`
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import ganherd
from ganherd.features.material import ScoringContext
from ganherd.features.real_features import RealFeatures
from ganherd.scoring.verdicts.joining import judge_herd
from ganherd.scoring.verdicts.measurement import EvidenceCollector
from verdict_data import DATA, UNSEEN
from verdict_herds import RIGHT, Builder, Herd


def judged(name: str, herd: Herd, known: dict[int, EvidenceCollector]) -> dict[str, Any]:
    """Return the row of a herd: its verdict, and whether it is right."""
    collector = known.setdefault(id(herd.data), EvidenceCollector(RealFeatures(herd.data)))
    material = ScoringContext(herd.mixture, herd.data, samples=1000, replica=herd.replica, against=collector.reference)
    began = time.process_time()
    evidence, parts = collector.herd(material), list(collector.parts(material))
    verdict = judge_herd(
        evidence, parts, herd.courses, steps=herd.mixture.step, network=collector.reference.network.name
    )
    seconds = time.process_time() - began
    right = verdict.word in RIGHT[herd.kind]
    if herd.bad_member is not None:
        bad = [one.member for one in verdict.members if one.word not in ("good", "cannot be judged")]
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
        "members": dict(Counter(one.word for one in verdict.members)),
        "bad_member": herd.bad_member,
        "evidence": verdict.evidence,
        "alarms": dict(Counter(alarm for course in herd.courses for alarm in course.began)),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the healthy herds")
    parser.add_argument("--only", choices=list(DATA), action="append")
    parser.add_argument("--runs", type=Path, help="folder that keeps the trained herds")
    parser.add_argument("-o", type=Path, help="where the JSON goes, as benchmarks/results/verdicts.json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    commands = [" ".join(["python", "benchmarks/verdicts.py", *sys.argv[1:]])]
    if args.only and args.o and args.o.exists():  # the table is completed, one data set after another
        before = json.loads(args.o.read_text())
        rows += [row for row in before["rows"] if row["data"] not in args.only]
        commands += before["commands"]
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only or DATA:
            known: dict[int, EvidenceCollector] = {}
            for herd in Builder(
                name, (args.runs or Path(folder)) / f"{name}-{args.seed}", args.seed, args.scale
            ).herds():
                rows.append(row := judged(name, herd, known))
                mark = " " if row["right"] else "*"
                text = f"{mark} {name:<8} {row['kind']:<22} {row['how']:<8} {row['seed']:<5} {row['verdict']:<16}"
                print(f"{text} {row['reason']}", file=sys.stderr, flush=True)
    totals = summary(rows)
    print(json.dumps(totals, indent=1))
    if args.o:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        facts = {
            "commands": commands,
            "commit": commit,
            "date": time.strftime("%Y-%m-%d"),
            "machine": {"machine": platform.machine(), "ganherd": ganherd.__version__, "torch": torch.__version__},
            "seeds": {"first": args.seed, "tuned_on": "seeds below 1000", "used_for_nothing_else": UNSEEN},
        }
        args.o.parent.mkdir(parents=True, exist_ok=True)
        args.o.write_text(json.dumps({**facts, **totals, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
