"""Test helpers: solve options, certificates, proved optima of models, processes."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import psutil
import pytest

from remat.backends.base import Backend
from remat.backends.highs import Highs
from remat.formulations.base import Formulation
from remat.graphs import ComputeGraph
from remat.heuristics import HeuristicRun
from remat.modeling import violations
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Certificate, Schedule, validate

ONE = SolveOptions(threads=1)
RUN = HeuristicRun(ONE)


def options(seconds: float | None = None, **other: Any) -> SolveOptions:
    """Return options of one thread with a time limit."""
    return SolveOptions(**{"deadline": Deadline.after(seconds), "threads": 1, **other})


#: Arguments of :func:`remat.testing.random_graph` by kind of graph.
KINDS: dict[str, dict[str, Any]] = {"plain": {"plain": True}, "full": {}, "buffers": {"buffers": True}}


def judged(problem: Problem, schedule: Schedule) -> Certificate:
    """Validate a schedule by the rules of its problem."""
    return validate(problem.graph, schedule, problem.rules)


def accepted(problem: Problem, schedule: Schedule | None) -> Certificate:
    """Assert that a schedule keeps all rules of its problem; return its certificate."""
    assert schedule is not None
    certificate = judged(problem, schedule)
    assert certificate.accepted, certificate.first
    return certificate


def answer(formulation: Formulation, backend: Backend | None = None, seconds: float = 300.0) -> Any:
    """Solve the model of a formulation with one thread and no gap."""
    return (backend or Highs()).solve(formulation.build(), options(seconds, relative_gap=0.0))


def solved(formulation: Formulation, backend: Backend | None = None) -> int | None:
    """Return the proved optimum, None if infeasible; certify the schedule and encode it again."""
    problem, raw = formulation.problem, answer(formulation, backend)
    if raw.status is Status.INFEASIBLE:
        return None
    assert raw.status is Status.OPTIMAL, (raw.status, raw.stop)
    model, schedule = formulation.build(), formulation.decode(raw.values)
    certificate = accepted(problem, schedule)
    assert violations(model, raw.values) == []
    value = problem.value(certificate)
    assert value == raw.objective == raw.bound
    again = formulation.encode(schedule)
    assert violations(model, again) == []
    assert problem.value(judged(problem, formulation.decode(again))) <= value
    return value


def steps(words: str | Iterable[str], **header: Any) -> Schedule:
    """Return a schedule from words: ``a b >a -a <a`` computes a and b, offloads a, frees it and fetches it."""
    listed = words.split() if isinstance(words, str) else words
    marks = {"-": "free", ">": "offload", "<": "fetch"}
    return Schedule.from_steps([(marks[w[0]], w[1:]) if w[0] in marks else ("compute", w) for w in listed], **header)


def costs(graph: ComputeGraph) -> dict[str, int]:
    return {op.name: op.cost for op in graph.ops}


def sizes(graph: ComputeGraph) -> dict[str, int]:
    return {tensor.name: tensor.size for tensor in graph.tensors}


@contextmanager
def at_most(seconds: float, clock: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Assert that a block takes less time on a clock (default: processor time)."""
    began = clock()
    yield
    assert clock() - began < seconds


class Countdown(Deadline):
    """Deadline that expires after a number of checks."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        object.__setattr__(self, "checks", iter(range(checks)))

    @property
    def remaining(self) -> float:
        return float(next(self.checks, None) is not None)  # type: ignore[attr-defined]


def usable(backend: Backend) -> Any:
    """Return the backend; skip the test if it is unavailable, or fail if the test run requires it."""
    state = backend.ready()
    if not state.ready:
        reason = f"{backend.full_name} is {state.state}: {state.reason}"
        if backend.variant not in {"glpk", "scip"} and (backend.name != "minizinc" or os.environ.get("REMAT_CI")):
            pytest.fail(reason)
        pytest.skip(reason)
    return backend


def runs(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_end(pids: Iterable[int], seconds: float = 5.0) -> None:
    """Assert that processes end in time."""
    until, left = time.monotonic() + seconds, [pid for pid in pids if runs(pid)]
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = [pid for pid in left if runs(pid)]
    assert not left


def wait_for_files(folder: Path, names: list[str]) -> None:
    """Wait until a folder holds exactly these files; fail after 5 s."""
    until = time.monotonic() + 5
    while sorted(path.name for path in folder.iterdir()) != names and time.monotonic() < until:
        time.sleep(0.02)
    assert sorted(path.name for path in folder.iterdir()) == names


def some_slow(seeds: Sequence[int], quick: int) -> list[Any]:
    """Return the seeds as parameters; all but the first `quick` are marked slow."""
    return [*seeds[:quick], *(pytest.param(seed, marks=pytest.mark.slow) for seed in seeds[quick:])]


def few(cases: Iterable[Any], quick: int) -> list[Any]:
    """Return the cases as parameters; all but `quick` of them, spread evenly from the first, are marked slow."""
    every = list(cases)
    fast = {k * len(every) // quick for k in range(quick)}
    return [case if k in fast else _slow(case) for k, case in enumerate(every)]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):
        return case._replace(marks=[*case.marks, pytest.mark.slow])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def changed(document: Any, path: str, value: Any = ...) -> Any:
    """Return a copy of a JSON document with a value at a path such as ``ops.0.name`` replaced or removed."""
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    result = copy.deepcopy(document)
    place = reduce(getitem, parents, result)
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return result
