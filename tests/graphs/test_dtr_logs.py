"""Logs of DTR as graphs: names, views, mutation, and invalid logs."""

import json

import pytest
from refusals import refused

from remat.errors import FormatRemark
from remat.graphs import read_graph
from remat.graphs.formats.dtr import graph_from_log
from remat.schedule import Schedule, simulate


def line(word, **fields):
    return json.dumps({"INSTRUCTION": word, **{key.upper(): value for key, value in fields.items()}})


def constant(name, size):
    return [line("CONSTANT", name=name), line("MEMORY", name=name, memory=str(size))]


def call(op, args, time, **results):
    """Return the lines of a call; `results` are bytes, or (bytes, argument of which the result is a view)."""
    lines = [line("CALL", name=op, args=args, time=str(time), result=list(results))]
    for name, given in results.items():
        size, alias = given if isinstance(given, tuple) else (given, -1)
        lines += [line("MEMORY", name=name, memory=str(size)), line("ALIAS", name=name, alias=str(alias))]
    return lines


#: A step with a view, an op of two results, an overwritten argument, renamed values and released values.
LOG = [
    *constant("before", 1000),
    line("ANNOTATE", annotation="START"),
    line("RELEASE", name="before"),
    *constant("w", 40), *constant("x", 8),
    line("COPY", dst="w2", src="w"), line("RELEASE", name="w"), line("PIN", name="w2"),
    *call("linear", ["x", "w2"], 700, h=16),
    *call("view", ["h"], 3, v=(16, 0)),
    *call("split", ["v", "v"], 50, a=8, b=8, c=(0, 0)),
    line("RELEASE", name="h"), line("RELEASE", name="v"),
    *call("split_backward", ["c", "a"], 60, g=16),
    line("MUTATE", name="add_", args=["w2", "g"], mutate=[0], time="9"),
    line("MUTATE", name="add_", args=["w2", "g"], mutate=[0], time="9"),
    line("COPY_FROM", dst="b", src="g"),
    *(line("RELEASE", name=name) for name in ("a", "c", "unknown")),
]  # fmt: skip


def test_log_becomes_a_graph_of_executed_ops(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("\n".join(LOG) + "\n\n")
    with pytest.warns(FormatRemark, match="1 views, 3 ns in all"):
        graph = read_graph(path)
    assert graph.name == "run"
    assert [(op.name, op.inputs, op.outputs, op.cost, op.phase) for op in graph.ops] == [
        ("linear/0", (), ("h",), 700, "forward"),
        ("split/1", ("h",), ("a", "b"), 50, "forward"),
        ("split_backward/2", ("h", "a"), ("g",), 60, "backward"),
        ("add_/3", ("g",), ("w2",), 9, "backward"),
        ("add_/4", ("w2", "g"), ("w2$2",), 9, "backward"),
    ]
    assert {tensor.name: tensor.size for tensor in graph.tensors} == {
        "h": 16, "a": 8, "b": 8, "g": 16, "w2": 40, "w2$2": 40
    }  # fmt: skip
    assert set(graph.outputs) == {"g", "w2$2"}
    assert (graph.constant_memory, graph.cost_unit) == (48, "ns")
    names = [f"x{i}" for i in range(2000)]  # the first line exceeds the prefix by which most formats are recognised
    path.write_text("\n".join(call("f", [], 1, **dict.fromkeys(names, 8))))
    assert len(read_graph(path).tensors) == 2000
    assert graph.reference_peak == simulate(graph, Schedule.reference(graph)).peak == 16 + 40 + 40


INVALID = (
    ([*LOG[:2], line("JUMP", name="x")], "dtr-word", "line 3"),
    ([*LOG[:2], "[1]"], "dtr-word", "line 3"),
    ([*LOG[:2], "{"], "json", "line 3"),
    ([*LOG[:2], line("COPY", dst="x")], "dtr-field", "line 3"),
    ([*constant("x", 8)[:1], line("MEMORY", name="x", memory="many")], "dtr-field", "MEMORY"),
    (constant("x", 8)[:1], "dtr-memory", "'x'"),
    ([*constant("x", -8)], "dtr-field", "MEMORY"),
    (call("f", ["x"], 1, y=8), "dtr-name", "'x'"),
    ([*constant("x", 8), line("RELEASE", name="x"), *call("f", ["x"], 1, y=8)], "dtr-name", "line 3"),
    ([*constant("x", 8), *call("f", [], 1, x=8)], "dtr-name", "'x'"),
    (call("f", [], 1, y=8)[:1], "dtr-memory", "'y'"),
    (call("f", [], 1, y=(8, 2)), "dtr-alias", "argument 2"),
    ([*constant("x", 8), line("MUTATE", name="f_", args=["x"], mutate=[1], time=1)], "dtr-mutate", "argument 1"),
    ([*constant("x", 8), line("MUTATE", name="f_", args=["x"], mutate=[], time=1)], "dtr-mutate", "nothing"),
)


@pytest.mark.parametrize(("lines", "kind", "culprit"), INVALID, ids=range(len(INVALID)))
def test_invalid_logs_are_refused(lines, kind, culprit):
    with refused(f"graph-file.{kind}" if kind in ("dtr-field", "json") else f"format.{kind}", culprit=culprit):
        graph_from_log("\n".join(lines))


def test_logs_without_ops(tmp_path):
    with refused("graph-file.dtr-empty", culprit="computes nothing"):
        graph_from_log("\n".join(constant("x", 8)))
    # a log of one line is also a JSON document
    path = tmp_path / "run.log"
    path.write_text(line("CALL", name="f", args=[], result=[], time=0))
    with refused("graph-file.dtr-empty", culprit="run.log"):
        read_graph(path)
