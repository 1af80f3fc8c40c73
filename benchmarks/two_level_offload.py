"""Two-level programme for recomputation and offloading by layers, a rival of searches that see the whole graph.

It follows the description of a solver in work for torchtitan's graph trainer (pull request 4636): a programme per layer
decides for each saved tensor whether to keep, recompute or offload it; an outer linear programme divides the budget
over the layers. Tensors under 1 MiB and those that cross layers are never recomputed; those under 1 MiB are never
offloaded. What a layer offloads must fit on the link during its forward pass. The published solver has no
certificate. Here the plan is repeated with a smaller budget until the schedule keeps the one of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from remat.backends.highs import Highs
from remat.heuristics.forward_blocks import all_cuts
from remat.heuristics.transfers.kernels import KERNELS
from remat.heuristics.transfers.references import saved
from remat.heuristics.transfers.state import State
from remat.modeling import Model
from remat.modeling.rows import rows_from, sum_rows
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule

#: Bytes below which a tensor is kept.
SMALL = 2**20
#: Budgets of a layer for the outer programme, as shares of what it saves.
SHARES = np.linspace(0, 1, 6)
#: Budgets for saved tensors that are tried, as shares of that of the problem.
TRIED = np.linspace(1, 0, 11)
#: Numbers of layers; the cuts that come closest are tried.
LAYERS = (16, 8, 32)


@dataclass(eq=False)
class _Layer:
    """A layer: what it saves, and its programme."""

    step: TrainingStep
    tensors: np.ndarray
    others: np.ndarray
    """Mask of tensors that other layers save or pass on."""

    def solve(self, budget: float, seconds: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Return the cost, the tensors to offload, and the ops to run again; None if nothing keeps the budget."""
        problem, arrays = self.step.problem, self.step.problem.graph.arrays
        assert problem.machine is not None
        write, _ = problem.machine.transfer_times(problem.graph)
        size = arrays.size[self.tensors]
        edge = self.step.first_backward
        crosses = self.others[self.tensors]
        model = Model("layer")
        off = model.booleans("offload", len(size), 0, size >= SMALL).index
        again = model.booleans("recompute", len(size), 0, (size >= SMALL) & ~crosses).index
        writers = [arrays.producers[t] for t in self.tensors.tolist()]
        ops = np.unique(np.concatenate([*writers, *self._above(writers)]))
        runs = model.continuous("run", len(ops), 0, 1).index
        place = {int(op): int(runs[k]) for k, op in enumerate(ops)}
        row = np.arange(len(size))
        model.add(rows_from("one", (row, off, 1), (row, again, 1), num_rows=len(row), upper=1))
        model.add(
            rows_from(
                "budget", (0, off, -size / SMALL), (0, again, -size / SMALL), num_rows=1,
                upper=(budget - int(size.sum())) / SMALL,
            )
        )  # fmt: skip
        forward = int(arrays.cost[ops[arrays.position[ops] < edge]].sum())
        times = np.array([float(write[t]) for t in self.tensors])
        model.add(rows_from("link", (0, off, times / max(1, forward)), num_rows=1, upper=1))
        # an op that runs needs its inputs: saved ones are there, others are computed again too
        asks = [(again[k], place[int(w)]) for k in range(len(size)) for w in writers[k]]
        own = set(self.tensors.tolist())
        for op in ops.tolist():
            inputs = [t for t in arrays.op_inputs[op].tolist() if not self.others[t] and t not in own]
            asks += [(place[op], place[int(w)]) for t in inputs for w in arrays.producers[t]]
        asker, writer = np.array(asks, dtype=np.int64).reshape(-1, 2).T
        model.add(sum_rows("inputs", asker, writer))
        model.minimize(runs, arrays.cost[ops])
        raw = Highs().solve(model, SolveOptions(Deadline.after(seconds), threads=1))
        if raw.values is None:
            return None
        chosen = raw.values
        return float(raw.objective or 0), self.tensors[chosen[off] > 0.5], ops[chosen[runs] > 0.5]

    def _above(self, writers: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return ops of the layer that writers of saved tensors depend on, through tensors that are not passed on."""
        arrays = self.step.problem.graph.arrays
        found: set[int] = set()
        waiting = [int(op) for ops in writers for op in ops]
        while waiting:
            op = waiting.pop()
            for t in arrays.op_inputs[op].tolist():
                if not self.others[t]:
                    more = [int(w) for w in arrays.producers[t] if int(w) not in found]
                    found.update(more)
                    waiting += more
        return [np.array(sorted(found), dtype=np.int64)]


def two_level(problem: Problem, seconds: float = 60.0) -> Schedule | None:
    """Return the best schedule of the two-level programme within the budget; None if no plan keeps it.

    The published solver has the layers of the model. Here three cuts by modules, names or valleys are tried, each with
    its share of the time.
    """
    step = TrainingStep.of(problem)
    KERNELS.ready()
    clock = Deadline.after(seconds)
    every = all_cuts(step, "auto")
    sizes = np.array([len(each) for each in every])
    cuts = [every[k] for k in dict.fromkeys(int(np.abs(sizes - wanted).argmin()) for wanted in LAYERS)]
    found = []
    for left, each in zip(range(len(cuts), 0, -1), cuts, strict=True):
        schedule = _of_layers(step, _layers(step, each), clock.earlier(clock.remaining / left))
        if schedule is not None:
            found.append((problem.validate(schedule).time or 0, schedule))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _of_layers(step: TrainingStep, layers: list[_Layer], clock: Deadline) -> Schedule | None:
    problem = step.problem
    assert problem.budget_bytes is not None
    options = []
    for layer in layers:
        total = float(problem.graph.arrays.size[layer.tensors].sum())
        solved = [(total * share, layer.solve(total * share, 2.0)) for share in SHARES if not clock.expired]
        options.append([(budget, found) for budget, found in solved if found is not None])
    if not all(options):
        return None
    for share in TRIED:
        budgets = None if clock.expired else _divided(options, share * problem.budget_bytes)
        if budgets is None:
            return None
        plans = [layer.solve(budget, 2.0) for layer, budget in zip(layers, budgets, strict=True)]
        if (schedule := _schedule(problem, step, plans)) is not None:
            return schedule
    return None


def _layers(step: TrainingStep, cuts: tuple[int, ...]) -> list[_Layer]:
    arrays, tensors, bounds = step.problem.graph.arrays, saved(step), np.array(cuts)
    made = arrays.producers.lowest(arrays.position, len(arrays.order))
    layer_of = np.searchsorted(bounds, made, side="right")
    reader = np.searchsorted(bounds, arrays.position[arrays.edge_consumer], side="right")
    early = arrays.position[arrays.edge_consumer] < step.first_backward
    passed = np.zeros(len(arrays.size), dtype=np.bool_)
    passed[arrays.edge_tensor[early & (reader != layer_of[arrays.edge_tensor])]] = True
    return [
        _Layer(step, tensors[layer_of[tensors] == number], passed | (layer_of != number))
        for number in np.unique(layer_of[tensors]).tolist()
    ]


def _divided(options: list, budget: float) -> tuple[float, ...] | None:
    """Return a budget for each layer by the outer linear programme."""
    cost = np.concatenate([[found[0] for _, found in some] for some in options])
    size = np.concatenate([[held for held, _ in some] for some in options])
    owner = np.repeat(np.arange(len(options)), [len(some) for some in options])
    one = (owner[None, :] == np.arange(len(options))[:, None]).astype(float)
    found = linprog(cost, A_ub=size[None, :], b_ub=[budget], A_eq=one, b_eq=np.ones(len(options)), bounds=(0, 1))
    return None if found.x is None else tuple((one @ (size * found.x)).tolist())


def _schedule(problem: Problem, step: TrainingStep, plans: list) -> Schedule | None:
    """Return the schedule of the plans of all layers; None if it is over the budget."""
    if any(plan is None for plan in plans):
        return None
    arrays, state = problem.graph.arrays, State(problem)
    moved = np.concatenate([plan[1] for plan in plans])
    ops = np.unique(np.concatenate([plan[2] for plan in plans]))
    need = {int(t): int(step.first_backward_reads[t]) for t in range(len(arrays.size))}
    when = []
    for op in sorted(ops.tolist(), key=lambda op: -arrays.position[op]):
        first = min(need[int(t)] for t in arrays.op_outputs[op])
        when.append((op, first))
        for t in arrays.op_inputs[op].tolist():
            need[t] = min(need[t], first)
    given = np.array([pair for pair in when if pair[1] < len(arrays.order)], dtype=np.int64).reshape(-1, 2)
    state.take(given[:, 0], given[:, 1], moved, np.array([need[int(t)] for t in moved], dtype=np.int64))
    return state.schedule("two levels") if state.evaluate().excess == 0 else None
