import copy
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
from graph_strategies import graphs
from helpers import at_most, sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import counted_least_peak
from refusals import refused
from small_graphs import FIXED_ORDER_TREE, KNOWN, LIBERIS_LANE, SMALLEST_GAIN, from_lists

from remat.graphs import ComputeGraph, GraphBuilder, Op, Tensor, single_output_graph
from remat.graphs.ops_and_tensors import stable_topological_order
from tests.schedule.schedule_oracle import naive

A, X = Op("a", outputs=("x",), cost=1), Tensor("x", 4)


@pytest.mark.parametrize("known", KNOWN, ids=lambda k: k.graph.name)
def test_known_peaks(known):
    assert known.graph.structural_bound.peak == known.structural_bound
    assert known.graph.reference_peak == known.reference_peak
    assert counted_least_peak(known.graph) == known.least_peak
    assert known.graph.base_cost == min(row[0] for row in known.optima.values() if row[0] is not None)


def test_peaks_of_other_small_graphs():
    assert counted_least_peak(SMALLEST_GAIN) == 4
    assert LIBERIS_LANE.reference_peak == 5216
    assert counted_least_peak(LIBERIS_LANE) == 4960
    assert LIBERIS_LANE.with_order("01462357").reference_peak == 4960
    assert FIXED_ORDER_TREE.reference_peak == 11
    assert counted_least_peak(FIXED_ORDER_TREE) == 7


def test_published_peaks_of_a_darts_cell():
    # Published peaks of the DARTS_V2 normal cell, in units of one feature map: 6, or 5 when the next convolution is
    # split into partial ones that add into one buffer.
    inputs = [[], [], [0], [1], [2, 3], [0], [1], [5, 6], [1], [8, 0], [4], [0, 10]]
    assert counted_least_peak(from_lists("cell", inputs, kept=[4, 7, 9, 11])) == 6
    builder = GraphBuilder("rewritten")
    for number, reads in enumerate(inputs):
        builder.op(str(number), inputs=map(str, reads), size=1)
    builder.tensor("buffer", 1)
    for part in (4, 7, 9, 11):
        builder.op(f"partial{part}", inputs=[str(part)], outputs=["buffer"])
    builder.output("buffer")
    assert counted_least_peak(builder.build()) == 5


@settings(max_examples=25)
@given(graphs())
def test_peak_bound_and_edges_agree_with_plain_python(graph):
    assert graph.reference_peak == max(naive(graph, [("compute", name) for name in graph.order]).memory)
    size = sizes(graph)
    steps = [sum(size[t] for t in {*o.inputs, *o.outputs, *graph.inputs}) + o.workspace for o in graph.ops]
    ends = sum(size[t] for t in {*graph.inputs, *graph.outputs})
    assert graph.structural_bound.peak == max([*steps, ends]) <= graph.reference_peak
    pairs = {(p.name, c.name) for p in graph.ops for c in graph.ops if set(p.outputs) & set(c.inputs)}
    successors = graph.arrays.op_successors
    assert pairs == {(graph.op_names[u], graph.op_names[v]) for u, row in enumerate(successors) for v in row}
    predecessors = graph.arrays.op_predecessors
    assert pairs == {(graph.op_names[u], graph.op_names[v]) for v, row in enumerate(predecessors) for u in row}
    assert graph.num_edges == len(pairs)


@settings(max_examples=25)
@given(graphs(), st.randoms(use_true_random=False))
def test_digests_and_copies(graph, rng):
    other = ComputeGraph(
        name="other",
        tensors=rng.sample(graph.tensors, len(graph.tensors)),
        ops=[
            Op(o.name, o.inputs[::-1], o.outputs[::-1], o.cost, o.workspace, "?", "", o.recomputable)
            for o in rng.sample(graph.ops, len(graph.ops))
        ],
        inputs=graph.inputs[::-1],
        outputs=graph.outputs[::-1],
        order=graph.order,
        constant_memory=graph.constant_memory,
        cost_unit="us",
    )
    assert other.digest == graph.digest
    assert other.reference_peak == graph.reference_peak
    for same in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), graph.with_order(graph.order)):
        assert same == graph
        assert (hash(same), same.digest) == (hash(graph), graph.digest)


def test_digest_covers_all_that_schedules_depend_on():
    graph = ComputeGraph("g", [X], [A, Op("b")])
    variants = [
        graph, *(replace(graph, ops=[replace(A, **change), Op("b")])
                 for change in ({"cost": 2}, {"workspace": 1}, {"recomputable": False})),
        *(replace(graph, **change) for change in (
            {"tensors": [Tensor("x", 5)]}, {"constant_memory": 1}, {"outputs": ["x"]}, {"order": ["b", "a"]})),
    ]  # fmt: skip
    assert len({each.digest for each in variants}) == len(variants) == 8


def test_graphs_are_immutable_and_compared_by_value():
    graph = ComputeGraph("g", [X], [A], meta={"a": 1})
    assert graph not in (ComputeGraph("h", [X], [A], meta={"a": 1}), ComputeGraph("g", [X], [A]), "g")
    with pytest.raises(AttributeError):
        graph.name = "h"
    with pytest.raises(TypeError):
        graph.meta["a"] = 2
    for name, value in vars(graph.arrays).items():
        if isinstance(value, np.ndarray):
            assert not value.flags.writeable, name


#: Invalid fields of a graph.
INVALID = [
    *({"ops": ops} for ops in (
        [], [A, Op("a")], [A, Op("b", ("y",))], [A, Op("b", (), ("y",))], [A, Op("b", ("x", "x"))],
        [Op("a", (), ("x", "x"))], [Op("a", ("x",), ("x",))], [Op("a")],
        [Op(f"w{i}", (), ("x",)) for i in range(10_001)] + [Op(f"r{i}", ("x",)) for i in range(10_001)],
    )),
    *({"ops": [Op(name, (), ("x",))]} for name in ("a\x1b[2J", "", "a" * 5000, "\ud800")),
    *({"ops": [replace(A, **fields)]} for fields in (
        {"cost": 3.0}, {"cost": True}, {"cost": "3"}, {"workspace": -1}, {"phase": "up"}, {"type": 3},
        {"recomputable": 1}, {"outputs": "x"}, {"inputs": ([],)},
    )),
    *({"tensors": [Tensor("x", size)]} for size in (-1, 1.5, 10**5000, -(10**5000))),
    {"tensors": [X, X]}, {"tensors": [Tensor("x", 2**61), Tensor("y", 2**61)], "ops": [Op("a", (), ("x", "y"))]},
    {"inputs": ["x"]}, {"inputs": ["q"]}, {"outputs": ["q"]}, {"outputs": ["x", "x"]}, {"constant_memory": -1},
    {"cost_unit": "s"}, {"name": "a\nb"}, {"source": 3}, {"meta": 3},
    {"ops": [A, Op("b")], "order": ["a"]}, {"ops": [A, Op("b")], "order": ["a", "a"]}, {"order": ["q"]},
    {"ops": [A, Op("b", ("x",))], "order": ["b", "a"]},
    {"tensors": [X, Tensor("y", 1)], "ops": [Op("a", ("y",), ("x",)), Op("b", ("x",), ("y",))]},
]  # fmt: skip


@pytest.mark.parametrize("changes", INVALID, ids=range(len(INVALID)))
def test_ill_formed_graphs_are_refused(changes):
    with refused("compute-graph.ill-formed") as caught:
        ComputeGraph(**{"name": "g", "tensors": [X], "ops": [A], **changes})
    assert len(str(caught.value)) < 300


def test_all_faults_of_names_are_reported_together():
    """Long lists of names are counted."""
    with refused("compute-graph.ill-formed"):
        ComputeGraph("g", [X, X], [A, Op("b", ("p",), ("q",)), Op("b")], outputs=["r"], order=["a", "z"])
    with refused("graph.tensor-lists", culprit="y"):
        ComputeGraph("g", [X], [A], order=["y", "z"])
    with refused("graph.tensor-lists", culprit="y4"):
        ComputeGraph("g", [X], [A, *(Op(f"b{i}", (f"y{i}",)) for i in range(5000))], order=None)


def test_builder_keeps_the_order_of_insertion_where_possible():
    builder = GraphBuilder("g")
    builder.op("c", inputs=["b"], size=1)
    builder.op("a", size=1)
    builder.op("b", inputs=["a", "a"], size=1)
    builder.op("d", size=1)
    graph = builder.build()
    assert graph.order == ("a", "b", "c", "d")
    assert graph.ops[2].inputs == ("a",)


def test_builder_refuses_invalid_ops():
    builder = GraphBuilder("g")
    builder.op("a", size=1)
    for name, given_sizes in (("a", {"size": 1}), ("b", {}), ("b", {"size": 1, "outputs": ["a"]})):
        with refused("compute-graph.builder"):
            builder.op(name, **given_sizes)
    with refused("compute-graph.builder"):
        builder.tensor("a", 2)


def test_stable_order_puts_cycles_last():
    ops = [Op("a", ("y",), ("x",)), Op("b", ("x",), ("y",)), Op("c")]
    assert stable_topological_order(ops) == ["c", "a", "b"]


def test_single_output_graph():
    graph = single_output_graph("g", {"b": (1, 2), "a": (3, 4)}, [("a", "b"), ("a", "b")], phases={"a": "forward"})
    assert graph.order == ("a", "b")
    assert graph.num_edges == 1
    assert [op.phase for op in graph.ops] == ["", "forward"]
    with refused("graph.unknown-op", culprit="q"):
        single_output_graph("g", {"a": (1, 1)}, [("a", "q")])


@pytest.mark.slow
def test_large_graph_is_fast():
    rng = random.Random(0)
    n = 100_000
    tensors = [Tensor(str(i), i) for i in range(n)]
    reads = [{str(rng.randrange(max(0, i - 50), i)) for _ in range(5)} if i else set() for i in range(n)]
    ops = [Op(str(i), tuple(sorted(reads[i])), (str(i),), 1) for i in range(n)]
    with at_most(40):  # about 2 s, 11 s under coverage; a quadratic step would take hours
        graph = ComputeGraph("large", tensors, ops)
        assert graph.num_edges > 450_000
        assert graph.structural_bound.peak <= graph.reference_peak


def test_builder_inputs_outputs_and_several_tensors():
    builder = GraphBuilder("g", cost_unit="us", constant_memory=3)
    builder.input("data", 10)
    builder.op("split", inputs=["data"], outputs={"left": 4, "right": 5}, workspace=2)
    builder.op("join", inputs=["left", "right"], size=1)
    builder.output("left", "join")
    graph = builder.build()
    assert (graph.inputs, graph.outputs, graph.constant_memory) == (("data",), ("left", "join"), 3)
    assert graph.reference_peak == 10 + 4 + 5 + 2
    assert str(graph.structural_bound) == "21 bytes (op 'split')"


def test_structural_bound_of_the_outputs():
    graph = ComputeGraph("g", [X, Tensor("y", 5)], [A, Op("b", (), ("y",))], outputs=["x", "y"])
    assert graph.structural_bound.op is None
    assert str(graph.structural_bound) == "9 bytes (the graph outputs together)"


def test_valid_ops_and_tensors_are_not_copied() -> None:
    """Copies took a tenth of the time to read a graph of 20,000 ops."""
    tensor, op = Tensor("x", 4), Op("a", (), ("x",), 1)
    graph = ComputeGraph("g", [tensor], [op])
    assert graph.ops[0] is op
    assert graph.tensors[0] is tensor
    converted = ComputeGraph("g", [Tensor("x", np.int64(4))], [Op("a", [], ["x"], np.int64(1))])  # type: ignore[arg-type]
    assert (converted.ops[0], type(converted.ops[0].cost), type(converted.tensors[0].size)) == (op, int, int)
