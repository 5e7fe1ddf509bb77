"""Measure how fast herds of well-known GANs train: ganherd, plain PyTorch, streams in a CUDA graph, and `torch.func.vmap`.

    python benchmarks/public_nets.py -o benchmarks/results/h200-public-nets.json

Every row is measured in a separate process, unless --one-process is given, and the file is written again after each. A row holds
how many member-steps a second the way makes, or why it makes none. The facts of a net list its operations that still run
through `vmap` in ganherd.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from provenance import commit

ROOT = Path(__file__).parents[1]
WAYS = {
    "ours": "ganherd, with the engine that it chooses",
    "eager": "plain PyTorch modules, one member after another",
    "streams": "plain PyTorch modules, each on a stream, in one CUDA graph, in the faster layout",
    "vmap": "torch.func.vmap over stacked modules",
    "vmap-graph": "torch.func.vmap over stacked modules, in a CUDA graph",
}
NETS = ("dcgan", "sngan", "sagan", "biggan", "stylegan2", "r3gan", "unet", "fastgan")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file that receives the rows.")
    parser.add_argument("--nets", default=",".join(NETS), help="Nets to measure, separated by commas.")
    parser.add_argument("--ways", default=",".join(WAYS), help="Ways to measure, separated by commas.")
    parser.add_argument("--members", type=int, default=10, help="Number of members.")
    parser.add_argument("--seconds", type=float, default=2.0, help="Seconds that each row is timed.")
    parser.add_argument("--patience", type=float, default=300.0, help="Seconds after which a row is given up.")
    parser.add_argument("--side", type=int, default=32, help="Side of the images, a power of 2.")
    parser.add_argument("--batch", type=int, default=64, help="Batch size.")
    parser.add_argument("--width", type=int, help="Width of the nets; by default each has its own.")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto.")
    parser.add_argument("--precision", help="bf16 or float32; by default bf16 on a GPU.")
    parser.add_argument(
        "--one-process", action="store_true", help="Measure all rows in this process, without restarting Python."
    )
    parser.add_argument("--row", nargs=2, metavar=("NET", "WAY"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure all rows, or one of them in this process."""
    given = options(arguments)
    if given.row:
        print(json.dumps(measure_row(given, *given.row)), flush=True)
        return
    words = list(sys.argv[1:] if arguments is None else arguments)
    facts: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/public_nets.py", *words]),
        "commit": commit(),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "ways": {way: WAYS[way] for way in given.ways.split(",")},
        "rows": [],
    }
    for net in given.nets.split(","):
        for way in given.ways.split(","):
            row = measure_row(given, net, way) if given.one_process else _in_process(words, net, way, given.patience)
            facts["rows"].append(row)
            _compare(facts["rows"])
            given.output.parent.mkdir(parents=True, exist_ok=True)
            given.output.write_text(json.dumps(facts, indent=1) + "\n")
            rate = row.get("member_steps_per_second")
            print(f"{net}, {way}: {row['error'] if rate is None else f'{rate:,.1f} member-steps/s'}", flush=True)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _in_process(words: list[str], net: str, way: str, patience: float) -> dict[str, Any]:
    """Measure a row in a process, which cannot spoil the memory or the GPU of the next one."""
    command = [sys.executable, str(Path(__file__).resolve()), *words, "--row", net, way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    except subprocess.TimeoutExpired:
        return {"net": net, "way": way, "error": f"it took longer than {patience:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        row: dict[str, Any] = json.loads(lines[-1])
        return row
    return {"net": net, "way": way, "error": (done.stderr.strip().splitlines() or ["it died"])[-1]}


def _compare(rows: list[dict[str, Any]]) -> None:
    """Add to ganherd's rows their ratios to the other ways."""
    rates = {(row["net"], row["way"]): row.get("member_steps_per_second") for row in rows}
    for row in rows:
        if row["way"] == "ours" and row.get("member_steps_per_second"):
            others = {way: rates.get((row["net"], way)) for way in WAYS if way != "ours"}
            row["times"] = {
                way: round(row["member_steps_per_second"] / rate, 3) for way, rate in others.items() if rate
            }


def measure_row(given: argparse.Namespace, net: str, way: str) -> dict[str, Any]:
    """Measure one way to train the members of a net."""
    row: dict[str, Any] = {"net": net, "way": way, "members": given.members, "side": given.side, "batch": given.batch}
    with TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            row |= _measured(given, net, way, Path(folder))
        except Exception as error:
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}" if str(error) else repr(error)
    _release()
    row["warnings"] = sorted({str(warning.message).splitlines()[0][:200] for warning in caught})
    return row


def _release() -> None:
    """Return the memory of a row to the device, for the next one in this process."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _measured(given: argparse.Namespace, net: str, way: str, folder: Path) -> dict[str, Any]:
    import torch

    from ganherd.bench.engine_rates import measure_chosen
    from ganherd.herd.engine.device import device_of, set_precision
    from ganherd.herd.engine.explain import explain
    from ganherd.recipe import recipe_file
    from ganherd.training.setup.assemble import assemble
    from ganherd_benchmarks.plain import RivalWork
    from ganherd_benchmarks.public_net_cases import PUBLIC_NETS
    from ganherd_benchmarks.ways import PLAIN, VMAPPED

    case, shape = PUBLIC_NETS[net], (3, given.side, given.side)
    images = np.random.default_rng(0).integers(0, 256, (2_000, *shape), dtype=np.uint8)
    np.savez(folder / "data.npz", x=images)
    gpu = given.device != "cpu" and torch.cuda.is_available()
    width = {} if given.width is None else {"width": given.width}
    recipe = recipe_file.load(
        {
            "data": {"source": str(folder / "data.npz"), "partition": "all", "holdout": 0.0},
            "herd": {"members": given.members},
            "nets": {**case.nets(**width), "latent": case.latent},
            "loss": {"name": case.loss, "r1_weight": case.r1_weight},
            "train": {
                "batch": given.batch, "n_critic": 1, "precision": given.precision or ("bf16" if gpu else "float32"),
            },
            "engine": {"device": given.device},
        }
    )  # fmt: skip
    set_precision(recipe)
    facts: dict[str, Any] = {"about": case.about, "loss": case.loss, "r1_weight": case.r1_weight}
    facts |= {"precision": recipe.train.precision, "device": _device_name(device_of(recipe))}
    if way == "ours":
        prepared = assemble(recipe, trust_code=True)
        result = measure_chosen(prepared, given.seconds, lambda text: print(text, file=sys.stderr, flush=True))
        methods = [layer for each in explain(prepared.herd)["nets"] for layer in each["layers"]]
        facts["through_vmap"] = sorted({layer["what"] for layer in methods if layer["here"]["how"] == "vmap"})
        facts["methods"] = {
            how: sum(layer["here"]["how"] == how for layer in methods)
            for how in sorted({layer["here"]["how"] for layer in methods})
        }
    else:
        torch.backends.cudnn.benchmark = True  # the shapes stay the same
        device = device_of(recipe)
        work = RivalWork(
            lambda: case.generator(shape=shape, latent=case.latent, **width),
            lambda: case.discriminator(shape=shape, **width),
            torch.from_numpy(images).to(device), recipe, device,
        )  # fmt: skip
        result = {**PLAIN, **VMAPPED}[way](work, given.members, given.seconds)
    return facts | {
        "member_steps_per_second": result.rate,
        "peak_bytes": result.peak,
        "engine": result.engine,
        "note": result.note,
    }


def _device_name(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


if __name__ == "__main__":
    main()
