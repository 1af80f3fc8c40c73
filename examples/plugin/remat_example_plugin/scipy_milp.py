"""The solver behind scipy.optimize.milp as a backend."""

import importlib.metadata
import threading
import time

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from remat.backends.base import Availability, AvailabilityState, Backend, Status, StopReason, checked_hint
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.processes.running import run_interruptible
from remat.deadline import OverdueError
from remat.modeling import PlainLinear, lower, violations
from remat.modeling.matrix import to_matrix


class ScipyMilp(Backend):
    """SciPy's ``milp``: linear rows, a deadline and a bound.

    It takes no start, so a hint is only kept at hand in case nothing better is found; it says nothing on the way, so
    Ctrl-C is heard when it ends; it may look at its clock too rarely, and is then left to wind down by itself.
    `threads` and `seed` have no meaning for it.
    """

    name = "scipy-milp"
    native = frozenset({PlainLinear})

    @classmethod
    def availability(cls):
        return Availability(AvailabilityState.READY, f"scipy {importlib.metadata.version('scipy')}")

    def solve(self, model, options, hint=None, on_incumbent=None, on_bound=None):
        began, built, clock = time.monotonic(), 0.0, options.deadline
        stopped = threading.Event()
        books = Bookkeeping(self.name, model, clock, on_incumbent, on_bound, stop=stopped.set)
        said, stop = Status.UNKNOWN, StopReason.DEADLINE
        if hint is not None and not violations(model, checked_hint(hint, model)):
            books.found(np.array(hint, float))
        if stopped.is_set():
            stop = StopReason.INTERRUPTED
        else:
            try:
                matrix = to_matrix(lower(model, self.native, deadline=clock).model, clock)
                built = time.monotonic() - began
                answer = []
                run_interruptible(lambda: answer.append(_run(matrix, options)), lambda: None, clock)
                said, stop, bound, values = answer[0]
                if values is not None:
                    whole = matrix.integral[: model.num_vars] > 0
                    books.found(np.where(whole, np.rint(values[: model.num_vars]), values[: model.num_vars]))
                books.raise_bound(bound)
            except OverdueError:
                books.closed = True
        verdict = books.conclude(said, stop, relative_gap=options.relative_gap)
        return books.result(
            verdict,
            (built, time.monotonic() - began - built),
            {"scipy": importlib.metadata.version("scipy")},
            "" if said is not Status.ERROR else "SciPy's milp gave up",
        )


def _run(matrix, options):
    """Status, why it stopped, bound and values."""
    if options.deadline.expired:
        return Status.UNKNOWN, StopReason.DEADLINE, None, None
    rows, columns = matrix.shape
    if not columns:  # nothing to solve: the rows say 0 = 0, or not
        holds = (matrix.row_lower <= 0).all() and (matrix.row_upper >= 0).all()
        if holds:
            return Status.OPTIMAL, StopReason.FINISHED, matrix.offset, np.zeros(0)
        return Status.INFEASIBLE, StopReason.FINISHED, None, None
    left = options.deadline.remaining
    settings = {"mip_rel_gap": options.relative_gap, **({"time_limit": left} if np.isfinite(left) else {})}
    table = sparse.csr_array((matrix.values, matrix.indices, matrix.indptr), shape=(rows, columns))
    answer = milp(
        matrix.cost,
        integrality=matrix.integral,
        bounds=Bounds(matrix.lower, matrix.upper),
        constraints=LinearConstraint(table, matrix.row_lower, matrix.row_upper) if rows else (),
        options={**settings, **options.solver},
    )
    bound = answer.mip_dual_bound
    bound = None if bound is None or not np.isfinite(bound) else bound + matrix.offset
    if answer.status == 0:
        status, stop = Status.OPTIMAL, StopReason.FINISHED
    elif answer.status == 1:
        status, stop = Status.UNKNOWN, StopReason.DEADLINE
    elif answer.status == 2:
        return Status.INFEASIBLE, StopReason.FINISHED, None, None
    else:
        status, stop = Status.ERROR, StopReason.OTHER
    return status, stop, bound, answer.x
