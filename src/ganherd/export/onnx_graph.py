"""Write a portable model as one ONNX graph with the inputs `label` and `seed`, for any batch and mixed labels.

The graph hashes seeds to noise with integer operations, like `loader.py`. The layers of each member (generator) appear
once and compute only those rows of the batch that the member generates: `NonZero` and `Gather` select them, `ScatterND`
writes the samples to their places. So the graph needs no control flow.

Functions that take or return a `str` without further comment mean the name of a value of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ganherd.export.onnx_layers import GraphBuilder, append_layer
from ganherd.export.portable_model import PortableModel
from ganherd.herd import rng
from ganherd.util import files
from ganherd.util.errors import UserError

_MOST_BYTES = 1_900_000_000  # a protobuf file holds at most 2 GiB


def write_onnx_file(model: PortableModel, path: Path) -> None:
    """Write a portable model as an .onnx file.

    Raises:
        UserError: The model is too large for one file.
    """
    if 4 * model.parameters > _MOST_BYTES:
        raise UserError(
            "this mixture is too large for one ONNX file, which holds 2 GB: export its members with --member."
        )
    files.atomic_write(path, _graph(model), sync=False)


def run_onnx_file(path: Path, seeds: Sequence[int], label: int | Sequence[int] = -1) -> list[np.ndarray]:
    """Compute samples with ONNX Runtime from an .onnx file; return samples [n, …], labels [n] and members [n].

    Args:
        seeds: The seed of each sample, [n].
        label: One label for all, a list with one for each, or -1 to draw them.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    labels = np.ascontiguousarray(np.broadcast_to(np.asarray(label, np.int64), (len(seeds),)))
    return list(session.run(None, {"label": labels, "seed": np.asarray(seeds, np.int64)}))


def _graph(model: PortableModel) -> bytes:
    """Return the graph as the content of an .onnx file."""
    facts, graph = model.facts, GraphBuilder()
    member, y = _route(graph, facts)
    z = _noise(graph, facts, member)
    outputs, places = [], []
    for number, (net, row) in enumerate(facts["members"]):
        mine = graph.add("Equal", member, graph.constant(np.int64(number)))
        rows = graph.add("Squeeze", graph.add("NonZero", mine), graph.constant(np.array([0])))  # [rows of this member]
        count = graph.add("Shape", rows)
        filled = graph.add("Concat", rows, _first_if_empty(graph, count), axis=0)
        values = {"z": graph.add("Gather", z, filled), "y": graph.add("Gather", y, filled)}
        for name, layer, inputs, settings in facts["nets"][net]:
            given = [(values[i], None) if i in values else _row(i, model.tensors[i], row) for i in inputs]
            values[name] = append_layer(graph, layer, given, settings)
        outputs.append(graph.add("Slice", values[name], graph.constant(np.array([0])), count))
        places.append(rows)
    shape = graph.constant(np.array(facts["shape"]))
    whole = graph.add("Concat", graph.add("Shape", graph.input_names[1]), shape, axis=0)
    empty = graph.add("Expand", graph.constant(np.float32(0)), whole)
    order = graph.add("Unsqueeze", graph.add("Concat", *places, axis=0), graph.constant(np.array([1])))
    x = graph.add("ScatterND", empty, order, graph.add("Concat", *outputs, axis=0))  # in the order of the inputs
    scale, offset = (graph.constant(np.array(facts[key], np.float32)) for key in ("scale", "offset"))
    x = graph.add("Add", graph.add("Mul", x, scale), offset)
    if facts["image"]:
        x = graph.add("Clip", graph.add("Round", x), _float(graph, 0.0), _float(graph, 255.0))
    return graph.finish(facts, x, y, graph.add("Gather", graph.constant(np.array(facts["numbers"])), member))


def _first_if_empty(graph: GraphBuilder, count: str) -> str:
    """Return the row numbers [0] if `count` is 0, otherwise an empty list of rows.

    A member that generates no row of the batch computes row 0 in vain, because ONNX Runtime may refuse an empty batch.
    """
    zero = graph.constant(np.array([0]))
    end = graph.add("Cast", graph.add("Equal", count, zero), to=graph.types.INT64)
    return graph.add("Slice", zero, zero, end)


def _row(name: str, value: Tensor, row: int) -> tuple[str, Tensor | None]:
    """Return name and value of one member's weights; `value` is [members, …], or [1, …] if all members share them."""
    row %= len(value)
    return f"{name}.{row}", value[row]


def _float(graph: GraphBuilder, value: float) -> str:
    return graph.constant(np.float32(value))


def _mix(graph: GraphBuilder, x: str) -> str:
    """Hash int64 numbers by the mixing function of splitmix64; products wrap around."""
    for bits, factor in zip(rng.MIX_SHIFTS, (*rng.MIX_FACTORS, None), strict=True):
        x = graph.add("BitwiseXor", x, _shifted(graph, x, bits))
        if factor is not None:
            x = graph.add("Mul", x, graph.constant(_signed(factor)))
    return x


def _signed(bits: int) -> np.int64:
    """Return the signed number with the same 64 bits as an unsigned one."""
    return np.uint64(bits).view(np.int64)


def _shifted(graph: GraphBuilder, x: str, bits: int) -> str:
    """Shift int64 numbers right and fill with zeros; ONNX shifts only unsigned numbers, so cast them."""
    unsigned = graph.add("Cast", x, to=graph.types.UINT64)
    moved = graph.add("BitShift", unsigned, graph.constant(np.uint64(bits)), direction="RIGHT")
    return graph.add("Cast", moved, to=graph.types.INT64)


def _random_bits(graph: GraphBuilder, purpose: int, count: int) -> str:
    """Return uniform pseudo-random 64-bit numbers, int64 [B, count], which depend on the seed of each row and on `purpose`."""
    golden = graph.constant(_signed(rng.GOLDEN))
    key = graph.add("BitwiseXor", _mix(graph, graph.add("Add", "seed", golden)), graph.constant(np.int64(purpose)))
    key = _mix(graph, graph.add("Add", key, golden))
    with np.errstate(over="ignore"):
        counters = np.arange(1, count + 1, dtype=np.int64) * _signed(rng.GOLDEN)
    keys = graph.add("Unsqueeze", key, graph.constant(np.array([1])))
    return _mix(graph, graph.add("Add", keys, graph.constant(counters[None])))


def _route(graph: GraphBuilder, facts: dict[str, Any]) -> tuple[str, str]:
    """Return the member [B] that generates each sample, and the label [B] of the sample."""
    draws = _shifted(graph, _random_bits(graph, rng.ROUTE, 2), 40)  # [B, 2]
    first, second = (graph.add("Gather", draws, graph.constant(np.array([i])), axis=1) for i in (0, 1))  # [B, 1]

    def chosen(draw: str, thresholds: str) -> str:
        reached = graph.add("Cast", graph.add("GreaterOrEqual", draw, thresholds), to=graph.types.INT64)
        return graph.add("ReduceSum", reached, graph.constant(np.array([1])), keepdims=0)

    table = graph.constant(np.array(facts["member_thresholds"], np.int64))  # [labels + 1, members]
    row = graph.add("Max", graph.add("Add", "label", graph.constant(np.int64(1))), graph.constant(np.int64(0)))
    member = chosen(first, graph.add("Gather", table, row))  # every negative label means any
    if not facts["takes_label"]:
        return member, graph.add("Gather", graph.constant(np.array(facts["label_of"], np.int64)), member)
    drawn = chosen(second, graph.constant(np.array([facts["label_thresholds"]], np.int64)))
    return member, graph.add("Where", graph.add("Less", "label", graph.constant(np.int64(0))), drawn, "label")


def _noise(graph: GraphBuilder, facts: dict[str, Any], member: str) -> str:
    """Return the noise of the seeds, float [B, latent]: normal, or uniform for members with a uniform prior.

    Normal numbers come from pairs of uniform ones by the Box-Muller transform.
    """
    bits = _random_bits(graph, rng.SAMPLE, facts["latent"])

    def fraction(number: str) -> str:
        return graph.add("Mul", graph.add("Cast", number, to=graph.types.FLOAT), _float(graph, 2.0**-24))

    high = fraction(_shifted(graph, bits, 40))
    low = fraction(graph.add("BitwiseAnd", bits, graph.constant(np.int64(0xFFFFFF))))
    log = graph.add("Log", graph.add("Sub", _float(graph, 1.0), high))  # 1 - high is exact: both have 24 bits
    radius = graph.add("Sqrt", graph.add("Mul", log, _float(graph, -2.0)))
    normal = graph.add("Mul", radius, graph.add("Cos", graph.add("Mul", low, _float(graph, 2 * math.pi))))
    if not any(facts["uniform"]):
        return normal
    uniform = graph.add("Sub", graph.add("Mul", high, _float(graph, 2.0)), _float(graph, 1.0))
    own = graph.add("Gather", graph.constant(np.array(facts["uniform"])[:, None]), member)  # [B, 1]
    return graph.add("Where", own, uniform, normal)
