"""Rewriting of ONNX models: outputs agree with ONNX, and unsupported ops stay unchanged."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import few

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402
from onnx import TensorProto  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_models import constant, model, node, value, weight  # noqa: E402
from refusals import refused  # noqa: E402
from shell import facts, ok  # noqa: E402

from remat.deploy import rewritten  # noqa: E402
from remat.deploy.onnx_file import OnnxFile  # noqa: E402
from remat.errors import GraphError  # noqa: E402
from remat.graphs import ComputeGraph, read_graph  # noqa: E402
from remat.graphs.formats.onnx import graph_from_onnx  # noqa: E402
from remat.graphs.rewriting import RewriteOptions, rewrite_graph  # noqa: E402
from remat.graphs.rewriting.check import check_numerics  # noqa: E402
from remat.graphs.rewriting.draft import Draft  # noqa: E402
from remat.graphs.rewriting.numerics import run  # noqa: E402
from remat.graphs.rewriting.pieces import PieceRole, pieces  # noqa: E402

DOUBLE = TensorProto.DOUBLE
IMAGE = (2, 4, 6, 7)
random = np.random.default_rng(0)
NORM = [(4,), (4,), (4,), (4,)]

#: Type, attributes, shape of the first input, shapes of constants, and for each axis of the first input the rewrite of
#: a concatenation along it: p(arts), s(um), or - for none.
CASES = [
    ("Conv", {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}, IMAGE, [(5, 4, 3, 2), (5,)], "ps--"),
    ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, IMAGE, [(5, 4, 3, 2)], "ps--"),
    ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 3]}, IMAGE, [(5, 4, 3, 4)], "ps--"),
    ("Conv", {"auto_pad": "VALID", "kernel_shape": [1, 1]}, IMAGE, [(5, 4, 1, 1)], "ps--"),
    ("Conv", {"group": 4, "pads": [1, 1, 1, 1]}, IMAGE, [(8, 1, 3, 3), (8,)], "pp--"),
    ("Conv", {"group": 2}, IMAGE, [(6, 2, 2, 2), (6,)], "p---"),
    ("Conv", {"strides": [2]}, (2, 4, 6), [(3, 4, 2)], "ps-"),
    ("MaxPool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}, IMAGE, [], "pp--"),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, IMAGE, [], "pp--"),
    ("AveragePool", {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}, IMAGE, [], "pp--"),
    ("AveragePool", {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "count_include_pad": 1}, IMAGE, [], "pp--"),
    ("GlobalAveragePool", {}, IMAGE, [], "pp--"),
    ("GlobalMaxPool", {}, IMAGE, [], "pp--"),
    ("BatchNormalization", {"epsilon": 0.01}, IMAGE, NORM, "pppp"),
    ("Gemm", {"transB": 1}, (3, 6), [(5, 6), (1, 5)], "ps"),
    ("Gemm", {}, (3, 6), [(6, 5), (5,)], "ps"),
    ("MatMul", {}, (2, 3, 6), [(6, 5)], "pps"),
    ("MatMul", {}, (2, 6, 6, 6), [(6, 6)], "ppps"),
    ("Softmax", {"axis": -1}, (2, 3, 6), [], "pp-"),
    ("Add", {}, IMAGE, [(4, 1, 1)], "pppp"),
    ("Sub", {}, IMAGE, [(1, 4, 6, 1)], "pppp"),
    ("PRelu", {}, IMAGE, [(4, 1, 1)], "pppp"),
    ("Clip", {}, IMAGE, [(), ()], "pppp"),
    ("LeakyRelu", {"alpha": 0.3}, IMAGE, [], "pppp"),
    ("HardSigmoid", {}, IMAGE, [], "pppp"),
    ("Gelu", {}, IMAGE, [], "pppp"),
    ("Gelu", {"approximate": "tanh"}, IMAGE, [], "pppp"),
    *((kind, {}, (2, 4), [], "pp") for kind in (
        "Relu", "Elu", "Sigmoid", "Tanh", "HardSwish", "Softplus", "Abs", "Neg", "Exp", "Erf",
    )),
]  # fmt: skip


def computed(graph: ComputeGraph, given: dict, weights: dict) -> dict:
    """Evaluate the tensors of a graph; `weights` are constants by their position among the inputs of an op."""
    inputs = {name: given[name] for name in graph.inputs}
    return run(Draft(graph), lambda shape: shape, 0, inputs=inputs, weights=lambda op, entry: weights[entry["input"]])


@pytest.mark.parametrize(
    ("kind", "attributes", "shape", "constants", "axes"), few(CASES, 12), ids=lambda each: str(each)[:20]
)
def test_ops_and_their_parts_agree_with_onnx(kind, attributes, shape, constants, axes) -> None:
    """Each axis is concatenated from two parts in turn; constants are sliced as described."""
    values = {number: random.random(each) + 0.1 for number, each in enumerate(constants, start=1)}
    held = [constant(f"w{number}", array) for number, array in values.items()]
    for axis, letter in enumerate(axes):
        first = shape[axis] // 2
        parts = [(*shape[:axis], n, *shape[axis + 1 :]) for n in (first, shape[axis] - first)]
        given = {f"x{number}": random.standard_normal(part) for number, part in enumerate(parts)}
        data = model(
            [
                node("Concat", ["x0", "x1"], ["x"], "cat", axis=axis - len(shape)),
                node(kind, ["x", *(each.name for each in held)], ["y"], "op", **attributes),
                node("Identity", ["y"], ["z"], "end"),
            ],
            [value(name, array.shape, DOUBLE) for name, array in given.items()], ["z"], held, opset=22,
        )  # fmt: skip
        (expected,) = ReferenceEvaluator(onnx.ModelProto.FromString(data)).run(["y"], given)
        graph = graph_from_onnx(data)
        done = rewrite_graph(graph, RewriteOptions(min_parts=2))
        for each in (graph, done.graph):
            found = computed(each, given, values)
            assert np.allclose(found["y"], expected, rtol=1e-6, atol=1e-7)
        rules = [rewrite.rule for rewrite in done.rewrites]
        assert rules == {"p": ["parallel-parts"], "s": ["partial-sums"], "-": []}[letter], axis
        check_numerics(graph, done.graph)
        roles = [piece.role for piece in pieces(done.graph).values() if piece.of == "op"]
        assert roles == {"p": ["part", "part", "join"], "s": ["sum", "sum"], "-": ["whole"]}[letter]
        made = onnx.ModelProto.FromString(rewritten(OnnxFile(data), done.graph).data)
        (written,) = ReferenceEvaluator(made).run(["y"], given)
        assert np.allclose(written, expected, rtol=1e-12, atol=1e-12)


def concat_conv(*between, weights=(5, 12, 3, 3), convolution=None, constants=(), inputs=(), name="cat"):
    """Return three convolutions, their concatenation, and a convolution of it."""
    branches = [node("Conv", ["x", "w"], [f"c{n}"], f"branch{n}", pads=[1, 1, 1, 1]) for n in range(3)]
    cat = node("Concat", ["c0", "c1", "c2"], ["cat"], "cat", axis=1)
    last = convolution or node("Conv", [name, "v"], ["y"], "conv", pads=[1, 1, 1, 1])
    held = [weight("w", 4, 3, 3, 3), weight("v", *weights), *constants]
    return model([*branches, cat, *between, last], [value("x", [1, 3, 8, 8]), *inputs], ["y"], held)


def test_rewrite_command_lowers_the_peak_of_a_cell(tmp_path, monkeypatch) -> None:
    """The peak is lower although a partial sum needs memory for its result next to the buffer."""
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(concat_conv(node("Relu", ["cat"], ["r"], "relu"), name="r"))
    shown = ok("rewrite m.onnx -o r.json --check").out
    assert "rewrites    1 parallel-parts, 1 partial-sums\n" in shown
    assert "conv: 3 parts, added up in one buffer" in shown
    found = facts("rewrite m.onnx -o r.json --check --search")
    graph, before = read_graph("r.json"), read_graph("m.onnx")
    image, branch, result = 768, 1024, 1280
    assert found["peak"] == [image + 6 * branch, image + branch + 2 * result] == [6912, graph.reference_peak]
    assert found["peak"][0] <= before.reference_peak
    assert graph.meta["described"]
    found = pieces(graph)
    assert [found[f"conv/part{n}"].constants for n in range(3)] == [{1: (1, 4 * n, 4 * n + 4)} for n in range(3)]
    assert {op.workspace for op in graph.ops if found[op.name].role is PieceRole.SUM} == {5 * 64 * 4}


UNSUPPORTED = {
    "the weights are computed": concat_conv(
        convolution=node("Conv", ["cat", "u"], ["y"], "conv"), inputs=[value("u", [5, 12, 3, 3])]
    ),
    "the bias is computed": concat_conv(
        convolution=node("Conv", ["cat", "v", "u"], ["y"], "conv"), inputs=[value("u", [5])]
    ),
    "groups": concat_conv(convolution=node("Conv", ["cat", "v"], ["y"], "conv", group=3), weights=(6, 4, 3, 3)),
    "transposed": concat_conv(convolution=node("ConvTranspose", ["cat", "v"], ["y"], "conv"), weights=(12, 5, 3, 3)),
    "the concatenation is read as another shape": concat_conv(
        node("Reshape", ["cat", "s"], ["flat"], "reshape"), convolution=node("Conv", ["flat", "v"], ["y"], "conv"),
        constants=[constant("s", np.array([1, 12, 16, 4]))],
    ),
    "a part is read as another shape": concat_conv(
        node("Reshape", ["c0", "s"], ["c0'"], "reshape"), node("Concat", ["c0'", "c0'", "c0'"], ["other"], "c", axis=1),
        constants=[constant("s", np.array([1, 4, 4, 16]))], name="other",
    ),
    "a part is a constant": concat_conv(
        node("Concat", ["c0", "k", "c1", "c2"], ["other"], "c", axis=1), name="other", weights=(5, 16, 3, 3),
        constants=[weight("k", 1, 4, 8, 8)],
    ),
    "of rows": concat_conv(
        node("Concat", ["c0", "c1", "c2"], ["other"], "c", axis=2), name="other", weights=(5, 4, 3, 3)
    ),
    "whole numbers": concat_conv(
        *(node("Cast", [f"c{n}"], [f"i{n}"], f"cast{n}", to=TensorProto.INT32) for n in range(3)),
        node("Concat", ["i0", "i1", "i2"], ["i"], "c", axis=1), convolution=node("Relu", ["i"], ["y"], "r"),
    ),
    "another domain": model(
        [
            *(node("Relu", ["x"], [f"c{n}"]) for n in range(3)),
            node("Concat", ["c0", "c1", "c2"], ["cat"], "cat", axis=1),
            node("FusedConv", ["cat", "v"], ["y"], "conv", domain="com.microsoft", activation="Relu"),
        ],
        [value("x", [1, 4, 8, 8])], [value("y", [1, 5, 6, 6])], [weight("v", 5, 12, 3, 3)], domains=["com.microsoft"],
    ),
    "an attribute that is not expected": concat_conv(
        convolution=node("BatchNormalization", ["cat", "p", "p", "p", "p"], ["y", "m2", "v2"], "bn", training_mode=1),
        constants=[constant("p", np.ones(12, dtype=np.float32))],
    ),
    "scaled": model(
        [
            *(node("Relu", ["x"], [f"c{n}"]) for n in range(3)),
            node("Concat", ["c0", "c1", "c2"], ["cat"], "cat", axis=1),
            node("Gemm", ["cat", "v"], ["y"], "fc", alpha=2.0),
        ],
        [value("x", [2, 4])], ["y"], [weight("v", 12, 5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_ops_stay_unchanged(case) -> None:
    """An op that the reader cannot describe is not split, despite its type, and reads whole tensors."""
    graph = graph_from_onnx(UNSUPPORTED[case])
    done = rewrite_graph(graph)
    assert not done.rewrites
    assert check_numerics(graph, done.graph).difference == 0
    nodes = [
        onnx.ModelProto.FromString(each).graph.node
        for each in (UNSUPPORTED[case], rewritten(OnnxFile(UNSUPPORTED[case]), done.graph).data)
    ]
    assert {each.SerializeToString() for each in nodes[1]} == {each.SerializeToString() for each in nodes[0]}


def test_quantised_convolutions_stay_unchanged() -> None:
    names = ["cat", "s", "z", "v", "s", "z", "s", "z"]
    data = model(
        [
            *(node("QuantizeLinear", ["x", "s", "z"], [f"c{n}"], f"q{n}") for n in range(3)),
            node("Concat", ["c0", "c1", "c2"], ["cat"], "cat", axis=1), node("QLinearConv", names, ["y"], "conv"),
        ],
        [value("x", [1, 4, 8, 8])], [value("y", [1, 5, 6, 6], TensorProto.INT8)],
        [constant("s", np.float32(1)), constant("z", np.int8(0)), constant("v", np.zeros((5, 12, 3, 3), np.int8))],
    )  # fmt: skip
    assert not rewrite_graph(graph_from_onnx(data)).rewrites


def test_one_value_under_two_names_is_read_twice() -> None:
    """An Identity is a view, so two of the three concatenated parts are one tensor."""
    data = concat_conv(
        node("Identity", ["c0"], ["same"]), node("Concat", ["c0", "same", "c1"], ["other"], "c", axis=1), name="other"
    )
    graph = graph_from_onnx(data)
    done = rewrite_graph(graph)
    assert [op.inputs for op in done.graph.ops if op.name.startswith("conv/")] == [("c0",), ("c0",), ("c1",)]
    check_numerics(graph, done.graph)


def test_kernels_in_place_are_an_option() -> None:
    """As in Serenity: no workspace, and a concatenation of two parts is read in place."""
    graph = graph_from_onnx(concat_conv())
    done = rewrite_graph(graph, RewriteOptions(kernels="in-place"))
    assert [rewrite.rule for rewrite in done.rewrites] == ["zero-copy-concat", "partial-sums"]
    assert {op.workspace for op in done.graph.ops} == {0}
    check_numerics(graph, done.graph)
    folded = rewrite_graph(graph, RewriteOptions(kernels="in-place", rules=("zero-copy-concat",))).graph
    check_numerics(graph, folded)
    with refused("graph.in-place", culprit="conv/part1"):
        pieces(rewrite_graph(graph, RewriteOptions(kernels="in-place", parts=2)).graph)
    whole = rewrite_graph(graph).graph
    described = {**whole.meta["attrs"], "conv/part0": {**whole.meta["attrs"]["conv/part0"], "constants": [{}]}}
    with refused("graph.pieces", culprit="conv/part0"):
        pieces(replace(whole, meta={**whole.meta, "attrs": described}))


def test_check_detects_wrong_descriptions() -> None:
    """The check computes convolutions as described, not by the dimension rule."""
    graph = graph_from_onnx(concat_conv())
    done = rewrite_graph(graph).graph
    attributes = done.meta["attrs"]
    right = attributes["conv/part1"]
    weights = right["constants"][0]
    faults = {
        "tensor 'y' differs by": {"pads": [[0, 2], [1, 1]]},
        "constant 1 has 3 elements for 12": {"constants": [{**weights, "along": [[1, 2]]}]},
        "axis 0 of its images has 8 windows, not 6": {"dilation": [2, 2]},
        "it has no constant that is its weight": {"constants": []},
    }
    for words, wrong in list(faults.items()):
        attributes["conv/part1"] = right | wrong
        with pytest.raises(GraphError, match=words):
            check_numerics(graph, done)
