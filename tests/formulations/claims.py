"""Memory that hierarchical formulations claim for each step, and checks of their solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import answer, judged

from remat.backends.base import Backend
from remat.formulations.h_ilp import HIlp
from remat.formulations.h_ilp.conversions import known, plan_in
from remat.formulations.h_ilp.layout import NodeRow
from remat.formulations.h_intervals.tables import Segments
from remat.modeling import ALWAYS, violations
from remat.runtime.solve_options import Status
from remat.schedule import Certificate, Schedule


def claims_of(formulation: Any, values: np.ndarray) -> list[int]:
    """Return the bytes that the model claims for each sub-step of each run."""
    claims = _of_program if isinstance(formulation, HIlp) else _of_intervals
    return np.rint(np.concatenate(claims(formulation, values))).astype(int).tolist()


def _of_program(h: HIlp, values: np.ndarray) -> list[np.ndarray]:
    """Evaluate U and the corrections of each sub-step, as rows of memory state them."""
    program, worth = h.statement, known(values)
    at, plan = program.at, plan_in(program, values)
    found = []
    for k, choice, phase in zip(plan.node.tolist(), plan.choice.tolist(), plan.phase.tolist(), strict=True):
        run, slot = at.runs[choice], program.phases.slot[phase, [k]]
        held = values[program.x.U.index[slot]] * at.unit + at.held - run.saved + run.memory
        for step in range(len(run.ops)):
            hidden = run.absent_tensor[(run.absent_from <= step) & (step < run.absent_until)]
            row = NodeRow(run.memory, at.number[run.tensor[run.last < step]], at.number[hidden])
            held[step] += sum(worth(there)[0] * size for there, size in program.corrections(k, slot, row))
        found.append(held)
    return found


def _of_intervals(formulation: Any, values: np.ndarray) -> list[np.ndarray]:
    """Sum the intervals that cover the time of each sub-step."""
    at, variables = formulation.layout, formulation.statement
    use = formulation.rows(variables).memory()
    sure = use.presence == ALWAYS
    there = sure | (values[np.where(sure, 0, use.presence)] > 0.5)
    begin, end, demand = values[use.start][there], values[use.end][there], use.demand[there]
    run, start = variables.chosen(values), values[variables.blocks.start.index]
    is_buffer = np.isin(np.arange(len(formulation.problem.kept)), at.tables.buffers)
    found = []
    for copy in sorted(np.flatnonzero(run >= 0).tolist(), key=lambda copy: start[copy]):
        node = int(at.copy_node[copy])
        own = formulation.whole.runs(node)[run[copy] - at.tables.run_first[node]]
        cut = Segments.of(own, at.tables.size, is_buffer, formulation.choices.profile)
        time = start[copy] + cut.of_step
        load = ((begin <= time[:, None]) & (time[:, None] < end)) @ demand
        found.append(formulation.held + formulation.unit * load - cut.demand[cut.of_step] + cut.memory)
    return found


def checked(formulation: Any, values: np.ndarray, objective: float) -> tuple[list[int], Certificate]:
    """Check a solution; return the claim for each step, and the certificate of the schedule."""
    problem, model = formulation.problem, formulation.build()
    assert violations(model, values) == []
    steps, claimed = formulation.steps(values), claims_of(formulation, values)
    runs = [next(r for r in formulation.whole.runs(s.node) if r.option == s.option) for s in steps]
    sequence = [op for run in runs for op in run.ops.tolist()]
    flat = Schedule.of_computes(problem.graph, sequence)
    held = problem.simulate(flat).memory.tolist()
    under = [(step, real, claim) for step, (real, claim) in enumerate(zip(held, claimed, strict=True)) if real > claim]
    assert not under, f"(step, held, claimed): {under}"
    whole = judged(problem, flat)
    assert whole.cost == objective
    certificate = judged(problem, formulation.decode(values))
    for each in (whole, certificate):
        assert each.accepted, each.first
    assert certificate.cost <= objective
    return claimed, certificate


def check_round_trip(formulation: Any, values: np.ndarray, cost: int) -> None:
    """Require that the decoded schedule, encoded again, satisfies the model and keeps its cost."""
    again = formulation.encode(formulation.decode(values))
    assert violations(formulation.build(), again) == []
    assert judged(formulation.problem, formulation.decode(again)).cost == cost


def proved(formulation: Any, backend: Backend | None = None) -> int | None:
    """Return the proved least cost, None where infeasible; check the schedule and encode it again."""
    raw = answer(formulation, backend)
    if raw.status is Status.INFEASIBLE:
        return None
    assert raw.status is Status.OPTIMAL, raw.stop
    claimed, certificate = checked(formulation, raw.values, raw.objective)
    assert max(claimed) <= formulation.problem.budget_bytes
    check_round_trip(formulation, raw.values, certificate.cost)
    return raw.objective
