"""Reader of ONNX models: bytes, FLOPs, views, constants, open dimensions, and invalid or hostile files."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402
from helpers import at_most, costs, sizes  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx_models import FLOAT, INT64, constant, model, node, value, weight  # noqa: E402
from refusals import check_text, refused  # noqa: E402
from shell import facts, shell  # noqa: E402

from remat import read_graph  # noqa: E402
from remat.cli import main  # noqa: E402
from remat.errors import FormatError  # noqa: E402
from remat.graphs.formats.onnx import graph_from_onnx  # noqa: E402
from remat.graphs.formats.onnx.given_values import read_tensor  # noqa: E402
from remat.graphs.formats.onnx.stream import without_weights  # noqa: E402
from remat.io.limits import read_limits  # noqa: E402


def network(batch=2):
    """Return a convolution, a ReLU, a flattening and a fully connected layer."""
    return model(
        [
            node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"], "relu"),
            node("Flatten", ["r"], ["f"], "flat"),
            node("Gemm", ["f", "v", "b"], ["y"], "fc"),
        ],
        [value("x", [batch, 3, 8, 8])], ["y"], [weight("w", 4, 3, 3, 3), weight("v", 256, 10), weight("b", 10)],
    )  # fmt: skip


def test_bytes_costs_views_and_constants() -> None:
    graph = graph_from_onnx(network())
    assert sizes(graph) == {"x": 2 * 3 * 64 * 4, "c": 2048, "r": 2048, "y": 80}
    assert costs(graph) == {"conv": 2 * 4 * 64 * 2 * 27, "relu": 512, "fc": 2 * 10 * (2 * 256 + 1)}
    assert [op.inputs for op in graph.ops] == [("x",), ("c",), ("r",)]
    assert (graph.inputs, graph.outputs, graph.cost_unit) == (("x",), ("y",), "flop")
    assert graph.constant_memory == 4 * (4 * 27 + 2560 + 10)
    assert graph.reference_peak == 1536 + 4096
    kept = graph_from_onnx(network(), views="keep")
    assert (sizes(kept)["f"], costs(kept)["flat"]) == (2048, 0)
    with refused("format.option", culprit="no"):
        graph_from_onnx(network(), views="no")


def test_open_dimensions_must_be_given() -> None:
    data = model(
        [node("Relu", ["x"], ["r"]), node("Add", ["r", "z"], ["y"])],
        [value("x", ["batch", "width"]), value("z", [None, "width"])], ["y"],
    )  # fmt: skip
    with pytest.raises(FormatError) as error:
        graph_from_onnx(data)
    assert str(error.value) == (
        "sizes of batch (x[0]); width (x[1], z[1]); z[0] not given: dims={'batch': ...}, "
        "in the shell: remat convert --dim batch=..."
    )
    graph = graph_from_onnx(data, dims={"batch": 8, "width": 3, "z[0]": 8})
    assert sizes(graph) == {"x": 96, "z": 96, "r": 96, "y": 96}
    with refused("format.dims", culprit="heigth"):
        graph_from_onnx(data, dims={"batch": 8, "width": 3, "z[0]": 8, "heigth": 2})
    with refused("format.dims", culprit="batch"):
        graph_from_onnx(data, dims={"batch": 0})


def test_data_dependent_dimension_must_be_given() -> None:
    data = model(
        [node("NonZero", ["x"], ["n"], "where"), node("Cast", ["n"], ["y"], to=FLOAT)], [value("x", [4, 4])], ["y"]
    )
    with refused("format.open-dims", culprit="where"):
        graph_from_onnx(data)
    assert sizes(graph_from_onnx(data, dims={"n[1]": 5})) == {"x": 64, "n": 80, "y": 40}


def test_elements_of_less_than_a_byte_are_packed() -> None:
    data = model(
        [node("Cast", ["x"], ["a"], to=TensorProto.INT4), node("Cast", ["a"], ["h"], to=TensorProto.BFLOAT16),
         node("Cast", ["h"], ["y"], to=TensorProto.BOOL)],
        [value("x", [3, 3])], [value("y", [3, 3], TensorProto.BOOL)],
    )  # fmt: skip
    assert sizes(graph_from_onnx(data)) == {"x": 36, "a": 5, "h": 18, "y": 9}


def test_shape_arithmetic_is_folded() -> None:
    """As exporters write `x.view(x.shape[0], 2, -1)`: no op, no memory, and a known shape."""
    data = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["b"]),
            node("Unsqueeze", ["b", "axes"], ["b1"]),
            node("Concat", ["b1", "rest"], ["all"], axis=0),
            node("Equal", ["all", "all"], ["same"]),
            node("Where", ["same", "all", "all"], ["shape"]),
            node("Reshape", ["x", "shape"], ["v"]),
            node("Softmax", ["v"], ["y"]),
        ],
        [value("x", ["n", 6])], ["y"],
        [constant("zero", np.int64(0)), constant("axes", np.array([0])), constant("rest", np.array([2, -1]))],
    )  # fmt: skip
    graph = graph_from_onnx(data, dims={"n": 5})
    assert [(op.type, op.inputs, op.cost) for op in graph.ops] == [("Softmax", ("x",), 5 * 30)]
    assert graph.constant_memory == 0


def test_computed_constants_are_constant_memory() -> None:
    data = model(
        [node("Mul", ["w", "w"], ["ww"]), node("Add", ["x", "ww"], ["y"]), node("Relu", ["x"], ["unused"])],
        [value("x", [4]), value("w", [4])], ["y", "ww"], [weight("w", 4)],
    )  # fmt: skip
    remarks: list[str] = []
    graph = graph_from_onnx(data, remarks=remarks)
    assert (costs(graph), graph.constant_memory, graph.inputs, graph.outputs) == ({"Add_1": 4}, 16, ("x",), ("y",))
    assert remarks == [
        "1 nodes that no output depends on are left out",
        "1 graph outputs do not depend on the inputs and are left out",
    ]


def test_names_are_made_unique_and_printable() -> None:
    data = model(
        [node("Relu", ["x"], ["a"], "op"), node("Relu", ["a"], ["b\n"], "op"), node("Relu", ["b\n"], ["y"])],
        [value("x", [1])], ["y"],
    )  # fmt: skip
    graph = graph_from_onnx(data)
    assert graph.op_names == ("op", "op#2", "Relu_2")
    assert graph.tensor_names == ("x", "a", "b ", "y")


def test_dropout_is_a_view_or_not_recomputable() -> None:
    off = model([node("Dropout", ["x"], ["d"]), node("Relu", ["d"], ["y"])], [value("x", [4])], ["y"])
    assert [op.type for op in graph_from_onnx(off).ops] == ["Relu"]
    on = model(
        [node("Dropout", ["x", "", "on"], ["d", "mask"]), node("Relu", ["d"], ["y"])],
        [value("x", [4])], ["y"], [constant("on", np.array(True))],
    )  # fmt: skip
    assert [(op.type, op.recomputable) for op in graph_from_onnx(on).ops] == [("Dropout", False), ("Relu", True)]


def branches():
    inner = [
        helper.make_graph([node(kind, ["outer"], [out])], kind, [], [value(out, [4])])
        for kind, out in (("Relu", "p"), ("Neg", "q"))
    ]
    return model(
        [node("Abs", ["x"], ["outer"]), node("If", ["c"], ["y"], "choice", then_branch=inner[0], else_branch=inner[1])],
        [value("x", [4]), value("c", [], TensorProto.BOOL)], ["y"],
    )  # fmt: skip


def test_control_flow_is_one_op_or_refused(tmp_path: Path) -> None:
    with refused("format.control-flow", culprit="choice"):
        graph_from_onnx(branches(), control_flow="refuse")
    (tmp_path / "model.onnx").write_bytes(branches())
    assert "are one op" in shell("show", tmp_path / "model.onnx").err
    graph = read_graph(tmp_path / "model.onnx")
    assert graph.ops[1].inputs == ("c", "outer")
    # the output of a branch is that of the op
    assert (sizes(graph)["y"], graph.ops[1].workspace, graph.ops[1].cost) == (16, 0, 4)


def loop(trips=5, **given):
    """Return a loop: s -> relu(s w), with all products s w stacked."""
    body = helper.make_graph(
        [node("MatMul", ["s", "w"], ["t"]), node("Relu", ["t"], ["u"]), node("Identity", ["go"], ["on"])],
        "body", [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("s", [1, 4])],
        [value("on", [], TensorProto.BOOL), value("u", [1, 4]), value("t", [1, 4])], [weight("w", 4, 4)],
    )  # fmt: skip
    return model(
        [node("Loop", ["n", given.get("go", ""), "x"], ["y", "ys"], "loop", body=body)],
        [value("x", [1, 4]), *([value("go", [], TensorProto.BOOL)] if given else [])], ["y", "ys"],
        [constant("n", np.array(trips))],
    )  # fmt: skip


def test_loops_with_a_known_number_of_runs_have_sizes_costs_and_workspace() -> None:
    graph = graph_from_onnx(loop())
    assert sizes(graph) == {"x": 16, "y": 16, "ys": 5 * 16}
    # counter, condition and s are held while t and u are computed; constants are n, `on` and w
    assert (graph.ops[0].workspace, graph.ops[0].cost, graph.constant_memory) == (
        8 + 1 + 3 * 16,
        5 * (32 + 4),
        8 + 1 + 64,
    )
    assert sizes(graph_from_onnx(loop(0)))["ys"] == 0


def test_loops_without_a_known_number_of_runs_need_sizes() -> None:
    with refused("format.open-dims", culprit="ys"):
        graph_from_onnx(loop(go="go"))
    remarks: list[str] = []
    graph = graph_from_onnx(loop(go="go"), dims={"ys[0]": 3}, remarks=remarks)
    assert (sizes(graph)["ys"], graph.ops[0].cost) == (48, 36)
    assert remarks[-1] == "loops without a known number of runs cost one run: 'loop'"


@pytest.mark.parametrize("opset", [8, 21])
def test_scans(opset: int) -> None:
    """Sums along an axis; before version 9 there was a batch axis, and no axis could be chosen."""
    body = helper.make_graph(
        [node("Add", ["s", "xi"], ["t"]), node("Concat", ["t", "t"], ["z"], axis=0)], "body",
        [value("s", [4]), value("xi", [4])], [value("t", [4]), value("z", [8])],
    )  # fmt: skip
    batch, given, shape = (
        ([2], {}, [3, 4]) if opset == 8 else ([], {"scan_input_axes": [1], "scan_output_axes": [-1]}, [4, 3])
    )
    scan = node("Scan", [*([""] if batch else []), "s0", "x"], ["s1", "zs"], body=body, num_scan_inputs=1, **given)
    graph = graph_from_onnx(
        model([scan], [value("s0", [*batch, 4]), value("x", [*batch, *shape])], ["s1", "zs"], opset=opset)
    )
    many = 2 if batch else 1
    assert sizes(graph) == {"s0": many * 16, "x": many * 48, "s1": many * 16, "zs": many * 96}
    assert (graph.ops[0].workspace, graph.ops[0].cost) == (16 + 16 + 16 + 32, many * 3 * (4 + 8))


def test_known_conditions_choose_a_branch_and_decide_shapes() -> None:
    def branch(name: str, *shape: int) -> Any:
        return helper.make_graph([node("Identity", [name], [f"{name}_"])], name, [], [value(f"{name}_", [2], INT64)],
                                 [constant(name, np.array(shape))])  # fmt: skip

    nodes = [
        node("Size", ["x"], ["n"]), node("Equal", ["n", "sixteen"], ["c"]),
        node("If", ["c"], ["shape"], then_branch=branch("wide", 2, 8), else_branch=branch("square", 4, 4)),
        node("Reshape", ["x", "shape"], ["r"]), node("MatMul", ["r", "w"], ["y"]),
    ]  # fmt: skip
    graph = graph_from_onnx(
        model(nodes, [value("x", [16])], ["y"], [constant("sixteen", np.array(16)), weight("w", 8, 3)])
    )
    assert sizes(graph) == {"x": 64, "y": 24}


def test_graphs_that_cannot_be_sized_leave_the_op_to_the_rule_of_onnx() -> None:
    branches = [
        helper.make_graph(nodes, name, [], [value(name, [4])])
        for name, nodes in (
            ("yes", [node("SequenceConstruct", ["x", "x"], ["q"]), node("SequenceAt", ["q", "one"], ["yes"])]),
            ("no", [node("Neg", ["x"], ["no"])]),
        )
    ]
    remarks: list[str] = []
    choice = node("If", ["c"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1])
    inputs = [value("x", [4]), value("c", [], TensorProto.BOOL)]
    graph = graph_from_onnx(model([choice], inputs, ["y"], [constant("one", np.array(1))]), remarks=remarks)
    assert (sizes(graph)["y"], graph.ops[0].workspace, graph.ops[0].recomputable) == (16, 0, False)
    assert remarks == [
        "the graphs of 'choice' are not read, and their memory is not counted: "
        "'q' is a sequence, which has no size, not a tensor"
    ]


def test_contents_decide_the_shape_of_unique() -> None:
    unique = node("Unique", ["x"], ["u", "", "back"])
    data = model([unique, node("Relu", ["u"], ["y"])], [value("x", [6])], ["y", "back"])
    with refused("format.open-dims", culprit="u"):
        graph_from_onnx(data)
    assert sizes(graph_from_onnx(data, values={"x": [2, 1, 1, 3, 4, 3]})) == {"u": 16, "back": 48, "y": 16}


def function(name, *calls):
    """Return a function of the domain `own` that calls others one after the other."""
    names = ["a", *(f"t{each}" for each in range(1, len(calls))), "b"]
    nodes = [
        node(each, [names[i]], [names[i + 1]], domain="" if each == "Relu" else "own") for i, each in enumerate(calls)
    ]
    return helper.make_function(
        "own", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    )


def calling(*functions):
    return model(
        [node("f0", ["x"], ["y"], domain="own")], [value("x", [4])], ["y"], functions=functions, domains=["own"]
    )


def test_functions_are_expanded_within_limits() -> None:
    graph = graph_from_onnx(calling(function("f0", "f1", "f1"), function("f1", "Relu", "Relu")))
    assert [op.type for op in graph.ops] == ["Relu"] * 4
    with refused("format.recursion", culprit="f0"):
        graph_from_onnx(calling(function("f0", "f1", "Relu"), function("f1", "f0")))
    bomb = [function(f"f{i}", *[f"f{i + 1}"] * 10) for i in range(30)]
    with refused("format.expansion"):
        graph_from_onnx(calling(*bomb, function("f30", "Relu")))


def long_attributes(calls: int, length: int) -> bytes:
    """Return calls of a function with a long text in its body."""
    body = [node("Neg", ["a"], ["b"], doc_string="d" * length)]
    own = helper.make_function("own", "f0", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    names = ["x", *(f"v{number}" for number in range(calls - 1)), "y"]
    nodes = [node("f0", [names[number]], [names[number + 1]], domain="own") for number in range(calls)]
    return model(nodes, [value("x", [4])], ["y"], functions=[own], domains=["own"])


def doubled_attributes(depth: int, length: int) -> bytes:
    """Return a model with a long attribute that each function passes twice to the next."""
    opset = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth):
        kind, domain, name = (f"f{level + 1}", "own", "text") if level + 1 < depth else ("Gelu", "", "approximate")
        body = []
        for output in ("b", "c"):
            call = node(kind, ["a"], [output], domain=domain)
            attribute = onnx.AttributeProto(name=name, ref_attr_name="text", type=onnx.AttributeProto.STRING)
            call.attribute.append(attribute)
            body.append(call)
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], body, opset, ["text"]))
    call = node("f0", ["x"], ["y"], domain="own", text="t" * length)
    return model([call], [value("x", [4])], ["y"], functions=functions, domains=["own"])


def nested_ifs(width: int, depth: int = 0) -> bytes:
    """Return an `If` with many of them in its branch, each of which receives all names before it."""

    def branching(output: str, yes, no):
        return node("If", ["c"], [output], output, then_branch=yes, else_branch=no)

    def graph(output: str, nodes=()):
        return helper.make_graph([*nodes, node("Identity", ["x"], [output])], "g", [], [value(output, [1])])

    def inner(name: str) -> list:
        return [
            branching(f"{name}{number}", graph(f"t{name}{number}"), graph(f"e{name}{number}"))
            for number in range(width)
        ]

    nodes = inner("n")
    for level in range(depth):
        nodes = [*inner(f"l{level}"), branching(f"d{level}", graph(f"td{level}", nodes), graph(f"ed{level}"))]
    outer = branching("y", graph("then", nodes), graph("else"))
    return model([outer], [value("x", [1]), value("c", [], TensorProto.BOOL)], ["y"])


def test_messages_are_counted_before_they_are_parsed() -> None:
    nodes = b"\x0a\x00" * 2**21  # two bytes for each empty node in the file, 150 in memory
    with read_limits(memory="16MiB"), refused("format.read-memory"):
        graph_from_onnx(b"\x08\x09\x3a\x80\x80\x80\x02" + nodes)
    weights = model([node("Add", ["x", "w"], ["y"])], [value("x", [1500, 1000])], ["y"], [weight("w", 1500, 1000)])
    with read_limits(memory="16MiB"):
        assert len(weights) > 6_000_000 and graph_from_onnx(weights).ops


@pytest.mark.parametrize(
    ("made", "bomb", "fine", "limits"),
    [
        (long_attributes, (500, 20_000), (500, 20), {"memory": "16MiB"}),
        (doubled_attributes, (12, 20_000), (2, 20_000), {"memory": "16MiB"}),
        (nested_ifs, (100, 20), (2, 20), {"seconds": 1}),
    ],
)
def test_models_that_expand_too_far_are_refused(made, bomb: tuple, fine: tuple, limits: dict) -> None:
    data, kind = made(*bomb), "read-memory" if "memory" in limits else "read-time"
    assert len(data) < 2_000_000
    with at_most(5), read_limits(**limits), refused(f"format.{kind}"):
        graph_from_onnx(data, control_flow="op")
    with read_limits(**limits):
        assert graph_from_onnx(made(*fine), control_flow="op").ops


def test_ops_of_other_domains_need_shapes_in_the_file() -> None:
    nodes = [node("Mine", ["x"], ["m"], "special", domain="some.where"), node("Relu", ["m"], ["y"])]
    with refused("format.unknown-shape", culprit="m"):
        graph_from_onnx(model(nodes, [value("x", [4])], ["y"], domains=["some.where"]))
    remarks: list[str] = []
    data = model(nodes, [value("x", [4])], ["y"], domains=["some.where"], value_info=[value("m", [2])])
    assert costs(graph_from_onnx(data, remarks=remarks)) == {"special": 2, "Relu_1": 2}
    assert remarks == ["ops without a formula cost one FLOP for each element written: 'some.where.Mine'"]


def test_training_step() -> None:
    """Gradients are outputs, and the backward pass reads activations again."""
    data = model(
        [
            node("MatMul", ["x", "w"], ["h"], "forward"),
            node("Relu", ["h"], ["a"], "relu"),
            node("ReduceSum", ["a"], ["loss"], "loss", keepdims=0),
            node("Cast", ["h"], ["mask"], "positive", to=TensorProto.BOOL),
            node("Cast", ["mask"], ["dh"], "dh", to=FLOAT),
            node("Transpose", ["x"], ["xt"], "xt", perm=[1, 0]),
            node("MatMul", ["xt", "dh"], ["dw"], "dw"),
        ],
        [value("x", [8, 4])], ["loss", "dw"], [weight("w", 4, 2)],
    )  # fmt: skip
    graph = graph_from_onnx(data)
    assert graph.outputs == ("loss", "dw")
    assert costs(graph)["dw"] == 2 * 8 * 8
    assert costs(graph)["loss"] == 16


def test_modules_are_read_from_names_and_scopes() -> None:
    scoped = node("Relu", ["a"], ["y"], "node_relu")
    scoped.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layers.1', 'layers.1.act', 'relu']")
    data = model([node("Relu", ["x"], ["a"], "/layers.0/act/Relu"), scoped], [value("x", [1])], ["y"])
    assert graph_from_onnx(data).meta["modules"] == {"/layers.0/act/Relu": "layers.0.act", "node_relu": "layers.1.act"}


B, H, L, D = 2, 3, 5, 4
FORMULAS = [
    ("Conv", [[2, 4, 9, 9], [8, 2, 3, 3], [8]], {"group": 2, "strides": [2, 2]}, 2 * 8 * 16 * (2 * 2 * 9 + 1)),
    ("ConvTranspose", [[2, 4, 5, 5], [4, 6, 2, 2]], {"strides": [2, 2]}, 2 * 200 * 6 * 4),
    ("Gemm", [[7, 3], [7, 2]], {"transA": 1}, 3 * 2 * 2 * 7),
    ("MatMul", [[6, 2, 3], [3, 5]], {}, 2 * 6 * 2 * 5 * 3),
    ("Einsum", [[B, L, D], [B, 6, D]], {"equation": "bik,bjk->bij"}, 2 * B * L * 6 * D),
    ("Einsum", [[9, B, L], [L, D]], {"equation": "...ik, kj -> ...ij"}, 2 * 9 * B * L * D),
    ("LSTM", [[L, B, 3], [1, 16, 3], [1, 16, 4]], {"hidden_size": 4}, L * B * (4 * 4 * (2 * 7 + 3) + 16)),
    ("GRU", [[L, B, 3], [1, 12, 3], [1, 12, 4]], {"hidden_size": 4}, L * B * (3 * 4 * (2 * 7 + 3) + 16)),
    ("AveragePool", [[1, 2, 8, 8]], {"kernel_shape": [3, 3]}, 2 * 36 * 9),
    ("GlobalAveragePool", [[1, 2, 8, 8]], {}, 128),
    ("BatchNormalization", [[1, 2, 8, 8], [2], [2], [2], [2]], {}, 256),
    ("LayerNormalization", [[2, 8], [8], [8]], {}, 7 * 16),
    ("Softmax", [[2, 8]], {}, 80),
    ("Attention", [[B, H, L, D], [B, H, 7, D], [B, H, 7, 6]], {}, B * H * L * 7 * (2 * (D + 6) + 5)),
    ("ReduceMean", [[2, 8]], {"keepdims": 0}, 16),
    ("Add", [[2, 8], [8]], {}, 16),
    ("Transpose", [[2, 8]], {}, 16),
]


@pytest.mark.parametrize(("kind", "shapes", "attributes", "flops"), FORMULAS, ids=[each[0] for each in FORMULAS])
def test_flops(kind: str, shapes: list[list[int]], attributes: dict, flops: int) -> None:
    names = [f"x{each}" for each in range(len(shapes))]
    first, *others = zip(names, shapes, strict=True)
    data = model(
        [node(kind, names, ["y"], "op", **attributes)], [value(*first)], ["y"], [weight(n, *s) for n, s in others],
        opset=23,
    )  # fmt: skip
    assert costs(graph_from_onnx(data)) == {"op": flops}


# -- invalid and hostile files ---------------------------------------------------------------------------------------


def chain(*nodes, constants=()):
    return model(list(nodes), [value("x", [4])], ["y"], constants)


BROKEN = {
    "a cycle": chain(node("Add", ["x", "b"], ["a"], "one"), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])),
    "nothing writes it": chain(node("Add", ["x", "b"], ["y"], "one")),
    "written twice": chain(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], "two")),
    "no output": chain(node("Relu", ["x"], ["a"])),
    "no node": model([], [value("x", [4])], [value("x", [4])]),
    "no such op": chain(node("Reluu", ["x"], ["y"], "bad")),
    "no such domain": chain(node("A", ["x"], ["y"], "bad", domain="no")),
    "shapes that do not fit": chain(node("MatMul", ["x", "w"], ["y"], "bad"), constants=[weight("w", 5, 2)]),
    "too few inputs": chain(node("Conv", ["x"], ["y"], "bad")),
    "text": model([node("Identity", ["x"], ["y"])], [value("x", [4], TensorProto.STRING)], ["y"]),
    "a sequence": chain(node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "i"], ["y"]),
                         constants=[constant("i", np.int64(0))]),
    "huge": model([node("Relu", ["x"], ["y"])], [value("x", [2**40, 2**40])], ["y"]),
    "many axes": model([node("Relu", ["x"], ["y"])], [value("x", [1] * 40)], ["y"]),
    "no equation": chain(node("Einsum", ["x"], ["y"], "bad", equation=".r.ik->...i")),
    "odd names": model([node("Relu", ["x"], ["y"])], [value("x", ["a\nb", "c" * 5000])], ["y"]),
    "no text": network().replace(b"conv", b"\xff\xfe\xfd\xfc"),
    "not a model": b"\x08\x0a\x3a\x7f",
    "no graph": b"\x08\x0a\x12\x01a",
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_invalid_models_are_refused(fault: str) -> None:
    with refused("graph-file.onnx") as error:
        graph_from_onnx(BROKEN[fault])
    assert len(str(error.value)) < 1000


def test_doubling_vectors_and_ranks_stay_bounded() -> None:
    """ONNX's inference of whole models takes gigabytes for the first."""
    doubling = [node("Concat", [f"a{i}", f"a{i}"], [f"a{i + 1}"], axis=0) for i in range(60)]
    data = chain(
        *doubling, node("Reshape", ["x", "a60"], ["y"]), constants=[constant("a0", np.ones(4, dtype=np.int64))]
    )
    with pytest.raises(FormatError):
        graph_from_onnx(data)
    ranks = [node("Gather", [f"a{i}", f"a{i}"], [f"a{i + 1}"]) for i in range(60)]
    data = model(
        [*ranks, node("Relu", ["x"], ["y"])], [value("x", [4])], ["y"], [constant("a0", np.zeros((1, 1), np.int64))]
    )
    with refused("format.rank"):
        graph_from_onnx(data)


def test_external_data_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, shapes and constants in other files are not read, even if these exist."""
    monkeypatch.chdir(tmp_path)
    Path("secret").write_bytes(np.array([2, 2], dtype=np.int64).tobytes())
    shape = constant("shape", np.array([2, 2]))
    onnx.external_data_helper.set_external_data(shape, location="secret")
    shape.ClearField("raw_data")
    shape.data_location = TensorProto.EXTERNAL
    with refused("graph-file.onnx", culprit="Reshape"):
        graph_from_onnx(chain(node("Reshape", ["x", "shape"], ["y"]), constants=[shape]))
    held = node("Constant", [], ["shape"], value=shape)
    with refused("graph-file.onnx", culprit="Reshape"):
        graph_from_onnx(chain(held, node("Reshape", ["x", "shape"], ["y"])))
    far = weight("w", 4)
    far.ClearField("raw_data")
    far.data_location = TensorProto.EXTERNAL
    far.external_data.add(key="location", value="../nowhere")
    assert graph_from_onnx(chain(node("Add", ["x", "w"], ["y"]), constants=[far])).constant_memory == 16


def heavy() -> bytes:
    """Return a model that consists mostly of weights, in the graph and in a constant."""
    weights = [weight("w", 300, 300), weight("v", 300, 300)]
    held = node("Constant", [], ["v"], value=weights.pop())
    nodes = [held, node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"])]
    return model(nodes, [value("x", [2, 300])], ["y"], weights)


def test_large_files_are_read_without_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = heavy()
    light = without_weights(io.BytesIO(data))
    assert len(data) > 700_000
    assert len(light) < 1000
    whole, reread = graph_from_onnx(data), graph_from_onnx(light)
    assert whole.digest == reread.digest
    assert whole.constant_memory == reread.constant_memory == 720_000
    path = tmp_path / "heavy.onnx"
    path.write_bytes(data)
    monkeypatch.setattr("remat.graphs.io.MAX_BYTES", 100_000)
    assert read_graph(path).digest == whole.digest
    path.write_bytes(data[:-1000])
    with pytest.raises(FormatError, match=r"heavy.onnx: byte 6: the file ends before the field of 720,\d+ bytes does"):
        read_graph(path)
    for length in range(4, len(network()) - 1, 97):
        with pytest.raises(FormatError):
            without_weights(io.BytesIO(network()[:length]))


# -- from the shell --------------------------------------------------------------------------------------------------


def test_convert_command(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "m.json"
    source.write_bytes(network("batch"))
    assert main(["convert", str(source), str(target), "--dim", "batch=3", "--option", "views=keep"]) == 0
    graph = read_graph(target)
    assert graph.digest == read_graph(source, dims={"batch": 3}, views="keep").digest
    assert json.loads(target.read_text())["cost_unit"] == "flop"
    with refused("graph-file.option", culprit="m.json"):
        read_graph(target, dims={"batch": 3})


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused("format.package", culprit="remat[onnx]"):
        graph_from_onnx(network())


def test_activations_write_in_place_on_request() -> None:
    assert not graph_from_onnx(network()).in_place
    graph = graph_from_onnx(network(), in_place=True)
    assert [op.in_place for op in graph.ops] == [(), (("r", "c"),), ()]
    assert graph.reference_peak < graph.plain.reference_peak
    halves = model(
        [node("Relu", ["x"], ["y"])], [value("x", [4], TensorProto.FLOAT16)], [value("y", [4], TensorProto.FLOAT16)]
    )
    assert not graph_from_onnx(halves, in_place=True).in_place


def test_model_of_views_alone_keeps_them_as_ops() -> None:
    notes: list[str] = []
    views = [node("Flatten", ["x"], ["f"]), node("Identity", ["f"], ["y"]), node("Shape", ["x"], ["s"])]
    graph = graph_from_onnx(model(views, [value("x", [2, 3])], ["y", "s"]), remarks=notes)
    assert [op.type for op in graph.ops] == ["Flatten", "Identity", "Shape"]
    assert (sizes(graph), graph.outputs) == ({"x": 24, "f": 24, "y": 24, "s": 16}, ("y", "s"))
    assert notes == ["nothing is computed but views and constants, which are kept as ops"]
    alone = model([node("Relu", ["w"], ["y"])], [value("x", [4])], ["y"], [weight("w", 4)])
    assert (sizes(read := graph_from_onnx(alone)), read.constant_memory) == ({"x": 16, "y": 16}, 16)


def test_shapes_that_onnx_infers_wrongly_or_not_at_all() -> None:
    spectrum = node("STFT", ["x", "step", "", "length"], ["y"])
    frames = [constant("step", np.int64(8)), constant("length", np.int64(16))]
    assert sizes(graph_from_onnx(model([spectrum], [value("x", [1, 128, 1])], ["y"], frames)))["y"] == 15 * 9 * 2 * 4
    pool = node("MaxPool", ["x"], ["y", "i"], kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1)
    for opset in (12, 22):
        read = graph_from_onnx(model([pool], [value("x", [1, 1, 2, 5])], ["y"], opset=opset))
        assert sizes(read) == {"x": 40, "y": 12, "i": 24}
    masked = model([node("Dropout", ["x"], ["y", "mask"])], [value("x", [3])], ["y"], opset=9)
    assert sizes(graph_from_onnx(masked, views="keep"))["mask"] == 12


def summed(dtype: int = TensorProto.INT64, shape: tuple[int | str, ...] = (1,)) -> bytes:
    """Return a model that sums over axes, which are an input."""
    return model([node("ReduceSum", ["x", "axes"], ["y"], "sum")], [value("x", [2, 3, 4]), value("axes", shape, dtype)],
                 [value("y", [None, None, None])])  # fmt: skip


@pytest.mark.parametrize("given", [[1], 1, (1,), np.array([1])])
def test_values_of_inputs_decide_shapes(given: object) -> None:
    with refused("format", culprit="sum"):
        graph_from_onnx(summed())
    graph = graph_from_onnx(summed(), values={"axes": given})
    assert (sizes(graph), graph.inputs, graph.constant_memory) == ({"x": 96, "y": 32}, ("x",), 8)


def test_values_fill_open_dimensions() -> None:
    assert sizes(graph_from_onnx(summed(shape=("n",)), values={"axes": [0, 2]}))["y"] == 12


@pytest.mark.parametrize(
    ("name", "given"),
    [("axis", [1]), ("w", [1]), ("axes", [0, 1]), ("axes", [0.5]), ("axes", np.array([1], np.int32)), ("axes", ["a"]),
     ("axes", [[1], [2, 3]]), ("axes", [2**70])],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(name: str, given: object) -> None:
    with refused("format.values", culprit=name):
        graph_from_onnx(summed(), values={name: given})


def test_value_option_takes_numbers_and_tensor_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sum.onnx").write_bytes(summed())
    np.save("axes.npy", np.array([2]))
    Path("axes.pb").write_bytes(onnx.numpy_helper.from_array(np.array([2])).SerializeToString())
    for given in ("2", "axes.npy", "axes.pb"):
        assert facts(f"show sum.onnx --json --value axes={given}")["total_size"] == 96 + 24
    assert facts("order sum.onnx --json --value axes=0 -o out.onnx")["peak"] == 96 + 48
    np.save("bad.npy", np.array([{}]), allow_pickle=True)
    np.savez("archive.npz", np.zeros(2))
    Path("archive.npz").rename("zip.npy")
    Path("bad.pb").write_bytes(b"no tensor")
    with refused("format.tensor-file"):
        read_tensor("zip.npy")
    for fault in ("text", "a sequence"):
        with refused("format.no-size"):
            graph_from_onnx(BROKEN[fault])
    for words in (
        "", "axes", "axes=x", "axes=1 --value axes=2", "axes=bad.npy", "axes=zip.npy", "axes=bad.pb", "axes=none.npy",
    ):  # fmt: skip
        check_text("shell", said := shell("show", "sum.onnx", *f"--value {words or '=1'}".split()).err)
        assert said.count("\n") == 1
    check_text("shell", shell("show", "unet", "--value", "a=1").err)
    check_text("shell", shell("rewrite", "sum.onnx", "-o", "o.onnx", "--check", "--value", "axes=1").err)
