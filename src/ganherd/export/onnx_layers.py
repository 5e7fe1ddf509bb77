"""Build ONNX graphs: add operations, constants and weights, and translate the layers of portable models."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from torch import Tensor

_OPSET, _IR = 18, 9  # the first opset with bitwise operations, and a file version (IR) that supports it


class GraphBuilder:
    """Collect the operations and weights of an ONNX graph with the inputs `label` and `seed`, both int64 [batch]."""

    input_names = ("label", "seed")

    def __init__(self) -> None:
        import onnx

        self._onnx, self.types = onnx, onnx.TensorProto
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._numbers: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, operation: str, *inputs: str, **settings: Any) -> str:
        """Add an operation, and return the name of its result."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operation, list(inputs), [name], **settings))
        return name

    def constant(self, value: Any) -> str:
        """Store a constant array unless an equal one is stored already, and return its name."""
        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._numbers:
            self._numbers[key] = self._store(f"c{len(self._numbers)}", array)
        return self._numbers[key]

    def weight(self, name: str, value: Tensor) -> str:
        """Store a weight under this name unless it is stored already, and return the name."""
        return name if name in self._initializers else self._store(name, value.numpy())

    def _store(self, name: str, array: np.ndarray) -> str:
        self._initializers[name] = self._onnx.numpy_helper.from_array(
            np.ascontiguousarray(array).reshape(array.shape), name
        )
        return name

    def finish(self, facts: dict[str, Any], samples: str, labels: str, members: str) -> bytes:
        """Declare the outputs, check the graph, and return it as the content of an .onnx file.

        Args:
            facts: Those of the portable model.
            samples: The name of the value that becomes the output `sample`.
            labels: The name of the value that becomes the output `sample_label`.
            members: The name of the value that becomes the output `member`.
        """
        helper, types = self._onnx.helper, self.types
        kind = types.UINT8 if facts["image"] else types.FLOAT
        self._nodes += [
            helper.make_node("Cast", [samples], ["sample"], to=kind),
            helper.make_node("Identity", [labels], ["sample_label"]),
            helper.make_node("Identity", [members], ["member"]),
        ]
        whole = helper.make_graph(
            self._nodes,
            "ganherd",
            [helper.make_tensor_value_info(name, types.INT64, ["batch"]) for name in self.input_names],
            [
                helper.make_tensor_value_info("sample", kind, ["batch", *facts["shape"]]),
                helper.make_tensor_value_info("sample_label", types.INT64, ["batch"]),
                helper.make_tensor_value_info("member", types.INT64, ["batch"]),
            ],
            list(self._initializers.values()),
        )
        model = helper.make_model(
            whole,
            producer_name="ganherd",
            producer_version=facts["version"],
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR,
        )
        helper.set_model_props(model, {"title": facts["title"], "labels": json.dumps(facts["labels"])})
        self._onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def append_layer(
    graph: GraphBuilder, layer: str, given: list[tuple[str, Tensor | None]], settings: dict[str, Any]
) -> str:
    """Add a layer of a portable model to a graph, and return the name of its output.

    Args:
        layer: The kind of layer, a key of `_LAYERS` in `loader.py`.
        given: The inputs: the name of an earlier value with None, or the name of a weight with its values.
        settings: The settings of the layer.
    """
    if layer == "linear":  # `MatMul` cannot transpose its weight, so store it transposed
        name, weight = given[1]
        assert weight is not None
        given[1] = (f"{name}.T", weight.T)
    inputs = [name if weight is None else graph.weight(name, weight) for name, weight in given]
    if layer == "linear":
        x = graph.add("MatMul", *inputs[:2])
        return graph.add("Add", x, inputs[2]) if inputs[2:] else x
    if layer in _SAME:
        return graph.add(_SAME[layer], *inputs)
    if layer in ("conv2d", "conv_transpose2d"):
        padding = {name: settings[name] for name in ("output_padding",) if name in settings}
        return graph.add(
            "Conv" if layer == "conv2d" else "ConvTranspose",
            *inputs,
            strides=settings["stride"],
            pads=list(settings["padding"]) * 2,
            dilations=settings["dilation"],
            group=settings["groups"],
            **padding,
        )
    match layer:
        case "affine":
            return graph.add("Add", graph.add("Mul", inputs[0], inputs[1]), inputs[2])
        case "rsqrt":
            return graph.add("Reciprocal", graph.add("Sqrt", *inputs))
        case "leaky_relu":
            slope = settings["negative_slope"]
            return graph.add("LeakyRelu", *inputs, alpha=slope) if slope else graph.add("Relu", *inputs)
        case "reshape":
            return graph.add("Reshape", *inputs, graph.constant(np.array([0, *settings["shape"]])))
        case "upsample":
            factor = settings["scale_factor"]
            scales = graph.constant(np.array([1, 1, factor, factor], np.float32))
            how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            return graph.add("Resize", *inputs, "", scales, **how)
        case "slice":
            first, last = settings["start"], settings["start"] + settings["length"]
            bounds = (graph.constant(np.array([number])) for number in (first, last, settings["dim"]))
            return graph.add("Slice", *inputs, *bounds)
        case "concat":
            return graph.add("Concat", *inputs, axis=settings["dim"])
        case "embedding":
            return graph.add("Gather", inputs[1], inputs[0])
        case "softmax":
            return graph.add("Softmax", *inputs, axis=-1)
        case "permute":
            return graph.add("Transpose", *inputs, perm=settings["dims"])
        case "max_pool2d":
            size = [settings["kernel_size"]] * 2
            return graph.add("MaxPool", *inputs, kernel_shape=size, strides=size, ceil_mode=int(settings["ceil_mode"]))
    raise AssertionError(f"no layer {layer}")


_SAME = {"tanh": "Tanh", "sigmoid": "Sigmoid", "add": "Add", "mul": "Mul", "matmul": "MatMul"}
