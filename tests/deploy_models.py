"""TensorFlow Lite models that the runtimes execute: networks whose order matters, and random ones."""

from __future__ import annotations

import random
import struct
from math import prod
from typing import Any

import pytest

tflite = pytest.importorskip("tflite")

from tflite_models import OPS, Fields, G, O, T, model  # noqa: E402

from remat.graphs import ComputeGraph  # noqa: E402
from remat.schedule import Schedule  # noqa: E402

FLOAT, INT32, BOOL = tflite.TensorType.FLOAT32, tflite.TensorType.INT32, tflite.TensorType.BOOL


def tensors(*shapes: tuple[int, ...]) -> list[T]:
    return [T(f"t{k}", shape, FLOAT) for k, shape in enumerate(shapes)]


def relu(source: int, target: int) -> O:
    return O(OPS.RELU, (source,), (target,))


def pool(source: int, target: int, window: int) -> O:
    sizes: Fields = {"FilterHeight": window, "FilterWidth": window, "StrideH": window, "StrideW": window, "Padding": 1}
    return O(OPS.MAX_POOL_2D, (source,), (target,), options=("Pool2DOptions", sizes))


def concat(sources: tuple[int, ...], target: int, axis: int) -> O:
    return O(OPS.CONCATENATION, sources, (target,), options=("ConcatenationOptions", {"Axis": axis}))


def reshape(source: int, target: int, shape: tuple[int, ...]) -> O:
    return O(OPS.RESHAPE, (source,), (target,), options=("ReshapeOptions", {"NewShape": shape}))


def chain(elements: int, ops: int = 2, outputs: tuple[int, ...] = ()) -> bytes:
    """Return a chain of relus."""
    shapes = [(1, elements)] * (ops + 1)
    return model(G(tensors(*shapes), [relu(k, k + 1) for k in range(ops)], (0,), outputs or (ops,)))


def two_pools(order: str = "r r p p c") -> bytes:
    """Return two relus of x (2,048 bytes), each pooled to 128 bytes, in an order of r(elu), p(ool), c(oncat)."""
    shape = (1, 8, 8, 8)
    ops = {"r": [relu(0, 1), relu(0, 2)], "p": [pool(1, 3, 4), pool(2, 4, 4)], "c": [concat((3, 4), 5, 3)]}
    named = tensors(shape, shape, shape, (1, 2, 2, 8), (1, 2, 2, 8), (1, 2, 2, 16))
    return model(G(named, [ops[word].pop(0) for word in order.split()], (0,), (5,)))


def idle_input() -> bytes:
    """Return a relu of 64 floats with an unused input of 640 floats."""
    return model(G(tensors((1, 64), (1, 640), (1, 64)), [relu(0, 2)], (0, 1), (2,)))


def with_view() -> bytes:
    """Return relu, reshape, relu."""
    return model(
        G(tensors((1, 64), (1, 64), (8, 8), (8, 8)), [relu(0, 1), reshape(1, 2, (8, 8)), relu(2, 3)], (0,), (3,))
    )


def with_branches() -> bytes:
    """Return an IF over 64 floats with two branches of two ops."""
    call = O(OPS.IF, (0, 1), (2,), options=("IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}))
    main = G([T("c", (1,), BOOL), T("x", (1, 64), FLOAT), T("y", (1, 64), FLOAT)], [call], (0, 1), (2,))
    branches = [G(tensors(*[(1, 64)] * 3), [relu(0, 1), relu(1, 2)], (0,), (2,), name) for name in ("then", "else")]
    return model(main, *branches)


def with_loop() -> bytes:
    """Return a WHILE that applies relu to 64 floats until a counter is 3."""
    sizes = [("x", (1, 64), FLOAT), ("n", (1,), INT32)]

    def named(*more: T) -> list[T]:
        return [*(T(*each) for each in sizes), *more]

    less, add = O(OPS.LESS, (1, 2), (3,), options=("LessOptions", {})), ("AddOptions", Fields())
    three, one = (T("k", (1,), INT32, struct.pack("<i", k)) for k in (3, 1))
    condition = G(named(three, T("b", (1,), BOOL)), [less], (0, 1), (3,), "condition")
    inside = named(one, T("a", (1, 64), FLOAT), T("m", (1,), INT32))
    body = G(inside, [relu(0, 3), O(OPS.ADD, (1, 2), (4,), options=add)], (0, 1), (3, 4), "body")
    loop = O(OPS.WHILE, (0, 1), (2, 3), options=("WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}))
    main = G(named(T("y", (1, 64), FLOAT), T("m", (1,), INT32)), [loop], (0, 1), (2, 3))
    return model(main, condition, body)


def with_resource(pools: int = 0) -> bytes:
    """Return the sum of a relu and a variable that CALL_ONCE sets.

    With `pools`, the relu is of as many wide branches, all written before the first is pooled.
    """
    handle: tuple[str, Fields] = ("VarHandleOptions", {"Container": "", "SharedName": "v"})
    content = T("c", (1, 64), FLOAT, struct.pack("<64f", *range(64)))
    kind = tflite.TensorType.RESOURCE
    assign = O(OPS.ASSIGN_VARIABLE, (0, 1), (), options=("AssignVariableOptions", {}))
    start = G([T("h", (), kind), content], [O(OPS.VAR_HANDLE, (), (0,), options=handle), assign], (), (), "start")
    found = [T("x", (1, 64), FLOAT), T("h", (), kind), *tensors(*[(1, 64)] * 3)]
    ops = [
        O(OPS.CALL_ONCE, (), (), options=("CallOnceOptions", {"InitSubgraphIndex": 1})),
        O(OPS.VAR_HANDLE, (), (1,), options=handle),
        O(OPS.READ_VARIABLE, (1,), (2,), options=("ReadVariableOptions", {})),
    ]
    sines, sums = [], []
    for _ in range(pools):
        at = len(found)
        found += [T(f"w{at}", (1, 64), FLOAT), T(f"s{at}", (1,), FLOAT)]
        sines.append(O(OPS.SIN, (0,), (at,)))
        sums.append(O(OPS.SUM, (at, 5 + 2 * pools), (at + 1,), options=("ReducerOptions", {})))
    if pools:
        found.append(T("axis", (1,), INT32, struct.pack("<i", 1)))
    ops += [*sines, *sums, relu(0, 3), O(OPS.ADD, (2, 3), (4,), options=("AddOptions", {}))]
    tails = tuple(op.outputs[0] for op in sums)
    return model(G(found, ops, (0,), (4, *tails)), start)


def to_scalar() -> bytes:
    """Return RESHAPE of one float to a scalar, whose shape is a constant of no bytes, and relu."""
    named = [T("x", (1,), FLOAT), T("shape", (0,), INT32, b""), T("y", (), FLOAT), T("z", (), FLOAT)]
    ops = [O(OPS.RESHAPE, (0, 1), (2,), options=("ReshapeOptions", {})), relu(2, 3)]
    return model(G(named, ops, (0,), (3,)))


def sum_of_three() -> bytes:
    """Return ADD_N of x and two relus of it, 64 floats each; its kernel requests 32 bytes."""
    ops = [relu(0, 1), relu(0, 2), O(OPS.ADD_N, (0, 1, 2), (3,), options=("AddNOptions", {}))]
    return model(G(tensors(*[(1, 64)] * 4), ops, (0,), (3,)))


def mean() -> bytes:
    """Return MEAN of (1, 8, 8, 4) over two axes; its kernel requests 32 bytes."""
    axes = T("axes", (2,), INT32, struct.pack("<2i", 1, 2))
    op = O(OPS.MEAN, (0, 1), (2,), options=("ReducerOptions", {"KeepDims": False}))
    return model(G([T("x", (1, 8, 8, 4), FLOAT), axes, T("y", (1, 4), FLOAT)], [op], (0,), (2,)))


def irregular(seed: int) -> bytes:
    """Return two cells of three wide branches, all written before the first is pooled, some through two views."""
    draw = random.Random(seed)
    size, channels, at = 16, 8, 0
    found, ops = tensors((1, size, size, channels)), []

    def add(*shape: int) -> int:
        found.append(T(f"t{len(found)}", shape, FLOAT))
        return len(found) - 1

    for _ in range(2):
        tails, pooled = [], []
        for _ in range(3):
            wide = add(1, size, size, channels)
            ops.append(O(draw.choice((OPS.RELU, OPS.LOGISTIC)), (at,), (wide,)))
            if draw.random() < 0.5:
                flat, back = add(1, size * size, channels), add(1, size, size, channels)
                ops += [reshape(wide, flat, (1, size * size, channels)), reshape(flat, back, (1, size, size, channels))]
                wide = back
            pooled.append(add(1, size // 2, size // 2, channels))
            tails.append(pool(wide, pooled[-1], 2))
        size, channels = size // 2, channels * 3
        at = add(1, size, size, channels)
        ops += [*tails, concat(tuple(pooled), at, 3)]
    return model(G(found, ops, (0,), (at,)))


def random_model(seed: int, count: int = 10) -> bytes:
    """Return random sums, concatenations, views and relus; unread tensors are outputs."""
    draw = random.Random(seed)
    found, ops = tensors((1, 8), (1, 16)), []
    read: set[int] = set()

    def add(*shape: int) -> int:
        found.append(T(f"t{len(found)}", shape, FLOAT))
        return len(found) - 1

    for _ in range(count):
        a, b = draw.randrange(len(found)), draw.randrange(len(found))
        shape, kind = found[a].shape, draw.random()
        read.update((a, b) if kind < 0.5 else (a,))
        if kind < 0.3 and found[b].shape == shape and a != b:
            ops.append(O(OPS.ADD, (a, b), (add(*shape),), options=("AddOptions", {})))
        elif kind < 0.5 and len(shape) == len(found[b].shape) == 2 and a != b:
            ops.append(concat((a, b), add(1, shape[1] + found[b].shape[1]), 1))
        elif kind < 0.7:
            new = (1, shape[1] * shape[2]) if len(shape) == 3 else (1, shape[1] // 4, 4)
            ops.append(reshape(a, add(*new), new))
        else:
            ops.append(O(draw.choice((OPS.RELU, OPS.TANH)), (a,), (add(*shape),)))
    outputs = tuple({k for op in ops for k in op.outputs} - {k for op in ops for k in op.inputs})
    return model(G(found, ops, (0, 1), outputs))


def random_schedule(graph: ComputeGraph, seed: int) -> Schedule:
    """Return a random topological order with up to four ops repeated at random places."""
    draw, again = random.Random(seed), 4
    left, done, steps = list(graph.ops), set(graph.inputs), []
    while left:
        op = draw.choice([op for op in left if done.issuperset(op.inputs)])
        left.remove(op)
        done.update(op.outputs)
        steps.append(op.name)
        for _ in range(draw.randrange(2) if again else 0):
            candidates = [graph.ops[graph.op_index[name]] for name in steps]
            candidates = [each for each in candidates if each.recomputable]
            if candidates:
                again -= 1
                steps.append(draw.choice(candidates).name)
    return Schedule.from_steps([("compute", name) for name in steps])


def quantised_chain(elements: int, kind: int) -> bytes:
    """Return two reshapes of an element type, whose kernels need no scratch."""
    named = [T(f"t{k}", shape, kind) for k, shape in enumerate([(1, elements), (elements, 1), (1, elements)])]
    return model(G(named, [reshape(0, 1, (elements, 1)), reshape(1, 2, (1, elements))], (0,), (2,)))


def quantised_branches(weights: int, activations: int = tflite.TensorType.INT8) -> bytes:
    """Return two 1x1 convolutions of x (8x8x8) with a scale per channel, both before the first of them is pooled."""
    draw, wide = random.Random(weights), activations == tflite.TensorType.INT16
    shapes = [(1, 8, 8, 8)] * 3 + [(1, 2, 2, 8)] * 2 + [(1, 2, 2, 16)]
    named = [T(f"t{k}", shape, activations, scales=(0.05,)) for k, shape in enumerate(shapes)]
    scales = tuple(0.01 + 0.001 * k for k in range(8))
    ops = []
    for k in range(2):
        data = draw.randbytes(32 if weights == tflite.TensorType.INT4 else 64)
        named.append(T(f"w{k}", (8, 1, 1, 8), weights, data, scales=scales))
        bias = tflite.TensorType.INT64 if wide else INT32
        named.append(T(f"b{k}", (8,), bias, bytes(64 if wide else 32), scales=tuple(s * 0.05 for s in scales)))
        sizes: Fields = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
        ops.append(O(OPS.CONV_2D, (0, 6 + 2 * k, 7 + 2 * k), (1 + k,), options=("Conv2DOptions", sizes)))
    ops += [pool(1, 3, 4), pool(2, 4, 4), concat((3, 4), 5, 3)]
    return model(G(named, ops, (0,), (5,)))


def inverted_blocks(blocks: int = 2, size: int = 32, channels: int = 8, expansion: int = 6) -> bytes:
    """Return int8 blocks of MobileNet V2: expansion, depthwise convolution, projection, sum with the input."""
    draw, found, ops = random.Random(1), [], []
    sizes: Fields = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": 0}

    def add(name: str, shape: tuple[int, ...], like: int = tflite.TensorType.INT8, **about: Any) -> int:
        found.append(T(name, shape, like, **({"scales": (0.05,)} | about)))
        return len(found) - 1

    def conv(name: str, source: int, out: int, *, depthwise: bool = False) -> int:
        reads = found[source].shape[-1]
        shape, axis = ((1, 3, 3, reads), 3) if depthwise else ((out, 1, 1, reads), 0)
        weights = add(f"{name}/w", shape, data=draw.randbytes(prod(shape)), scales=(0.01,) * out, axis=axis)
        bias = add(f"{name}/b", (out,), INT32, data=bytes(4 * out), scales=(0.0005,) * out)
        written = add(name, (1, size, size, out))
        kind, options = (
            (OPS.DEPTHWISE_CONV_2D, "DepthwiseConv2DOptions") if depthwise else (OPS.CONV_2D, "Conv2DOptions")
        )
        more: Fields = {"DepthMultiplier": 1} if depthwise else {}
        ops.append(O(kind, (source, weights, bias), (written,), options=(options, sizes | more)))
        return written

    at = add("image", (1, size, size, channels))
    for k in range(blocks):
        wide = conv(f"block_{k}/expand", at, channels * expansion)
        wide = conv(f"block_{k}/depthwise", wide, channels * expansion, depthwise=True)
        narrow, summed = conv(f"block_{k}/project", wide, channels), add(f"block_{k}/add", (1, size, size, channels))
        ops.append(O(OPS.ADD, (at, narrow), (summed,), options=("AddOptions", {})))
        at = summed
    return model(G(found, ops, (0,), (at,)))


def random_splits(seed: int, count: int = 8) -> bytes:
    """Return random splits into equal parts, sums of them, and relus; some parts are never read."""
    draw = random.Random(seed)
    found, ops = tensors((1, 4, 32)), []
    found.append(T("axis", (), INT32, struct.pack("<i", 2)))
    live = [0]

    def add(*shape: int) -> int:
        found.append(T(f"t{len(found)}", shape, FLOAT))
        return len(found) - 1

    for _ in range(count):
        a, kind = draw.choice(live), draw.random()
        width = found[a].shape[2]
        if kind < 0.5 and width > 1:
            parts = draw.choice([n for n in (2, 4, 8) if not width % n])
            made = tuple(add(1, 4, width // parts) for _ in range(parts))
            ops.append(O(OPS.SPLIT, (1, a), made, options=("SplitOptions", {"NumSplits": parts})))
            live += made
        elif kind < 0.7:
            axes = next((k for k, t in enumerate(found) if t.name == "axes"), len(found))
            if axes == len(found):
                found.append(T("axes", (1,), INT32, struct.pack("<i", 1)))
            ops.append(O(OPS.SUM, (a, axes), (add(1, 1, width),), options=("ReducerOptions", {"KeepDims": True})))
        else:
            live.append(add(*found[a].shape))
            ops.append(relu(a, live[-1]))
    read = {k for op in ops for k in op.inputs}
    tails = tuple(k for op in ops for k in op.outputs if k not in read)
    return model(G(found, ops, (0,), tails[:: 2 if len(tails) > 2 else 1]))
