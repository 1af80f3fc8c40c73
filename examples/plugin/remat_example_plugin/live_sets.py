"""Live sets: the fixed order stated slot by slot, without events of freeing."""

import numpy as np

from remat.errors import ProblemError
from remat.formulations import Formulation, Scope
from remat.modeling import Clauses, Model
from remat.modeling.rows import rows_from
from remat.problem import Problem
from remat.problem.op_sequence import Instances, op_sequence, stages_of
from remat.schedule import OrderRule, Schedule


class LiveSets(Formulation):
    """Live tensors of each slot.

    **Sets.** Stage k = 1..n has slots for ops 1..k of the reference order; p numbers all slots, o(p) is the op of p.
    **Variables.** R[p] ∈ {0,1}: op o(p) runs. D[p,t] ∈ {0,1}: tensor t is held during slot p.
    **Constraints**::

        (1) minimise  sum_p C_o(p) R[p];   R[p] = 1 for the last slot of each stage
        (2) D[p,t] ≤ D[p−1,t] + R[p] if o(p) writes t;   D[p,t] ≤ D[p−1,t] otherwise;   D[0,·] = 0
        (3) R[p] ≤ D[p,t]                        for every t that o(p) reads or writes
        (4) sum_t m_t D[p,t] + w_o(p) R[p] ≤ budget − what is always held
        (5) D[last,t] = 1 for tensors to be kept;   sum of R[p] over the slots of op j ≤ C_j where it is limited
    """

    name = "live-sets"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        graph, arrays = problem.graph, problem.graph.arrays
        if problem.order is not OrderRule.FIXED:
            raise ProblemError("live-sets keeps the reference order; ask for order 'fixed'")
        if (several := arrays.producers.counts > 1).any():
            raise ProblemError(f"live-sets cannot state that tensor {graph.tensor_names[several.argmax()]!r} is a sum")
        n, (stage, slot) = len(graph.ops), np.tril_indices(len(graph.ops))
        self.op, shape = arrays.order[slot], (len(slot), len(graph.tensors))
        self.model = model = Model(self.name)
        self.R = model.booleans("R", shape[0], lower=stage == slot).index
        kept = np.outer(np.arange(shape[0]) == shape[0] - 1, problem.kept & ~arrays.is_input)  # (5)
        self.D = model.booleans("D", shape, kept, ~arrays.is_input).index
        model.minimize(self.R[stage != slot], arrays.cost[self.op[stage != slot]], graph.base_cost)  # (1)
        writes, uses = np.zeros((2, n, shape[1]), dtype=bool)
        writes[arrays.op_outputs.rows, arrays.op_outputs.indices] = True
        uses[arrays.op_inputs.rows, arrays.op_inputs.indices] = True
        row, (p, t) = np.arange(self.D.size).reshape(shape), np.nonzero(writes[self.op])
        there = (row, self.D, 1), (row[1:], self.D[:-1], -1), (row[p, t], self.R[p], -1)
        model.add(rows_from("(2) from before", *there, num_rows=self.D.size, upper=0))
        p, t = np.nonzero(((uses | writes) & ~arrays.is_input)[self.op])
        model.add(Clauses.pairs("(3) there", ~self.R[p], self.D[p, t]))
        held, budget = arrays.input_bytes + problem.constant_bytes, problem.budget_bytes
        room, slot = np.inf if budget is None else budget - held, np.arange(shape[0])
        load = (slot[:, None], self.D, arrays.size), (slot, self.R, arrays.workspace[self.op])
        model.add(rows_from("(4) memory", *load, num_rows=shape[0], upper=room))
        self.limit = np.array([n if limit is None else limit for limit in problem.compute_limits], dtype=float)
        model.add(rows_from("(5) limits", (self.op, self.R, 1), num_rows=n, upper=self.limit))

    def scope(self) -> Scope:
        return Scope(OrderRule.FIXED, True, None if self.limit.max() >= len(self.limit) else int(self.limit.max()))

    def build(self) -> Model:
        return self.model

    def encode(self, schedule: Schedule) -> np.ndarray:
        sequence = op_sequence(self.problem, schedule)
        stage, over = stages_of(self.problem, sequence), np.bincount(sequence) > self.limit
        if over.any():
            raise ProblemError(f"op {self.problem.graph.op_names[over.argmax()]!r} is computed too often")
        slot = np.append(stage * (stage - 1) // 2 + self.problem.graph.arrays.position[sequence], len(self.op) - 1)
        values, found = np.zeros(self.model.num_vars), Instances.of(self.problem, sequence)
        values[self.R[slot[:-1]]] = 1
        for step, tensor, end in zip(found.step, found.tensor, found.last_use, strict=True):
            values[self.D[slot[step] : slot[end] + 1, tensor]] = 1
        return values

    def decode(self, values: np.ndarray) -> Schedule:
        return Schedule.of_computes(self.problem.graph, self.op[values[self.R] > 0.5], source=self.name)
