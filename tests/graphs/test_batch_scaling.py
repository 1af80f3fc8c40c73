"""Graphs as affine functions of the batch size."""

from dataclasses import replace

import pytest
from refusals import refused

from remat.graphs import GraphBuilder
from remat.graphs.batch_scaling import Affine, AffineGraph
from remat.graphs.zoo import TRAINING, ZOO, vgg16


def network(batch, *, odd=0, cost=3, phase="forward", extra=()):
    """Two ops whose sizes are 4 * batch and 10 + batch."""
    b = GraphBuilder(f"net-b{batch}", constant_memory=100 + 2 * batch, meta={"batch": batch})
    b.op("a", size=4 * batch + odd, cost=cost * batch, workspace=batch, phase=phase)
    b.op("b", inputs=["a"], size=10 + batch, cost=5 * batch)
    for name in extra:
        b.op(name, size=1)
    return b.build()


@pytest.mark.parametrize("name", [*TRAINING, "swiftnet", "darts-cell-folded", "amoebanet-a-mobile"])
def test_zoo_graphs_are_affine(name):
    family = AffineGraph.of(ZOO[name])
    for batch in (5, 64):
        genuine = ZOO[name](batch)
        mine = family.at(batch)
        assert mine == replace(genuine, meta={"batch": batch})
        assert mine.digest == genuine.digest
    assert family.uneven_op() is None
    assert family.constant_memory.per_sample == genuine.meta["overhead"]["input_bytes"] // 64


def test_fit_to_several_batch_sizes():
    family = AffineGraph.fit({4: network(4), 10: network(10), 6: network(6)})
    assert family.sizes == (Affine(0, 4), Affine(10, 1))
    assert family.workspaces == (Affine(0, 1), Affine(0, 0))
    assert family.constant_memory == Affine(100, 2)
    assert family.name == "net"
    assert family.at(7) == network(7)


def test_graphs_that_are_not_affine_are_refused():
    for graphs in (
        {1: network(1)},
        {0: network(1), 1: network(1)},
        {1: network(1), 2: network(2, odd=1), 3: network(3)},
        {2: network(2), 4: network(4, odd=1)},  # 4.5 bytes for each sample
        {2: network(2, odd=9), 4: network(4)},  # falls
        {4: network(4), 5: network(5, odd=90)},  # negative at 0
        {1: network(1), 2: network(2), 3: network(3, cost=4)},
        {1: network(1), 2: network(2, phase="")},
        {1: network(1), 2: network(2, extra=["c"])},
        {1: network(1), 2: network(2).with_outputs(["b"])},
    ):
        with refused("batch-scaling.line"):
            AffineGraph.fit(graphs)


def test_scaling_with_exceptions():
    graph = network(5)
    family = AffineGraph.scaled(graph, 5, ["b"], constant_memory_per_sample=2)
    assert family.at(5) == graph
    assert [tensor.size for tensor in family.at(20).tensors] == [80, 15]
    assert [(op.cost, op.workspace) for op in family.at(20).ops] == [(60, 20), (100, 0)]
    assert family.at(20).constant_memory == 140
    fixed = AffineGraph.scaled(network(5, cost=1), 5, ["a", "b"], constant_costs=True)
    assert [(op.cost, op.workspace) for op in fixed.at(20).ops] == [(5, 5), (25, 0)]


def test_vgg16_scaled_from_one_graph():
    family = AffineGraph.scaled(vgg16(256), 256, constant_memory_per_sample=4 * 224 * 224 * 3)
    assert family.at(3).digest == vgg16(3).digest


def test_invalid_scaling_is_refused():
    for batch, independent, per_sample in (
        (5, ["c"], 0), (3, ["b"], 0), (4, ["a", "b"], 0), (5, [], 23), (True, [], 0), (2.0, [], 0)
    ):  # fmt: skip
        with refused("batch-scaling.proportion"):
            AffineGraph.scaled(network(5), batch, independent, constant_memory_per_sample=per_sample)


def test_uneven_op_of_disproportionate_costs():
    family = AffineGraph.scaled(network(5), 5)
    assert family.uneven_op() is None
    assert replace(family, costs=(Affine(2, 2), Affine(3, 3))).uneven_op() is None
    assert replace(family, costs=(Affine(2, 2), Affine(3, 2))).uneven_op() == "b"
    assert replace(family, costs=(Affine(0, 0), Affine(3, 2))).uneven_op() is None
    assert not replace(
        family, sizes=(Affine(1, 0),) * 2, workspaces=(Affine(1, 0),) * 2, constant_memory=Affine(1, 0)
    ).grows
