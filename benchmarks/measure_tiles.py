"""Measure the tile shapes of a benchmark's kernels on this GPU, for the table that ganherd brings along.

    python benchmarks/measure_tiles.py wcgan:10 wcgan:100 dcgan64:8 -o src/ganherd/herd/lowering/kernels/measured_tiles.json

A herd is CASE:MEMBERS, with the cases of `ganherd bench fusion`. All shapes are measured, whatever the tables have, and the file
is written after each herd. Rows of earlier measurements stay unless they are measured again. For a recipe, `ganherd doctor --warm
RECIPE` does the same, and its results are in kernels.json in the cache.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from existing_runs import run_main
from ganherd.bench import cases
from ganherd.herd.engine import autotune
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engine_trials import tune_kernels
from ganherd.herd.lowering.kernels import tiles
from ganherd.training.setup.assemble import assemble
from ganherd.util.files import atomic_write


def measured(case: cases.Case, members: int) -> dict[str, list[int]]:
    """Measure the kernels of one step of a herd, and return the best shapes by their keys."""
    with cases.as_file(case) as source, TemporaryDirectory() as folder:
        table = tiles.TileTable(Path(folder) / "kernels.json")
        recipe = cases.recipe_of(case, members, source, "cuda", "bf16")
        set_precision(recipe)
        herd = assemble(recipe).herd
        plan = autotune.choose(herd, recipe.engine, print)
        with patch.object(tiles, "table", lambda: table):
            tune_kernels(herd, plan)
        rows: dict[str, list[int]] = json.loads((Path(folder) / "kernels.json").read_text())
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("herds", nargs="+", metavar="CASE:MEMBERS")
    parser.add_argument("-o", type=Path, required=True, metavar="FILE.json")
    args = parser.parse_args()
    for herd in args.herds:
        name, members = herd.split(":")
        rows = json.loads(args.o.read_text()) if args.o.is_file() else {}
        new = measured(cases.known(name), int(members))
        lines = [f"  {json.dumps(key)}: {json.dumps(shape)}" for key, shape in sorted((rows | new).items())]
        atomic_write(args.o, "{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{herd}: {len(new)} kernels measured")


if __name__ == "__main__":
    run_main(main)
