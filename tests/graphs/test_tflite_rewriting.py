"""Rewriting of TensorFlow Lite models: outputs agree with LiteRT, and unsupported ops stay unchanged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from shell import facts, ok
from tflite_models import OPS, G, O, T, model, tflite

from remat.deploy import Search, deploy, rewritten
from remat.deploy.tflite_file import TfliteFile
from remat.graphs import read_graph
from remat.graphs.formats.tflite import graph_from_tflite
from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.rewriting.check import check_numerics
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.numerics import run
from remat.graphs.rewriting.pieces import pieces

FLOAT = tflite.TensorType.FLOAT32
RELU, RELU6, TANH = 1, 3, 4
SAME, VALID = 0, 1
IMAGE = (1, 6, 7, 4)
random = np.random.default_rng(0)
STRIDES = {"StrideH": 2, "StrideW": 1}


def conv(**options):
    return ("Conv2DOptions", {"StrideH": 1, "StrideW": 1, "Padding": SAME, **options})


#: Type, options, shape of the first input, shapes of constants, and shape of the output. Then, for each axis of the
#: first input but that of samples, the rewrite of a concatenation along it: p(arts), s(um), or - for none.
CASES = [
    ("CONV_2D", conv(**STRIDES), IMAGE, [(5, 3, 2, 4), (5,)], (1, 3, 7, 5), "--s"),
    ("CONV_2D", conv(**STRIDES, Padding=VALID, FusedActivationFunction=RELU), IMAGE, [(5, 3, 2, 4), (5,)],
     (1, 2, 6, 5), "--s"),
    ("CONV_2D", conv(DilationHFactor=2, FusedActivationFunction=RELU6), IMAGE, [(5, 3, 3, 4), (5,)], (1, 6, 7, 5),
     "--s"),
    ("DEPTHWISE_CONV_2D",
     ("DepthwiseConv2DOptions", {"StrideH": 2, "StrideW": 2, "DepthMultiplier": 2, "FusedActivationFunction": RELU}),
     IMAGE, [(1, 3, 3, 8), (8,)], (1, 3, 4, 8), "--p"),
    ("AVERAGE_POOL_2D", ("Pool2DOptions", {**STRIDES, "FilterHeight": 3, "FilterWidth": 2}), IMAGE, [], (1, 3, 7, 4),
     "--p"),
    ("MAX_POOL_2D",
     ("Pool2DOptions", {**STRIDES, "FilterHeight": 3, "FilterWidth": 2, "FusedActivationFunction": RELU}), IMAGE, [],
     (1, 3, 7, 4), "--p"),
    ("FULLY_CONNECTED", ("FullyConnectedOptions", {"FusedActivationFunction": RELU}), (3, 6), [(5, 6), (5,)], (3, 5),
     "s"),
    ("ADD", ("AddOptions", {"FusedActivationFunction": RELU}), IMAGE, [(4,)], IMAGE, "ppp"),
    ("MUL", ("MulOptions", {}), IMAGE, [(1, 6, 1, 4)], IMAGE, "ppp"),
    ("SOFTMAX", ("SoftmaxOptions", {"Beta": 1.0}), (3, 6), [], (3, 6), "-"),
    ("LEAKY_RELU", ("LeakyReluOptions", {"Alpha": 0.3}), IMAGE, [], IMAGE, "ppp"),
    *((kind, None, IMAGE, [], IMAGE, "ppp") for kind in ("RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH")),
]  # fmt: skip


def on_parts(kind, options, parts, constants, output, *, axis):
    """Return inputs, their concatenation along an axis, and an op of it with these constants."""
    shape = (*parts[0][:axis], sum(part[axis] for part in parts), *parts[0][axis + 1 :])
    n = len(parts)
    tensors = [T(f"x{number}", part, FLOAT) for number, part in enumerate(parts)]
    tensors += [T("x", shape, FLOAT), T("y", output, FLOAT)]
    tensors += [T(f"w{k}", each.shape, FLOAT, data=each.astype("<f4").tobytes()) for k, each in enumerate(constants)]
    ops = [
        O(OPS.CONCATENATION, tuple(range(n)), (n,), options=("ConcatenationOptions", {"Axis": axis})),
        O(getattr(OPS, kind), (n, *range(n + 2, len(tensors))), (n + 1,), options=options),
    ]
    return model(G(tensors, ops, tuple(range(n)), (n + 1,)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_ops_and_their_parts_agree_with_litert(case) -> None:
    """Each axis except that of samples is concatenated from two parts in turn; LiteRT is an optional reference."""
    kind, options, shape, constants, output, axes = case
    weights = [random.standard_normal(each) for each in constants]
    for axis, letter in enumerate(axes, start=1):
        cut = shape[axis] // 2
        parts = [(*shape[:axis], n, *shape[axis + 1 :]) for n in (cut, shape[axis] - cut)]
        data = on_parts(kind, options, parts, weights, output, axis=axis)
        graph = graph_from_tflite(data)
        done = rewrite_graph(graph, RewriteOptions(min_parts=2))
        roles = [piece.role for piece in pieces(done.graph).values() if piece.of == f"{kind}_1"]
        assert roles == {"p": ["part", "part", "join"], "s": ["sum", "sum"], "-": ["whole"]}[letter], axis
        assert check_numerics(graph, done.graph).difference < 1e-12
        given = {f"x{number}": random.standard_normal(part).astype("f4") for number, part in enumerate(parts)}
        found = [
            run(
                Draft(each), lambda shape: shape, 0, inputs=given,
                weights=lambda op, entry: weights[entry["input"] - 1],
            )["y"]
            for each in (graph, done.graph)
        ]  # fmt: skip
        assert np.allclose(*found, rtol=1e-12, atol=1e-12)
        made = rewritten(TfliteFile(data), done.graph).data
        assert np.allclose(computed(made, given), found[0], rtol=1e-5, atol=1e-5)
        for each in (data, made):
            expected = interpreted(each, given)
            assert expected is None or np.allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def computed(data, given):
    """Return the output of a model as its reader describes it, with the constants of the file."""
    file = TfliteFile(data)
    flat, places = file.flat, file.flat.tables(file.subgraphs[0], 0)

    def stored(op, entry):
        position = file.tables[0].operators[file.assembly.position_of[op]].inputs[entry["input"]]
        buffer = flat.tables(flat.root, 4)[flat.scalar(places[position], 2, "I")]
        values = np.array(flat.numbers(buffer, 0, "B"), dtype=np.uint8).view("<f4")
        return values.reshape(entry["shape"]).astype(float)

    return run(Draft(file.graph), lambda shape: shape, 0, inputs=given, weights=stored)["y"]


def interpreted(data, given):
    """Return the output of a model by LiteRT, None if that is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        return None
    interpreter = Interpreter(model_content=data)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], given[detail["name"]])
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


PARTS = [(1, 8, 8, 4)] * 3


def cell(options=None, kind="CONV_2D", weights=(5, 3, 3, 12), output=(1, 8, 8, 5)):
    return on_parts(kind, options or conv(), PARTS, [np.zeros(weights), np.zeros(output[-1])], output, axis=3)


def test_rewrite_command_lowers_the_peak_of_a_cell(tmp_path, monkeypatch) -> None:
    """Only the last addition has the fused activation."""
    monkeypatch.chdir(tmp_path)
    Path("m.tflite").write_bytes(cell(conv(FusedActivationFunction=RELU)))
    assert "check       4 tensors agree within " in ok("rewrite m.tflite -o r.json --check").out
    found = facts("rewrite m.tflite -o r.json --search --check")
    graph = read_graph("r.json")
    part, result = 4 * 4 * 64, 5 * 4 * 64
    assert found["peak"] == [6 * part, 3 * part + 2 * result] == [6144, graph.reference_peak]
    piece = pieces(graph)["CONV_2D_1/part1"]
    assert (piece.of, piece.role, piece.constants, piece.activation) == ("CONV_2D_1", "sum", {1: (3, 4, 8)}, "relu")
    ok("rewrite m.tflite -o n.tflite")
    new = TfliteFile(Path("n.tflite").read_bytes())
    kinds = [entry.kind for entry in new.tables[0].operators]
    assert (kinds.count("CONV_2D"), kinds.count("ADD"), len(kinds)) == (3, 2, 5)
    activations = [entry.options["FusedActivationFunction"] for entry in new.tables[0].operators]
    assert activations == [0, 0, 0, 0, RELU]
    assert new.graph.reference_peak == part + 3 * result  # at the first addition
    assert deploy(new, search=Search(measure=False)).after <= part + 3 * result
    wrong = dict(graph.meta["attrs"]["CONV_2D_1/part0"], activation="relu6")
    hostile = replace(graph, meta=graph.meta | {"attrs": graph.meta["attrs"] | {"CONV_2D_1/part0": wrong}})
    with refused("graph.pieces", culprit="CONV_2D_1/part0"):
        rewritten(TfliteFile(Path("m.tflite").read_bytes()), hostile)


def quantised():
    tensors = [T(f"x{n}", part) for n, part in enumerate(PARTS)]
    tensors += [T("x", (1, 8, 8, 12)), T("y", (1, 8, 8, 5)), T("w", (5, 3, 3, 12), data=540)]
    concat = O(OPS.CONCATENATION, (0, 1, 2), (3,), options=("ConcatenationOptions", {"Axis": 3}))
    return model(G(tensors, [concat, O(OPS.CONV_2D, (3, 5), (4,), options=conv())], (0, 1, 2), (4,)))


def reshaped():
    tensors = [T(f"x{n}", (1, 8, 8, 4), FLOAT) for n in range(3)] + [T("v", (1, 4, 16, 4), FLOAT)]
    tensors += [T("x", (1, 4, 16, 8), FLOAT), T("y", (1, 4, 16, 5), FLOAT), T("w", (5, 1, 1, 8), FLOAT, data=160)]
    tensors += [T("u", (1, 4, 16, 4), FLOAT)]
    concat = O(OPS.CONCATENATION, (3, 7), (4,), options=("ConcatenationOptions", {"Axis": 3}))
    views = [O(OPS.RESHAPE, (0,), (3,)), O(OPS.RESHAPE, (1,), (7,))]
    last = O(OPS.CONV_2D, (4, 6), (5,), options=conv())
    return model(G(tensors, [*views, concat, last], (0, 1, 2), (5,)))


UNSUPPORTED = {
    "quantised": quantised(),
    "parts read as another shape": reshaped(),
    "an activation that is not everywhere": cell(conv(FusedActivationFunction=TANH)),
    "grouped": cell(weights=(6, 3, 3, 4), output=(1, 8, 8, 6)),
    "no options": on_parts("CONV_2D", None, PARTS, [np.zeros((5, 3, 3, 12))], (1, 8, 8, 5), axis=3),
    "options of another op": cell(("Pool2DOptions", {"FilterHeight": 1})),
    "transposed": on_parts("TRANSPOSE_CONV", None, PARTS, [np.zeros((5, 3, 3, 12))] * 2, (1, 8, 8, 5), axis=3),
    "shuffled weights": on_parts("FULLY_CONNECTED", ("FullyConnectedOptions", {"WeightsFormat": 1}), [(2, 4)] * 3,
                                 [np.zeros((5, 12))], (2, 5), axis=1),
    "a multiplier that does not fit": cell(("DepthwiseConv2DOptions", {"StrideH": 1, "StrideW": 1,
                                            "DepthMultiplier": 3}), "DEPTHWISE_CONV_2D", (1, 3, 3, 12), (1, 8, 8, 12)),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_ops_stay_unchanged(case) -> None:
    graph = graph_from_tflite(UNSUPPORTED[case])
    done = rewrite_graph(graph, RewriteOptions(min_parts=2))
    assert not done.rewrites
    assert check_numerics(graph, done.graph).difference == 0
    made = rewritten(TfliteFile(UNSUPPORTED[case]), done.graph)
    assert made.tables[0].operators == TfliteFile(UNSUPPORTED[case]).tables[0].operators
