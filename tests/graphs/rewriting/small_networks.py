"""Small networks with shapes and attributes, fixed and random."""

import random
from math import prod
from typing import Any

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.rewriting.descriptions import (
    Site,
    Window,
    batch_norm,
    concatenation,
    convolution,
    described,
    elementwise,
    pooling,
)


class Net:
    """Builder that collects shapes and attributes; each op writes one tensor of its name, one byte per element."""

    def __init__(self, name: str = "net", **meta: object) -> None:
        self.shapes: dict[str, list[int]] = {}
        self.attrs: dict[str, dict] = {}
        self.builder = GraphBuilder(name, cost_unit="mac", meta={"shapes": self.shapes, "attrs": self.attrs, **meta})

    def op(self, name: str, kind: str, inputs: list[str], shape: list[int], cost: int = 0, **attrs: Any) -> str:
        self.shapes[name] = list(shape)
        workspace = attrs.pop("workspace", 0)
        if attrs:
            self.attrs[name] = attrs
        return self.builder.op(name, inputs=inputs, size=prod(shape), cost=cost, workspace=workspace, type=kind)

    def inputs(self, *shapes: list[int]) -> list[str]:
        return [self.op(f"x{number}", "Input", [], shape) for number, shape in enumerate(shapes)]

    def build(self, *outputs: str) -> ComputeGraph:
        for output in outputs:
            self.builder.output(output)
        return self.builder.build()


def after_concat(kind: str, parts: list[list[int]], along: int, shape: list[int], **attrs: Any) -> ComputeGraph:
    """Return inputs, an op that reads their concatenation in place, and a ReLU, so that the op is no output."""
    net = Net()
    names = net.inputs(*parts)
    net.op("y", kind, names, shape, cost=100, concat_inputs=True, concat_axis=along, **attrs)
    net.op("z", "ReLU", ["y"], shape)
    return net.build("z")


def random_network(seed: int, ops: int = 9) -> ComputeGraph:
    """Return random ops on small images, channels last: explicit and folded concatenations, slices, odd costs."""
    rng = random.Random(seed)
    net = Net(f"random-{seed}", layout="NHWC")
    size = [2, 5, 5]
    for number in range(rng.randint(1, 3)):
        net.op(f"x{number}", "Input", [], [*size, rng.randint(1, 4)])
    for number in range(ops):
        name, cost = f"n{number}", rng.randint(0, 50)
        some = rng.sample(list(net.shapes), min(len(net.shapes), rng.randint(2, 4)))
        one = rng.choice(list(net.shapes))
        alike = net.shapes[one]
        together = sum(net.shapes[tensor][-1] for tensor in some)
        folded: dict[str, Any] = {"concat_inputs": True, "concat_axis": rng.choice([3, -1])}
        folded |= {"kernel": [3, 3], "workspace": rng.choice([0, 0, 7])}
        match rng.randrange(9):
            case 0 | 1:
                net.op(name, "Concat", some, [*size, together], cost, axis=3)
            case 2:
                net.op(name, "Conv", some, [*size, rng.randint(1, 4)], cost, **folded)
            case 3:
                net.op(name, "Conv", [one], [*size, rng.randint(1, 4)], cost, kernel=[1, 1], activation="relu")
            case 4:
                net.op(name, "DepthwiseConv", some, [*size, together], cost, **folded)
            case 5:
                kind = rng.choice(["ReLU", "BatchNorm", "MaxPool"])
                net.op(name, kind, [one], alike, cost, stride=1, kernel=3)
            case 6:
                same = [tensor for tensor in net.shapes if net.shapes[tensor] == alike]
                net.op(name, rng.choice(["Add", "Mul"]), rng.sample(same, min(2, len(same))), alike, cost)
            case 7 if alike[-1] > 1:
                first = rng.randint(1, alike[-1] - 1)
                net.op(name, "Slice", [one], [*size, alike[-1] - first], cost, axis=3, start=first)
            case _:
                net.op(name, rng.choice(["Softmax", "Secret"]), [one], alike, cost)
    graph = net.builder.build()
    unread = [t for t in graph.tensor_names if not len(graph.arrays.consumers[graph.tensor_index[t]])]
    return graph.with_outputs(unread[:2] if rng.random() < 0.8 else [unread[0], rng.choice(graph.tensor_names[:3])][:1])


def described_network() -> ComputeGraph:
    """Return a concatenation of three parts, and a normalisation, functions and convolutions of it, all described."""
    image, width = (1, 5, 5), {"x0": 2, "x1": 3, "x2": 1, "c": 6, "n": 6, "r": 6, "d": 12, "y": 4, "p": 4, "q": 4}
    shapes = {name: (*image, channels) for name, channels in width.items()}
    window = Window((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)))

    def site(source: str, target: str, *constants: tuple[int, ...]) -> Site:
        return Site((shapes[source], *constants), (source, *[None] * len(constants)), shapes[target])

    concat = Site(tuple(shapes[f"x{n}"] for n in range(3)), ("x0", "x1", "x2"), shapes["c"])
    attrs = {
        "c": concatenation(concat, -1),
        "n": batch_norm(site("c", "n", *[(6,)] * 4), 1e-3, layout="NHWC"),
        "r": elementwise(site("n", "r", (6,)), "maximum"),
        "d": convolution(site("r", "d", (1, 3, 3, 12), (12,)), window, layout="NHWC", axes=(3, 0), activation="relu"),
        "y": convolution(site("d", "y", (4, 3, 3, 12), (4,)), window, layout="NHWC", axes=(0, 3), activation="relu6"),
        "p": pooling(site("y", "p"), "average", window, layout="NHWC"),
        "q": elementwise(site("p", "q"), "relu"),
    }
    assert None not in attrs.values()
    builder = GraphBuilder("described", meta=described(shapes, {op: found or {} for op, found in attrs.items()}))
    parts = ["x0", "x1", "x2"]
    for name in parts:
        builder.op(name, size=prod(shapes[name]), type="Input")
    for name, read in {"c": parts, "n": "c", "r": "n", "d": "r", "y": "d", "p": "y", "q": "p"}.items():
        builder.op(name, inputs=list(read), size=prod(shapes[name]), type=name)
    return builder.build()
