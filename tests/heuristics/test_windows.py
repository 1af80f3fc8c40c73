"""Windows: stretches of a hierarchy's tree as neighbourhoods of large neighbourhood search."""

import itertools

import numpy as np
import pytest
from helpers import judged

from remat import registry
from remat.backends.base import SolveOptions
from remat.deadline import Deadline
from remat.errors import RematError
from remat.graphs.families import unit_chain
from remat.graphs.zoo import gpt
from remat.heuristics import lns as module
from remat.heuristics.base import HeuristicRun
from remat.heuristics.lns import Lns, LnsOptions
from remat.heuristics.neighbourhoods import GROUPS, KINDS, Landscape, Portfolio, in_groups
from remat.heuristics.windows import Partitions, Windows
from remat.problem import Problem
from remat.schedule import Schedule

SMALL = gpt(layers=3, width=64, heads=2, sequence=16)


def recomputing(graph):
    """The reference order with the first ten ops once more in the middle."""
    order = graph.arrays.order
    return Schedule.of_computes(graph, np.insert(order, len(order) // 2, order[:10]))


def is_convex(graph, ops):
    """Whether no path leaves the ops and comes back."""
    after = graph.arrays.op_successors.lists()
    inside, seen = set(ops), set()
    waiting = [reader for op in ops for reader in after[op] if reader not in inside]
    while waiting:
        op = waiting.pop()
        if op in inside:
            return False
        if op not in seen:
            seen.add(op)
            waiting += after[op]
    return True


@pytest.mark.parametrize("name", ["blocks", "h-partition", "min-cut"])
def test_windows_are_groups_with_their_neighbours(name):
    """They have the size wanted; those as large as a group are the group; their forward and backward ops are convex."""
    problem = Problem(SMALL)
    hierarchy = registry.make("partitioners", name).partition(problem)
    windows = Windows(hierarchy.root, SMALL.arrays.position)
    rng, num_ops = np.random.default_rng(1), len(SMALL.ops)
    forward = set(hierarchy.root.forward.tolist())
    assert sorted(itertools.chain(*(ops for unit in windows.units for ops in unit))) == list(range(num_ops))
    for group in hierarchy.groups():
        op = int(rng.choice(group.ops))
        assert windows.around(op, group.num_ops, rng).tolist() == sorted(group.ops)
    for op, size in itertools.product(range(0, num_ops, 7), (1, 4, 13, 40, num_ops + 9)):
        ops = windows.around(op, size, rng).tolist()
        assert len(set(ops)) == len(ops) == min(size, num_ops)
        assert op in ops or (size == 1 and len(ops) == 1)
        assert is_convex(SMALL, [o for o in ops if o in forward])
        assert is_convex(SMALL, [o for o in ops if o not in forward])
    beside = windows.around(num_ops // 4, 40, rng)
    assert 10 < sum(o in forward for o in beside.tolist()) < 30, "forward and backward ops together"


def test_a_window_is_free_while_its_ops_are_of_use_and_the_same_for_a_seed():
    problem = Problem(SMALL, "60%")
    partitions = Partitions(("min-cut", "blocks"), problem)
    land = Landscape(problem, recomputing(SMALL), lambda: partitions(Deadline()))
    runs = []
    for _ in range(2):
        rng = np.random.default_rng(3)
        runs.append([Portfolio({GROUPS: in_groups}, 12, len(SMALL.ops)).choose(land, rng)[1] for _ in range(50)])
    narrow = 0
    for part, again in zip(*runs, strict=True):
        assert part.ops.tolist() == again.ops.tolist()
        assert (part.first, part.last) == (again.first, again.last)
        stages = land.stage[part.ops[land.sequence]]
        assert part.first == stages.min()
        assert stages.max() <= part.last < len(SMALL.ops)
        narrow += part.last - part.first < len(SMALL.ops) // 2
    assert len({part.ops.tobytes() for part in runs[0]}) > 10
    assert narrow, "those in the middle of the step"


def test_without_groups_or_time_the_kind_is_left_out_and_the_others_go_on():
    problem = Problem(unit_chain(30), 20)
    asked = []

    def late(deadline):
        asked.append(deadline)
        return partitions(deadline)

    for names, clock in ((("modules",), Deadline()), (("blocks",), Deadline.after(0)), ((), Deadline())):
        partitions = Partitions(names, problem)
        land = Landscape(problem, recomputing(problem.graph), lambda clock=clock: late(clock))
        portfolio, rng = Portfolio(KINDS, 10, len(problem.graph.ops)), np.random.default_rng(1)
        before = len(asked)
        chosen = [portfolio.choose(land, rng)[0] for _ in range(100)]
        assert GROUPS not in chosen
        assert set(chosen) == set(KINDS) - {GROUPS} == set(portfolio.kinds)
        assert len(asked) == before + 1
    assert GROUPS in KINDS, "of other searches"


def test_partitions_are_made_once_and_tried_again_only_with_more_time(monkeypatch):
    problem, made = Problem(unit_chain(30)), []
    kind = registry.load("partitioners", "blocks")
    partition = kind.partition

    def counted(self, *arguments):
        made.append(1)
        return partition(self, *arguments)

    monkeypatch.setattr(kind, "partition", counted)
    partitions = Partitions(("blocks",), problem)
    partitions._tried = 1.0
    assert partitions(Deadline.after(20)) == []
    assert not made
    assert len(partitions(Deadline.after(6000))) == len(partitions(Deadline.after(0))) == len(made) == 1


def test_search_in_windows_alone_finds_certified_schedules(monkeypatch):
    monkeypatch.setattr(module, "KINDS", {GROUPS: in_groups})
    problem = Problem(unit_chain(8), 7)
    search = Lns(LnsOptions(partitioners=("blocks", "modules"), size=6, seconds=60.0))
    found = search.run(problem, HeuristicRun(SolveOptions(threads=1)))
    certificate = judged(problem, found)
    assert certificate.accepted
    assert certificate.cost == 20
    assert len(search._partitions(Deadline())) == 1


def test_an_unknown_partitioner_is_named():
    with pytest.raises(RematError, match="there is no partitioner 'block'; known are blocks"):
        Lns(LnsOptions(partitioners=("block",))).run(Problem(unit_chain(8), 7), HeuristicRun())
