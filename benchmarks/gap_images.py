"""Compare GAP on images: four separate GANs, four that swap, and both kinds mixed; GAM-II, classifier score, TVD, AIS.

python benchmarks/gap_images.py --data mnist --set engine.device=cuda       Tables 2 to 4 of the paper, on MNIST
python benchmarks/gap_images.py --data cifar10 --set engine.device=cuda --budget 20epochs
python benchmarks/gap_images.py --data mnist --only apart-d gap-d4 …        some arms now, the others in another call
python benchmarks/gap_images.py --data mnist --budget 20steps -n 100 --ais-temperatures 10 …      a try on a CPU

Writes JSON after each arm. Runs are stored in --runs, and another call continues where one ended. GAM-II is measured once all
arms are trained, or with --judge for those that are. AIS is measured for MNIST's DCGANs alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import command
from existing_runs import run_main
from ganherd.util.text import text_table
from gap_study import Arm, Row, each, opened, parser, write

HERE = Path(__file__).parent / "results"
FOUR = ("herd.members=4",)


# GAM-II as published, the least and the largest over the members of an arm: data, kind, arm, avg, worst
_GAM2 = [
    ("mnist", "dcgan5", "apart-d", "0.352-0.395", "0.312-0.351"),
    ("mnist", "dcgan5", "gap-d4", "0.430-0.476", "0.355-0.405"),
    ("mnist", "dcgan5", "gap-c4", "0.398-0.423", "0.326-0.343"),
    ("mnist", "gran", "apart-g", "0.433-0.465", "0.004-0.020"),
    ("mnist", "gran", "gap-g4", "0.510-0.533", "0.008-0.020"),
    ("mnist", "gran", "gap-c4", "0.459-0.474", "0.010-0.012"),
    ("cifar10", "dcgan5", "apart-d", "0.333-0.368", "0.173-0.225"),
    ("cifar10", "dcgan5", "gap-d4", "0.526-0.565", "0.174-0.325"),
    ("cifar10", "dcgan5", "gap-c4", "0.888-0.902", "0.551-0.615"),
    ("cifar10", "gran", "apart-g", "0.289-0.355", "0.006-0.019"),
    ("cifar10", "gran", "gap-g4", "0.332-0.416", "0.048-0.171"),
    ("cifar10", "gran", "gap-c4", "0.306-0.319", "0.001-0.023"),
]
PUBLISHED: dict[str, Row] = {
    "mnist": {
        "classifier_score": {
            "apart-d": "6.36 ± 0.09",
            "gap-d4": "6.592 ± 0.08",
            "apart-g": "6.77 ± 0.08",
            "gap-g4": "6.85 ± 0.24",
        },
        "ais": {"apart-d": "682.5 ± 12.51", "gap-d4": "691.6 ± 0.01"},
    },
    "cifar10": {},
}
for _data, _kind, _arm, _avg, _worst in _GAM2:
    PUBLISHED[_data].setdefault("gam2", {}).setdefault(_kind, {})[_arm] = {"avg": _avg, "worst": _worst}


def arms(data: str, gran_width: int | None = None) -> dict[str, Arm]:
    """Return the arms of the paper; `--gran-width` sets another width of the GRANs in all arms that have some."""
    narrow: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    if gran_width:
        from ganherd.recipe import recipe_file

        breeds = [one.model_dump() for one in recipe_file.load(f"{data}-gap-c4", []).nets.breeds]
        for one in breeds:
            if one["generator"]["name"] == "gran":
                one["generator"]["settings"]["width"] = gran_width
        narrow = (f"nets.generator.width={gran_width}",)
        mixed = (f"nets.breeds={json.dumps(breeds)}",)
    return {
        "apart-d": Arm("DCGAN ×4 apart", f"{data}-gan-d", FOUR),
        "gap-d4": Arm("GAP_D4", f"{data}-gap-d4"),
        "apart-g": Arm("GRAN ×4 apart", f"{data}-gan-g", (*FOUR, *narrow)),
        "gap-g4": Arm("GAP_G4", f"{data}-gap-g4", narrow),
        "gap-c4": Arm("GAP_C4", f"{data}-gap-c4", mixed),
    }


def scored(run: str, data_name: str, samples: int) -> Row:
    """Return scores of the mixture and of each member alone, each from n samples."""
    import ganherd
    from ganherd.data.dataset import load
    from ganherd.runs.folder import RunFolder
    from ganherd.scoring import score
    from ganherd.scoring.one_run import reference_for

    metrics = ["classifier_score", "histogram", *(["fid"] if data_name == "cifar10" else [])]
    mixture, data = ganherd.load(run), load(RunFolder.open(run).recipe.data)
    reference = reference_for(data, None, samples, None, False, None)

    def of(one: Any) -> Row:
        return score(one, data, metrics, samples, reference=reference)

    return {"mixture": of(mixture), "members": [of(mixture.alone(m)) for m in range(mixture.members)]}


def annealed(run: str, variance: float, args: Any) -> Row:
    """Return AIS of the run's members and mixture, with the seconds that it took."""
    began = time.perf_counter()
    words = ["--ais-points", args.ais_points, "--ais-variance", variance]
    words += ["--ais-temperatures", args.ais_temperatures, "--ais-chains", args.ais_chains]
    score = json.loads(command("score", run, "--metrics", "ais", *words, "--json", "-q"))["scores"]["ais"]
    return {**score, "seconds": round(time.perf_counter() - began, 1)}


def judged(rows: list[tuple[str, Row]], samples: int) -> Row:
    """Return GAM-II of all arms in one contest: by kind the least and the largest over the generators, and as a table.

    Without the arm of both kinds there is a contest for each kind: the paper has no judge of another kind either.
    """
    began = time.perf_counter()
    both = [("", rows)]
    if "gap-c4" not in dict(rows):
        both = [
            (kind, [row for row in rows if row[0] in arms_of]) for kind, arms_of in PUBLISHED["mnist"]["gam2"].items()
        ]
    out: Row = {"samples": samples, "by_kind": {}, "arms": {}, "table": ""}
    for kind, those in both:
        if len(those) < 2:
            continue
        runs = [row["run"] for _, row in those]
        contest = json.loads(command("score", *runs, "--metrics", "gam2", "-n", samples, "--json", "-q"))
        by_run = {Path(row["run"]).name: name for name, row in those}
        for row in contest["gam2"]["rows"]:
            out["by_kind"].setdefault(row["kind"] or kind, {})[by_run[row["run"]]] = row
        out["arms"] |= {name: contest["runs"][row["run"]]["scores"]["gam2"] for name, row in those}
        out["table"] += contest["gam2"]["table"] + "\n"
    return {**out, "seconds": round(time.perf_counter() - began, 1)}


def table(results: Row) -> str:
    """Return the results next to the published ones, a line for each arm and kind."""
    lines = [("arm", "kind", "what", "here", "published")]
    published = PUBLISHED[results["settings"]["data"]]
    for kind, those in results.get("gam2", {}).get("by_kind", {}).items():
        for name, row in those.items():
            for what in ("avg", "worst"):
                span, words = row[what], row.get("words", {}).get(what, "")
                here = "–" if span is None else f"{span['least']:.3f} to {span['largest']:.3f}"
                known = published["gam2"].get(kind, {}).get(name, {}).get(what, "–")
                lines.append((name, kind, f"GAM-II {what}", f"{here} {words}".rstrip(), known))
    for name in (name for name in arms("") if name in results["arms"]):
        row = results["arms"][name]
        for what in row["scores"]["mixture"]:
            if what != "skipped":
                own = [member[what]["value"] for member in row["scores"]["members"]]
                here = f"{min(own):.3f} to {max(own):.3f}, mixture {row['scores']['mixture'][what]['value']:.3f}"
                known = published.get(what, {}).get(name, "–")
                lines.append((name, "", what.replace("_", " "), here, known))
        for variance, score in row.get("ais", {}).items():
            own = list(score["per_member"].values())
            here = f"{min(own):.1f} to {max(own):.1f}, mixture {score['value']:.1f}, gap {score['gap']:.1f}"
            lines.append((name, "", f"AIS, σ² {variance}", here, published.get("ais", {}).get(name, "–")))
    return "\n".join(text_table(lines))


def main() -> None:
    import torch

    gpu = torch.cuda.is_available()
    options = parser(__doc__, list(arms("mnist")), 10_000)
    options.add_argument("--data", choices=list(PUBLISHED), default="mnist")
    options.add_argument(
        "--judge", action="store_true", help="GAM-II of the arms that are there, though others are not"
    )
    options.add_argument("--gran-width", type=int, help="instead of the recipes'; the results say it")
    options.add_argument("--ais-points", type=int, default=100, help="held-out images; 0: no AIS")
    options.add_argument("--ais-variance", type=float, nargs="+", default=[0.025], help="several: an estimate at each")
    options.add_argument("--ais-temperatures", type=int, default=10_000 if gpu else 1000)
    options.add_argument("--ais-chains", type=int, default=16)
    args = options.parse_args()
    args.runs = args.runs or Path("runs/gap-images")
    path = args.o or HERE / f"gap-{args.data}.json"
    settings = {key: getattr(args, key) for key in ("data", "seed", "budget", "set", "n", "gran_width")}
    results = opened(path, settings) | {"benchmark": "gap_images", "published": PUBLISHED[args.data]}

    def measure(name: str, row: Row) -> Iterator[Row]:
        if "scores" not in row:
            began = time.perf_counter()
            scores = scored(row["run"], args.data, args.n)
            yield {"scores": scores, "scoring_seconds": round(time.perf_counter() - began, 1)}
        for variance in args.ais_variance if args.ais_points and name in PUBLISHED[args.data].get("ais", ()) else ():
            there = row.get("ais", {}).get(f"{variance:g}", {})
            known = tuple(there.get(key) for key in ("samples", "temperatures", "chains"))
            if known != (args.ais_points, args.ais_temperatures, args.ais_chains):
                yield {"ais": row.get("ais", {}) | {f"{variance:g}": annealed(row["run"], variance, args)}}

    all_arms = arms(args.data, args.gran_width)
    rows = each(all_arms, args, results, path, measure)
    if len(rows) == len(all_arms) or (args.judge and len(rows) > 1):
        results["gam2"] = judged(rows, args.n)
        print(results["gam2"]["table"], end="\n\n")
    results["table"] = table(results)
    write(results, path)
    print(f"{results['table']}\n{path}")


if __name__ == "__main__":
    run_main(main)
