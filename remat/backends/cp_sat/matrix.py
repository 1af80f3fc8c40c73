"""CP-SAT's other door: a model of plain linear rows, handed over as one sparse matrix."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from remat.backends.base import Incumbent, OnIncumbent, RawResult, SolveOptions, Status, StopReason, Values, unbuilt
from remat.backends.cp_sat.translation import whole
from remat.backends.processes.running import run_interruptible
from remat.backends.rounding import rounded
from remat.deadline import OverdueError
from remat.errors import ModelError
from remat.modeling import Kind, Model, violations
from remat.modeling.matrix import to_matrix


def solve_by_matrix(
    model: Model,
    options: SolveOptions,
    parameters: str,
    hint: Values | None,
    on_incumbent: OnIncumbent | None,
    *,
    versions: Mapping[str, str],
) -> RawResult:
    """Minimise `model` by CP-SAT behind OR-Tools' `model_builder`; see :class:`remat.backends.cp_sat.CpSat`.

    Its log is not to be had: the wheel of OR-Tools 9.15 takes no Python function for it.

    Parameters
    ----------
    parameters : str
        CP-SAT's parameters in text form.

    Raises
    ------
    ModelError
        If a record is not linear, or a number is not whole.
    """
    from ortools.linear_solver.python import model_builder_helper as door

    began = time.monotonic()
    helper: Any = door.ModelBuilderHelper()
    solver: Any = door.ModelSolverHelper("sat")
    try:
        _check_whole(model)
        matrix = to_matrix(model, options.deadline)
        rows = sparse.csr_matrix((matrix.values, matrix.indices, matrix.indptr), shape=matrix.shape)
        helper.fill_model_from_sparse_data(
            matrix.lower, matrix.upper, matrix.cost, matrix.row_lower, matrix.row_upper, rows
        )
        for number in options.deadline.each(range(model.num_vars)):
            helper.set_var_integrality(number, True)
        for number, value in enumerate([] if hint is None else hint.tolist()):
            if not math.isnan(value):
                helper.add_hint(number, value)
        solver.set_solver_specific_parameters(parameters)
    except OverdueError:
        return unbuilt(model, options, hint, on_incumbent, seconds=time.monotonic() - began, versions=versions)
    incumbents: list[Incumbent] = []

    def found(values: Values, bound: float | None) -> None:
        incumbents.append(Incumbent(options.deadline.elapsed, model.objective.value(values), bound, values))
        if on_incumbent:
            on_incumbent(incumbents[-1])

    if hint is not None and not violations(model, hint):
        found(hint, None)
    built, began = time.monotonic() - began, time.monotonic()

    def work() -> None:
        if math.isfinite(options.deadline.seconds):
            solver.set_time_limit_in_seconds(options.deadline.remaining)
        solver.solve(helper)

    status, bound, interrupted, ended = None, None, False, False
    try:
        interrupted = run_interruptible(work, solver.interrupt_solve, options.deadline)
        ended = True
    except OverdueError:
        pass
    if ended:
        said = door.SolveStatus
        known = {said.OPTIMAL: Status.OPTIMAL, said.FEASIBLE: Status.FEASIBLE, said.INFEASIBLE: Status.INFEASIBLE}
        status = known.get(solver.status())
        if solver.has_solution():
            bound = float(solver.best_objective_bound()) + model.objective.constant
            values, wrong = rounded(model, np.array(solver.variable_values(), dtype=np.float64), "CP-SAT")
            if wrong:
                return RawResult(Status.ERROR, StopReason.OTHER, versions=versions, message=wrong)
            if not incumbents or model.objective.value(values) < incumbents[-1].objective:
                found(values, bound)
    return _result(
        status, bound, incumbents, late=options.deadline.remaining < 0.5, interrupted=interrupted,
        seconds=(built, time.monotonic() - began), versions=versions,
    )  # fmt: skip


def _result(
    status: Status | None,
    bound: float | None,
    incumbents: list[Incumbent],
    *,
    late: bool,
    interrupted: bool,
    seconds: tuple[float, float],
    versions: Mapping[str, str],
) -> RawResult:
    best = incumbents[-1] if incumbents else None
    message = ""
    if status is Status.INFEASIBLE:
        bound, stop = None, StopReason.FINISHED
        if best:
            status, stop, message = Status.ERROR, StopReason.OTHER, "infeasible, it says, but there is a solution"
    elif best and bound is not None and bound >= best.objective:
        status, stop, bound = Status.OPTIMAL, StopReason.FINISHED, best.objective
    else:
        stop = StopReason.INTERRUPTED if interrupted else StopReason.DEADLINE if late else StopReason.OTHER
        stop = StopReason.GAP if status is Status.OPTIMAL else stop
        status = Status.FEASIBLE if best else Status.UNKNOWN
    return RawResult(
        status, stop, best.objective if best else None, bound, best.values if best else None, tuple(incumbents),
        *seconds, versions, message,
    )  # fmt: skip


def _check_whole(model: Model) -> None:
    """Refuse what this door would scale and round: it takes any numbers."""
    for block in model.blocks:
        if block.kind is Kind.CONTINUOUS:
            raise ModelError(f"CP-SAT has no continuous variables, but block {block.name!r} is continuous")
    whole(model.objective.coefficient, "an objective coefficient")
    for record in model.records:
        whole(getattr(record, "value", np.zeros(0)), f"a coefficient of {record.name!r}")
