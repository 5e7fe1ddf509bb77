"""Measure exports: the size of each format, and the time of 64 samples in ONNX Runtime and in Chromium. Prints JSON.

python benchmarks/exports.py > benchmarks/results/exports.json

ONNX has three ways to compute a batch of several members without control flow: `routed` (that of ganherd: each member computes
its own rows), `all` (every member computes all rows), and `gathered` (each row gets its own copy of the weights; MLPs only).
"""

from __future__ import annotations

import datetime
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from ganherd import nets
from ganherd.export.onnx_graph import _noise, _route, _row, run_onnx_file, write_onnx_file
from ganherd.export.onnx_layers import GraphBuilder, append_layer
from ganherd.export.portable_model import PortableModel, portable_model
from ganherd.export.torch_folder import write_torch_folder
from ganherd.export.web_page import page_of
from ganherd.mixture.generators import Generators
from ganherd.mixture.mixture import Mixture
from ganherd.recipe.net_config import NetConfig
from ganherd.util.version import __version__
from provenance import commit

CASES: list[tuple[str, dict[str, Any], tuple[int, int, int], int, int]] = [  # net, settings, shape, latent, members
    ("small", {"width": 128}, (1, 8, 8), 32, 10),  # the recipe digits-wcgan
    ("small", {"width": 128}, (1, 8, 8), 32, 100),
    ("wcgan", {"width": 128}, (1, 28, 28), 100, 10),
]
SAMPLES, REPEATS = 64, 9


def mixture(name: str, settings: dict[str, Any], shape: tuple[int, int, int], latent: int, members: int) -> Mixture:
    """Return untrained generators, one for each label: they take as long as trained ones."""
    torch.manual_seed(0)
    net = NetConfig.model_validate({"name": name, **settings})
    modules = [nets.build_generator(net, shape, latent) for _ in range(members)]
    params, buffers = (
        {key: torch.stack([dict(values(module))[key].detach() for module in modules]) for key, _ in values(modules[0])}
        for values in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers)
    )
    equal, own = np.full(members, 1 / members), Generators(net, members, modules[0], params, buffers)
    labels = tuple(map(str, range(members)))
    return Mixture(labels, shape, 127.5, 127.5, latent, "normal", np.arange(members), equal, equal, [0], 0, (own,))


def milliseconds(path: Path) -> float:
    """Return the median time of one call with mixed labels, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {"label": np.full(SAMPLES, -1), "seed": np.arange(SAMPLES)}
    times = []
    for _ in range(REPEATS + 2):
        began = time.perf_counter()
        session.run(None, feed)
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times[2:]), 2)


def everything(model: PortableModel, path: Path) -> None:
    """Write the graph in which every member computes all rows, and each row takes the output of its member."""
    facts, graph = model.facts, GraphBuilder()
    member, y = _route(graph, facts)
    z = _noise(graph, facts, member)
    outputs = []
    for net, row in facts["members"]:
        values = {"z": z, "y": y}
        for name, layer, inputs, settings in facts["nets"][net]:
            given = [(values[i], None) if i in values else _row(i, model.tensors[i], row) for i in inputs]
            values[name] = append_layer(graph, layer, given, settings)
        outputs.append(graph.add("Unsqueeze", values[name], graph.constant(np.array([1]))))  # [B, 1, …]
    stacked = graph.add("Concat", *outputs, axis=1)  # [B, members, …]
    own = graph.add("Unsqueeze", member, graph.constant(np.array([1])))
    x = graph.add("GatherND", stacked, own, batch_dims=1)
    path.write_bytes(_in_grey(graph, facts, x, y, member))


def _in_grey(graph: GraphBuilder, facts: dict[str, Any], x: str, y: str, member: str) -> bytes:
    scaled = graph.add("Mul", x, graph.constant(np.float32(facts["scale"])))
    grey = graph.add("Add", scaled, graph.constant(np.float32(facts["offset"])))
    return graph.finish(facts, graph.add("Round", grey), y, member)


def gathered(model: PortableModel, path: Path) -> bool:
    """Write the graph that gathers the weights of each row; return False if the net is not an MLP."""
    facts, graph = model.facts, GraphBuilder()
    member, y = _route(graph, facts)
    values = {"z": graph.add("Unsqueeze", _noise(graph, facts, member), graph.constant(np.array([1])))}  # [B, 1, Z]
    for name, layer, inputs, settings in facts["nets"][0]:
        x = values[inputs[0]]
        if layer == "linear":
            weight, bias = (model.tensors[key] for key in inputs[1:])
            w = graph.add("Gather", graph.weight(inputs[1], weight.transpose(1, 2)), member)  # [B, in, out]
            b = graph.add("Gather", graph.weight(inputs[2], bias[:, None]), member)
            values[name] = graph.add("Add", graph.add("MatMul", x, w), b)
        elif layer == "leaky_relu":
            values[name] = graph.add("LeakyRelu", x, alpha=settings["negative_slope"])
        elif layer == "tanh":
            values[name] = graph.add("Tanh", x)
        elif layer == "reshape":
            values[name] = graph.add("Reshape", x, graph.constant(np.array([0, *settings["shape"]])))
        else:
            return False
    path.write_bytes(_in_grey(graph, facts, values[name], y, member))
    return True


def in_browser(page: Path) -> dict[str, float] | None:
    """Return the milliseconds of the first 64 samples in Chromium, alone and from the start of loading; None without it."""
    browser = shutil.which("chromium")
    if browser is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        tab = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("body[data-milliseconds]", timeout=300_000)
        drawing, whole = tab.evaluate("[Number(document.body.dataset.milliseconds), performance.now()]")
    return {"drawing": drawing, "with_loading": round(whole, 1)}


def measure(case: tuple[str, dict[str, Any], tuple[int, int, int], int, int], folder: Path) -> dict[str, Any]:
    whole = mixture(*case)
    began = time.perf_counter()
    model = portable_model(whole)
    row: dict[str, Any] = {"net": case[0], "shape": case[2], "members": case[4], "numbers": model.parameters}
    row["trace_seconds"] = round(time.perf_counter() - began, 2)
    write_torch_folder(model, folder / "torch")
    write_onnx_file(model, folder / "model.onnx")
    (folder / "model.html").write_text(page_of(model))
    row["bytes"] = {path.name: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    row["onnx_ms"] = {"routed": milliseconds(folder / "model.onnx")}
    everything(model, folder / "all.onnx")
    row["onnx_ms"]["all"] = milliseconds(folder / "all.onnx")
    if gathered(model, folder / "gathered.onnx"):
        row["onnx_ms"]["gathered"] = milliseconds(folder / "gathered.onnx")
    routed, *others = (
        run_onnx_file(path, range(SAMPLES))[0].astype(int) for path in sorted(folder.glob("*.onnx"), reverse=True)
    )
    assert all(abs(routed - other).max() <= 1 for other in others)  # the three ways compute the same
    row["browser_ms"] = in_browser(folder / "model.html")
    return row


def main() -> None:
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(case, Path(folder)))
            print(rows[-1], file=sys.stderr)
    facts = {
        "command": "python benchmarks/exports.py",
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, one thread",
        "versions": {
            "ganherd": __version__,
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
        "samples": SAMPLES,
        "seed": 0,
        "rows": rows,
    }
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
