"""ONNX models with another order or recomputation: files, and outputs of ONNX's reference evaluator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

onnx = pytest.importorskip("onnx")

from onnx_models import FLOAT, constant, model, node, value, weight  # noqa: E402

from remat.deploy import Search, deploy, read_model_file, write_model  # noqa: E402
from remat.deploy.onnx_file import OnnxFile  # noqa: E402
from remat.errors import FormatError  # noqa: E402
from remat.graphs.formats.onnx.assembly import IN_PLACE  # noqa: E402
from remat.schedule import Schedule, validate  # noqa: E402

SHAPE = (1, 4, 8, 8)


def pools() -> bytes:
    """Three branches of a wide op and a pooling, wide ops first, and a matrix product with weights."""
    nodes = [node("Sin", ["x"], [f"a{k}"], name=f"a{k}") for k in range(3)]
    nodes += [node("MaxPool", [f"a{k}"], [f"p{k}"], name=f"p{k}", kernel_shape=[8, 8]) for k in range(3)]
    nodes += [
        node("Concat", ["p0", "p1", "p2"], ["c"], name="c", axis=1),
        node("Reshape", ["c", "shape"], ["flat"], name="flat"),
        node("MatMul", ["flat", "w"], ["y"], name="y"),
        node("Sin", ["p0"], ["nothing reads this"], name="idle"),
    ]
    constants = [weight("w", 12, 2), constant("shape", np.array([1, 12]))]
    return model(nodes, [value("x", SHAPE)], ["y"], constants)


def branches() -> bytes:
    """Three branches over 262,144 bytes, wide ops first."""
    sizes = {"kernel_shape": [8, 8], "strides": [8, 8]}
    nodes = [node("Sin", ["x"], [f"a{k}"], name=f"a{k}") for k in range(3)]
    nodes += [node("MaxPool", [f"a{k}"], [f"p{k}"], name=f"p{k}", **sizes) for k in range(3)]
    nodes.append(node("Concat", ["p0", "p1", "p2"], ["y"], name="y", axis=1))
    return model(nodes, [value("x", (1, 16, 64, 64))], [value("y", (1, 48, 8, 8))])


def evaluated(data: bytes, **inputs: np.ndarray) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.ModelProto.FromString(data)).run(None, inputs)


def schedule_of(*names: str) -> Schedule:
    return Schedule.from_steps([("compute", name) for name in names])


def test_deployed_model_differs_only_in_node_order() -> None:
    file = OnnxFile(pools())
    found = deploy(file, search=Search(time_limit=10))
    assert (found.before, found.after, found.bound, found.proved) == (3088, 1072, 1072, True)
    new, old = (onnx.ModelProto.FromString(each.data) for each in (found.file, file))
    assert [each.name for each in new.graph.node] != [each.name for each in old.graph.node]
    assert len(found.file.data) == len(file.data)
    for proto in (new, old):
        proto.graph.node.sort(key=lambda each: each.name)
    assert new == old
    again = deploy(found.file, search=Search(time_limit=10))
    assert again.file.data == found.file.data


def in_place_models() -> dict[str, tuple[bytes, int]]:
    """Return models, and the most bytes that ONNX Runtime 1.32.0 requests after a kernel, inputs not counted."""
    x, size = [value("x", (1, 64))], 256

    def last(*names: str) -> list[Any]:
        return [node("ReduceSum", [name], [f"sum of {name}"], name=f"sum {name}") for name in names]

    sine = node("Sin", ["x"], ["a"], name="sine")
    relu, tanh = node("Relu", ["a"], ["b"], name="relu"), node("Tanh", ["b"], ["c"], name="tanh")
    one = size + 4
    found = {
        "relu": (model([sine, relu, *last("b")], x, ["sum of b"]), one),
        "chain": (model([sine, relu, tanh, *last("c")], x, ["sum of c"]), one),
        "last of two readers": (model([sine, *last("a"), relu, *last("b")], x, ["sum of a", "sum of b"]), one + 4),
        "first of two readers": (model([sine, relu, *last("b", "a")], x, ["sum of b", "sum of a"]), 2 * size + 4),
        "graph output": (model([sine, relu], x, ["b"]), 2 * size),
        "graph input": (model([node("Relu", ["x"], ["b"], name="relu"), *last("b")], x, ["sum of b"]), one),
        "sum": (model([sine, node("Cos", ["x"], ["b"], name="cosine"), node("Add", ["a", "b"], ["c"], name="add"),
                       *last("c")], x, ["sum of c"]), 3 * size),
    }  # fmt: skip
    for kind in (*sorted(IN_PLACE), "Sqrt", "Abs", "Gelu"):
        nodes = [sine, node(kind, ["a"], ["b"], name="op"), *last("b")]
        found[kind] = model(nodes, x, ["sum of b"]), one if kind in IN_PLACE else 2 * size
    return found


def test_outputs_in_place_are_counted_where_the_runtime_does() -> None:
    for name, (data, most) in in_place_models().items():
        found = deploy(OnnxFile(data), search=Search(time_limit=10))
        assert (found.before, found.after <= most, name) == (most, True, name)


def test_recomputed_nodes_get_unique_names() -> None:
    """The last instance of a value keeps its name, as outputs need; views are repeated for each instance."""
    nodes = [
        node("Sin", ["x"], ["a"], name="a"), node("Reshape", ["a", "shape"], ["v"], name="v"),
        node("Cos", ["v"], ["b"], name="b"), node("Add", ["b", "v"], ["y"], name="y"),
    ]  # fmt: skip
    file = OnnxFile(model(nodes, [value("x", (2, 3))], ["y"], [constant("shape", np.array([3, 2]))]))
    schedule = schedule_of("a", "b", "a", "y", "b")  # nothing reads the second b
    made = file.scheduled(schedule)
    assert [each.name for each in made.reading.network.nodes] == ["a#1", "v#1", "b", "a", "v", "y"]
    assert made.graph.reference_peak <= validate(file.graph, schedule).peak
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    assert evaluated(made.data, x=x)[0].tobytes() == evaluated(file.data, x=x)[0].tobytes()


def test_subgraphs_read_renamed_values() -> None:
    then, other = (
        onnx.helper.make_graph([node("Neg", [name], ["out"])], name, [], [value("out", (1, 4))]) for name in "ab"
    )
    nodes = [
        node("Relu", ["x"], ["a"], name="a"), node("Sin", ["a"], ["b"], name="b"),
        node("If", ["cond"], ["y"], name="if", then_branch=then, else_branch=other),
        node("Add", ["y", "a"], ["z"], name="z"),
    ]  # fmt: skip
    inputs = [value("x", (1, 4)), value("cond", (1,), onnx.TensorProto.BOOL)]
    file = OnnxFile(model(nodes, inputs, ["z"]))
    made = file.scheduled(schedule_of("a", "b", "if", "a", "z"))
    assert [each.name for each in made.reading.network.nodes] == ["a#1", "b", "if", "a", "z"]
    assert list(made.reading.network.nodes[2].captured) == ["a#1", "b"]
    x = np.array([[1, -2, 3, -4]], dtype=np.float32)
    for choice in (True, False):
        cond = np.array([choice])
        assert (evaluated(made.data, x=x, cond=cond)[0] == evaluated(file.data, x=x, cond=cond)[0]).all()


def test_functions_are_expanded() -> None:
    body = onnx.helper.make_function(
        "own", "Twice", ["a"], ["b"], [node("Relu", ["a"], ["h"]), node("Relu", ["h"], ["b"])],
        [onnx.helper.make_opsetid("", 21)],
    )  # fmt: skip
    nodes = [node("Twice", ["x"], ["p"], domain="own"), node("Sin", ["x"], ["q"]), node("Add", ["p", "q"], ["y"])]
    file = OnnxFile(model(nodes, [value("x", (1, 4))], ["y"], functions=[body], domains=["own"]))
    order = [op.name for op in file.graph.ops]
    made = file.scheduled(schedule_of(order[2], order[0], order[1], order[3]))
    assert [each.type for each in made.reading.network.nodes] == ["Sin", "Relu", "Relu", "Add"]
    assert not onnx.ModelProto.FromString(made.data).functions


def test_random_schedules_give_the_same_outputs() -> None:
    """Random sums, products and sines, some of them recomputed."""
    import random

    recomputations = 0
    for seed in range(6):
        draw = random.Random(seed)
        known, nodes = ["x"], []
        for k in range(8):
            a, b = draw.choice(known), draw.choice(known)
            kind = draw.choice(("Add", "Mul", "Sin", "Identity"))
            nodes.append(node(kind, [a, b][: 1 if kind in ("Sin", "Identity") else 2], [f"v{k}"], name=f"n{k}"))
            known.append(f"v{k}")
        unread = [name for name in known[1:] if not any(name in each.input for each in nodes)]
        file = OnnxFile(model(nodes, [value("x", (2, 3))], unread))
        from deploy_models import random_schedule

        schedule = random_schedule(file.graph, seed)
        made = file.scheduled(schedule)
        certificate = validate(file.graph, schedule)
        assert made.graph.reference_peak <= certificate.peak
        recomputations += certificate.recomputations
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        for new, old in zip(evaluated(made.data, x=x), evaluated(file.data, x=x), strict=True):
            assert new.tobytes() == old.tobytes()
    assert recomputations > 6


def test_external_weights_require_the_same_folder(tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(pools())
    for tensor in proto.graph.initializer:
        if tensor.name == "w":
            onnx.external_data_helper.set_external_data(tensor, "weights.bin")
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "other").mkdir()
    file = read_model_file(tmp_path / "m.onnx")
    with refused("format.external-data", culprit="m.onnx"):
        write_model(file, tmp_path / "other" / "n.onnx", tmp_path / "m.onnx")
    write_model(file, tmp_path / "n.onnx", tmp_path / "m.onnx")
    assert (tmp_path / "n.onnx").read_bytes() == file.data


def test_invalid_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text("{}")
    with refused("format.not-a-model", culprit="g.json"):
        read_model_file(tmp_path / "g.json")
    (tmp_path / "m.onnx").write_bytes(pools())
    with refused("format.runtime", culprit="tflm"):
        deploy(read_model_file(tmp_path / "m.onnx"), "tflm")
    (tmp_path / "m.onnx").write_bytes(model([node("Relu", ["none"], ["y"], name="r")], [value("x", (4,))], ["y"]))
    with pytest.raises(FormatError, match=r"m\.onnx: node 'r' reads 'none'"):
        read_model_file(tmp_path / "m.onnx")
    open_batch = model([node("Relu", ["x"], ["y"], name="r")], [value("x", ("batch", 4), FLOAT)], ["y"])
    (tmp_path / "m.onnx").write_bytes(open_batch)
    assert deploy(read_model_file(tmp_path / "m.onnx", {"batch": 2}), search=Search(time_limit=5)).after == 32
