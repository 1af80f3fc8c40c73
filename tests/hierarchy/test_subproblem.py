"""Sub-problems: memory equal to that of the group in the whole graph."""

import contextlib
import random
from itertools import pairwise

import numpy as np
import pytest
from refusals import refused

from remat import Problem
from remat.errors import ProblemError
from remat.formulations.composites import Option
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.hierarchy.groups import Group
from remat.hierarchy.subproblem import SubProblem, translated
from remat.schedule import Schedule, simulate
from remat.schedule.validate import validate
from remat.testing.graphs import random_graph


def held(graph: ComputeGraph, sequence: list[int], kept: set[int]) -> list[set[int]]:
    """Return the live tensors of each step, except graph inputs; plain and slow."""
    arrays = graph.arrays
    there: list[set[int]] = [set() for _ in sequence]
    for tensor in range(len(arrays.size)):
        writers, readers = set(arrays.producers[tensor].tolist()), set(arrays.consumers[tensor].tolist())
        writes = [step for step, op in enumerate(sequence) if op in writers]
        begins = writes if len(writers) == 1 else writes[:1]
        for begin, following in pairwise([*begins, len(sequence)]):
            last = max([s for s in range(begin, following) if sequence[s] in readers], default=begin)
            last = max(last, *(s for s in writes if s < following))
            if tensor in kept and following == len(sequence):
                last = len(sequence) - 1
            for step in range(begin, last + 1):
                there[step].add(tensor)
        if not readers and tensor not in kept:  # there only while it is written
            for step, op in enumerate(sequence):
                if op not in writers:
                    there[step].discard(tensor)
    return there


def with_recomputations(rng: random.Random, problem: Problem, group: Group) -> tuple[list[int], list[int]]:
    """Return forward and backward ops with random recomputations inserted."""
    arrays = problem.graph.arrays
    shared = {op for op in group.ops.tolist() if (arrays.producers.counts[arrays.op_outputs[op]] > 1).any()}
    parts: list[list[int]] = []
    before: list[int] = []
    for ops in (group.forward.tolist(), group.backward.tolist()):
        part: list[int] = []
        for op in ops:
            if before and rng.random() < 0.5:
                part.append(rng.choice(before))
            part.append(op)
            if arrays.recomputable[op] and op not in shared:
                before.append(op)
        parts.append(part)
    return parts[0], parts[1]


def some_group(rng: random.Random, *, buffers: bool, tied: bool) -> tuple[Problem, Group, SubProblem]:
    """Return a random group of a random graph; its name holds the borders of its two ranges of the order."""
    while True:
        graph = random_graph(rng.randrange(10**6), 14, buffers=buffers)
        if len(graph.ops) < 6:
            continue
        order = graph.arrays.order
        a, b, c, d = sorted(rng.sample(range(len(order) + 1), 4))
        group = Group(f"{a} {b} {c} {d}", order[a:b], order[c:d] if tied else [])
        with contextlib.suppress(ProblemError):  # other ops write into a buffer of the group
            return Problem(graph), group, SubProblem.of(Problem(graph), group)


@pytest.mark.parametrize("seed", range(40))
def test_memory_equals_that_of_the_group_in_the_whole_graph(seed: int) -> None:
    rng = random.Random(seed)
    problem, group, part = some_group(rng, buffers=seed % 2 == 1, tied=seed % 4 > 0)
    graph = problem.graph
    a, b, c, d = map(int, group.name.split())
    order = graph.arrays.order
    forward, backward = with_recomputations(rng, problem, group)
    small = part.schedule(translated(Option(forward, backward), part.place))
    certificate = validate(part.problem.graph, small, part.problem.rules)
    assert certificate.accepted, certificate.first
    assert certificate.cost == int(graph.arrays.cost[forward + backward].sum())
    option = translated(part.cut(small), part.ops)
    assert option.forward.tolist() == forward
    assert (option.backward is None) == (part.outside is None)
    rest = [] if part.outside is None else backward
    middle, end = (order[b:], []) if part.outside is None else (order[b:c], order[d:])
    sequence = [*order[:a].tolist(), *forward, *middle.tolist(), *rest, *list(end)]
    inside = {graph.tensor_index[t.name] for t in part.problem.graph.tensors if t.name in graph.tensor_index}
    whole = held(graph, sequence, set(np.flatnonzero(problem.kept).tolist()))
    own = part.problem.graph
    mine = held(own, [own.op_index[op] for op in small.computes()], {own.tensor_index[t] for t in own.outputs})
    steps = [*range(a, a + len(forward))]
    steps += [a + len(forward) + len(middle) + k for k in range(len(rest))]
    sub_steps = [k for k in range(len(small)) if part.outside is None or k != len(forward)]
    names, arrays = graph.tensor_names, own.arrays
    interfaces = {names[t] for t in inside} & (
        set(own.inputs)
        | set(own.outputs)
        | {t for op in own.ops if op.type == "outside" for t in op.inputs + op.outputs}
    )
    for step, sub_step in zip(steps, sub_steps, strict=True):
        in_whole = {names[t] for t in whole[step] & inside} - interfaces
        in_part = {own.tensor_names[t] for t in mine[sub_step]} - interfaces - {"outside done"}
        assert in_part == in_whole, (sequence[step], step)
    # with the interfaces, memory sums to the certified peak
    memory = [
        arrays.input_bytes + sum(int(arrays.size[t]) for t in live) + int(arrays.workspace[own.op_index[op]])
        for live, op in zip(mine, small.computes(), strict=True)
    ]
    assert max(memory) == certificate.peak == simulate(own, small).peak


def test_limit_on_held_tensors_is_the_workspace_of_outside() -> None:
    whole = Problem(unit_chain(6))
    part = SubProblem.of(whole, Group("g", np.array([1, 2, 3, 4]), np.array([8, 9, 10, 11])))
    assert (part.held_least, part.held_reference) == (3, 6)
    saving = part.asking(7, 6)
    assert saving.graph.structural_bound.peak <= 7
    assert validate(saving.graph, Schedule.reference(saving.graph), saving.rules).accepted
    recomputing = part.asking(7, 3)
    fault = validate(recomputing.graph, Schedule.reference(recomputing.graph), recomputing.rules).first
    assert "'outside'" in str(fault) and "budget" in str(fault)
    again_all = part.schedule(Option([0, 1, 2, 3], [0, 1, 2, 5, 6, 7, 8])).targets
    assert validate(recomputing.graph, Schedule.of_computes(recomputing.graph, again_all), recomputing.rules).accepted


def test_group_reading_a_shared_buffer_is_refused() -> None:
    b = GraphBuilder("shared")
    b.tensor("sum", 4)
    b.op("x", outputs=["sum"], cost=1)
    b.op("y", outputs=["sum"], cost=1)
    b.op("z", inputs=["sum"], size=1, cost=1)
    with refused("problem.not-alone", culprit="g"):
        SubProblem.of(Problem(b.build()), Group("g", np.array([1, 2])))
