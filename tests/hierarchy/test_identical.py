"""Classes of identical groups: differences that separate them, translation."""

import contextlib
import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from generators import jittered
from refusals import refused

from remat.errors import ProblemError
from remat.graphs import ComputeGraph, Tensor
from remat.graphs.zoo import ZOO
from remat.graphs.zoo.transformers import gpt
from remat.hierarchy import Group
from remat.hierarchy.classes import COST_TOLERANCE, Forms
from remat.hierarchy.identical import identical_groups, translate
from remat.hierarchy.partition.base import as_partitioner
from remat.hierarchy.partition.blocks import Blocks
from remat.hierarchy.partition.h_partition import HPartition, HPartitionOptions
from remat.hierarchy.partition.modules import Modules
from remat.problem import Problem
from remat.registry import partitioners

LAYERS = 6


def small(jitter: float = 0, **options) -> ComputeGraph:
    return jittered(gpt(layers=LAYERS, width=24, heads=2, sequence=8, vocabulary=50, **options), jitter)


def layer_classes(problem: Problem) -> list[list[str]]:
    return [[group.name for group in each.members] for each in identical_groups(Blocks().partition(problem))]


JITTER = pytest.mark.parametrize("jitter", [0, 0.01])


@JITTER
@pytest.mark.parametrize("accumulation", ["sums", "buffers"])
def test_layers_form_one_class(accumulation, jitter) -> None:
    found = layer_classes(Problem(small(jitter, accumulation=accumulation)))
    assert [f"layers.{k}" for k in range(LAYERS)] in found
    assert len(found) == 4  # embedding, layers, head, all


def changed(graph: ComputeGraph, op: str, **changes) -> ComputeGraph:
    return replace(graph, ops=[replace(o, **changes) if o.name == op else o for o in graph.ops])


@JITTER
@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("layers.2.mlp.up", {"cost": 1}),
        ("layers.2.mlp.up", {"workspace": 1}),
        ("layers.2.mlp.up", {"type": "other"}),
        ("layers.2.mlp.up", {"recomputable": False}),
        ("grad_layers.2.mlp.up", {"cost": 1}),
        ("layers.2.mlp.up", {"inputs": ("layers.2.residual1",)}),  # one edge, between values of equal size
        ("grad_layers.2.mlp.gelu", {"inputs": ("grad_layers.2.mlp.down", "layers.2.mlp.up", "layers.2.ln2")}),
    ],
)
def test_one_different_cost_or_edge_separates(op: str, changes, jitter) -> None:
    graph = changed(small(jitter), op, **changes)
    found = layer_classes(Problem(graph))
    assert ["layers.2"] in found
    assert [f"layers.{k}" for k in range(LAYERS) if k != 2] in found


@JITTER
def test_sizes_limits_and_kept_tensors_separate(jitter) -> None:
    graph = small(jitter)
    tensors = [Tensor(t.name, t.size + (t.name == "layers.3.mlp.gelu")) for t in graph.tensors]
    assert ["layers.3"] in layer_classes(Problem(replace(graph, tensors=tensors)))
    assert ["layers.3"] in layer_classes(Problem(graph, keep=["layers.3.mlp.gelu"]))
    assert ["layers.3"] in layer_classes(Problem(graph, max_computes={"layers.3.mlp.gelu": 2}))


@pytest.mark.parametrize(("partitioner", "before"), [(Modules, 40), (HPartition, 29)])
def test_measured_costs_add_no_classes(partitioner, before: int) -> None:
    """Costs within 1 % would split the 7 classes of a GPT with 12 layers into 40 and 29."""
    graph = gpt(layers=12)
    exact = identical_groups(partitioner().partition(Problem(graph)))
    hierarchy = partitioner().partition(Problem(jittered(graph)))
    found = identical_groups(hierarchy)
    assert [(one.representative.name, len(one)) for one in found] == [(o.representative.name, len(o)) for o in exact]
    assert (len(identical_groups(hierarchy, 0)), len(found)) == (before, 7)
    cost = hierarchy.graph.arrays.cost
    for each in found:
        own = [cost[member.ops] for member in each.members]
        assert max(abs(one - own[0]).sum() for one in own) <= 0.05 * own[0].sum()


@pytest.mark.parametrize("name", ["gpt", "unet", "resnet50-ops", "darts-cell"])
def test_tolerance_has_no_effect_on_exact_costs(name: str) -> None:
    for partitioner in partitioners():
        with contextlib.suppress(ProblemError):
            hierarchy = as_partitioner(partitioner).partition(Problem(ZOO[name]()))
            found, exact = ([each.members for each in identical_groups(hierarchy, t)] for t in (COST_TOLERANCE, 0))
            assert found == exact


def test_nested_groups_must_match() -> None:
    problem = Problem(small())
    _, one, two, *_ = Blocks().partition(problem).root.children
    forms = Forms(problem)
    cut = [
        Group(g.name, g.forward, g.backward, (Group("x", g.forward[:n]),)) for g, n in ((one, 3), (two, 3), (two, 4))
    ]
    assert forms.of(cut[0]) == forms.of(cut[1])
    assert forms.of(cut[0]) != forms.of(cut[2])
    assert forms.of(one) == forms.of(two)


def whole_graph(problem: Problem, group: Group) -> "nx.DiGraph":
    """Return ops and tensors of a group as a networkx graph with labels."""
    graph, inside = problem.graph, set(group.ops.tolist())
    found: nx.DiGraph = nx.DiGraph()
    for op in inside:
        o = graph.ops[op]
        found.add_node(("op", op), label=(o.type, o.phase, o.cost, o.workspace, o.recomputable))
        for tensors, out in ((o.inputs, False), (o.outputs, True)):
            for name in tensors:
                t = graph.tensor_index[name]
                ends = [set(rows[t].tolist()) <= inside for rows in (graph.arrays.producers, graph.arrays.consumers)]
                found.add_node(("tensor", t), label=(graph.tensors[t].size, *ends, bool(problem.kept[t])))
                found.add_edge(*((("op", op), ("tensor", t)) if out else (("tensor", t), ("op", op))))
    return found


def test_classes_agree_with_a_general_isomorphism_check() -> None:
    """Members of a class are isomorphic under the translation, and classes are not."""
    problem = Problem(small(accumulation="buffers"))
    hierarchy = HPartition(HPartitionOptions(max_top=8, max_group=6, min_group=2)).partition(problem)
    found = identical_groups(hierarchy)
    assert sum(len(each) for each in found) == sum(1 for _ in hierarchy.groups())
    assert max(len(each) for each in found) >= LAYERS - 2
    leaves = [each for each in found if not each.representative.children]
    match = nx.algorithms.isomorphism.categorical_node_match("label", None)
    for each in leaves:
        first = whole_graph(problem, each.representative)
        for member in each.members[1:]:
            other = whole_graph(problem, member)
            assert nx.is_isomorphic(first, other, node_match=match)
            moved = translate(each.representative.ops, each.representative, member)
            assert moved.tolist() == member.ops.tolist()
    for k, each in enumerate(leaves):
        for other in leaves[:k]:
            a, b = (whole_graph(problem, one.representative) for one in (each, other))
            assert len(a) != len(b) or not nx.is_isomorphic(a, b, node_match=match)


def test_order_of_tensors_and_inputs_does_not_matter() -> None:
    graph, draw = small(), random.Random(3)
    tensors = list(graph.tensors)
    draw.shuffle(tensors)
    ops = [replace(op, inputs=tuple(draw.sample(op.inputs, len(op.inputs)))) for op in graph.ops]
    assert [f"layers.{k}" for k in range(LAYERS)] in layer_classes(Problem(replace(graph, tensors=tensors, ops=ops)))


def test_translation_between_unequal_groups_is_refused() -> None:
    a, b = Group("a", np.array([1, 2])), Group("b", np.array([3]))
    with refused("problem.other-group", culprit="b"):
        translate([1], a, b)
    with refused("problem.not-in-group", culprit="a"):
        translate([7], a, a)
    assert translate([], a, a).tolist() == []
