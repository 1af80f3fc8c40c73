"""ONNX models of rewritten graphs: outputs, weights, and refused graphs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import few
from refusals import check_text, refused
from shell import facts, ok

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_models import constant, model, node, value  # noqa: E402

from remat.deploy import Search, compare_outputs, deploy, rewritten  # noqa: E402
from remat.deploy.onnx_file import OnnxFile  # noqa: E402
from remat.errors import GraphError, VerificationError  # noqa: E402
from remat.graphs.rewriting import RewriteOptions, rewrite_graph  # noqa: E402
from remat.graphs.rewriting.pieces import PieceRole, pieces  # noqa: E402

PADS = {"pads": [1, 1, 1, 1]}
OPTIONS = RewriteOptions(min_parts=2)


def weights(seed: int, *shape: int, kind: Any = np.float32) -> Any:
    """Random weights for about unit variance."""
    values = np.random.default_rng(seed).standard_normal(shape) * (2 / max(1, np.prod(shape[1:]))) ** 0.5
    return constant(f"w{seed}", values.astype(kind))


def conv(source: str, number: int, target: str, name: str, bias: str = "", **attributes: Any) -> Any:
    return node("Conv", [source, f"w{number}", *([bias] if bias else [])], [target], name, **(PADS | attributes))


def cell(*, kind: Any = np.float32, ir: int | None = None) -> bytes:
    """Three convolutions, concatenation, relu, depthwise and plain convolution with biases, view, matrix product."""
    nodes = [conv("x", k, f"c{k}", f"branch{k}") for k in range(3)]
    nodes += [
        node("Concat", ["c0", "c1", "c2"], ["c"], "cat", axis=1),
        node("Relu", ["c"], ["r"], "relu"),
        conv("r", 3, "d", "depthwise", "b1", group=12),
        conv("d", 4, "y", "conv", "b2"),
        node("Identity", ["c"], ["nothing reads this"], "idle"),
        node("Flatten", ["y"], ["flat"], "flat"),
        node("MatMul", ["flat", "w7"], ["z"], "fc"),
    ]
    held = [*(weights(k, 4, 3, 3, 3, kind=kind) for k in range(3)), weights(3, 12, 1, 3, 3, kind=kind)]
    held += [weights(4, 5, 12, 3, 3, kind=kind), weights(7, 320, 2, kind=kind)]
    held += [constant("b1", np.arange(12).astype(kind)), constant("b2", np.arange(5).astype(kind))]
    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    outputs = [value("z", [1, 2], dtype), value("y", [1, 5, 8, 8], dtype)]
    proto = onnx.ModelProto.FromString(model(nodes, [value("x", [1, 3, 8, 8], dtype)], outputs, held, opset=18))
    if ir is not None:
        proto.ir_version = ir
        proto.graph.input.extend(value(each.name, each.dims, each.data_type) for each in proto.graph.initializer)
    return proto.SerializeToString()


def densenet() -> bytes:
    """Block whose layers read the concatenation of all before them: batch norm, relu, convolution; then a Gemm."""
    nodes, held, features = [conv("x", 0, "f0", "stem")], [weights(0, 4, 3, 3, 3)], ["f0"]
    for k in range(1, 4):
        channels = 4 * k
        inputs = [f"c{k}", *(f"{each}{k}" for each in ("scale", "offset", "mean", "variance"))]
        nodes += [
            node("Concat", features, [f"c{k}"], f"cat{k}", axis=1),
            node("BatchNormalization", inputs, [f"n{k}"], f"norm{k}"),
            node("Relu", [f"n{k}"], [f"r{k}"], f"relu{k}"),
            conv(f"r{k}", k, f"f{k}", f"conv{k}"),
        ]
        held.append(weights(k, 4, channels, 3, 3))
        held += [constant(name, np.random.default_rng(k).random(channels, np.float32) + 0.5) for name in inputs[1:]]
        features.append(f"f{k}")
    nodes += [
        node("Concat", features, ["c"], "cat", axis=1),
        node("GlobalAveragePool", ["c"], ["pooled"], "pool"),
        node("Conv", ["pooled", "w8"], ["narrow"], "narrow"),
        node("Flatten", ["narrow"], ["flat"], "flat"),
        node("Gemm", ["flat", "w9", "b"], ["y"], "fc", transB=1),
    ]
    held += [weights(8, 6, 16, 1, 1), weights(9, 3, 6), constant("b", np.ones(3, np.float32))]
    return model(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 3])], held)


def run(data: bytes) -> list[Any]:
    proto = onnx.ModelProto.FromString(data)
    kind = onnx.helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type)
    given = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(kind)
    return ReferenceEvaluator(proto).run(None, {"x": given})


def rewrite(data: bytes) -> OnnxFile:
    file = OnnxFile(data)
    return rewritten(file, rewrite_graph(file.graph, OPTIONS).graph)


@pytest.mark.parametrize(
    ("data", "tolerance"),
    few([(cell(), 1e-5), (cell(kind=np.float16), 1e-2), (cell(ir=3), 1e-5), (densenet(), 1e-5)], 2),
    ids=["cell", "float16", "weights listed as inputs", "densenet"],
)
def test_rewritten_model_has_the_same_outputs(data: bytes, tolerance: float) -> None:
    """Evaluate with ONNX; unused weights are removed, all others kept, and the bytes are reproducible."""
    new = rewrite(data)
    assert new.data == rewrite(data).data
    before, after = onnx.ModelProto.FromString(data), onnx.ModelProto.FromString(new.data)
    onnx.checker.check_model(after, full_check=before.ir_version > 3)
    for old, found in zip(run(data), run(new.data), strict=True):
        assert old.dtype == found.dtype
        assert np.abs(old - found).max() <= tolerance * np.abs(old).max()
    assert compare_outputs(OnnxFile(data), new).outputs == len(before.graph.output)
    assert (after.opset_import, after.ir_version, after.graph.output) == (
        before.opset_import,
        before.ir_version,
        before.graph.output,
    )
    read = {name for each in after.graph.node for name in each.input}
    assert {each.name for each in after.graph.initializer} <= read
    elements = [sum(int(np.prod(each.dims)) for each in proto.graph.initializer) for proto in (before, after)]
    assert elements[0] == elements[1]
    assert len({each.name for each in after.graph.node}) == len(after.graph.node)


def test_parts_of_a_gemm_accumulate_through_the_bias_input() -> None:
    """The first Gemm in the order reads the bias, and no Add is needed."""
    nodes = [node("Relu", ["x"], [f"a{k}"], f"a{k}") for k in range(3)]
    nodes += [
        node("Concat", ["a0", "a1", "a2"], ["c"], "cat", axis=1),
        node("Gemm", ["c", "w1", "b"], ["y"], "fc", transB=1),
    ]
    data = model(nodes, [value("x", [2, 4])], ["y"], [weights(1, 5, 12), constant("b", np.ones(5, np.float32))])
    file = OnnxFile(data)
    graph = rewrite_graph(file.graph).graph
    parts = [name for name, piece in pieces(graph).items() if piece.role is PieceRole.SUM]
    backwards = replace(graph, order=[*(n for n in graph.order or () if n not in parts), *reversed(parts)])
    new = rewritten(file, backwards)
    gemms = [each for each in onnx.ModelProto.FromString(new.data).graph.node if each.op_type == "Gemm"]
    assert [list(each.input) for each in gemms] == [
        ["a2", "w1/1:8-12", "b"],
        ["a1", "w1/1:4-8", "y/sum0"],
        ["a0", "w1/1:0-4", "y/sum1"],
    ]
    assert new.graph.reference_peak <= graph.reference_peak
    assert compare_outputs(file, new).difference < 1e-6


def changed(graph: Any, op: str, **new: Any) -> Any:
    attributes = graph.meta["attrs"]
    return replace(graph, meta=graph.meta | {"attrs": attributes | {op: attributes.get(op, {}) | new}})


def test_inconsistent_attributes_are_refused() -> None:
    """Attributes come from a file; each of these would give wrong outputs."""
    file = OnnxFile(cell())
    graph = rewrite_graph(file.graph, OPTIONS).graph
    attributes = graph.meta["attrs"]
    first, second = (attributes[f"conv/part{k}"]["part_of"] for k in range(2))
    entries = attributes["conv/part0"]["constants"]
    joined = graph.tensors[0].name
    hostile = {
        "the same slice twice": ("conv/part1", {"part_of": first}),
        "another slice": ("conv/part0", {"part_of": second}),
        "a bias twice": ("conv/part1", {"part_of": second | {"bias": True}}),
        "no bias": ("conv/part0", {"part_of": first | {"bias": False}}),
        "a slice beyond the end": ("conv/part0", {"part_of": first | {"stop": 400, "extent": 400}}),
        "parts of a sum": ("conv/part0", {"part_of": first | {"sum": False}}),
        "another op": ("conv/part0", {"part_of": first | {"of": "fc"}}),
        "no op": ("conv/part0", {"part_of": first | {"of": "nowhere"}}),
        "another axis": ("conv/part0", {"part_of": first | {"axis": 2}}),
        "another axis of the weights": ("conv/part0", {"constants": [entries[0] | {"along": [[1, 0]]}, *entries[1:]]}),
        "weights without end": ("conv/part0", {"constants": [entries[0] | {"shape": [10**9] * 4}]}),
        "another window": ("conv/part0", {"stride": [2, 2]}),
        "an activation": ("conv/part0", {"activation": "relu"}),
        "another input": ("conv/part0", {"operands": [{"parts": [joined]}]}),
        "a whole op as part": ("fc", {"part_of": first | {"of": "fc"}}),
        "a join of nothing": ("fc", {"join_of": "conv"}),
    }
    for op, wrong in hostile.values():
        with pytest.raises(GraphError):
            rewritten(file, changed(graph, op, **wrong))
    for name in ("fc", "conv/part0"):
        others = [replace(op, inputs=("x",)) if op.name == name else op for op in graph.ops]
        with pytest.raises(GraphError):
            rewritten(file, replace(graph, ops=others))
    with refused("graph.pieces", culprit="conv/part1"):
        rewritten(file, changed(graph, "conv/part1", part_of=second | {"axis": 2}))
    with refused("graph.pieces"):
        rewritten(OnnxFile(densenet()), graph)


def test_weights_that_cannot_be_sliced_are_refused() -> None:
    proto = onnx.ModelProto.FromString(cell())
    proto.training_info.add()
    with refused("format.training-info"):
        rewrite(proto.SerializeToString())
    proto = onnx.ModelProto.FromString(cell())
    proto.graph.input.append(value("w4", [5, 12, 3, 3]))
    with refused("format.weights", culprit="w4"):
        rewrite(proto.SerializeToString())
    proto = onnx.ModelProto.FromString(cell())
    proto.graph.node.insert(0, node("Identity", ["w4"], ["computed"]))
    next(each for each in proto.graph.node if each.name == "conv").input[1] = "computed"
    with refused("format.weights", culprit="computed"):
        rewrite(proto.SerializeToString())
    proto = onnx.ModelProto.FromString(cell())
    (held,) = (each for each in proto.graph.initializer if each.name == "w4")
    proto.graph.node.insert(0, node("Constant", [], ["w4"], value=held))
    proto.graph.initializer.remove(held)
    new = rewrite(proto.SerializeToString())
    assert compare_outputs(OnnxFile(proto.SerializeToString()), new).difference < 1e-5
    assert "Constant" not in {each.type for each in new.reading.network.nodes}
    with pytest.raises(VerificationError, match="differs by"):
        compare_outputs(OnnxFile(cell()), OnnxFile(cell().replace(np.float32(11).tobytes(), np.float32(12).tobytes())))


def test_deploy_keeps_the_smaller_of_model_and_rewriting() -> None:
    file = OnnxFile(densenet())
    plain, found = (deploy(file, search=Search(time_limit=30, rewrite=each)) for each in (False, True))
    assert found.before == plain.before
    assert found.bound <= found.after < plain.after
    assert found.rewrites
    assert compare_outputs(file, found.file).outputs == len(file.outputs)


def test_rewrite_command_writes_and_checks_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(cell())
    shown = ok("rewrite m.onnx -o n.onnx --check --time-limit 20 -q").out
    assert "bytes in their order; an addition holds both terms and the sum\n" in shown
    assert "2 outputs agree with the model within " in shown
    again = facts("rewrite m.onnx -o o.onnx --check --time-limit 20 -q")
    new = OnnxFile(Path("n.onnx").read_bytes())
    assert again["model"]["peak"] == new.graph.reference_peak
    assert again["model"]["check"]["outputs"] == 2
    for old, found in zip(run(cell()), run(new.data), strict=True):
        assert np.allclose(old, found, atol=1e-5)
    found = facts("deploy n.onnx -o d.onnx --time-limit 20 -q")
    assert found["after"] <= found["before"]
    proto = onnx.ModelProto.FromString(cell())
    for tensor in proto.graph.initializer:
        onnx.external_data_helper.set_external_data(tensor, "weights.bin")
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
    Path("e.onnx").write_bytes(proto.SerializeToString())
    check_text("shell.rewrite-external", ok("rewrite e.onnx -o x.onnx", code=2).err)
