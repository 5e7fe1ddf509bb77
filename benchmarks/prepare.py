"""Measure how fast `ganherd data prepare` reads, compared with Pillow alone on the same cores. Prints one JSON object.

python benchmarks/prepare.py                     100,000 JPEGs of 500 × 375, made in a temporary folder (4 GB)
python benchmarks/prepare.py --images 4000 --rounds 3

The baselines are plain loops in as many processes that open, decode, crop to the centre square, resize (Lanczos) and throw
away: `pillow` decodes at full size, `pillow_draft` as small as `prepare` does (Image.draft). What `prepare` does in addition
(look for orientation, transparency and other kinds, write parts, join them to shards with checksums) is in its own time.
CPU seconds are more reliable than the clock if other programs use the cores. Programs take turns; rates are medians of rounds,
`rate_of_prepare` is [median, least, greatest] of the ratio of its rate to a baseline's in the same round.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

from ganherd.data.shards.prepare import prepare
from ganherd.util.host import cores

AT_ONCE = 256  # files that a process of a baseline takes


def make(root: Path, images: int, classes: int, width: int, height: int) -> None:
    """Write JPEGs that compress like photographs: smooth with some texture, about 40 KB at quality 90; 64 different ones."""
    random = np.random.default_rng(0)
    files = []
    for _ in range(64):
        rough = Image.fromarray(random.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        smooth = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(smooth + random.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(buffer := io.BytesIO(), "JPEG", quality=90)
        files.append(buffer.getvalue())
    for k in range(classes):
        (root / f"{k:03}").mkdir(parents=True)
        for i in range(k, images, classes):
            (root / f"{k:03}" / f"{i:07}.jpg").write_bytes(files[i % len(files)])


def plain(size: int, draft: bool, paths: list[Path]) -> None:
    for path in paths:
        with Image.open(path) as file:
            if draft:
                file.draft("RGB", (2 * size, 2 * size))
            image = file.convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        np.asarray(image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS))


def baseline(files: list[Path], size: int, jobs: int, draft: bool) -> None:
    parts = [files[i : i + AT_ONCE] for i in range(0, len(files), AT_ONCE)]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for _ in pool.imap_unordered(partial(plain, size, draft), parts):
            pass
        pool.close()
        pool.join()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock seconds, and CPU seconds of this process and its children."""

    def used() -> float:
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in both)

    began, cpu = time.perf_counter(), used()
    work()
    return time.perf_counter() - began, used() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make(root / "tree", args.images, args.classes, args.width, args.height)
        files = sorted((root / "tree").glob("*/*.jpg"))
        took: dict[str, list[tuple[float, float]]] = {"pillow": [], "pillow_draft": [], "prepare": []}
        for number in range(args.rounds):
            for way, draft in (("pillow", False), ("pillow_draft", True)):
                took[way].append(timed(partial(baseline, files, args.size, args.jobs, draft)))
            whole = partial(prepare, root / "tree", root / f"out-{number}", args.size, jobs=args.jobs)
            took["prepare"].append(timed(whole))
    middle = {way: [statistics.median(times) for times in zip(*each, strict=True)] for way, each in took.items()}
    rows = [
        {
            "way": way,
            "images_per_second": round(len(files) / wall, 1),
            "images_per_second_and_core": round(len(files) / wall / args.jobs, 1),
            "images_per_cpu_second": round(len(files) / cpu, 1),
        }
        for way, (wall, cpu) in middle.items()
    ]
    against = {}
    for way in ("pillow", "pillow_draft"):
        for which, clock in enumerate(("clock", "cpu")):
            ratios = [theirs[which] / ours[which] for theirs, ours in zip(took[way], took["prepare"], strict=True)]
            middle_low_high = (statistics.median(ratios), min(ratios), max(ratios))
            against[f"{clock}_of_{way}"] = [round(ratio, 3) for ratio in middle_low_high]
    about = {"images": len(files), "jpeg": [args.width, args.height], "size": args.size, "jobs": args.jobs}
    machine = {"pillow": PIL.__version__, "python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"benchmark": "prepare", **about, **machine, "rows": rows, "rate_of_prepare": against}, indent=1))


if __name__ == "__main__":
    main()
