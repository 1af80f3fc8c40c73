"""Random ONNX networks of several kinds and forms, for ONNX Runtime; equal seeds give equal networks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import constant, model, node, value  # noqa: E402

#: Opset of the networks.
OPSET = 17
Shape = tuple[int, ...]


class Network:
    """A network that grows op by op; `x` is its input."""

    def __init__(self, seed: int, shape: Shape, kind: Any = np.float32) -> None:
        self.draw, self.kind, self.shape_of = random.Random(seed), np.dtype(kind), {"x": shape}
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(seed)

    def add(self, op: str, sources: list[str], shape: Shape, *constants: Any, **attributes: Any) -> str:
        """Add an op that reads `sources`, then `constants`, and writes a value of `shape`; return that value."""
        name = f"v{len(self.nodes)}"
        names = [f"{name}.{k}" for k in range(len(constants))]
        self.weights += [constant(each, array) for each, array in zip(names, constants, strict=True)]
        self.nodes.append(node(op, [*sources, *names], [name], name=f"{op}{len(self.nodes)}", **attributes))
        self.shape_of[name] = shape
        return name

    def map(self, source: str, *kinds: str) -> str:
        """Add an elementwise op of one of some kinds."""
        chosen = self.draw.choice(kinds or ("Relu", "Sigmoid", "Tanh", "Sin", "Cos", "Abs"))
        return self.add(chosen, [source], self.shape_of[source])

    def conv(self, source: str, channels: int, size: int = 3, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with random weights and a bias."""
        batch, inner, height, width = self.shape_of[source]
        kernel = (self._random.standard_normal((channels, inner // group, size, size)) / size).astype(self.kind)
        bias = self._random.standard_normal(channels).astype(self.kind)
        shape = (batch, channels, -(-height // stride), -(-width // stride))
        pads = [(size - stride) // 2, (size - stride) // 2, -(-(size - stride) // 2), -(-(size - stride) // 2)]
        pads = [max(0, each) for each in pads]
        return self.add("Conv", [source], shape, kernel, bias, pads=pads, strides=[stride] * 2, group=group,
                        kernel_shape=[size] * 2)  # fmt: skip

    def pool(self, source: str, window: int) -> str:
        batch, channels, height, width = self.shape_of[source]
        shape = (batch, channels, height // window, width // window)
        return self.add("MaxPool", [source], shape, kernel_shape=[window] * 2, strides=[window] * 2)

    def join(self, sources: list[str], axis: int = 1) -> str:
        shape = list(self.shape_of[sources[0]])
        shape[axis] = sum(self.shape_of[each][axis] for each in sources)
        return self.add("Concat", sources, tuple(shape), axis=axis)

    def view(self, source: str, shape: Shape) -> str:
        """Add a reshape that keeps the first dimension, which may be open."""
        return self.add("Reshape", [source], shape, np.array((0, *shape[1:]), dtype=np.int64))

    def unread(self) -> list[str]:
        read = {name for each in self.nodes for name in each.input}
        return [name for name in self.shape_of if name not in read and name != "x"]

    def written(self, **parts: Any) -> bytes:
        """Return the model; all unread values are outputs."""
        kind = helper.np_dtype_to_tensor_dtype(self.kind)
        outputs = [value(name, self.shape_of[name], kind) for name in self.unread()]
        x = value("x", self.shape_of["x"], kind)
        proto = onnx.ModelProto.FromString(model(self.nodes, [x], outputs, self.weights, opset=OPSET, **parts))
        proto.ir_version = 8
        data: bytes = proto.SerializeToString()
        return data


def irregular(seed: int, kind: Any = np.float32, batch: int = 1) -> Network:
    """Return three cells of four branches; the wide halves of all branches come first."""
    net = Network(seed, (batch, 8, 32, 32), kind)
    at = "x"
    for cell in range(3):
        wide = [net.map(at) for _ in range(4)]
        if cell < 2:
            wide = [net.pool(each, net.draw.choice((2, 2, 4))) for each in wide]
            least = min(net.shape_of[each][2] for each in wide)
            wide = [net.pool(each, net.shape_of[each][2] // least) if net.shape_of[each][2] > least else each
                    for each in wide]  # fmt: skip
        at = net.join(wide)
    net.add("GlobalAveragePool", [at], (*net.shape_of[at][:2], 1, 1))
    return net


def random_ops(seed: int, kind: Any = np.float32, batch: int = 1) -> Network:
    """Return 24 random elementwise ops, sums, products, joins, pools; unread values are averaged."""
    net = Network(seed, (batch, 4, 16, 16), kind)
    known = ["x"]
    for _ in range(24):
        a, b, chance = net.draw.choice(known[-6:]), net.draw.choice(known[-6:]), net.draw.random()
        first, second = net.shape_of[a], net.shape_of[b]
        if chance < 0.35 and first == second:
            known.append(net.add(net.draw.choice(("Add", "Mul", "Sub")), [a, b], first))
        elif chance < 0.5 and first[2:] == second[2:] and first[1] + second[1] <= 32:
            known.append(net.join([a, b]))
        elif chance < 0.65 and first[2] > 2:
            known.append(net.pool(a, 2))
        else:
            known.append(net.map(a))
    for each in net.unread():
        net.add("GlobalAveragePool", [each], (*net.shape_of[each][:2], 1, 1))
    return net


def convolutional(seed: int, kind: Any = np.float32, batch: int = 1) -> Network:
    """Return residual, inception and depthwise blocks in random sequence, and a classifier."""
    net = Network(seed, (batch, 3, 32, 32), kind)
    at = net.map(net.conv("x", 16, 3), "Relu")
    for _ in range(4):
        channels, block = net.shape_of[at][1], net.draw.choice(("residual", "inception", "depthwise"))
        if block == "residual":
            inner = net.conv(net.map(net.conv(at, channels), "Relu"), channels)
            at = net.map(net.add("Add", [at, inner], net.shape_of[at]), "Relu")
        elif block == "inception":
            parts = [net.conv(at, net.draw.choice((8, 16, 24)), size) for size in (1, 3, 5)]
            at = net.join([net.map(each, "Relu") for each in parts])
        else:
            wide = net.map(net.conv(at, 4 * channels, 1), "HardSigmoid", "Relu")
            at = net.conv(net.map(net.conv(wide, 4 * channels, 3, 2, 4 * channels), "Relu"), channels, 1)
    net.add("GlobalAveragePool", [at], (*net.shape_of[at][:2], 1, 1))
    return net


def with_views(seed: int, kind: Any = np.float32, batch: int = 1) -> Network:
    """Return two layers of attention over tokens, with reshapes, transposes and splits of heads."""
    net = Network(seed, (batch, 32, 48), kind)
    weights = np.random.default_rng(seed)
    at = "x"

    def product(source: str, width: int) -> str:
        shape = net.shape_of[source]
        matrix = (weights.standard_normal((shape[-1], width)) / shape[-1] ** 0.5).astype(kind)
        return net.add("MatMul", [source], (*shape[:-1], width), matrix)

    for _ in range(2):
        heads = net.draw.choice((2, 4, 6))
        parts = []
        for k in range(3):
            split = net.view(product(at, 48), (batch, 32, heads, 48 // heads))
            perm, shape = ([0, 2, 3, 1], (batch, heads, 48 // heads, 32)) if k == 1 else \
                ([0, 2, 1, 3], (batch, heads, 32, 48 // heads))  # fmt: skip
            parts.append(net.add("Transpose", [split], shape, perm=perm))
        scores = net.add("MatMul", parts[:2], (batch, heads, 32, 32))
        mixed = net.add("MatMul", [net.add("Softmax", [scores], (batch, heads, 32, 32), axis=-1), parts[2]],
                        (batch, heads, 32, 48 // heads))  # fmt: skip
        back = net.view(
            net.add("Transpose", [mixed], (batch, 32, heads, 48 // heads), perm=[0, 2, 1, 3]), (batch, 32, 48)
        )
        at = net.add("Add", [at, product(back, 48)], (batch, 32, 48))
        wide = net.map(product(at, 48 * net.draw.choice((2, 4))), "Relu", "Sigmoid")
        at = net.add("Add", [at, product(wide, 48)], (batch, 32, 48))
    net.add("ReduceMean", [at], (batch, 1, 48), axes=[1])
    return net


KINDS: dict[str, Callable[..., Network]] = {
    "irregular": irregular, "random": random_ops, "convolutional": convolutional, "views": with_views,
}  # fmt: skip


def with_condition(net: Network) -> bytes:
    """Return the model with an ``If`` of two branches that read a value of the network."""
    inner = net.nodes[len(net.nodes) // 2].output[0]
    kind, shape = helper.np_dtype_to_tensor_dtype(net.kind), net.shape_of[inner]
    branches = [
        helper.make_graph(
            [node(op, [inner], [f"{op}.wide"]), node("Sin", [f"{op}.wide"], [f"{op}.out"])], op, [],
            [value(f"{op}.out", shape, kind)],
        )
        for op in ("Neg", "Cos")
    ]  # fmt: skip
    net.weights.append(constant("condition", np.array(bool(net.draw.randrange(2)))))
    chosen = net.add("If", ["condition"], shape, then_branch=branches[0], else_branch=branches[1])
    axes = list(range(1, len(shape)))
    net.add("ReduceMean", [chosen], (shape[0], *(1 for _ in axes)), axes=axes)
    return net.written()


def with_functions(net: Network) -> bytes:
    """Return the model with a function in place of each activation that it contains."""
    body = [node("Neg", ["a"], ["negative"]), node("Exp", ["negative"], ["power"]), node("Neg", ["power"], ["b"])]
    function = helper.make_function("own", "Own", ["a"], ["b"], body, [helper.make_opsetid("", OPSET)])
    for each in net.nodes:
        if each.op_type in ("Relu", "Sigmoid", "Tanh", "Softmax"):
            each.op_type, each.domain = "Own", "own"
            del each.attribute[:]
    return net.written(functions=[function], domains=["own"])


def with_listed_weights(net: Network) -> bytes:
    """Return the model with its initializers as inputs, too: defaults that a caller may replace."""
    proto = onnx.ModelProto.FromString(net.written())
    proto.graph.input.extend(value(each.name, each.dims, each.data_type) for each in proto.graph.initializer)
    data: bytes = proto.SerializeToString()
    return data


def with_open_batch(net: Network) -> bytes:
    """Return the model with an open first dimension of inputs and outputs, ``batch``."""
    proto = onnx.ModelProto.FromString(net.written())
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    data: bytes = proto.SerializeToString()
    return data


def with_external_weights(net: Network) -> tuple[bytes, bytes]:
    """Return the model without its weights of floats, and the content of ``weights.bin``, where they are."""
    proto, rest = onnx.ModelProto.FromString(net.written()), b""
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.INT64:
            continue
        raw = numpy_helper.to_array(tensor).tobytes()
        tensor.raw_data = raw
        onnx.external_data_helper.set_external_data(tensor, "weights.bin", offset=len(rest), length=len(raw))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        rest += raw
    return proto.SerializeToString(), rest


#: Ways to write a network, by name; one has weights in a file of its own.
FORMS: dict[str, Callable[[Network], bytes | tuple[bytes, bytes]]] = {
    "plain": Network.written, "condition": with_condition, "functions": with_functions,
    "listed weights": with_listed_weights, "external weights": with_external_weights, "open batch": with_open_batch,
}  # fmt: skip
