"""Hierarchies of groups: validity, interfaces."""

import numpy as np
import pytest
from refusals import refused

from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.hierarchy import Group, Hierarchy, interface
from remat.problem import Problem


def diamonds() -> Problem:
    """a -> b, c -> d -> e, f -> g."""
    b = GraphBuilder("diamonds")
    for name, inputs in {"a": "", "b": "a", "c": "a", "d": "bc", "e": "d", "f": "d", "g": "ef"}.items():
        b.op(name, inputs=list(inputs), size=2, cost=1)
    return Problem(b.build())


def tree(*groups: Group) -> Hierarchy:
    return Hierarchy(diamonds(), Group("root", np.arange(7), children=groups))


def test_convex_groups_form_a_hierarchy() -> None:
    inner = Group("inner", np.array([4, 5]))
    hierarchy = tree(Group("first", np.array([0, 1, 2])), Group("second", np.array([3, 4, 5]), children=(inner,)))
    hierarchy.check()
    assert hierarchy.depth == 3
    assert [group.name for group in hierarchy.groups()] == ["first", "inner", "second", "root"]
    assert [len(level) for level in hierarchy.levels()] == [1, 2, 1]
    assert hierarchy.root.alone.tolist() == [6]
    assert repr(hierarchy) == "Hierarchy('diamonds', depth 3, 4 groups)"


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("problem.not-convex", [Group("x", np.array([0, 3]))]),
        ("problem.not-convex", [Group("outer", np.arange(4), children=(Group("bent", np.array([0, 3])),))]),
        ("problem.not-convex", [Group("x", np.array([1, 5])), Group("y", np.array([2, 3]))]),
        ("problem.not-convex", [Group("x", np.array([1, 5])), Group("y", np.array([2, 6]))]),
        ("problem.not-disjoint", [Group("x", np.array([1, 2])), Group("y", np.array([2, 3]))]),
        ("problem.not-in-order", [Group("x", np.array([2, 1]))]),
        ("problem.no-ops", [Group("x", np.array([], dtype=int))]),
        ("problem.not-in-parent", [Group("x", np.array([1, 2, 3]), children=(Group("y", np.array([3, 4])),))]),
        ("problem.two-parts", [Group("x", np.array([1, 2]), np.array([2]))]),
    ],
)
def test_invalid_hierarchies_are_refused(kind: str, groups: list[Group]) -> None:
    with refused(kind):
        tree(*groups).check()


def test_root_must_have_all_ops() -> None:
    with refused("problem.lacks-op", culprit="g"):
        Hierarchy(diamonds(), Group("root", np.arange(6))).check()


def test_backward_parts_are_separate_nodes() -> None:
    """Forward and backward part of a group each run as a whole."""
    problem = Problem(unit_chain(3))
    root = [np.arange(4), np.arange(4, 7)]
    Hierarchy(problem, Group("root", *root, (Group("x", np.array([0, 1]), np.array([5, 6])),))).check()
    with refused("problem.not-convex", culprit="x"):
        Hierarchy(problem, Group("root", *root, (Group("x", np.array([0, 1]), np.array([4, 6])),))).check()


def test_interfaces_of_all_sets_of_ops() -> None:
    b = GraphBuilder("buffers")
    b.input("w", 3)
    b.op("a", inputs=["w"], size=2)
    b.op("b", inputs=["a"], outputs={"s": 5, "t": 1})
    b.op("c", inputs=["a", "w"], outputs=["s"])
    b.op("d", inputs=["s"], size=4)
    b.op("e", inputs=["t", "d"], size=4)
    problem = Problem(b.build(), keep=["d"])
    graph = problem.graph
    for mask in range(1, 32):
        ops = [k for k in range(5) if mask >> k & 1]
        rest = [graph.ops[k] for k in range(5) if k not in ops]
        read = {t for k in ops for t in graph.ops[k].inputs}
        written = {t for k in ops for t in graph.ops[k].outputs}
        there = {t for op in rest for t in op.outputs}
        used = {t for op in rest for t in op.inputs} | there | set(graph.outputs) | {"d"}
        border = interface(problem, np.array(ops))
        names = graph.tensor_names
        assert {names[t] for t in border.inputs} == {t for t in read if t in there or t == "w"}
        assert {names[t] for t in border.outputs} == {t for t in written if t in used}
