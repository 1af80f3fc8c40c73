"""Rewrite rules: rewritten graphs, unchanged parts, and the numeric check of both."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import some_slow
from oracles import least_order_peak
from refusals import refused
from small_networks import Net, after_concat, described_network, random_network

from remat.errors import GraphError
from remat.graphs import ComputeGraph
from remat.graphs.rewriting import RewriteOptions, Rewritten, check, find_rewrites, numerics, rewrite_graph
from remat.graphs.rewriting.check import check_numerics
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.numerics import run
from remat.runtime.deadline import Deadline, OverdueError

TWO = RewriteOptions(min_parts=2)


def rewritten(graph: ComputeGraph, options: RewriteOptions | None = None) -> Rewritten:
    """Rewrite a graph, and require the same outputs."""
    done = rewrite_graph(graph, options)
    check_numerics(graph, done.graph)
    return done


def conv_of(parts: int, **attrs: object) -> ComputeGraph:
    return after_concat("Conv", [[1, 4, 4, 2]] * parts, 3, [1, 4, 4, 4], layout="NHWC", **attrs)


def test_partial_sums_share_cost_and_buffer() -> None:
    done = rewrite_graph(conv_of(3, workspace=9, weight_shape=[4, 1, 1, 6]))
    ops = done.graph.ops[3:6]
    assert [(op.name, op.type, op.inputs, op.outputs) for op in ops] == [
        (f"y/part{n}", "PartialConv", (f"x{n}",), ("y",)) for n in range(3)
    ]
    assert [op.cost for op in ops] == [34, 33, 33]
    assert {op.workspace for op in ops} == {9}
    assert done.graph.meta["attrs"]["y/part1"]["weight_shape"] == [4, 1, 1, 2]
    thirds = rewrite_graph(conv_of(3, workspace=9), RewriteOptions(split_workspace=True)).graph
    assert {op.workspace for op in thirds.ops[3:6]} == {3}


def test_rewriting_keeps_its_input_and_is_deterministic() -> None:
    graph = conv_of(3)
    digest, attrs = graph.digest, repr(graph.meta["attrs"])
    one, two = rewrite_graph(graph).graph, rewrite_graph(graph).graph
    assert (graph.digest, repr(graph.meta["attrs"])) == (digest, attrs)
    assert one.digest == two.digest != digest
    assert one.meta["rewriting"] == [
        {
            "graph": "net",
            "digest": digest,
            "rewrites": [{"rule": "partial-sums", "op": "y", "axis": 3, "parts": [[0, 2], [2, 4], [4, 6]]}],
        }
    ]


def test_limits_on_the_number_of_parts() -> None:
    assert not rewrite_graph(conv_of(2)).rewrites
    assert rewrite_graph(conv_of(2), TWO).rewrites
    merged = rewrite_graph(conv_of(5), RewriteOptions(parts=2))
    assert merged.rewrites[0].parts == ((0, 4), (4, 10))
    assert merged.graph.ops[5].inputs == ("x0", "x1")
    check_numerics(conv_of(5), merged.graph)
    assert rewrite_graph(after_concat("DepthwiseConv", [[1, 4, 4, 2]] * 2, 3, [1, 4, 4, 4], layout="NHWC")).rewrites


@pytest.mark.parametrize("kind", ["Conv", "Dense", "ReduceMean"])
def test_wide_accumulators_are_finished_by_an_op(kind: str) -> None:
    """The sum has four bytes per element; the last op adds bias and activation and writes one byte per element."""
    attrs = {"axes": [3]} if kind == "ReduceMean" else {}
    graph = after_concat(kind, [[1, 4, 4, 2]] * 3, 3, [1, 4, 4, 1], layout="NHWC", **attrs)
    done = rewritten(graph, RewriteOptions(accumulator_bytes=4))
    sizes = {tensor.name: tensor.size for tensor in done.graph.tensors}
    assert (sizes["y/sum"], sizes["y"]) == (64, 16)
    assert [(op.name, op.inputs, op.outputs) for op in done.graph.ops[6:7]] == [("y/finish", ("y/sum",), ("y",))]
    assert not done.never_worse
    assert done.rewrites[0].as_dict()["accumulator_bytes"] == 4
    same = rewrite_graph(graph, RewriteOptions(accumulator_bytes=1))
    assert same.never_worse
    assert "y/sum" not in same.graph.tensor_names


def chain(last: str) -> Net:
    """Return a concatenation, a chain of parallel ops on it, and the op `last`."""
    net = Net(layout="NHWC")
    net.inputs([1, 4, 4, 2], [1, 4, 4, 4], [1, 4, 4, 2])
    net.op("c", "Concat", ["x0", "x1", "x2"], [1, 4, 4, 8], axis=3)
    net.op("d", "DepthwiseConv", ["c"], [1, 4, 4, 16], kernel=3)
    net.op("b", "BatchNorm", ["d"], [1, 4, 4, 16])
    net.op("r", "ReLU", ["b"], [1, 4, 4, 16])
    net.op("y", last, ["r"], [1, 4, 4, 4] if last == "Conv" else [1, 4, 4, 16])
    return net


def test_parallel_parts_continue_to_the_next_reduction() -> None:
    graph = chain("Conv").build("y")
    done = rewrite_graph(graph)
    assert [(rewrite.rule, rewrite.op) for rewrite in done.rewrites] == [
        ("zero-copy-concat", "c"), ("parallel-parts", "d"), ("parallel-parts", "b"), ("parallel-parts", "r"),
        ("partial-sums", "y"),
    ]  # fmt: skip
    assert [t.size for t in done.graph.tensors if t.name.startswith("d/part")] == [64, 128, 64]
    assert check_numerics(graph, done.graph).tensors == 4
    assert least_order_peak(done.graph, most_states=1000) < least_order_peak(graph, most_states=1000)


def test_readers_of_whole_tensors_read_one_tensor() -> None:
    """Unknown ops and graph outputs need one tensor, into which the parts are written."""
    graph = chain("Secret").build("y")
    done = rewritten(graph)
    writers = [op.name for op in done.graph.ops if op.outputs == ("r",)]
    assert writers == ["r/part0", "r/part1", "r/part2"]
    kept = chain("Conv").build("y", "b")
    done = rewritten(kept)
    assert [op.name for op in done.graph.ops if op.outputs == ("b",)] == ["b/part0", "b/part1", "b/part2"]


def test_other_readers_keep_the_concatenation() -> None:
    net = Net(layout="NHWC")
    net.inputs([1, 4, 4, 2], [1, 4, 4, 2], [1, 4, 4, 2])
    net.op("c", "Concat", ["x0", "x1", "x2"], [1, 4, 4, 6], axis=-1)
    net.op("y", "Conv", ["c"], [1, 4, 4, 3])
    net.op("s", "Secret", ["c"], [1, 4, 4, 3])
    graph = net.build("y", "s")
    done = rewritten(graph)
    assert [(rewrite.rule, rewrite.never_worse) for rewrite in done.rewrites] == [("partial-sums", False)]
    assert done.graph.ops[done.graph.op_index["s"]].inputs == ("c",)


def test_unread_concatenation_is_removed() -> None:
    graph = chain("Conv").build("y")
    done = rewritten(graph, RewriteOptions(rules=("parallel-parts",)))
    assert "c" not in done.graph.op_names
    assert rewrite_graph(graph, RewriteOptions(rules=("zero-copy-concat",))).graph.op_names[3:] == ("d", "b", "r", "y")


def test_nested_and_repeated_concatenations() -> None:
    net = Net(layout="NHWC")
    net.inputs([1, 4, 4, 2], [1, 4, 4, 1])
    net.op("c", "Concat", ["x0", "x1"], [1, 4, 4, 3], axis=3)
    net.op("e", "Concat", ["c", "x0"], [1, 4, 4, 5], axis=3)
    net.op("y", "Conv", ["e"], [1, 4, 4, 3], kernel=3)
    graph = net.build("y")
    done = rewritten(graph)
    assert [op.inputs for op in done.graph.ops[2:]] == [("x0",), ("x1",), ("x0",)]
    only = rewrite_graph(graph, RewriteOptions(rules=("zero-copy-concat",)))
    assert only.graph.ops[-1].inputs == ("x0", "x1")
    check_numerics(graph, only.graph)
    check_numerics(graph, rewrite_graph(only.graph).graph)


def test_splits_are_read_in_place() -> None:
    net = Net(layout="NHWC")
    net.inputs([1, 4, 4, 6])
    net.builder.op("s", inputs=["x0"], outputs={"s0": 32, "s1": 64}, type="Split")
    net.shapes.update(s0=[1, 4, 4, 2], s1=[1, 4, 4, 4])
    net.attrs["s"] = {"axis": 3}
    net.op("a", "Conv", ["s0"], [1, 4, 4, 2])
    net.op("b", "ReLU", ["s1"], [1, 4, 4, 4])
    net.op("y", "Concat", ["a", "b"], [1, 4, 4, 6], axis=3)
    graph = net.build("y")
    done = rewritten(graph)
    assert [rewrite.rule for rewrite in done.rewrites] == ["zero-copy-split"]
    assert not done.never_worse
    assert done.graph.meta["attrs"]["b"]["operands"] == [{"axis": 3, "parts": [["x0", 2, 6]]}]


def test_operands_of_an_elementwise_op_are_split_together() -> None:
    """One operand is in parts, one is whole and read in slices, two are broadcast."""
    net = Net(layout="NHWC")
    net.inputs([1, 4, 4, 2], [1, 4, 4, 4], [1, 4, 4, 6], [6], [1, 4, 4, 1])
    net.op("c", "Concat", ["x0", "x1"], [1, 4, 4, 6], axis=3)
    net.op("y", "Mul", ["c", "x2", "x3", "x4"], [1, 4, 4, 6])
    graph = net.build("y")
    done = rewritten(graph)
    assert [op.inputs for op in done.graph.ops[-2:]] == [("x0", "x2", "x3", "x4"), ("x1", "x2", "x3", "x4")]


def test_part_names_are_unique_and_survive_files(tmp_path) -> None:
    from remat.graphs import read_graph, write_graph

    net = Net(layout="NHWC")
    names = net.inputs(*[[1, 4, 4, 2]] * 3)
    net.op("y/part1", "ReLU", ["x0"], [1, 4, 4, 2])
    net.op("y", "Conv", names, [1, 4, 4, 2], concat_inputs=True, concat_axis=3)
    graph = net.build("y", "y/part1")
    done = rewrite_graph(graph).graph
    assert done.op_names[-3:] == ("y/part0", "y/part1.2", "y/part2")
    write_graph(done, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == done
    check_numerics(graph, read_graph(tmp_path / "g.json"))


def test_rewrites_one_by_one() -> None:
    graph = after = chain("Conv").build("y")
    (concat, parts) = find_rewrites(graph)
    assert (concat.rule, parts.op) == ("zero-copy-concat", "d")
    for rewrite in (concat, parts):
        done = rewrite_graph(after, only=[rewrite.key])
        assert [each.key for each in done.rewrites] == [rewrite.key]
        after = done.graph
    assert len(after.meta["rewriting"]) == 2
    check_numerics(graph, after)
    with refused("rewriting.argument"):
        rewrite_graph("swiftnet-a")  # type: ignore[arg-type]


def test_parts_of_parts() -> None:
    """Merged parts that are split again read the weights of the original op."""
    graph = after_concat("DepthwiseConv", [[1, 4, 4, 2]] * 4, 3, [1, 4, 4, 8], layout="NHWC", kernel=3)
    half = rewrite_graph(graph, RewriteOptions(parts=2)).graph
    again = rewrite_graph(half)
    assert [rewrite.op for rewrite in again.rewrites][:2] == ["y/part0", "y/part1"]
    check_numerics(graph, again.graph)


def test_copy_of_an_operand_is_removed() -> None:
    """The op that read both the copy and its source still adds two operands."""
    net = Net(layout="NHWC")
    net.inputs([1, 2])
    net.op("c", "Concat", ["x0"], [1, 2], axis=1)
    net.op("y", "Add", ["x0", "c"], [1, 2])
    graph = net.build("y")
    done = rewrite_graph(graph).graph
    assert done.meta["attrs"]["y"] == {"operands": [{"parts": ["x0"]}, {"parts": ["x0"]}]}
    check_numerics(graph, done)


def test_concatenation_of_many_parts_stays() -> None:
    net = Net(layout="NHWC")
    names = net.inputs(*[[1, 1]] * 513)
    net.op("c", "Concat", names, [1, 513], axis=1)
    net.op("y", "Dense", ["c"], [1, 2])
    assert not rewrite_graph(net.build("y"), RewriteOptions(rules=("zero-copy-concat",))).rewrites


def test_parts_larger_than_their_concatenation_may_be_worse() -> None:
    """If the concatenation has narrower elements, reading its parts in place may take more memory."""
    graph = chain("Conv").build("y")
    narrow = replace(graph, tensors=[replace(t, size=t.size // (2 if t.name == "c" else 1)) for t in graph.tensors])
    for rules in (("zero-copy-concat",), ("parallel-parts",)):
        options = RewriteOptions(rules=rules)
        assert rewrite_graph(graph, options).never_worse
        assert not rewrite_graph(narrow, options).never_worse


def test_expired_deadline_stops_rewriting_and_check() -> None:
    graph = chain("Conv").build("y")
    done = rewrite_graph(graph, deadline=Deadline.after(0))
    assert (done.graph, done.complete) == (graph, False)
    with pytest.raises(OverdueError):
        check_numerics(graph, graph, deadline=Deadline.after(0))


def tampered(graph: ComputeGraph, op: str, **part: object) -> ComputeGraph:
    attrs = dict(graph.meta["attrs"])
    attrs[op] = {**attrs[op], "part_of": {**attrs[op]["part_of"], **part}}
    return replace(graph, meta={**graph.meta, "attrs": attrs})


@pytest.mark.parametrize("fault", [{"bias": False}, {"start": 1, "stop": 3}, {"finish": False}, {"sum": False}])
def test_check_detects_faults(fault) -> None:
    graph = conv_of(3)
    after = rewrite_graph(graph).graph
    check_numerics(graph, after)
    wrong = tampered(after, "y/part2" if "finish" in fault else "y/part0", **fault)
    with pytest.raises(GraphError, match="does not compute the same: tensor 'y' differs by"):
        check_numerics(graph, wrong)


def test_check_names_trusted_axes() -> None:
    graph = after_concat("Secret", [[1, 4]] * 3, 1, [1, 3], reduced_axes=[1])
    found = check_numerics(graph, rewrite_graph(graph).graph)
    assert found.trusted == ("y",)
    assert "taken on trust: the axes of y" in str(found)


def test_invalid_options() -> None:
    for options in (
        {"rules": ("magic",)},
        {"min_parts": 1},
        {"parts": True},
        {"kernels": "fast"},
        {"accumulator_bytes": 0},
    ):
        with refused("graph.rewrite-options"):
            RewriteOptions(**options)


@pytest.mark.parametrize("batch", some_slow(range(3), 1))
def test_rewritten_random_networks_agree_at_no_more_cost(batch: int) -> None:
    """The least peak is no higher if every rewrite claims so."""
    rewritten = compared = 0
    for seed in range(batch * 8, batch * 8 + 8):
        graph = random_network(seed)
        for rewrite in find_rewrites(graph, TWO)[:4]:
            one = rewrite_graph(graph, TWO, only=[rewrite.key]).graph
            assert check_numerics(graph, one).difference < 1e-9
            assert one.base_cost <= graph.base_cost
        wide = RewriteOptions(min_parts=2, accumulator_bytes=4, parts=2)
        for options in (TWO, RewriteOptions(min_parts=2, rules=("partial-sums", "parallel-parts")), wide):
            done = rewrite_graph(graph, options)
            rewritten += len(done.rewrites)
            assert check_numerics(graph, done.graph).difference < 1e-9
            assert done.graph.base_cost <= graph.base_cost
            before = (
                least_order_peak(graph, most_states=1000) if done.never_worse and len(done.graph.ops) < 20 else None
            )
            after = None if before is None else least_order_peak(done.graph, most_states=1000)
            if before is not None and after is not None:
                assert after <= before
                compared += 1
    assert rewritten > 30
    assert compared > 2


def test_concatenations_and_slices_agree_with_numpy() -> None:
    net = Net(layout="NHWC")
    net.inputs([1, 2, 2, 3], [1, 2, 2, 3])
    net.op("y", "Concat", ["x0", "x1"], [1, 2, 2, 6], axis=3)
    net.op("z", "Slice", ["y"], [1, 2, 2, 2], axis=3, start=2)
    found = run(Draft(net.build("z")), lambda shape: shape, 0)
    assert (found["y"] == np.concatenate([found["x0"], found["x1"]], axis=3)).all()
    assert (found["z"] == found["y"][..., 2:4]).all()


def test_unchanged_ops_still_write_in_place() -> None:
    """Parts do not write in place, and no op overwrites the buffer of a sum."""
    graph = described_network()
    ops = [replace(op, in_place=[(op.name, op.inputs[0])]) if op.name in "nrpq" else op for op in graph.ops]
    graph = replace(graph, ops=ops)
    done = rewrite_graph(graph, TWO)
    assert [rewrite.rule for rewrite in done.rewrites] == ["parallel-parts"] * 3 + ["partial-sums"]
    assert {op.name: op.in_place for op in done.graph.ops if op.in_place} == {"q": (("q", "p"),)}
    check_numerics(graph, done.graph)


@pytest.mark.parametrize("graph", [chain("Conv").build("y"), described_network()], ids=lambda graph: graph.name)
def test_check_of_large_graphs_compares_changed_tensors(graph, monkeypatch) -> None:
    """Other tensors are discarded after their last use; the limit applies to the tensors that are alive at once."""
    done = rewrite_graph(graph, TWO).graph
    most = sum(np.prod(shape) for shape in graph.meta["shapes"].values())
    for module in (numerics, check):
        monkeypatch.setattr(module, "MOST_ELEMENTS", int(most * 0.9))
    assert check_numerics(graph, done).tensors == 1
    with pytest.raises(GraphError, match="does not compute the same"):
        check_numerics(graph, tampered(done, "y/part0", bias=False))
    monkeypatch.setattr(numerics, "MOST_ELEMENTS", int(most * 0.2))
    with pytest.raises(GraphError, match="the tensors that are alive then are too large for a check"):
        check_numerics(graph, done)


def test_remaining_concatenation_may_raise_the_peak() -> None:
    """The op reads the parts of both, and other readers keep one concatenation alive."""
    net = Net(layout="NHWC")
    net.inputs([1, 4, 4, 2], [1, 4, 4, 2])
    net.op("a", "ReLU", ["x0"], [1, 4, 4, 2])
    net.op("b", "ReLU", ["x1"], [1, 4, 4, 2])
    net.op("c", "Concat", ["x0", "x1"], [1, 4, 4, 4], axis=3)
    net.op("e", "Concat", ["a", "b"], [1, 4, 4, 4], axis=3)
    net.op("s", "Secret", ["e"], [1, 4, 4, 4])
    net.op("y", "Add", ["c", "e"], [1, 4, 4, 4])
    graph = net.build("y", "s")
    for kernels in ("in-place", "whole"):
        done = rewrite_graph(graph, RewriteOptions(rules=("parallel-parts",), kernels=kernels))
        assert [(rewrite.op, rewrite.never_worse) for rewrite in done.rewrites] == [("y", False)]
        check_numerics(graph, done.graph)
