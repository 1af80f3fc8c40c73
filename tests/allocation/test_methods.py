"""Allocation by models, by the portfolio, and by allocators that fail."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from remat import order, registry
from remat.allocation import Allocation, AllocationProblem, Allocator, allocate
from remat.allocation.by_model import AddressFormulation, ModelAllocator, ModelOptions
from remat.allocation.portfolio import Portfolio
from remat.errors import GraphError, ProblemError
from remat.graphs import read_graph
from remat.graphs.zoo import ZOO
from remat.modeling import violations
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Buffers, Memory, Schedule, check_addresses, read_schedule, schedule_buffers
from remat.testing.allocator_checks import random_buffers
from tests.allocation.test_allocators import arena_above_peak


def one_minute() -> SolveOptions:
    return SolveOptions(deadline=Deadline.after(60), threads=2)


def split(capacity: int, other: int | None) -> AllocationProblem:
    """Two memories for the buffers of `arena_above_peak`; memory x may not hold the first buffer."""
    allowed = np.ones((11, 2), dtype=bool)
    allowed[0, 0] = False
    return AllocationProblem(arena_above_peak(), (Memory("x", capacity), Memory("y", other)), allowed=allowed)


@pytest.mark.parametrize("backend", ["cp-sat", pytest.param("highs", marks=pytest.mark.slow),
                                     pytest.param("minizinc", marks=pytest.mark.slow),
                                     pytest.param("pyomo:cbc", marks=pytest.mark.slow)])  # fmt: skip
def test_model_allocator_with_each_backend(backend: str) -> None:
    if not registry.make_backend(backend).ready().ready:
        pytest.skip(f"{backend} is not available")
    by = ModelAllocator(ModelOptions(backend))
    found = by.allocate(AllocationProblem(arena_above_peak()), one_minute())
    assert (found.price, found.proved) == (11, True)
    none = by.allocate(AllocationProblem(arena_above_peak(), (Memory("small", 10),)), one_minute())
    assert (none.addresses, none.impossible) == (None, f"proved by {backend}")
    two = by.allocate(split(5, None), one_minute())
    assert two.proved
    assert check_addresses(two.addresses).accepted
    assert two.addresses.memory[0] == 1
    assert two.price == 6
    assert by.allocate(split(5, 5), one_minute()).impossible


def test_hint_satisfies_the_model_and_decodes_to_itself() -> None:
    for problem in (AllocationProblem(random_buffers(2, 40, 40, 500), alignment=32), split(5, None)):
        found = allocate(problem, "first-fit")
        stated = AddressFormulation(problem, found.addresses.arena, redundant=True)
        values = stated.encode(found.addresses)
        assert values is not None
        assert violations(stated.model, values) == []
        back = stated.decode(values, "hint")
        assert back.offset.tolist() == found.addresses.offset.tolist()
        assert back.memory.tolist() == found.addresses.memory.tolist()


def test_portfolio_searches_only_above_the_peak() -> None:
    easy = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    assert allocate(AllocationProblem(easy)).method == "first-fit"
    hard = allocate(AllocationProblem(arena_above_peak()), time_limit=60)
    assert (hard.price, hard.proved) == (11, True)
    assert allocate(split(5, None), time_limit=60).price == 6


def test_portfolio_survives_a_failing_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(Allocator):
        name = "fails"

        def allocate(self, problem, options=DEFAULT_OPTIONS, start=None, on_addresses=None) -> Allocation:
            raise ProblemError("no addresses")

    monkeypatch.setattr("remat.allocation.portfolio.MEMBERS", [(Fails, 1.0)])
    found = allocate(AllocationProblem(arena_above_peak()))
    assert found.price == 11
    assert "fails: no addresses" in found.notes


def test_unavailable_allocator_is_refused() -> None:
    class Missing(Portfolio):
        name = "missing"

        @classmethod
        def unavailable(cls) -> str:
            return "its library is not installed"

    with refused("remat.unavailable", culprit="missing"):
        allocate(AllocationProblem(arena_above_peak()), Missing)


@pytest.mark.slow
def test_benchmark_baselines_find_arenas() -> None:
    pytest.importorskip("omnimalloc")
    baselines = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "omnimalloc_baselines.py"))
    problem = AllocationProblem(random_buffers(1, 40, 20, 500), alignment=64)
    for name in sorted(set(baselines["BASELINES"]) - {"minimalloc"}):
        found = allocate(problem, baselines["Baseline"](name), time_limit=5)
        assert found.method == name
        assert found.price is not None and found.price >= problem.bound


def test_overlapping_addresses_are_an_error() -> None:
    class AllAtZero(Allocator):
        name = "zero"

        def allocate(self, problem, options=DEFAULT_OPTIONS, start=None, on_addresses=None) -> Allocation:
            return self.found(problem, problem.addresses(np.zeros(len(problem.buffers), dtype=np.int64)))

    with refused("problem.wrong-addresses", culprit="zero"):
        allocate(AllocationProblem(arena_above_peak()), AllAtZero)


def test_invalid_arguments() -> None:
    problem = AllocationProblem(arena_above_peak())
    with refused("remat.unknown-name", culprit="frist-fit"):
        allocate(problem, "frist-fit")
    with refused("problem.time-limit"):
        allocate(problem, time_limit=-1)
    with refused("problem.other-buffers"):
        allocate(problem, start=allocate(AllocationProblem(random_buffers(1, 5))).addresses)
    with pytest.raises(GraphError, match=r"a graph must be a ComputeGraph, .* not 3"):
        allocate(3)
    with refused("problem.options-class", culprit="auto"):
        Portfolio(3)


@pytest.mark.shared
def test_arenas_of_published_schedules_equal_their_peaks(shared) -> None:
    """Each instance of a recomputed tensor is a buffer; the longest schedule has 198 computes."""
    folder = shared / "data"
    valid = 0
    for name, facts in json.loads((folder / "schedules/EXPECTED.json").read_text())["schedules"].items():
        if not facts["valid"]:
            continue
        graph = read_graph(folder / f"graphs/{facts['graph']}.json")
        buffers = schedule_buffers(graph, read_schedule(folder / f"schedules/{name}.json", graph))
        found = allocate(AllocationProblem(buffers), time_limit=60)
        certificate = check_addresses(found.addresses, buffers)
        assert certificate.accepted
        assert certificate.arena == facts["peak"], name
        valid += 1
    assert valid == 11


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ZOO))
def test_zoo_arenas_are_proved(name: str) -> None:
    """In the reference order and in an order of small peak."""
    graph = ZOO[name]()
    other = order(graph, "least-peak-first", stop=60).schedule
    assert other is not None
    for schedule in (Schedule.reference(graph), other):
        buffers = schedule_buffers(graph, schedule)
        found = allocate(AllocationProblem(buffers), time_limit=120)
        assert check_addresses(found.addresses, buffers).accepted
        assert found.proved
