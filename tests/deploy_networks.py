"""Networks of cells for the benchmark of deployed models: floating-point, quantised, with state and control flow."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from deploy_models import BOOL, FLOAT, INT32, concat, irregular, pool, random_model, relu, reshape, with_resource
from tflite_models import OPS, Fields, G, O, T, model, tflite

INT4, INT8, INT16, INT64 = (getattr(tflite.TensorType, name) for name in ("INT4", "INT8", "INT16", "INT64"))
_WINDOW: Fields = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": 0}
#: Bytes of an element of the bias, and its type, for each type of activations.
_BIAS = {FLOAT: (4, FLOAT), INT8: (4, INT32), INT16: (8, INT64)}


@dataclass
class Network:
    """Network under construction, with activations and weights of two element types."""

    draw: random.Random
    activations: int = FLOAT
    weights: int = FLOAT
    tensors: list[T] = field(default_factory=list)
    ops: list[O] = field(default_factory=list)

    def add(self, *shape: int, kind: int | None = None, **about: Any) -> int:
        """Add a tensor; return its number."""
        kind = self.activations if kind is None else kind
        scales: dict[str, Any] = {} if kind in (FLOAT, INT32, BOOL) else {"scales": (0.05,)}
        self.tensors.append(T(f"t{len(self.tensors)}", shape, kind, **(scales | about)))
        return len(self.tensors) - 1

    def conv(self, source: int, channels: int, later: list[O] | None = None, *, window: int = 1) -> int:
        """Add a convolution, depthwise for windows above 1."""
        shape = self.tensors[source].shape
        is_depthwise = window > 1
        sizes = (1, window, window, channels) if is_depthwise else (channels, 1, 1, shape[3])
        scales: dict[str, Any] = {"axis": 3 if is_depthwise else 0}
        if self.activations != FLOAT:
            scales["scales"] = tuple(0.01 + 0.001 * k for k in range(channels))
        weights = self.add(*sizes, kind=self.weights, data=self.random_weights(prod(sizes)), **scales)
        bytes_, kind = _BIAS[self.activations]
        if self.activations != FLOAT:
            scales["scales"] = tuple(each * 0.05 for each in scales["scales"])
        bias = self.add(channels, kind=kind, data=bytes(bytes_ * channels), **(scales | {"axis": 0}))
        target = self.add(*shape[:3], channels)
        options = ("Conv2DOptions", _WINDOW)
        if is_depthwise:
            options = ("DepthwiseConv2DOptions", _WINDOW | {"DepthMultiplier": 1})
        code = OPS.DEPTHWISE_CONV_2D if is_depthwise else OPS.CONV_2D
        (self.ops if later is None else later).append(O(code, (source, weights, bias), (target,), options=options))
        return target

    def random_weights(self, count: int) -> bytes:
        """Return the bytes of random weights."""
        if self.weights == FLOAT:
            return struct.pack(f"<{count}f", *(self.draw.uniform(-0.2, 0.2) for _ in range(count)))
        return self.draw.randbytes((count + 1) // 2 if self.weights == INT4 else count)

    def pooled(self, source: int, window: int, later: list[O] | None = None) -> int:
        """Add a max pooling."""
        batch, height, width, channels = self.tensors[source].shape
        target = self.add(batch, height // window, width // window, channels)
        (self.ops if later is None else later).append(pool(source, target, window))
        return target

    def joined(self, sources: list[int]) -> int:
        """Add a concatenation of channels."""
        shape, channels = self.tensors[sources[0]].shape, sum(self.tensors[p].shape[3] for p in sources)
        target = self.add(*shape[:3], channels)
        self.ops.append(concat(tuple(sources), target, 3))
        return target

    def cell(self, source: int) -> int:
        """Add three to five wide branches of unequal width and depth, all of them before the first pooling."""
        first, second, last = list[O](), list[O](), list[O]()
        tails: list[int] = []
        for _ in range(self.draw.randint(3, 5)):
            wide = self.conv(source, self.draw.choice((8, 12, 16, 24)), first)
            if self.draw.random() < 0.5:
                channels, is_deep = self.tensors[wide].shape[3], self.weights != INT4 and self.draw.random() < 0.5
                wide = self.conv(wide, channels if is_deep else 16, second, window=3 if is_deep else 1)
            tails.append(self.pooled(wide, 2, last))
        self.ops += [*first, *second, *last]
        return self.conv(self.joined(tails), 8)


def cells(seed: int, activations: int = FLOAT, weights: int = FLOAT, count: int = 3) -> bytes:
    """Return cells of convolutions and poolings."""
    made = Network(random.Random(seed), activations, weights)
    at = made.add(1, 32, 32, made.draw.choice((4, 8)))
    for _ in range(count):
        at = made.cell(at)
    return model(G(made.tensors, made.ops, (0,), (at,)))


def joined_branches() -> bytes:
    """Return four convolutions of x (16x16x8), their concatenation, and a convolution to four channels."""
    made = Network(random.Random(0))
    x = made.add(1, 16, 16, 8)
    return model(G(made.tensors, made.ops, (0,), (made.conv(made.joined([made.conv(x, 8) for _ in range(4)]), 4),)))


def conditional_cells(seed: int) -> bytes:
    """Return two cells with an IF between them, whose branches apply relus."""
    made = Network(random.Random(seed))
    chosen, x = made.add(1, kind=BOOL), made.add(1, 32, 32, 4)
    at = made.cell(x)
    shape = made.tensors[at].shape
    result = made.add(*shape)
    called: Fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    made.ops.append(O(OPS.IF, (chosen, at), (result,), options=("IfOptions", called)))
    branches = [
        G([T(f"{name}{k}", shape, FLOAT) for k in range(length + 1)],
          [relu(k, k + 1) for k in range(length)], (0,), (length,), name)
        for name, length in (("then", 2), ("else", 3))
    ]  # fmt: skip
    return model(G(made.tensors, made.ops, (chosen, x), (made.cell(result),)), *branches)


def stateful_cells(seed: int) -> bytes:
    """Return a cell whose result enters two SVDF layers, each with a variable."""
    made = Network(random.Random(seed))
    at = made.pooled(made.cell(made.add(1, 32, 32, 4)), 4)
    width = prod(made.tensors[at].shape)
    flat = made.add(1, width)
    made.ops.append(reshape(at, flat, (1, width)))
    for units in (16, 8):
        reads = made.tensors[flat].shape[1]
        parts = [
            made.add(*shape, data=made.random_weights(prod(shape))) for shape in ((2 * units, reads), (2 * units, 3))
        ]
        parts += [made.add(units, data=bytes(4 * units)), made.add(1, 6 * units, variable=True)]
        target = made.add(1, units)
        made.ops.append(O(OPS.SVDF, (flat, *parts), (target,), options=("SVDFOptions", {"Rank": 2})))
        flat = target
    return model(G(made.tensors, made.ops, (0,), (flat,)))


#: Families of networks: a function of the seed, and seeds that no test uses.
FAMILIES: dict[str, tuple[Callable[[int], bytes], range]] = {
    "irregular cells, views": (irregular, range(5000, 5008)),
    "random": (lambda seed: random_model(seed, 16), range(6000, 6010)),
    "cells, float32": (cells, range(7000, 7008)),
    "cells, int8": (lambda seed: cells(seed, INT8, INT8), range(7100, 7105)),
    "cells, int4 weights": (lambda seed: cells(seed, INT8, INT4), range(7200, 7204)),
    "cells, int16 with int8 weights": (lambda seed: cells(seed, INT16, INT8), range(7300, 7304)),
    "cells with `IF`": (conditional_cells, range(7400, 7404)),
    "cells with variables": (stateful_cells, range(7500, 7504)),
    "`CALL_ONCE` and a resource": (with_resource, range(5, 8)),
}
