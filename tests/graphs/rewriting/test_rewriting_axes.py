"""The dimension rule: roles of axes, rewrites by role, and invalid attributes."""

from dataclasses import replace

import pytest
from refusals import refused
from small_networks import Net, after_concat

from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.rewriting.annotations import read_shapes
from remat.graphs.rewriting.check import check_numerics
from remat.graphs.rewriting.draft import Draft

IMAGE, LAST, FIRST = [2, 6, 6, 4], {"layout": "NHWC"}, {"layout": "NCHW"}

#: Type, attributes, shape read, shape written, and for each axis p(arallel), r(educed) or f(ixed).
CASES = [
    ("Conv", {**LAST, "kernel": 3, "padding": "SAME"}, IMAGE, [2, 6, 6, 5], "pffr"),
    ("conv2d", {**LAST, "kernel": [3, 2], "stride": 2, "padding": "VALID", "dilation": [2, 1]}, IMAGE, [2, 1, 3, 5],
     "pffr"),
    ("Conv", {**FIRST, "kernel": 3, "padding": [1, 0, 1, 2]}, [2, 4, 6, 6], [2, 5, 6, 6], "prff"),
    ("Conv", {"weight_shape": [5, 3, 3, 4], "padding": "SAME"}, IMAGE, [2, 6, 6, 5], "pffr"),
    ("Conv", {"weight_shape": [5, 4, 3, 3], "padding": 1}, [2, 4, 6, 6], [2, 5, 6, 6], "prff"),
    ("Conv", {**LAST, "groups": 2}, IMAGE, [2, 6, 6, 6], "pfff"),
    ("Conv", {**LAST, "groups": 4, "kernel": 3}, IMAGE, [2, 6, 6, 8], "pffp"),
    ("Conv", {}, [2, 6, 6, 3], [2, 6, 6, 5], "pfff"),
    ("ReLUConvBN", {**LAST, "pre_activation": "relu"}, IMAGE, [2, 6, 6, 5], "pffr"),
    ("Conv1D", {**LAST, "kernel": 3}, [2, 6, 4], [2, 6, 3], "pfr"),
    ("ConvTranspose", {**LAST, "kernel": 2, "stride": 2}, IMAGE, [2, 12, 12, 3], "pffr"),
    ("DepthwiseConv", {**LAST, "kernel": 3}, IMAGE, IMAGE, "pffp"),
    ("depthwise_conv2d", {**FIRST, "kernel": 3, "stride": 2}, [2, 4, 6, 6], [2, 8, 3, 3], "ppff"),
    ("Dense", {}, [2, 3, 4], [2, 3, 5], "ppr"),
    ("Dense", {**FIRST}, [2, 4, 1, 1], [2, 5, 1, 1], "prpp"),
    ("Dense", {}, [2, 6, 6, 4], [2, 1, 1, 5], "ffff"),
    ("MatMul", {}, [2, 3, 4], [2, 3, 5], "ppr"),
    ("ReLU", {}, IMAGE, IMAGE, "pppp"),
    ("activation", {"activation": "softmax"}, IMAGE, IMAGE, "ffff"),
    ("BatchNorm", {**LAST}, IMAGE, IMAGE, "pppp"),
    ("BatchNorm", {**LAST, "training": True}, IMAGE, IMAGE, "fffp"),
    ("LayerNorm", {}, [2, 3, 4], [2, 3, 4], "ppf"),
    ("LayerNorm", {"axis": 1}, [2, 3, 4], [2, 3, 4], "pff"),
    ("GroupNorm", {**LAST}, IMAGE, IMAGE, "pfff"),
    ("InstanceNorm", {**LAST}, IMAGE, IMAGE, "pffp"),
    ("Softmax", {"axis": -2}, [2, 3, 4], [2, 3, 4], "pfp"),
    ("MaxPool", {**LAST, "kernel": 3, "stride": 2}, IMAGE, [2, 3, 3, 4], "pffp"),
    ("avg_pool2d", {**FIRST, "kernel": 3, "stride": 1, "padding": "SAME"}, [2, 4, 6, 6], [2, 4, 6, 6], "ppff"),
    ("GlobalAveragePool", {**FIRST}, [2, 4, 6, 6], [2, 4], "ppff"),
    ("GlobalMaxPool", {**LAST}, IMAGE, [2, 1, 1, 4], "pffp"),
    ("zero_padding2d", {**LAST}, IMAGE, [2, 9, 9, 4], "pffp"),
    ("Slice", {**LAST}, IMAGE, [2, 5, 3, 4], "pffp"),
    ("Slice", {"axis": 1, "start": 2}, [2, 4, 3], [2, 2, 3], "pfp"),
    ("ReduceSum", {"axes": [1]}, [2, 4, 3], [2, 1, 3], "prp"),
    ("ReduceMean", {"axes": [-1]}, [2, 4, 3], [2, 4], "ffr"),
    ("SepConv", {**LAST}, IMAGE, IMAGE, "pfff"),
    ("Flatten", {}, IMAGE, [2, 144], "ffff"),
    ("Secret", {}, IMAGE, IMAGE, "ffff"),
    ("Secret", {"parallel_axes": [0, -1], "reduced_axes": [1]}, IMAGE, [2, 3, 6, 4], "prfp"),
]  # fmt: skip
ROLES = {"p": "parallel", "r": "reduced", "f": "fixed"}


@pytest.mark.parametrize(("kind", "attrs", "shape", "output", "expected"), CASES, ids=lambda value: str(value)[:30])
def test_roles_of_axes_select_the_rewrite(kind, attrs, shape, output, expected) -> None:
    """Each axis is split in two in turn; the rewrite gives a sum, parts or nothing, and the same outputs."""
    for axis, letter in enumerate(expected):
        first = 1 if shape[axis] < 4 else 2
        parts = [[*shape[:axis], n, *shape[axis + 1 :]] for n in (first, shape[axis] - first) if n]
        graph = after_concat(kind, parts, axis, output, **attrs)
        if len(parts) < 2:
            continue
        roles = Draft(graph).roles("y", 0)
        assert roles is not None
        assert roles[axis].role == ROLES[letter], axis
        done = rewrite_graph(graph, RewriteOptions(min_parts=2, rules=("partial-sums", "parallel-parts")))
        rules = [rewrite.rule for rewrite in done.rewrites if rewrite.op == "y"]
        assert rules == {"p": ["parallel-parts"], "r": ["partial-sums"], "f": []}[letter], axis
        assert check_numerics(graph, done.graph).difference < 1e-9
        assert done.graph.base_cost == graph.base_cost == 100


@pytest.mark.parametrize(("axis", "letter"), [(0, "p"), (1, "r")])
def test_products_of_two_tensors_are_split_on_both_sides(axis: int, letter: str) -> None:
    """Rows of the first operand give parts; along the summed axis slices of the second are read."""
    net = Net()
    shapes = [[2, 6], [3, 6]] if axis == 0 else [[5, 2], [5, 4]]
    names = net.inputs(*shapes, [6, 4])
    operands = [{"axis": axis, "parts": names[:2]}, {"parts": [names[2]]}]
    net.op("y", "MatMul", names, [5, 4], cost=7, operands=operands)
    graph = net.build("y")
    done = rewrite_graph(graph, RewriteOptions(min_parts=2))
    assert [rewrite.rule for rewrite in done.rewrites] == ["parallel-parts" if letter == "p" else "partial-sums"]
    check_numerics(graph, done.graph)


INVALID = [
    ({"kernel": 3}, {"x0": [1, -1]}), ({"concat_axis": 1}, {"x1": [2, 6, 6, 3]}),
    *(({}, shapes) for shapes in (
        [], *({"x0": shape} for shape in ([1, True], [0], [2**40, 2**40], [1] * 9, "12")), {"x1": [2, 6]},
    )),
    *((attrs, None) for attrs in (
        "no", {"kind": "magic"},
        *({"concat_axis": axis} for axis in (4, -5, 1.0)), {"layout": "NHW"}, {"channel_axis": 9}, {"groups": 0},
        {"parallel_axes": 3}, {"parallel_axes": [3], "reduced_axes": [-1]}, {"part_of": 1},
        {"part_of": {"of": "y", "start": 5}}, {"operands": 5},
    )),
    *(({"operands": [{"parts": parts}]}, None) for parts in ([], ["q"], ["x0"], ["x0", "x1"])),
    *(({"operands": [{"axis": 3, "parts": ["x0", ["x1", *part]]}]}, None) for part in ((1, 9), (-1, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("attrs", "shapes"), INVALID, ids=lambda value: str(value)[:40])
def test_invalid_shapes_and_attributes_are_refused(attrs, shapes) -> None:
    graph = after_concat("Conv", [[2, 6, 6, 2]] * 2, 3, [2, 6, 6, 5], layout="NHWC")
    meta = {"attrs": {"y": {**graph.meta["attrs"]["y"], **attrs} if isinstance(attrs, dict) else attrs}}
    meta["shapes"] = {**graph.meta["shapes"], **shapes} if isinstance(shapes, dict) else shapes
    if shapes is None:
        meta["shapes"] = graph.meta["shapes"]
    with refused("rewriting.attributes"):
        rewrite_graph(replace(graph, meta=meta), RewriteOptions(min_parts=2))


def test_graph_without_shapes_is_not_rewritten() -> None:
    graph = after_concat("Conv", [[2, 6, 6, 2]] * 3, 3, [2, 6, 6, 5], layout="NHWC")
    bare = replace(graph, meta={})
    assert rewrite_graph(bare).graph is bare
    assert read_shapes(bare) == {}
    shapes = {name: shape for name, shape in graph.meta["shapes"].items() if name != "x1"}
    missing = replace(graph, meta={**graph.meta, "shapes": shapes, "layout": "NHWC"})
    assert not rewrite_graph(missing, RewriteOptions(min_parts=2)).rewrites
    with refused("graph.no-shape", culprit="net"):
        check_numerics(missing, missing)


@pytest.mark.parametrize(
    "attrs", [{"output_slice": "x"}, {"output_slice": [3, 0, 9]}], ids=lambda value: str(value)[:30]
)
def test_check_refuses_invalid_slices(attrs) -> None:
    graph = after_concat("Conv", [[2, 6, 6, 2]] * 2, 3, [2, 6, 6, 5], layout="NHWC", **attrs)
    with refused("rewriting.computed"):
        check_numerics(graph, graph)
