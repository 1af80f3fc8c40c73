"""Checks of parts that move tensors to a host, on tiny problems whose least time is found by exhaustive search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import NamedTuple
from unittest import SkipTest

from remat.backends.base import Backend
from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.modeling import violations
from remat.problem import Problem
from remat.runtime.solve_options import Status
from remat.schedule import Certificate, Machine, Schedule
from remat.schedule.certificate import Verdict
from remat.testing.exhaustive_transfers import LeastTime, least_time
from remat.testing.graphs import random_budget, random_graph
from remat.testing.kit import USUAL, Effort, MakeFormulation, answer, close, options, require

#: Largest graphs of these checks: the search takes some tenths of a second for each.
MOST_OPS = 4
#: Rates of links in bytes per second, for costs in microseconds; None: unlimited.
RATES = (500_000, 1_000_000, None)


class MachineCase(NamedTuple):
    """A problem on a machine, and its schedule of least time, which moves tensors."""

    problem: Problem
    best: LeastTime

    def __str__(self) -> str:
        graph, machine = self.problem.graph, self.problem.machine
        return f"graph {graph.name!r} with budget {self.problem.budget_bytes} on a machine with {machine}"

    def certified(self, who: str, schedule: Schedule) -> Certificate:
        """Return the certificate of a schedule that breaks no rule except limits, and beats no schedule."""
        found = self.problem.validate(schedule)
        require(found.verdict is not Verdict.INVALID, f"{who}: the schedule is refused: {found.first}")
        if found.accepted:
            time, least = self.problem.value(found), self.best.time
            require(time >= least, f"{who}: a schedule takes {time}, exhaustive search finds {least}")
        return found


@lru_cache(maxsize=512)
def _case(seed: int, most_ops: int) -> MachineCase | None:
    """Return the case with this number; None if it is trivial or infeasible, or its graph is too large."""
    rng, graph = Random(seed), random_graph(seed, most_ops, plain=seed % 2 == 0)
    if len(graph.ops) > most_ops + 1:
        return None
    ops = [replace(op, recomputable=True) for op in graph.ops]  # the search has no limits of computes
    graph, budget = replace(graph, ops=ops, cost_unit="us"), random_budget(graph, seed)
    host = rng.choice([None, rng.randint(1, sum(tensor.size for tensor in graph.tensors))])
    machine = Machine(rng.choice(RATES), rng.choice(RATES), host, rng.choice([0, 1000]), rng.random() < 0.5)
    best = least_time(graph, budget, machine)
    if best is None or not best.schedule.has_transfers:
        return None
    return MachineCase(Problem(graph, budget, machine=machine), best)


def machine_cases(effort: Effort) -> Iterator[MachineCase]:
    """Yield ``effort.cases`` problems whose least time needs the host."""
    found = (_case(seed, min(effort.most_ops, MOST_OPS)) for seed in range(1000))
    for case, _ in zip((case for case in found if case is not None), range(effort.cases), strict=False):
        yield case


def _stated(make: MakeFormulation, case: MachineCase) -> Formulation:
    try:
        return make(case.problem)
    except ProblemError as error:
        raise SkipTest(f"states no problem with a machine: {error}") from None


def encodes_schedules_of_machines(make: MakeFormulation, _: Backend, effort: Effort = USUAL) -> None:
    """Schedules that it encodes satisfy its model with their time, or a bound of it, and come back with that time."""
    for case in machine_cases(effort):
        formulation = _stated(make, case)
        who, model = f"{formulation.name}, {case}", formulation.build()
        values = formulation.encode(Schedule.reference(case.problem.graph))
        time = case.problem.validate(formulation.decode(values)).time
        require(time == case.problem.graph.base_cost, f"{who}: the reference order comes back with time {time}")
        try:
            values = formulation.encode(case.best.schedule)
        except ProblemError:
            continue
        wrong = violations(model, values)
        require(not wrong, f"{who}: the schedule of least time breaks the model: {'; '.join(wrong[:1])}")
        worth, least = model.objective.value(values), case.best.time
        right = worth <= least + 1e-6 if formulation.relaxes else close(worth, least)
        require(right, f"{who}: the schedule of least time {least} has objective {worth}")
        found = case.certified(who, formulation.decode(values))
        require(found.accepted and found.time == least, f"{who}: it comes back with time {found.time}: {found.first}")


def solves_problems_with_machines(make: MakeFormulation, backend: Backend, effort: Effort = USUAL) -> None:
    """Solutions are certified and take the time of the objective, or at least that if the model relaxes links."""
    for case in machine_cases(effort):
        formulation = _stated(make, case)
        who, model = f"{formulation.name} on {backend.full_name}, {case}", formulation.build()
        raw = answer(backend, model, options(effort.patience))
        require(raw.status in (Status.OPTIMAL, Status.INFEASIBLE), f"{who}: {raw.status} ({raw.stop})")
        if raw.values is None or raw.objective is None:
            require(formulation.scope().notes or formulation.scope().staged, f"{who}: claims that no schedule exists")
            continue
        found = case.certified(who, formulation.decode(raw.values))
        require(found.accepted, f"{who}: the schedule is refused: {found.first}")
        if not formulation.relaxes:
            require(close(raw.objective, case.problem.value(found)),
                    f"{who}: claims {raw.objective}, the schedule takes {found.time}")  # fmt: skip


def moves_tensors_on_machines(make: Callable[[], Heuristic], effort: Effort = USUAL) -> None:
    """Schedules are certified, none beats exhaustive search, and the best one is returned."""
    if not make().moves:
        raise SkipTest(f"{make().name} moves no tensors")
    refusal = None
    for seed, case in enumerate(machine_cases(effort)):
        reported: list[Schedule] = []
        heuristic = make()
        who = f"{heuristic.name}, {case}"
        run = HeuristicRun(options(effort.deadline, seed=seed), None, reported.append)
        try:
            found = heuristic.run(case.problem, run)
        except ProblemError as error:
            refusal = error
            continue
        seen = [case.certified(who, each) for each in (*reported, *([] if found is None else [found]))]
        times = [case.problem.value(each) for each in seen if each.accepted]
        last = seen[-1] if seen and found is not None else None
        returned = last is not None and last.accepted and case.problem.value(last) == min(times)
        require(returned or not times, f"{who}: it does not return the best schedule that it reports")
    if refusal is not None:
        raise SkipTest(f"refuses some of these problems: {refusal}")


#: Checks of a formulation that moves tensors; each takes its class and a backend.
MACHINE_CHECKS: tuple[Callable[..., None], ...] = (encodes_schedules_of_machines, solves_problems_with_machines)
