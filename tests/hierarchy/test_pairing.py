"""Pairing of backward ops with groups, on chains, real training graphs and random ones."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.io import load_graph
from remat.hierarchy import Group
from remat.hierarchy.pairing import attach_backward, contiguous, largest_acyclic
from remat.hierarchy.partition.base import groupable
from remat.problem import Problem


def slices(problem: Problem, length: int) -> list[Group]:
    """Return runs of forward ops in the reference order, each of two halves."""
    ops, groups = groupable(problem), []
    for k in range(0, len(ops), length):
        run = ops[k : k + length]
        halves = [Group("half", half) for half in np.array_split(run, 2) if len(half)]
        groups.append(Group(f"{k}", run, children=tuple(halves)))
    return groups


def test_chains_are_mirrored() -> None:
    hierarchy = attach_backward(Problem(unit_chain(6)), slices(Problem(unit_chain(6)), 2))
    assert [group.backward.tolist() for group in hierarchy.root.children] == [[11, 12], [9, 10], [7, 8]]
    assert [half.backward.tolist() for half in hierarchy.root.children[0].children] == [[12], [11]]
    assert hierarchy.root.alone.tolist() == [6]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("gpt2l__rotor64k", 9),
        ("resnet_gn__rotor64k", 7),
        ("resnet50_train", 20),
        ("unet_train", 10),
        ("checkmate_unet_static", 4),
        ("checkmate_resnet50_static", 22),
    ],
)
def test_pairing_of_real_graphs(name: str, length: int, shared) -> None:
    """Groups take all backward ops, which read only tensors of their own forward ops."""
    problem = Problem(load_graph(shared / "data" / "graphs" / f"{name}.json"), order="free")
    arrays = problem.graph.arrays
    hierarchy = attach_backward(problem, slices(problem, length))
    hierarchy.check()
    assert sum(len(group.backward) for group in hierarchy.root.children) == len(hierarchy.root.backward)
    forward = np.zeros(len(arrays.cost), dtype=bool)
    forward[groupable(problem)] = True
    foreign = total = 0
    for group in hierarchy.root.children:
        known = {t for op in group.forward for t in (*arrays.op_inputs[op], *arrays.op_outputs[op])}
        for op in group.backward:
            read = [t for t in arrays.op_inputs[op] if forward[arrays.producers[t]].any()]
            total += len(read)
            foreign += sum(t not in known for t in read)
    # Checkmate's gradients read the outputs of all readers, which may be in two groups
    assert foreign <= (0.08 * total if name.startswith("checkmate") else 0)


@pytest.mark.shared
def test_op_types_separate_backward_ops_at_a_border(shared) -> None:
    """The gradients of ReLU and of the next convolution read the same value."""
    problem = Problem(load_graph(shared / "data" / "graphs" / "resnet50_train.json"))
    graph = problem.graph
    ops = groupable(problem)
    border = int(np.flatnonzero(ops == graph.op_index["relu_6"])[0]) + 1
    hierarchy = attach_backward(problem, [Group("before", ops[:border]), Group("after", ops[border:])])
    (relu,) = (graph.op_index[o.name] for o in graph.ops if "threshold" in o.name and "relu_6" in o.inputs)
    (conv,) = (graph.op_index[o.name] for o in graph.ops if "convolution_backward" in o.name and "relu_6" in o.inputs)
    before, after = hierarchy.root.children
    assert relu in before.backward
    assert conv in after.backward


def random_step(seed: int, most: int = 10) -> tuple[ComputeGraph, random.Random]:
    """Return a training graph whose backward ops read random forward values and gradients."""
    draw = random.Random(seed)
    forward, backward = draw.randint(1, most), draw.randint(1, most + 2)
    b = GraphBuilder("random")
    names: list[str] = []
    for k in range(forward + 1 + backward):
        phase = "forward" if k < forward else "loss" if k == forward else "backward"
        inputs = draw.sample(names, min(len(names), draw.randint(0, 3)))
        names.append(b.op(f"{k}", inputs=inputs, size=draw.randint(0, 3), cost=1, phase=phase))
    return b.build(), draw


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_hierarchies_of_random_graphs(seed: int) -> None:
    graph, draw = random_step(seed)
    for order in ("free", "fixed"):
        problem = Problem(graph, order=order)
        hierarchy = attach_backward(problem, slices(problem, draw.randint(1, 5)))
        hierarchy.check()
        if order == "fixed":
            for group in hierarchy.groups():
                assert (np.diff(graph.arrays.position[group.backward]) == 1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_largest_acyclic_parts_keep_every_label(seed: int) -> None:
    graph, draw = random_step(seed)
    arrays, count = graph.arrays, len(graph.ops)
    labels = np.array([draw.randint(0, 3) for _ in range(count)])
    edges = (arrays.edge_producer, arrays.edge_consumer)
    keep = largest_acyclic(labels, arrays.order, *edges)
    assert set(labels[keep]) == set(labels)
    parted = np.where(keep, labels, 10 + np.arange(count))
    assert largest_acyclic(parted, arrays.order, *edges).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=20))
def test_labels_of_a_sequence_become_runs(labels: list[int]) -> None:
    found = contiguous(np.array(labels, dtype=np.int64)).tolist()
    assert set(found) - {-1} == set(labels) - {-1}
    starts = [a for k, a in enumerate(found) if a >= 0 and (k == 0 or found[k - 1] != a)]
    assert len(starts) == len(set(starts))
    again = contiguous(np.array(found, dtype=np.int64)).tolist()
    assert again == found
