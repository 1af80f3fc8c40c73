"""Hierarchical formulations on random hierarchies, compared with composite schedules in plain Python.

At no step does the model claim less memory than the expanded schedule holds. On tiny hierarchies its optimum is that of
an exhaustive search over all decisions.
"""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from claims import check_round_trip, claims_of, proved
from composite_search import CompositeSearch
from helpers import answer, judged
from hierarchies import RandomHierarchy, RandomOption, random_hierarchy

from remat import registry
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.formulations.h_intervals.tables import Segments
from remat.modeling import violations
from remat.problem import Problem
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import Schedule, simulate


def composites(h):
    return tuple(
        Composite(g.name, g.forward, g.backward, [Option(o.forward, o.backward or None) for o in g.options])
        for g in h.groups
    )


@dataclass(frozen=True)
class Subject:
    """A formulation with its backend and options, and options of the search."""

    name: str
    backend: type
    options: tuple = ()
    search: tuple = ()
    order: str = "fixed"

    def of(self, h, problem, **more):
        kind = registry.load("formulations", self.name)
        return kind(problem, kind.options_type(composites=composites(h), **dict(self.options), **more))

    def __str__(self):
        return f"{self.name} in {self.order} order"


INTERVALS = Subject("h-intervals", CpSat, (("copies", 20),))
SUBJECTS = [
    INTERVALS,
    Subject("h-ilp", Highs, (), (("refill", True), ("one_phantom", True))),
    Subject("h-intervals", CpSat, (("copies", 2),), (("copies", 2),), "free"),
]


def budget_of(h, seed):
    """Return a random budget between the structural bound and the reference peak."""
    least, most = h.graph.structural_bound.peak, h.graph.reference_peak
    return random.Random(seed).randint(least, max(least, most))


def test_random_hierarchies_are_of_all_kinds():
    """Fast-forwards, several options, backward parts that compute ops again; buffers, kept and empty tensors."""
    found = [random_hierarchy(seed, 5) for seed in range(120)]
    groups = [group for h in found for group in h.groups]
    options = [(group, option) for group in groups for option in group.options]
    assert {bool(group.backward) for group in groups} == {True, False}
    assert any(len(group.options) > 1 for group in groups)
    assert any(group.backward and not option.backward for group, option in options)
    assert any(len(set(option.backward)) < len(option.backward) for _, option in options)
    assert any(set(option.backward) & set(group.forward) for group, option in options)
    for has in (lambda g: g.outputs, lambda g: (g.arrays.size == 0).any(), lambda g: not g.arrays.recomputable.all(),
                lambda g: (g.arrays.producers.counts > 1).any()):  # fmt: skip
        assert any(has(h.graph) for h in found)


def compare_optima(subject, seed, most_ops):
    """Compare optima of a random hierarchy; return the extra cost, None if infeasible or too large to search."""
    h = random_hierarchy(seed, most_ops)
    problem = Problem(h.graph, budget_of(h, seed), subject.order)
    cost = proved(subject.of(h, problem), subject.backend())
    try:
        best = CompositeSearch(h, problem, **dict(subject.search)).cheapest(most_states=20_000 * (most_ops - 2))
    except OverflowError:
        return None
    assert cost == best, seed
    return best and best - h.graph.base_cost


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_claims_and_optimum(subject):
    extra = [compare_optima(subject, seed, 3) for seed in range(6, 14)]
    assert sum(each is not None for each in extra) >= 4
    assert any(extra)


@pytest.mark.parametrize("seed", [315, 3037])
@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.order == "fixed"], ids=str)
def test_ambiguous_runs_are_encoded(subject, seed):
    """Either a repeated forward part and a backward part, or a backward part that recomputes."""
    h = random_hierarchy(seed, 4)
    formulation = subject.of(h, Problem(h.graph, budget_of(h, seed)))
    raw = answer(formulation, CpSat())
    cost = judged(formulation.problem, formulation.decode(raw.values)).cost
    assert cost > h.graph.base_cost
    check_round_trip(formulation, raw.values, cost)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_claims_and_optimum_of_many(subject, part):
    most_ops = 3 if subject.order == "free" else 4
    extra = [compare_optima(subject, seed, most_ops) for seed in range(1000 * part, 1000 * part + 120)]
    assert sum(each is not None for each in extra) >= 40
    assert sum(bool(each) for each in extra) >= 5


def with_recomputation(h, rng):
    """Return the reference order with recomputations of some ops, at most one of each."""
    graph = h.graph
    single = [(graph.arrays.producers.counts[graph.arrays.op_outputs[op]] == 1).all() for op in range(len(graph.ops))]
    sequence, again = [], set()
    for op in graph.arrays.order.tolist():
        chosen = [p for p in dict.fromkeys(sequence) if single[p] and graph.ops[p].recomputable and rng.random() < 0.2]
        sequence += [p for p in chosen if p not in again]
        again |= set(chosen)
        sequence.append(op)
    return sequence


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_claims_are_exact_without_composites(subject):
    """Without composites the claim for an encoded schedule equals its memory."""
    again = 0
    for seed in range(25):
        h = random_hierarchy(seed, 5, leaves=True)
        formulation = subject.of(h, Problem(h.graph, None, subject.order))
        values = formulation.encode(Schedule.of_computes(h.graph, with_recomputation(h, random.Random(seed))))
        assert violations(formulation.build(), values) == []
        claimed = claims_of(formulation, values)
        decoded = formulation.decode(values)
        assert claimed == simulate(h.graph, decoded).memory.tolist(), seed
        again += decoded.num_computes > len(h.graph.ops)
    assert again >= 10


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_claims_are_exact_when_all_values_are_kept(subject):
    """Encode the reference order by composites whose only option keeps all values."""
    composite = 0
    for seed in range(70):
        h = random_hierarchy(seed, 6)
        groups = tuple(replace(g, options=(RandomOption(g.forward, g.backward),)) for g in h.groups)
        h = RandomHierarchy(h.graph, groups)
        formulation = subject.of(h, Problem(h.graph, None, subject.order))
        reference = Schedule.reference(h.graph)
        values = formulation.encode(reference)
        assert violations(formulation.build(), values) == []
        assert claims_of(formulation, values) == simulate(h.graph, reference).memory.tolist(), seed
        composite += len(h.groups) > 1
    assert composite >= 18


def test_rows_and_segments_cover_their_sub_steps():
    """A row implies each sub-step; an interface is in every segment from its maker to its last use."""
    several = 0
    for seed in range(60):
        h = random_hierarchy(seed, 6)
        whole = CompositeProblem(Problem(h.graph), composites(h))
        nothing = np.zeros(len(h.graph.tensors), dtype=bool)
        for run in (run for node in range(len(whole.nodes)) for run in whole.runs(node)):
            for step, memory in enumerate(run.memory.tolist()):
                hidden = run.absent_tensor[(run.absent_from <= step) & (step < run.absent_until)]
                assert any(
                    row.memory >= memory and np.isin(row.freed, run.tensor[run.last < step]).all()
                    and np.isin(row.not_made, hidden).all() for row in run.rows
                )  # fmt: skip
            for profile in ("exact", "peak"):
                cut = Segments.of(run, whole.arrays.size, nothing, profile)
                assert (cut.memory >= run.memory).all()
                assert (cut.demand[cut.of_step] >= cut.memory).all()
                assert (cut.demand == [cut.memory[cut.of_step == q].max() for q in range(len(cut.demand))]).all()
                assert (cut.begin <= cut.last).all()
                assert (cut.of_step[run.last] == cut.last).all()
                assert len(cut.demand) == 1 or profile == "exact"
                several += len(cut.demand) < len(run.ops) and len(cut.demand) > 1
    assert several >= 20


@pytest.mark.parametrize(
    ("subject", "options", "seeds"),
    [
        pytest.param(INTERVALS, {"profile": "peak"}, 40, marks=pytest.mark.slow),
        pytest.param(SUBJECTS[1], {"corrections": False}, 60, marks=pytest.mark.slow),
        (SUBJECTS[1], {"corrections": False}, 12),
    ],
)
def test_coarser_memory_claims_more(subject, options, seeds):
    """The smaller model never claims less, so it is never cheaper."""
    more = 0
    for seed in range(seeds):
        h = random_hierarchy(seed, 4)
        problem = Problem(h.graph, budget_of(h, seed))
        exact = proved(subject.of(h, problem), subject.backend())
        coarse = proved(subject.of(h, problem, **options), subject.backend())
        assert coarse is None or exact <= coarse
        more += coarse != exact
    assert more >= 2


def test_fewer_rows_of_memory_claim_more(monkeypatch):
    """Sub-steps of long runs share rows; with one row per run the optimum is no cheaper, and its schedule fits."""
    more = 0
    for seed in range(8):
        h = random_hierarchy(seed, 6)
        problem = Problem(h.graph, budget_of(h, seed))
        found = []
        for rows in (64, 1):
            monkeypatch.setattr("remat.formulations.composites.runs.MOST_ROWS", rows)
            formulation = SUBJECTS[1].of(h, problem)
            assert all(len(run.rows) <= rows for run in formulation.tables.runs)
            found.append(proved(formulation))
        assert found[1] is None or found[0] <= found[1]
        more += found[0] != found[1]
    assert more >= 1


def test_memory_tables_check_the_deadline():
    """Regression: tables of a few groups of 20,000 ops took minutes despite the deadline."""
    h = random_hierarchy(3, 6)
    formulation = SUBJECTS[1].of(h, Problem(h.graph, h.graph.reference_peak))
    formulation.deadline = Deadline.after(0.0)
    with pytest.raises(OverdueError):
        formulation.tables.rows  # noqa: B018
