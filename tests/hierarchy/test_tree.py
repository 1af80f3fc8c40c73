"""Groups within groups: what a hierarchy must be, and what crosses a border."""

import numpy as np
import pytest

from remat.errors import ProblemError
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


def test_a_hierarchy_of_convex_groups_is_one() -> None:
    inner = Group("inner", np.array([4, 5]))
    hierarchy = tree(Group("first", np.array([0, 1, 2])), Group("second", np.array([3, 4, 5]), children=(inner,)))
    hierarchy.check()
    assert hierarchy.depth == 3
    assert [group.name for group in hierarchy.groups()] == ["first", "inner", "second", "root"]
    assert [len(level) for level in hierarchy.levels()] == [1, 2, 1]
    assert hierarchy.root.alone.tolist() == [6]
    assert repr(hierarchy) == "Hierarchy('diamonds', depth 3, 4 groups)"


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ([Group("x", np.array([0, 3]))], "group 'x' is not convex: op 'b' lies on a path out of it and back"),
        ([Group("x", np.array([1, 5])), Group("y", np.array([2, 3]))], "group 'x' and group 'y' depend on each other"),
        ([Group("x", np.array([1, 5])), Group("y", np.array([2, 6]))], "group 'x' and group 'y' depend on each other"),
        ([Group("x", np.array([1, 2])), Group("y", np.array([2, 3]))], "op 'c' is in several children of group 'root'"),
        ([Group("x", np.array([2, 1]))], "group 'x': op 'b' is listed twice or not in the reference order"),
        ([Group("x", np.array([], dtype=int))], "group 'x' has no ops"),
        (
            [Group("x", np.array([1, 2, 3]), children=(Group("y", np.array([3, 4])),))],
            "forward op 'e' of group 'y' is not one of its parent 'x'",
        ),
    ],
)
def test_what_is_no_hierarchy_is_refused(groups: list[Group], fault: str) -> None:
    with pytest.raises(ProblemError) as caught:
        tree(*groups).check()
    assert fault in str(caught.value)


def test_the_root_has_all_ops() -> None:
    with pytest.raises(ProblemError, match="lacks op 'g'"):
        Hierarchy(diamonds(), Group("root", np.arange(6))).check()


def test_groups_inside_others_are_looked_at() -> None:
    outer = Group("outer", np.arange(4), children=(Group("bent", np.array([0, 3])),))
    with pytest.raises(ProblemError, match="'bent' is not convex"):
        tree(outer).check()


def test_backward_parts_are_nodes_of_their_own() -> None:
    """The forward and the backward part of a group are run at different times, but each as a whole."""
    problem = Problem(unit_chain(3))
    root = [np.arange(4), np.arange(4, 7)]
    Hierarchy(problem, Group("root", *root, (Group("x", np.array([0, 1]), np.array([5, 6])),))).check()
    with pytest.raises(ProblemError, match=r"group 'x' \(its backward ops\) is not convex: op 'g1'"):
        Hierarchy(problem, Group("root", *root, (Group("x", np.array([0, 1]), np.array([4, 6])),))).check()


def test_interfaces_of_all_sets_agree_with_a_plain_search() -> None:
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
