"""Layers in bands of rows: rows of windows by enumeration, memory and cost by hand."""

from dataclasses import replace
from itertools import product

import pytest

from remat.graphs import ComputeGraph, Op, Tensor
from remat.graphs.rewriting.row_parts import Reach, RowSplitter
from remat.ordering.row_execution import row_execution
from remat.runtime.deadline import Deadline


def windowed(kernel: int, stride: int = 1, pads: tuple[int, int] = (0, 0), kind: str = "conv") -> dict[str, object]:
    both = {"kernel": [kernel, 1], "stride": [stride, 1], "dilation": [1, 1], "pads": [list(pads), [0, 0]]}
    return {"kind": kind, "layout": "NHWC", **both}


def network(layers: list[tuple[str, str, str, dict[str, object]]], shapes: dict[str, list[int]]) -> ComputeGraph:
    """Return a graph of layers (name, input, output, attributes); a byte for each element, and the same as cost."""
    size = {name: shape[0] * shape[1] * shape[2] * shape[3] for name, shape in shapes.items()}
    ops = [Op(name, tuple(source.split()), (to,), cost=size[to], type=name) for name, source, to, _ in layers]
    meta = {"described": True, "shapes": shapes, "attrs": {name: about for name, *_, about in layers}}
    tensors = [Tensor(name, bytes_) for name, bytes_ in size.items()]
    return ComputeGraph("rows", tensors, ops, ["x"], [layers[-1][2]], cost_unit="mac", meta=meta)


def test_rows_that_windows_read() -> None:
    """All windows of an image of 11 rows, by enumeration; a dilated window may skip rows at the border."""
    for kernel, stride, pad, dilation in product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2)):
        size = (kernel - 1) * dilation + 1
        out = (11 + 2 * pad - size) // stride + 1
        for first, last in product(range(out), range(1, out + 1)):
            wanted = {row * stride - pad + k * dilation for row in range(first, last) for k in range(kernel)}
            if pad < size and (read := wanted & {*range(11)}):
                begin, end = Reach(11, size, stride, pad).of((first, last))
                assert 0 <= min(read) - begin < dilation
                assert 0 <= end - max(read) - 1 < dilation


def inverted(rows: int = 32) -> ComputeGraph:
    """Return expansion, depthwise convolution of 3 rows, projection, and a sum with the input."""
    shapes = {"x": [1, rows, 4, 2], "wide": [1, rows, 4, 12], "deep": [1, rows, 4, 12], "thin": [1, rows, 4, 2]}
    layers = [
        ("expand", "x", "wide", windowed(1)),
        ("depth", "wide", "deep", windowed(3, pads=(1, 1), kind="depthwise")),
        ("project", "deep", "thin", windowed(1)),
        ("add", "x thin", "y", {"kind": "element-wise"}),
    ]
    return network(layers, shapes | {"y": [1, rows, 4, 2]})


def test_bands_of_an_inverted_block_by_hand() -> None:
    """Two bands of 16 rows need 17 rows of the first wide tensor each; the second band has both narrow tensors."""
    graph = inverted()
    splitter = RowSplitter(graph)
    regions = {region.ops: region for region in splitter.regions("project")}
    region = regions["expand", "depth", "project"]
    assert splitter.needed(region, (0, 16)) == {"thin": (0, 16), "deep": (0, 16), "wide": (0, 17), "x": (0, 17)}
    assert splitter.needed(region, (16, 32)) == {"thin": (16, 32), "deep": (16, 32), "wide": (15, 32), "x": (15, 32)}
    split = splitter.split(region, 2)
    assert split.reference_peak == 32 * 8 + 32 * 8 + 17 * 48 + 16 * 48  # x, thin, 17 rows of wide, 16 of deep
    assert sum(op.cost for op in split.ops) - sum(op.cost for op in graph.ops) == 2 * 48
    assert graph.reference_peak == 32 * 8 + 2 * 32 * 48


def test_least_cost_that_reaches_a_goal() -> None:
    """With the first wide tensor in one piece nothing is computed twice; without it, two rows of it are."""
    graph = inverted()
    narrow, before = 32 * 8, 32 * 8 + 2 * 32 * 48
    for goal, after, more in ((2200, 2 * narrow + 32 * 48 + 2 * 48, 0), (2100, 2 * narrow + (17 + 16) * 48, 2 * 48)):
        found = row_execution(graph, Deadline.after(60), goal)
        assert found is not None
        assert (found.before, found.after, found.more_cost) == (before, after, more)
        assert found.cost == 32 * (2 * 48 + 2 * 8)
    least = row_execution(graph, Deadline.after(60))
    assert least is not None
    assert least.after == 2 * narrow + (4 + 2) * 48  # 16 bands of two rows
    assert row_execution(graph, Deadline.after(60), goal=before) is None


def test_strides_and_poolings() -> None:
    """Rows 0-2 of the pooling need rows 0-4 of the convolution, and those rows 0-9 of the image."""
    shapes = {"x": [1, 16, 2, 1], "c": [1, 8, 2, 4], "p": [1, 4, 2, 4]}
    layers = [("conv", "x", "c", windowed(3, 2, (0, 1))), ("pool", "c", "p", windowed(2, 2, kind="pool"))]
    splitter = RowSplitter(network(layers, shapes))
    (region,) = splitter.regions("pool")
    assert splitter.needed(region, (0, 2)) == {"p": (0, 2), "c": (0, 4), "x": (0, 9)}
    assert splitter.needed(region, (2, 4)) == {"p": (2, 4), "c": (4, 8), "x": (8, 16)}


def test_concatenated_branches_form_one_region() -> None:
    """Two branches that a concatenation along channels joins; along rows it needs whole branches."""
    shapes = {name: [1, 8, 2, 4] for name in "xab"}
    for axis, shape in ((3, [1, 8, 2, 8]), (1, [1, 16, 2, 4])):
        layers = [("one", "x", "a", windowed(1)), ("two", "x", "b", windowed(3, pads=(1, 1)))]
        layers.append(("join", "a b", "y", {"kind": "concat", "axis": axis}))
        splitter = RowSplitter(network(layers, shapes | {"y": shape}))
        found = [region.ops for region in splitter.regions("join")]
        assert found == ([("two", "join"), ("one", "two", "join")] if axis == 3 else [])


@pytest.mark.parametrize("change", ["read outside", "opaque", "an output"])
def test_region_ends_at_ops_without_bands(change: str) -> None:
    """A tensor that is read outside, or an op that needs its input in one piece, ends a region."""
    graph = inverted()
    outputs, ops, attrs = list(graph.outputs), list(graph.ops), dict(graph.meta["attrs"])
    if change == "read outside":
        ops[3] = replace(ops[3], inputs=(*ops[3].inputs, "wide"))
    elif change == "opaque":
        del attrs["depth"]
    else:
        outputs.append("wide")
    changed = ComputeGraph(
        "other", graph.tensors, ops, graph.inputs, outputs, cost_unit="mac", meta={**graph.meta, "attrs": attrs}
    )
    found = [region.ops for region in RowSplitter(changed).regions("project")]
    assert found == ([] if change == "opaque" else [("depth", "project")])
