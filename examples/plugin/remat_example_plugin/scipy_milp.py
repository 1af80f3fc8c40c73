"""Backend for scipy.optimize.milp."""

import importlib.metadata

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from remat.backends.base import Availability, AvailabilityState, Backend, Run
from remat.modeling import PlainLinear, lower
from remat.modeling.matrix import to_matrix
from remat.runtime.solve_options import Status, StopReason


class ScipyMilp(Backend):
    """SciPy's ``milp``: linear rows, a deadline and a bound.

    ``milp`` takes no start, so a hint only serves as the answer if nothing better is found. It reports nothing during
    the search, and Ctrl-C takes effect at its end. If it checks its deadline too rarely, its thread is left to finish.
    `threads` and `seed` have no effect.
    """

    name = "scipy-milp"
    native = frozenset({PlainLinear})

    @classmethod
    def availability(cls):
        return Availability(AvailabilityState.READY, f"scipy {importlib.metadata.version('scipy')}")

    def prepare(self, model, options, books):
        books.versions["scipy"] = importlib.metadata.version("scipy")
        lowered = lower(model, self.native, deadline=options.deadline)
        return MilpRun(to_matrix(lowered.model, options.deadline), options, books)


class MilpRun(Run):
    """One call of ``milp``."""

    def __init__(self, matrix, options, books):
        self.matrix, self.options, self.books = matrix, options, books

    def run(self):
        self.said, self.why, bound, values = _run(self.matrix, self.options)
        if values is not None:
            count = self.books.model.num_vars
            whole = self.matrix.integral[:count] > 0
            self.books.found(np.where(whole, np.rint(values[:count]), values[:count]))
        self.books.raise_bound(bound)

    def stop(self):
        """Do nothing: SciPy offers no way."""

    def final_status(self):
        return self.said, self.why, "" if self.said is not Status.ERROR else "SciPy's milp gave up"


def _run(matrix, options):
    """Status, why it stopped, bound and values."""
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
