"""Branch and bound over sums of variables, whose proofs hold even if the solver of its linear programmes errs."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from remat.backends.highs.relaxation import pass_model, safe_bound, with_small_costs
from remat.bounds.reduced_costs import fixed_sides
from remat.modeling.matrix import Matrix
from remat.runtime.arrays import Bool, Float
from remat.runtime.deadline import OverdueError
from remat.runtime.processes.running import LeftBehindError, run_interruptible
from remat.runtime.solve_options import SolveOptions

#: Distance to a whole number that counts as none.
WHOLE = 1e-6
#: Sums tried at the first nodes before one is chosen, one less after each number of nodes; later a single one.
TRIALS, PATIENCE = 4, 10
#: Simplex iterations for each side of a trial.
ITERATIONS = 100
#: Least gain of a side in the score of a sum, in parts of the cost sought.
LEAST_GAIN = 1e-7


class Branched(NamedTuple):
    """Outcome of a search: no solution that is sought has an objective below `bound`; infinite if there is none.

    `values` is the cheapest solution if it was found, else None.
    """

    bound: float
    values: Float | None


@dataclass(order=True)
class _Node:
    """Part of the search: variables fixed at 0 and at 1, sides of sums, and the solution of its relaxation."""

    bound: float
    number: int
    zero: Bool = field(compare=False)
    one: Bool = field(compare=False)
    low: Float = field(compare=False)
    high: Float = field(compare=False)
    values: Float = field(compare=False)
    basis: Any = field(compare=False)


class _Solved(NamedTuple):
    """Outcome of a relaxation: the safe bound, whether it is optimal, and its duals."""

    bound: float
    optimal: bool
    duals: Float


class UnprovedError(Exception):
    """Raised where the duals of a linear programme do not prove what its solver claims."""


@dataclass(eq=False)
class SumBranching:
    r"""Branch and bound on the 0/1 variables of a linear model and on whole-numbered sums of them.

    A sum :math:`\sum k_i x_i` with whole :math:`k_i` is a whole number in every solution: it is at most
    :math:`\lfloor v \rfloor` or at least :math:`\lfloor v \rfloor + 1`, where :math:`v` is its value in the relaxation.
    Where a model repeats one block, single variables decide little: the relaxation moves to the next block at the same
    cost. How *many* variables of a kind are 1 decides much.

    A node is discarded only if the row duals of its relaxation prove it, by
    :func:`remat.backends.highs.relaxation.safe_bound`. At each node reduced costs fix variables. The sum to branch on
    has the largest product of gains of its two sides; they are estimated by few simplex iterations, then by the gains
    of earlier nodes.

    Parameters
    ----------
    matrix : Matrix
        Model; variables are 0 or 1, or continuous.
    sums : sparse array, shape (sums, columns)
        In the order in which they are tried. Single variables follow.
    most : float
        Largest objective sought.
    call : SolveOptions

    Attributes
    ----------
    nodes : int
        Parts of the search whose relaxation was not enough to discard them.

    Examples
    --------
    Of twelve tensors of 2 bytes, 7 bytes hold three; each of the others costs 1. Their sum decides at once:

    >>> from scipy.sparse import csr_array
    >>> from remat.modeling import Linear, Model
    >>> from remat.modeling.matrix import to_matrix
    >>> model = Model("tensors")
    >>> live = model.booleans("live", 12).index
    >>> model.add(Linear.rows("memory", [0] * 12, live, [2] * 12, upper=7))
    >>> model.minimize(live, [-1] * 12)
    >>> search = SumBranching(to_matrix(model), csr_array(np.ones((1, 12))), -3.2, SolveOptions())
    >>> search.run(), search.nodes
    (Branched(bound=inf, values=None), 1)
    """

    matrix: Matrix
    sums: Any
    most: float
    call: SolveOptions

    def __post_init__(self) -> None:
        from scipy import sparse

        matrix, rows = self.matrix, self.matrix.shape[0]
        self.columns = np.flatnonzero((matrix.integral == 1) & (matrix.lower == 0) & (matrix.upper == 1))
        self._first, count = rows, self.sums.shape[0]
        own = sparse.csr_array((matrix.values, matrix.indices, matrix.indptr), shape=matrix.shape)
        whole = sparse.vstack([own, self.sums], format="csr")
        free = np.full(count, math.inf)
        self._rows = replace(
            matrix,
            indptr=whole.indptr.astype(np.int32), indices=whole.indices.astype(np.int32), values=whole.data,
            row_lower=np.concatenate([matrix.row_lower, -free]), row_upper=np.concatenate([matrix.row_upper, free]),
        )  # fmt: skip
        self._numbers = itertools.count()
        self._gains = np.zeros((count, 2))  # mean gain of each side of a sum per unit of distance
        self._counts = np.zeros((count, 2), dtype=np.int64)
        self._tried = np.zeros(count, dtype=np.bool_)
        self.open: list[_Node] = []
        self.nodes = 0

    def run(self) -> Branched:
        """Search until the deadline."""
        import highspy

        self._highspy, self._solver = highspy, highspy.Highs()
        for name, value in (("output_flag", False), ("threads", self.call.threads or 1)):
            self._solver.setOptionValue(name, value)
        self._floor = -math.inf
        self._found: Float | None = None
        with contextlib.suppress(LeftBehindError, OverdueError, UnprovedError):
            run_interruptible(self._search, self._solver.cancelSolve, self.call.deadline)
        return Branched(self._floor, self._found)

    def _search(self) -> None:
        passed, self._scale = with_small_costs(self._rows)
        pass_model(self._highspy, self._solver, passed, np.zeros_like(passed.integral), "branching")
        nothing, count = np.zeros(self.matrix.shape[1], dtype=np.bool_), self.sums.shape[0]
        unlimited = np.full(count, math.inf)
        self._add(_Node(-math.inf, 0, nothing, nothing, -unlimited, unlimited, np.zeros(0), None))
        self._solver.setOptionValue("presolve", "off")
        self._solver.setOptionValue("objective_bound", (self.most - self.matrix.offset + 0.5) / self._scale)
        while self.open:
            self._floor = self.open[0].bound
            self.call.deadline.check()
            node = heapq.heappop(self.open)
            self.nodes += 1
            choice = self._choice(node)
            if choice is None:
                self._found = node.values
                return
            which, value = choice
            for side in (0, 1):
                gain = self._add(self._child(node, which, value, side)) - node.bound
                if which < count:
                    self._note(which, side, value, gain)
        self._floor = math.inf

    def _add(self, node: _Node) -> float:
        """Solve a node's relaxation, fix variables by it, and keep the node unless it has no solution sought.

        Return its bound.
        """
        solved = self._solve(node)
        if not solved.optimal and solved.bound <= self.most:
            if self.call.deadline.expired:
                raise OverdueError
            raise UnprovedError
        bound = max(node.bound, solved.bound)
        if bound > self.most:
            return bound
        zero, one = node.zero.copy(), node.one.copy()
        index, side = fixed_sides(self._at(node), solved.duals, self.most)
        zero[index[side == 0]], one[index[side == 1]] = True, True
        values = np.array(self._solver.getSolution().col_value)
        number = next(self._numbers)
        heapq.heappush(self.open, _Node(bound, number, zero, one, node.low, node.high, values, self._solver.getBasis()))
        return bound

    def _at(self, node: _Node) -> Matrix:
        """Return the model of a node."""
        lower, upper = self._rows.lower.copy(), self._rows.upper.copy()
        lower[node.one], upper[node.zero] = 1, 0
        row_lower, row_upper = self._rows.row_lower.copy(), self._rows.row_upper.copy()
        row_lower[self._first :], row_upper[self._first :] = node.low, node.high
        return replace(self._rows, lower=lower, upper=upper, row_lower=row_lower, row_upper=row_upper)

    def _solve(self, node: _Node, iterations: int | None = None) -> _Solved:
        """Solve the relaxation of a node, from the basis of its parent."""
        solver, statuses, model = self._solver, self._highspy.HighsModelStatus, self._at(node)
        columns, rows = model.shape[1], self.sums.shape[0]
        solver.changeColsBounds(columns, np.arange(columns, dtype=np.int32), model.lower, model.upper)
        index = np.arange(self._first, self._first + rows, dtype=np.int32)
        solver.changeRowsBounds(rows, index, node.low, node.high)
        if node.basis is not None:
            solver.setBasis(node.basis)
        solver.setOptionValue("simplex_iteration_limit", 2**31 - 1 if iterations is None else iterations)
        solver.run()
        status = solver.getModelStatus()
        if status == statuses.kInfeasible:
            _, exists = solver.getDualRayExist()
            ray = np.array(solver.getDualRay()[2]) if exists else np.zeros(0)
            proved = len(ray) == model.shape[0] and max(safe_bound(model, y, ray=True) for y in (ray, -ray)) > 0
            return _Solved(math.inf if proved else -math.inf, False, ray)
        duals = self._scale * np.array(solver.getSolution().row_dual)
        if len(duals) != model.shape[0]:
            return _Solved(-math.inf, False, duals)
        return _Solved(safe_bound(model, duals), status == statuses.kOptimal, duals)

    # -- choice of a sum ---------------------------------------------------------------------------------------------

    def _choice(self, node: _Node) -> tuple[int, float] | None:
        """Return the sum to branch on and its value; None if every variable is whole."""
        value = self.sums @ node.values
        part = value - np.floor(value + WHOLE)
        options = np.flatnonzero(part > WHOLE)
        if not len(options):
            return self._variable(node)
        trials = max(1, TRIALS - self.nodes // PATIENCE)
        for which in options[~self._tried[options]][:trials].tolist():
            self._tried[which] = True
            for side in (0, 1):
                solved = self._solve(self._child(node, which, float(value[which]), side), ITERATIONS)
                self._note(which, side, float(value[which]), solved.bound - node.bound)
        options = options[self._tried[options]]
        best = int(options[self._score(options, part[options]).argmax()])
        return best, float(value[best])

    def _variable(self, node: _Node) -> tuple[int, float] | None:
        """Return the variable nearest to a half, numbered after the sums; None if all are whole."""
        value = node.values[self.columns]
        distance = np.abs(value - 0.5)
        best = int(distance.argmin()) if len(value) else 0
        if not len(value) or distance[best] > 0.5 - WHOLE:
            return None
        return self.sums.shape[0] + best, float(value[best])

    def _score(self, which: Any, part: Float) -> Float:
        """Return the products of the estimated gains of both sides."""
        least = LEAST_GAIN * (1 + abs(self.most))
        down, up = self._gains[which, 0] * part, self._gains[which, 1] * (1 - part)
        return np.maximum(down, least) * np.maximum(up, least)

    def _note(self, which: int, side: int, value: float, gain: float) -> None:
        distance = value - math.floor(value + WHOLE) if side == 0 else math.floor(value + WHOLE) + 1 - value
        gain = min(max(gain, 0.0), abs(self.most) + 1) / max(distance, 0.001)
        count = self._counts[which, side] = self._counts[which, side] + 1
        self._gains[which, side] += (gain - self._gains[which, side]) / count

    def _child(self, node: _Node, which: int, value: float, side: int) -> _Node:
        """Return the side of a node where a sum is at most the whole number below its value, or at least the next."""
        zero, one, low, high = node.zero, node.one, node.low, node.high
        whole, count = math.floor(value + WHOLE), self.sums.shape[0]
        if which >= count:
            zero, one = zero.copy(), one.copy()
            (zero, one)[side][self.columns[which - count]] = True
        elif side == 0:
            high = high.copy()
            high[which] = whole
        else:
            low = low.copy()
            low[which] = whole + 1
        return _Node(node.bound, 0, zero, one, low, high, node.values, node.basis)
