"""Linear relaxation of a model by HiGHS, with a bound that is safe even if HiGHS is wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.errors import BackendError
from remat.modeling import Lowered
from remat.modeling.matrix import Matrix, to_matrix
from remat.runtime.arrays import Float
from remat.runtime.processes.running import LeftBehindError, run_interruptible
from remat.runtime.solve_options import SolveOptions, StopReason


def pass_model(highspy: Any, solver: Any, matrix: Matrix, integral: NDArray[np.int32], name: str) -> None:
    """Pass `matrix` to HiGHS with these column kinds; takes seconds for a large one.

    Raise BackendError if HiGHS rejects the model, which the message names.
    """
    rows, columns = matrix.shape
    lower, upper, cost = matrix.lower, matrix.upper, matrix.cost
    if not columns:  # HiGHS ignores the rows of a model without columns
        lower = upper = cost = np.zeros(1)
        integral, columns = np.zeros(1, dtype=np.int32), 1
    status = solver.passModel(
        columns, rows, len(matrix.values), int(highspy.MatrixFormat.kRowwise), int(highspy.ObjSense.kMinimize), 0.0,
        cost, lower, upper, matrix.row_lower, matrix.row_upper, matrix.indptr, matrix.indices, matrix.values, integral,
    )  # fmt: skip
    if status == highspy.HighsStatus.kError:
        raise BackendError(f"HiGHS does not take model {name!r}", "model-refused")


#: Largest cost of a variable that HiGHS receives. Its tolerance for dual values is 1e-7; beyond 1e9, rounding errors
#: exceed that, and the simplex method may not end: on ResNet-50 with ten events it takes less than a second, and
#: minutes without.
MOST_COST = 2.0**20


def with_small_costs(matrix: Matrix) -> tuple[Matrix, float]:
    """Return a matrix with costs of at most :data:`MOST_COST`, and the power of two by which they were divided.

    Examples
    --------
    >>> from remat.modeling import Model
    >>> model = Model("costs")
    >>> model.minimize(model.booleans("x", 2).index, [3, 2**22 + 1])
    >>> small, scale = with_small_costs(to_matrix(model))
    >>> small.cost.tolist(), scale
    ([0.375, 524288.125], 8.0)
    """
    most = float(np.abs(matrix.cost).max(initial=0.0))
    if not MOST_COST < most < math.inf:
        return matrix, 1.0
    scale = 2.0 ** math.ceil(math.log2(most / MOST_COST))
    return replace(matrix, cost=matrix.cost / scale), scale


#: Algorithms for linear programmes, by the values of HiGHS's option ``solver``.
ALGORITHMS = ("simplex", "ipm", "pdlp")
#: Relative error of one floating-point operation.
UNIT = 2.0**-53


@dataclass(frozen=True)
class Relaxation:
    """Result of a linear relaxation.

    Attributes
    ----------
    bound : float or None
        No solution of the relaxation, hence none of the model, has an objective below this; see :func:`safe_bound`.
        None if the duals prove nothing.
    infeasible : bool
        True if a ray of the dual proves that there is no solution.
    objective : float or None
        Primal objective of HiGHS; approximate, not a bound.
    stop : StopReason
    row_duals : float64 array
        Dual value of each row of the lowered model: the objective's increase per unit of the row's active side.
    values : float64 array, shape (variables of the model,), or None
        Optimal solution of the relaxation. If HiGHS gave up (`stop` is ``other``: an interior-point method without
        crossover that almost converged), its last point, clipped to the bounds of the variables. None if it was
        interrupted or found none.
    lowered : Lowered
    build_seconds, solve_seconds : float
    versions : mapping of str to str
    basis : highspy.HighsBasis or None
        Basis of the optimal solution, from which a relaxation with more rows can start.
    """

    bound: float | None
    infeasible: bool
    objective: float | None
    stop: StopReason
    row_duals: Float = field(repr=False)
    values: Float | None = field(repr=False)
    lowered: Lowered = field(repr=False)
    build_seconds: float
    solve_seconds: float
    versions: Mapping[str, str]
    basis: Any = field(default=None, repr=False)

    @cached_property
    def duals(self) -> dict[str, Float]:
        """Duals of each record's rows, by its name; rows of records of the same name are concatenated."""
        found: dict[str, list[Float]] = {}
        first = 0
        for record in self.lowered.model.records:
            found.setdefault(record.name, []).append(self.row_duals[first : first + len(record)])
            first += len(record)
        return {name: np.concatenate(parts) for name, parts in found.items()}


def usable_duals(matrix: Matrix, y: Float) -> Float:
    """Return row duals with 0 for those that are not finite or have the wrong sign for the sides of their row."""
    y = np.where(np.isfinite(y), y, 0.0)
    return np.where(((y > 0) & np.isneginf(matrix.row_lower)) | ((y < 0) & np.isposinf(matrix.row_upper)), 0.0, y)


def reduced_costs(matrix: Matrix, cost: Float, y: Float) -> tuple[Float, Float]:
    """Return ``cost − y A`` and a bound on the rounding error of each entry."""
    columns = matrix.shape[1]
    products = matrix.values * np.repeat(y, np.diff(matrix.indptr))
    total, size = (np.bincount(matrix.indices, each, columns) for each in (products, np.abs(products)))
    # |computed d − d| <= (count + 2) UNIT (|cost| + |A|ᵀ|y|), a sum of count products and one difference
    count = np.bincount(matrix.indices, minlength=columns)
    return cost - total, 2 * (count + 3) * UNIT * (np.abs(cost) + size)


def safe_bound(matrix: Matrix, y: Float, *, ray: bool = False) -> float:
    """Return a lower bound on ``offset + cost x`` over all x of the linear relaxation, from any row duals `y`.

    For every y, weak duality gives ``cost x = y A x + (cost − y A) x >= sum_i min over row i of y_i r + sum_j min over
    column j of d_j x_j``. The minima are at the sides of the row and the bounds of the column that the signs choose.
    Nothing is required of y: its quality decides only the quality of the bound. Rounding errors of this computation are
    estimated and subtracted, by error terms in place of directed rounding (Neumaier and Shcherbina 2004, Safe bounds in
    linear and mixed-integer linear programming, section 3).

    Parameters
    ----------
    ray : bool
        Omit cost and offset: a positive value then proves that the relaxation has no solution (Farkas).

    Returns
    -------
    float
        Minus infinity where an infinite bound of a column meets a reduced cost of the wrong sign.

    Examples
    --------
    >>> from remat.modeling import Linear, Model
    >>> from remat.modeling.matrix import to_matrix
    >>> m = Model("two")
    >>> x = m.integers("x", 2, 0, 10)
    >>> m.add(Linear.rows("sum", [0, 0], x.index, [2, 2], lower=[7]))
    >>> m.minimize(x.index, [1, 3])
    >>> round(safe_bound(to_matrix(m), np.array([0.5])), 9), round(safe_bound(to_matrix(m), np.array([0.4])), 9)
    (3.5, 2.8)
    """
    columns = matrix.shape[1]
    y = usable_duals(matrix, y)
    cost = np.zeros(columns) if ray else matrix.cost
    d, error = reduced_costs(matrix, cost, y)
    side = np.where(y > 0, matrix.row_lower, matrix.row_upper)
    from_rows = y[y != 0] * side[y != 0]
    low, high = d - error, d + error
    with np.errstate(invalid="ignore", over="ignore"):
        # Least d x over d in [low, high] and x in its bounds; 0 times infinity counts as 0.
        ends = [_product(d_, x_) for d_ in (low, high) for x_ in (matrix.lower, matrix.upper)]
    from_columns = np.minimum.reduce(ends) if columns else np.zeros(0)
    if not np.isfinite(from_columns).all():
        return -math.inf
    terms = np.concatenate([from_rows, from_columns, [0.0 if ray else matrix.offset]])
    # fsum adds without error; each product may be off by one unit in the last place.
    total = math.fsum(terms) - 2 * UNIT * math.fsum(np.abs(terms))
    return math.nextafter(total, -math.inf)


def _product(a: Float, b: Float) -> Float:
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def relax(
    highspy: Any,
    lowered: Lowered,
    options: SolveOptions,
    algorithm: str,
    *,
    began: float,
    versions: Mapping[str, str],
    start: Relaxation | None = None,
) -> Relaxation:
    """See :meth:`remat.backends.highs.Highs.relax`."""
    matrix = to_matrix(lowered.model, options.deadline)
    passed, scale = with_small_costs(matrix)
    solver = highspy.Highs()
    given = {
        "output_flag": False,
        "solver": algorithm,
        "random_seed": options.seed,
        **({} if algorithm == "simplex" else {"run_crossover": "off"}),
        **({} if options.threads is None else {"threads": options.threads}),
        **options.solver,
    }
    for name, value in given.items():
        if solver.setOptionValue(name, value) == highspy.HighsStatus.kError:
            raise BackendError(f"HiGHS does not take {value!r} for its option {name!r}")

    def load_and_run() -> None:
        """Pass the model and solve it, in the solver's thread: passing a large model takes seconds."""
        pass_model(highspy, solver, passed, np.zeros_like(matrix.integral), lowered.source.name)
        if start is not None and start.basis is not None:
            solver.setBasis(_with_more_rows(highspy, start.basis, len(duals)))
        _limit(solver, options)
        if not options.deadline.expired:
            solver.run()

    build_seconds, began = time.monotonic() - began, time.monotonic()
    stop, infeasible, bound, objective, basis = StopReason.FINISHED, False, None, None, None
    duals, values = np.zeros(len(matrix.row_lower)), None
    try:
        if run_interruptible(load_and_run, solver.cancelSolve, options.deadline):
            stop = StopReason.INTERRUPTED
        ended, statuses = solver.getModelStatus(), highspy.HighsModelStatus
        if ended in {statuses.kInfeasible, statuses.kUnboundedOrInfeasible}:
            infeasible = _proves_infeasible(solver, matrix, options)
            stop = StopReason.FINISHED if infeasible else StopReason.OTHER
        else:
            solution = solver.getSolution()
            if solution.dual_valid or len(solution.row_dual) == len(duals):
                duals = scale * np.array(solution.row_dual, dtype=np.float64)
            solved = ended in {statuses.kOptimal, statuses.kModelEmpty}
            if solved:
                objective = scale * solver.getInfo().objective_function_value + matrix.offset
                basis = solver.getBasis() if algorithm == "simplex" else None
            elif stop is StopReason.FINISHED:
                late = ended == statuses.kTimeLimit or options.deadline.expired
                stop = StopReason.DEADLINE if late else StopReason.OTHER
            if solved or stop is StopReason.OTHER:
                values = _within_bounds(solution.col_value, matrix, lowered.source.num_vars)
    except LeftBehindError as late:
        stop = StopReason.INTERRUPTED if late.interrupted else StopReason.DEADLINE
    if not infeasible:
        bound = _best_bound(matrix, duals)
    return Relaxation(
        bound, infeasible, objective, stop, duals, values, lowered, build_seconds, time.monotonic() - began, versions,
        basis,
    )  # fmt: skip


def _with_more_rows(highspy: Any, basis: Any, count: int) -> Any:
    """Return a basis for `count` rows, in which those that are new are basic."""
    longer = highspy.HighsBasis()
    longer.valid, longer.col_status, rows = True, basis.col_status, basis.row_status
    longer.row_status = [*rows, *[highspy.HighsBasisStatus.kBasic] * (count - len(rows))]
    return longer


def _within_bounds(values: Any, matrix: Matrix, count: int) -> Float | None:
    """Return the first `count` values of HiGHS clipped to their bounds; None if it has none."""
    found = np.array(values, dtype=np.float64)[:count]
    if len(found) != count or not np.isfinite(found).all():
        return None
    return np.clip(found, matrix.lower[:count], matrix.upper[:count])


def _best_bound(matrix: Matrix, duals: Float) -> float | None:
    """Return the best safe bound from these duals, slightly shrunk ones, or none.

    If a column without a bound has reduced cost 0, rounding errors alone can give it the wrong sign. Shrunk duals
    leave it a small part of its cost.
    """
    value = safe_bound(matrix, duals)
    for shrink in (1e-12, 1e-9, 1e-6):
        if math.isinf(value):
            value = safe_bound(matrix, (1 - shrink) * duals)
    value = max(value, safe_bound(matrix, np.zeros(len(duals))))
    return value if math.isfinite(value) else None


def _limit(solver: Any, options: SolveOptions) -> None:
    """Set the time limit to the remaining time."""
    if math.isfinite(options.deadline.seconds):
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.01, options.deadline.wall_seconds))


def _proves_infeasible(solver: Any, matrix: Matrix, options: SolveOptions) -> bool:
    """Return True if a ray of the dual, checked here, proves that there is no solution."""
    for again in (False, True):
        if again:  # presolve leaves no ray; the simplex method alone does
            solver.clearSolver()
            solver.setOptionValue("presolve", "off")
            solver.setOptionValue("solver", "simplex")
            _limit(solver, options)
            run_interruptible(solver.run, solver.cancelSolve, options.deadline)
        _, exists = solver.getDualRayExist()
        if exists:
            _, _, ray = solver.getDualRay()
            ray = np.array(ray, dtype=np.float64)
            if len(ray) == matrix.shape[0] and max(safe_bound(matrix, y, ray=True) for y in (ray, -ray)) > 0:
                return True
    return False
