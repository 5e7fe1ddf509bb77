"""Trace a generator to a list of simple layers, which PyTorch, ONNX and a web page can all run.

`torch.export` records the operations of the net in evaluation mode. Each becomes one of the layers in `loader.py`;
batch norm becomes a gain and a shift for each channel. A net with any other operation is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.parameter_names import canonical_names
from ganherd.herd.state import takes_label
from ganherd.mixture.generators import Generators
from ganherd.util.errors import UserError, first_line

Arguments = dict[str, Any]  # arguments of an operation, by their names
Layer = tuple[str, str, list[str], Arguments]  # name of the result, kind of layer in `loader.py`, inputs, settings


@dataclass
class TracedNet:
    """A generator net as a list of layers, with the weights of all members that have this net (a breed).

    The inputs of a layer are `z` (noise), `y` (labels), names of earlier results, or names of tensors. The last result
    is the output.
    """

    layers: list[Layer] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # float32 [members, …], or [1, …] if all members share it


def trace(generators: Generators, latent: int, shape: tuple[int, ...]) -> TracedNet:
    """Convert the generators of a breed to layers.

    Args:
        generators: The net and the stacked weights of the members.
        latent: The number of noise values.
        shape: The shape of a sample.

    Raises:
        UserError: The net cannot be traced, or it has a layer that exports do not know.
    """
    module = copy_module(generators.module).eval().to(generators.dtype)
    inputs: tuple[Tensor, ...] = (torch.zeros(2, latent, dtype=generators.dtype),)
    if takes_label(module):
        inputs = (*inputs, torch.zeros(2, dtype=torch.int64))
    try:
        batch: Any = torch.export.Dim.DYNAMIC
        program = torch.export.export(module, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs), strict=False)
    except Exception as error:  # whatever a net that cannot be traced makes torch.export raise
        raise UserError(
            f"the generator {generators.net.name} cannot be exported, because torch.export cannot trace it: {first_line(error)}."
        ) from error
    return _Tracer(generators, program).run(shape)


class _Tracer:
    """Convert the nodes of a program of `torch.export` one after another to the layers of a `TracedNet`."""

    def __init__(self, generators: Generators, program: torch.export.ExportedProgram) -> None:
        self._net, self._program, self._name = TracedNet(), program, generators.net.name
        signature = program.graph_signature
        stacked = {**generators.params, **generators.buffers}
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        canonical = canonical_names(generators.module)
        self._weights = {node: stacked[canonical[name]] for node, name in names.items()}
        constants = program.constants
        self._weights |= {
            node: torch.as_tensor(constants[name])[None]
            for node, name in signature.inputs_to_lifted_tensor_constants.items()
        }
        self._values: dict[str, str] = dict(zip(signature.user_inputs, ("z", "y"), strict=False))

    def run(self, shape: tuple[int, ...]) -> TracedNet:
        """Convert all nodes, and return the net; `shape` is the shape of a sample that its output must have."""
        for node in self._program.graph.nodes:
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, tuple | list):
                raise self._refusal(node)
            if node.op == "call_function" and isinstance(value, Tensor):  # other nodes compute sizes or check them
                self._convert(node)
            elif node.op == "output":
                self._finish(node, shape)
        return self._net

    def _finish(self, node: fx.Node, shape: tuple[int, ...]) -> None:
        """Check the shape of the net's output, and add a layer if the output is not the last result."""
        results: Any = node.args[0]
        if len(results) != 1 or tuple(results[0].meta["val"].shape[1:]) != shape or not self._net.layers:
            raise UserError(f"the generator {self._name} cannot be exported: its output is not one batch of samples.")
        last = self._values[results[0].name]
        if last != self._net.layers[-1][0]:
            self._net.layers.append(("out", "reshape", [last], {"shape": list(shape)}))

    def _convert(self, node: fx.Node) -> None:
        """Append the layer of one node. Fold it if it depends on weights only; skip it if it returns its input."""
        if node.all_input_nodes and all(given.name in self._weights for given in node.all_input_nodes):
            self._weights[node.name] = self._folded(node)
            return
        kind = str(node.target).split(".")[1]
        arguments = _arguments(node)
        if isinstance(arguments.get("dim"), int):  # make negative dimensions positive, as exported layers need
            arguments["dim"] %= node.meta["val"].dim()
        if (kind in _SAME and not arguments.get("train")) or (kind == "slice" and arguments["dim"] == 0):
            self._values[node.name] = self._of(arguments.get("self", arguments.get("input")), node)
            return
        in_place = kind.endswith("_") and len(node.all_input_nodes[0].users) == 1
        converter = _CONVERTERS.get(kind.rstrip("_") if in_place else kind)
        layer, inputs, settings = converter(self, node, arguments) if converter is not None else ("", [], None)
        if settings is None:
            raise self._refusal(node)
        self._net.layers.append((f"v{len(self._net.layers)}", layer, inputs, settings))
        self._values[node.name] = self._net.layers[-1][0]

    def _folded(self, node: fx.Node) -> Tensor:
        """Compute the result of a node that depends on weights only, for every member; return it as [members, …]."""

        def run(member: int) -> Tensor:
            args = fx.node.map_arg(
                node.args, lambda given: self._weights[given.name][member % len(self._weights[given.name])]
            )
            out: Tensor = node.target(*args, **node.kwargs)  # type: ignore[operator]
            return out

        members = max(len(self._weights[given.name]) for given in node.all_input_nodes)
        return torch.stack([run(member) for member in range(members)])

    def _refusal(self, node: fx.Node) -> UserError:
        """Return the error about an operation that exports do not support; it names the operation and its layer."""
        path, kind = next(reversed(list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())))
        where = f" in its layer {path} ({str(kind).rpartition('.')[2]})" if path else ""
        return UserError(
            f"the generator {self._name} cannot be exported: exports do not know the operation {node.target}{where}."
        )

    def _of(self, argument: Any, node: fx.Node) -> str:
        """Return the name of an argument as an input of a layer; a weight or a number is added to the net's tensors."""
        if isinstance(argument, fx.Node) and argument.name in self._values:
            return self._values[argument.name]
        if isinstance(argument, fx.Node) and argument.name in self._weights:
            return self._tensor(argument.name, self._weights[argument.name])
        if isinstance(argument, int | float):
            return self._tensor(f"{node.name}_number", torch.tensor([float(argument)]))
        raise self._refusal(node)

    def _tensor(self, name: str, value: Tensor) -> str:
        self._net.tensors[name] = value.detach().float().contiguous()
        return name

    # -- a function for each kind of operation; it returns layer, inputs, settings (None if they are not supported) --

    def _plain(self, node: fx.Node, arguments: Arguments, layer: str, *names: str, **settings: Any) -> Any:
        inputs = [self._of(arguments[name], node) for name in names if arguments.get(name) is not None]
        return layer, inputs, settings

    def _convolution(self, node: fx.Node, given: Arguments) -> Any:
        layer = str(node.target).split(".")[1]
        names = ["stride", "padding", "dilation", "groups", *(["output_padding"] if "transpose" in layer else [])]
        settings = {name: given[name] for name in names}
        known = not isinstance(given["padding"], str)
        return (*self._plain(node, given, layer, "input", "weight", "bias")[:2], settings if known else None)

    def _batch_norm(self, node: fx.Node, given: Arguments) -> Any:
        """Convert batch norm with running statistics to a gain and a shift per channel, computed in float64."""
        if given["training"] or given["running_mean"] is None:
            raise self._refusal(node)
        mean, var = (self._weights[given[name].name].double() for name in ("running_mean", "running_var"))
        gain = torch.rsqrt(var + given["eps"])  # [members, C]
        shift = torch.zeros_like(gain)
        if given["weight"] is not None:
            gain, shift = (
                gain * self._weights[given["weight"].name].double(),
                self._weights[given["bias"].name].double(),
            )
        shape = (-1, gain.shape[1], *(1,) * (node.meta["val"].dim() - 2))
        names = [
            self._tensor(f"{node.name}_gain", gain.reshape(shape)),
            self._tensor(f"{node.name}_shift", (shift - mean * gain).reshape(shape)),
        ]
        return "affine", [self._of(given["input"], node), *names], {}

    def _reshape(self, node: fx.Node, given: Arguments) -> Any:
        batch, *shape = node.meta["val"].shape
        known = not isinstance(batch, int) and all(isinstance(size, int) for size in shape)
        name = next(given[name] for name in ("self", "input") if name in given)
        return "reshape", [self._of(name, node)], {"shape": shape} if known else None

    def _upsample(self, node: fx.Node, given: Arguments) -> Any:
        before, after = given["input"].meta["val"].shape[2:], node.meta["val"].shape[2:]
        factors = [new // old for new, old in zip(after, before, strict=True)]
        known = len(set(factors)) == 1 and [old * factors[0] for old in before] == list(after)
        return "upsample", [self._of(given["input"], node)], {"scale_factor": factors[0]} if known else None

    def _slice(self, node: fx.Node, given: Arguments) -> Any:
        dim, known = given["dim"], given["step"] == 1 and (given["start"] or 0) >= 0
        settings = {"dim": dim, "start": given["start"] or 0, "length": node.meta["val"].shape[dim]}
        return "slice", [self._of(given["self"], node)], settings if known else None

    def _arithmetic(self, node: fx.Node, given: Arguments) -> Any:
        inputs = [self._of(given[name], node) for name in ("self", "other")]
        return str(node.target).split(".")[1].rstrip("_"), inputs, {} if given.get("alpha", 1) == 1 else None

    def _silu(self, node: fx.Node, given: Arguments) -> Any:
        name, gate = self._of(given["self"], node), f"v{len(self._net.layers)}"
        self._net.layers.append((gate, "sigmoid", [name], {}))
        return "mul", [name, gate], {}

    def _one_hot(self, node: fx.Node, given: Arguments) -> Any:
        identity = self._tensor(f"{node.name}_rows", torch.eye(given["num_classes"])[None])
        return "embedding", [self._of(given["self"], node), identity], {}

    def _concat(self, node: fx.Node, given: Arguments) -> Any:
        inputs = [self._of(tensor, node) for tensor in given["tensors"]]
        return "concat", inputs, {"dim": given["dim"]} if given["dim"] > 0 else None

    def _expand(self, node: fx.Node, given: Arguments) -> Any:
        same = given["self"].meta["val"].shape[1:] == node.meta["val"].shape[1:]
        return "reshape", [self._of(given["self"], node)], {"shape": list(node.meta["val"].shape[1:])} if same else None

    def _transpose(self, node: fx.Node, given: Arguments) -> Any:
        rank = node.meta["val"].dim()
        first, last = given["dim0"] % rank, given["dim1"] % rank
        dims = list(range(rank))
        dims[first], dims[last] = last, first
        return "permute", [self._of(given["self"], node)], {"dims": dims} if dims[0] == 0 else None

    def _softmax(self, node: fx.Node, given: Arguments) -> Any:
        last = given["dim"] % node.meta["val"].dim() == node.meta["val"].dim() - 1
        return "softmax", [self._of(given["self"], node)], {"dim": -1} if last else None

    def _max_pool(self, node: fx.Node, given: Arguments) -> Any:
        size, stride = given["kernel_size"], given["stride"] or given["kernel_size"]
        known = len({*size, *stride}) == 1 and {*given["padding"]} == {0} and {*given["dilation"]} == {1}
        settings = {"kernel_size": size[0], "ceil_mode": given["ceil_mode"]}
        return "max_pool2d", [self._of(given["self"], node)], settings if known else None


_SAME = {"to", "_to_copy", "contiguous", "clone", "alias", "detach", "dropout", "dropout_", "feature_dropout"}
_Converter = Callable[[_Tracer, fx.Node, Arguments], Any]
_CONVERTERS: dict[str, _Converter] = {
    "linear": lambda t, n, a: t._plain(n, a, "linear", "input", "weight", "bias"),
    "conv2d": _Tracer._convolution,
    "conv_transpose2d": _Tracer._convolution,
    "batch_norm": _Tracer._batch_norm,
    "leaky_relu": lambda t, n, a: t._plain(n, a, "leaky_relu", "self", negative_slope=float(a["negative_slope"])),
    "relu": lambda t, n, a: t._plain(n, a, "leaky_relu", "self", negative_slope=0.0),
    "tanh": lambda t, n, a: t._plain(n, a, "tanh", "self"),
    "rsqrt": lambda t, n, a: t._plain(n, a, "rsqrt", "self"),
    "sigmoid": lambda t, n, a: t._plain(n, a, "sigmoid", "self"),
    "silu": _Tracer._silu,
    "embedding": lambda t, n, a: t._plain(n, a, "embedding", "indices", "weight"),
    "matmul": lambda t, n, a: t._plain(n, a, "matmul", "self", "other"),
    "bmm": lambda t, n, a: t._plain(n, a, "matmul", "self", "mat2"),
    "add": _Tracer._arithmetic,
    "mul": _Tracer._arithmetic,
    "one_hot": _Tracer._one_hot,
    "cat": _Tracer._concat,
    "upsample_nearest2d": _Tracer._upsample,
    "slice": _Tracer._slice,
    "expand": _Tracer._expand,
    "transpose": _Tracer._transpose,
    "softmax": _Tracer._softmax,
    "max_pool2d": _Tracer._max_pool,
    **dict.fromkeys(("reshape", "view", "unflatten", "flatten", "unsqueeze", "squeeze"), _Tracer._reshape),
}


def _arguments(node: fx.Node) -> Arguments:
    """Return all arguments of a node, including defaults, by their names in the schema of the operation."""
    schema = node.target._schema  # type: ignore[union-attr]
    named = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    named |= {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    return named | dict(node.kwargs)
