"""Measure whether a streaming feed keeps up: batches from shards compared with resident data. Prints one JSON object.

python benchmarks/stream_feed.py                              100 members with 64 px, batch 64
python benchmarks/stream_feed.py --members 10 --device cpu

`alone` is how many images a second the feed delivers when nothing computes. Then a step of each of some lengths is imitated
(the host waits, as it does for a GPU), and `waiting` is the share of the time that the step waits for its batch.
The shards were just written, so they come from the page cache; a disk that is slower than a step needs will show here too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ganherd.data.dataset import Dataset, load
from ganherd.data.partition import partition
from ganherd.data.shards.shards import Index, Shard, ShardSettings, header
from ganherd.herd.batch_feed import BatchPlan, Feed
from ganherd.herd.streamed_batch_feed import StreamFeed, make_feed
from ganherd.recipe.schema import DataConfig


def prepared_noise(out: Path, classes: int, count: int, size: int) -> Dataset:
    """Return a prepared folder of noise as a data set."""
    (out / "shards").mkdir(parents=True)
    random, shape = np.random.default_rng(0), (count, 3, size, size)
    shards = tuple(Shard(file=f"shards/{k:05d}.npy", label=k, count=count) for k in range(classes))
    for shard in shards:
        (out / shard.file).write_bytes(header(shape) + random.bytes(int(np.prod(shape))))
    settings = ShardSettings(source="noise", size=size)
    index = Index(settings=settings, channels=3, labels=tuple(map(str, range(classes))), shards=shards)
    (out / "index.json").write_text(index.model_dump_json())
    return load(DataConfig(source=str(out), holdout=0.0))


def run(feed: Feed, members: int, steps: int, first: int, step_s: float, device: torch.device) -> tuple[float, float]:
    """Return all seconds, and the seconds spent on waiting for batches."""
    base, waited, began = np.arange(members), 0.0, time.perf_counter()
    for c in range(first, first + steps):
        before = time.perf_counter()
        feed.batch_at(slice(0, members), base, c)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        waited += time.perf_counter() - before
        if step_s:
            time.sleep(step_s)
    return time.perf_counter() - began, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--count", type=int, default=1300, help="images of a class")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[10.0, 30.0, 100.0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    with tempfile.TemporaryDirectory() as name:
        data = prepared_noise(Path(name) / "out", args.members, args.count, args.size)
        cut = partition(data, DataConfig(), None, args.batch, 0)
        plan = BatchPlan(cut.index, cut.count, args.batch, data.offset, data.scale, torch.float32)
        rows = []
        for room in (1 << 60, 0):
            feed = make_feed(data.x, data.y, plan, device, room)
            images = args.members * args.batch
            run(feed, args.members, 3, 0, 0.0, device)  # fills caches and makes the first order
            alone, _ = run(feed, args.members, args.steps, 3, 0.0, device)
            waiting = {}
            for number, step_ms in enumerate(args.step_ms, 1):
                took, waited = run(feed, args.members, args.steps, 3 + number * args.steps, step_ms / 1e3, device)
                waiting[f"{step_ms:g} ms"] = round(waited / took, 4)
            rows.append(
                {
                    "feed": "resident" if feed.resident else "streamed",
                    "images_per_second_alone": round(images * args.steps / alone),
                    "mebibytes_per_second_alone": round(images * 3 * args.size**2 * args.steps / alone / 2**20),
                    "waiting": waiting,
                }
            )
            if isinstance(feed, StreamFeed):
                rows[-1] |= {"read_ahead": feed.read_ahead, "late": feed.late}
                feed.close()
    about = {key: getattr(args, key) for key in ("members", "count", "size", "batch", "steps", "device")}
    print(json.dumps({"benchmark": "stream feed", **about, "threads": torch.get_num_threads(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
