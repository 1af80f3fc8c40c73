"""A formulation without recomputation: which op runs in which step, for tests of the kit."""

import numpy as np

from remat.errors import ProblemError
from remat.formulations import Formulation, Scope
from remat.formulations.sequence import Instances, check_limits, op_sequence
from remat.modeling import Model
from remat.modeling.rows import rows_from
from remat.schedule import OrderRule, Schedule


class OrderOnly(Formulation):
    """P[s,o] ∈ {0,1}: op o runs in step s. L[s,t] ∈ {0,1}: tensor t is live in step s.

    (1) one op in each step, each op in one;  (2) L[s,t] ≤ L[s−1,t] + P[s,p(t)];  (3) P[s,o] ≤ L[s,t] for every t that
    o reads or writes;  (4) memory;  (5) L[last,t] = 1 for what is kept.
    """

    name = "order-only"

    def __init__(self, problem):
        super().__init__(problem)
        graph, arrays = problem.graph, problem.graph.arrays
        if problem.order is not OrderRule.FREE:
            raise ProblemError("order-only finds an order: ask for order 'free'")
        if graph.inputs or (arrays.producers.counts > 1).any():
            raise ProblemError("order-only states neither graph inputs nor accumulation buffers")
        n, count = len(graph.ops), len(graph.tensors)
        step, op = (a.ravel() for a in np.indices((n, n)))
        self.model = model = Model(self.name)
        kept = np.outer(np.arange(n) == n - 1, problem.kept)
        P, L = model.booleans("P", (n, n)).index, model.booleans("L", (n, count), kept).index
        self.P, self.L = P, L
        rows = (step, P.ravel(), 1), (n + op, P.ravel(), 1)
        model.add(rows_from("(1) each once", *rows, num_rows=2 * n, lower=1, upper=1))
        row, writer = np.arange(L.size).reshape(L.shape), arrays.producers.indices
        model.add(rows_from("(2) made", (row, L, 1), (row[1:], L[:-1], -1), (row, P[:, writer], -1),
                            num_rows=L.size, upper=0))  # fmt: skip
        used = np.concatenate([arrays.op_inputs.rows, arrays.op_outputs.rows])
        what = np.concatenate([arrays.op_inputs.indices, arrays.op_outputs.indices])
        row = np.arange(n * len(used)).reshape(n, -1)
        model.add(rows_from("(3) there", (row, P[:, used], 1), (row, L[:, what], -1), num_rows=row.size, upper=0))
        room = np.inf if problem.budget_bytes is None else problem.budget_bytes
        held = (np.arange(n)[:, None], L, arrays.size), (np.arange(n)[:, None], P, arrays.workspace)
        model.add(rows_from("(4) memory", *held, num_rows=n, upper=room))
        model.minimize([], [], graph.base_cost)

    def scope(self):
        return Scope(OrderRule.FREE, False, 1)

    def build(self):
        return self.model

    def encode(self, schedule):
        sequence = op_sequence(self.problem, schedule)
        check_limits(self.problem, sequence)
        if len(sequence) > len(self.P):
            raise ProblemError("order-only computes each op once")
        values, found = np.zeros(self.model.num_vars), Instances.of(self.problem, sequence)
        values[self.P[np.arange(len(sequence)), sequence]] = 1
        for step, tensor, end in zip(found.step, found.tensor, found.last_use, strict=True):
            values[self.L[step : end + 1, tensor]] = 1
        return values

    def decode(self, values):
        return Schedule.of_computes(self.problem.graph, np.argmax(values[self.P] > 0.5, axis=1), source=self.name)
