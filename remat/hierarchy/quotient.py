"""Quotient graph whose ops are groups with one option each, and a search for the best choice of options."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.errors import BackendError, ProblemError
from remat.formulations.composites import Composite, CompositeProblem, Run, Step, expand
from remat.formulations.placing import placed
from remat.formulations.programs import COMPUTE, FETCH, Program
from remat.graphs import ComputeGraph, Op, Tensor
from remat.heuristics.base import rank
from remat.hierarchy.effort import Effort, answered
from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes
from remat.problem.transfer_times import TransferTimes
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule
from remat.schedule.machine import ON_DEVICE, on_device
from remat.solving.incumbents import Incumbents

#: Limits of the first choices, as shares: of the most bytes that an option saves, and of the budget while a group runs.
SHARES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)
PEAKS = (1.0, 0.75, 0.5, 0.35)
#: Most changes to try per composite; share of changes that affect one composite rather than two.
MOVES, ONE = 8, 0.7
#: Most seconds per choice.
SECONDS = 2.0
#: Source of the schedules of quotients.
SOURCE = "groups with options"


def _phantom(composite: int) -> str:
    """Return the name of the tensor that stands for the saved tensors of a composite."""
    return f"saved by composite {composite}"


@dataclass(frozen=True, eq=False)
class Quotient:
    """A problem with composites, stated with one option of each.

    Its graph has an op for each node. The saved bytes of an option are a tensor that its forward part writes and its
    backward part reads; other memory inside is the workspace of the op. A schedule of the quotient gives one of the
    whole graph with at most the same peak: interfaces freed inside a node are held until its end here. Nodes that
    contribute to accumulation buffers are not recomputed. On a machine, moves of saved bytes stand for moves of all
    saved tensors.

    Examples
    --------
    >>> from remat.formulations.composites import Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 6, 7])])
    >>> quotient = Quotient(CompositeProblem(Problem(unit_chain(4), 6), [middle]))
    >>> [(op.name, op.workspace) for op in quotient.problem([0]).graph.ops if "middle" in op.name]
    [('1 middle', 0), ('5 middle backward', 1)]
    >>> quotient.schedule(Schedule.reference(quotient.problem([1]).graph), [1]).computes()
    ['f0', 'f1', 'f2', 'f3', 'loss', 'g3', 'f1', 'g2', 'g1', 'g0']
    """

    whole: CompositeProblem

    @cached_property
    def choices(self) -> list[list[int]]:
        """Eligible options of each composite: those with a backward part, if it has one."""
        return [
            [o for o, option in enumerate(each.options) if option.backward is not None or not len(each.backward)]
            for each in self.whole.composites
        ]  # fmt: skip

    @cached_property
    def _runs(self) -> list[dict[int, Run]]:
        return [{run.option: run for run in self.whole.runs(node)} for node in range(len(self.whole.nodes))]

    def _parts(self, composite: int, option: int) -> list[Run]:
        """Return the runs of forward and backward part."""
        each = self.whole.composites[composite]
        return [
            self._runs[int(self.whole.node_of[ops[0]])][option] for ops in (each.forward, each.backward) if len(ops)
        ]

    def saved(self, composite: int, option: int) -> int:
        """Return the bytes that an option saves."""
        return self._parts(composite, option)[0].saved

    def peak(self, composite: int, option: int) -> int:
        """Return the most bytes inside a composite while it runs with an option."""
        return max(run.peak for run in self._parts(composite, option))

    def cheapest(self, composite: int, share: float, peak: float = math.inf) -> int:
        """Return the cheapest option within a share of the most bytes that any option saves, and within `peak`.

        Without one, return the option of least peak among those that save so little, or else the one that saves least.
        """
        some = self.choices[composite]
        saved = {option: self.saved(composite, option) for option in some}
        allowed = [option for option in some if saved[option] <= share * max(saved.values())]
        if not allowed:
            return min(some, key=lambda option: (saved[option], self.cost(composite, option)))
        low = [option for option in allowed if self.peak(composite, option) <= peak]
        if not low:
            return min(allowed, key=lambda option: (self.peak(composite, option), self.cost(composite, option)))
        return min(low, key=lambda option: (self.cost(composite, option), saved[option]))

    def cost(self, composite: int, option: int) -> int:
        """Return the cost of both parts of an option."""
        return sum(run.cost for run in self._parts(composite, option))

    def problem(self, options: Sequence[int]) -> Problem:
        """Return the quotient with an option of each composite, under the budget of the whole."""
        whole, problem = self.whole, self.whole.problem
        graph, arrays = problem.graph, problem.graph.arrays
        names = graph.tensor_names
        stays = set() if problem.machine is None else set(on_device(graph))
        used: set[int] = set(np.flatnonzero(arrays.is_input | problem.kept).tolist())
        phantoms: list[Tensor] = []
        ops = []
        for number, node in enumerate(whole.nodes):
            composite = node.composite
            run = self._runs[number][options[composite] if composite >= 0 else 0]
            reads = run.tensor[run.needs & ~(run.makes & self._single[run.tensor])]
            writes = run.tensor[run.makes & ~np.isin(run.tensor, reads)]
            inputs, outputs = [names[t] for t in reads.tolist()], [names[t] for t in writes.tolist()]
            used.update(run.tensor.tolist())
            workspace = run.peak
            if composite >= 0 and len(whole.composites[composite].backward):
                size = self.saved(composite, options[composite])
                phantom = _phantom(composite)
                if not self._movable[self._phantom_tensors(composite, options[composite])].all():
                    stays.add(phantom)
                workspace = max(0, workspace - size)
                if node.is_backward:
                    inputs.append(phantom)
                else:
                    outputs.append(phantom)
                    phantoms.append(Tensor(phantom, size))
            once = any(self._once[op] for op in set(run.ops.tolist()))
            phase = graph.ops[int(node.ops[0])].phase
            ops.append(
                Op(f"{number} {node.name}", tuple(inputs), tuple(outputs), run.cost, workspace, "", phase, not once)
            )
        tensors = [graph.tensors[t] for t in sorted(used)] + phantoms
        small = ComputeGraph(
            f"{graph.name}: {len(ops)} nodes", tensors, ops, graph.inputs,
            [names[t] for t in np.flatnonzero(problem.kept & ~arrays.is_input).tolist()], cost_unit=graph.cost_unit,
            meta={ON_DEVICE: sorted(stays)},
        )  # fmt: skip
        return Problem(small, problem.budget_bytes, machine=problem.machine)

    def _phantom_tensors(self, composite: int, option: int) -> Int:
        return self._parts(composite, option)[0].phantom

    @cached_property
    def _movable(self) -> Bool:
        """Mask of tensors that can be moved; all without a machine."""
        problem = self.whole.problem
        if problem.machine is None:
            return np.ones(len(problem.kept), dtype=np.bool_)
        return TransferTimes.of(problem).movable

    @cached_property
    def _once(self) -> list[bool]:
        """Flag of ops whose nodes are computed once: limited to one compute, or contributing to a buffer."""
        return (allowed_computes(self.whole.problem, 2) == 1).tolist()

    @cached_property
    def _single(self) -> np.ndarray:
        """Flag of tensors with one writer."""
        return self.whole.problem.graph.arrays.producers.counts == 1

    def schedule(self, schedule: Schedule, options: Sequence[int]) -> Schedule:
        """Expand a schedule of the quotient to one of the whole graph."""
        whole = self.whole
        node_of = {op: number for number, op in enumerate(schedule.op_names)}
        option_of = [0 if node.composite < 0 else options[node.composite] for node in whole.nodes]
        if not schedule.has_transfers:
            steps = (Step(node_of[name], option_of[node_of[name]]) for name in schedule.computes())
            return expand(whole, steps, SOURCE)
        tensors = {name: [tensor] for tensor, name in enumerate(whole.problem.graph.tensor_names)}
        for composite, option in enumerate(options):
            tensors[_phantom(composite)] = self._phantom_tensors(composite, option).tolist()
        makes: list[tuple[int, int]] = []
        written: set[int] = set()
        for kind, name in schedule.steps():
            if kind == "compute":
                makes += [(COMPUTE, op) for op in self._runs[node_of[name]][option_of[node_of[name]]].ops.tolist()]
            elif kind == "fetch":
                makes += [(FETCH, tensor) for tensor in tensors[name]]
            elif kind == "offload":
                written.update(tensors[name])
        return self._fastest(Program.of(makes), written)

    def _fastest(self, makes: Program, written: set[int]) -> Schedule:
        """Return the faster program: fetches at their places, or as early as the budget allows."""
        problem = self.whole.problem
        both = [placed(problem, makes, written, ahead=ahead).schedule(problem, SOURCE) for ahead in (False, True)]
        return min(both, key=lambda each: problem.objective.rank(problem.validate(each)))


@dataclass(frozen=True, eq=False)
class Choice:
    """An option of each composite, and the schedules it gives."""

    options: list[int]
    small: Schedule
    schedule: Schedule
    """Schedule of the whole graph; `small` is that of the quotient."""
    fits: bool
    """True if the schedule is within the budget."""


def choice_of(
    problem: Problem, composites: Sequence[Composite], deadline: Deadline, *, effort: Effort, moves: int = MOVES,
    first: Sequence[int] | None = None,
) -> Choice | None:  # fmt: skip
    """Search for the best choice of an option for each composite: the cheapest within the budget, else of least peak.

    First choices take the cheapest option of each composite that saves at most a share of its largest saving. Then
    options of one or two composites of the best choice change at random; a change that is no worse is kept.

    Parameters
    ----------
    problem : Problem
        With a budget.
    effort : Effort
        Its first method solves each quotient.
    moves : int
        Changes to try per composite.
    first : sequence of int, optional
        Choice to evaluate first.
    """
    try:
        quotient = Quotient(CompositeProblem(problem, tuple(composites)))
    except ProblemError:
        return None
    each, incumbents = replace(effort, seconds=SECONDS), Incumbents(problem)
    best: tuple[tuple[bool, int, int], Choice] | None = None

    def evaluate(options: list[int]) -> None:
        """Solve the quotient of a choice, which becomes the best unless it is worse."""
        nonlocal best
        with contextlib.suppress(ProblemError, BackendError):
            found = answered(quotient.problem(options), effort.methods[0], each, deadline, over=True)
            if found is not None:
                seen = incumbents.add(quotient.schedule(found, options), SOURCE)
                mine = rank(seen.fits, problem.value(seen.certificate), seen.certificate.peak)
                if best is None or mine <= best[0]:
                    best = mine, Choice(options, found, seen.schedule, seen.fits)

    tried: list[list[int]] = []
    if first is not None:
        tried.append(list(first))
        evaluate(tried[0])
    for peak in PEAKS:
        for share in SHARES:
            limit = peak * problem.budget_bytes if problem.budget_bytes is not None else math.inf
            options = [quotient.cheapest(number, share, limit) for number in range(len(composites))]
            if options not in tried and not (tried and deadline.expired):
                tried.append(options)
                evaluate(options)
    rng = random.Random(effort.call.seed)
    free = [number for number, some in enumerate(quotient.choices) if len(some) > 1]
    for _ in range(moves * len(free)):
        if best is None or deadline.expired:
            break
        options = list(best[1].options)
        for number in rng.sample(free, min(len(free), 1 if rng.random() < ONE else 2)):
            options[number] = rng.choice([o for o in quotient.choices[number] if o != options[number]])
        evaluate(options)
    return None if best is None else best[1]
