"""Conversions between plans (nodes with options, by phase), schedules and values of the hierarchical programme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.composites.composite import NOTHING
from remat.formulations.composites.expansion import Step
from remat.formulations.composites.recognition import FoundRun
from remat.formulations.h_ilp.layout import Tables
from remat.formulations.h_ilp.rows import Program
from remat.modeling.rows import NONE, ONE, column, largest_onward, running_values, sums_without
from remat.problem.op_sequence import run_stages
from remat.runtime.arrays import Int


@dataclass(frozen=True, eq=False)
class Plan:
    """Sequence of computed nodes, each with one of its choices.

    Attributes
    ----------
    node, choice, phase : int64 arrays, shape (steps,)
        Choices are numbered over all nodes.
    left_out : sequence of int64 arrays, shape (steps,)
        Ops of each step that are not computed, since their outputs are live.
    """

    node: Int
    choice: Int
    phase: Int
    left_out: Sequence[Int]

    @classmethod
    def of(cls, at: Tables, runs: Sequence[FoundRun]) -> Plan:
        """Return the plan of a sequence of runs: phase t ends with the first compute of node t.

        Raise ProblemError if first computes leave the order of nodes, or a phase runs a node twice or out of order; the
        message names the node.
        """
        names = [each.name for each in at.whole.nodes]
        number = {(int(k), run.option): c for c, (k, run) in enumerate(zip(at.node, at.runs, strict=True))}
        node = np.array([each.node for each in runs], dtype=np.int64)
        choice = np.array([number[each.node, each.option] for each in runs], dtype=np.int64)
        phase = run_stages(node, len(names), lambda k: repr(names[k]), node) - 1
        return cls(node, choice, phase, [each.left_out for each in runs])


def values_of(program: Program, plan: Plan) -> Values:
    """Return values of the model that represent a plan, with the least retention.

    Raise ProblemError if the model lacks a variable for a run or a retention of the plan.
    """
    model, x, phases = program.model, program.x, program.phases
    values = np.zeros(model.num_vars)
    strange = np.flatnonzero(~phases.may[plan.phase, plan.node])
    if len(strange):
        name = program.at.whole.nodes[int(plan.node[strange[0]])].name
        raise ProblemError(f"the schedule computes {name!r} in a phase in which that is of no use")
    term = column(x.R, phases.run_column(plan.phase, plan.choice))
    values[term[term >= 0]] = 1
    _Retention(program, plan, values).run()
    _fill(program, values)
    return values


class _Retention:
    """Backward scan of a plan for the last uses of data and phantoms; it sets P, S, K and Sp."""

    def __init__(self, program: Program, plan: Plan, values: Values) -> None:
        x, at, phases = program.x, program.at, program.phases
        self.program, self.plan, self.values = program, plan, values
        self.tables = {
            "P": column(x.P, phases.kept),
            "S": column(x.S, phases.contribution_kept),
            "Sp": column(x.Sp, phases.phantom_kept),
        }
        self.given = column(x.K, phases.contribution)
        self.parts = {
            (int(at.make_node[m]), int(at.make_data[m])): int(phases.part_of[m]) for m in phases.parts.tolist()
        }
        self.makers: dict[int, set[int]] = {}
        for k, d in self.parts:
            self.makers.setdefault(d, set()).add(k)
        #: Phase of the last read of each datum still to be read; and contributors that its buffer still lacks.
        self.until = dict.fromkeys(np.flatnonzero(at.kept).tolist(), at.T)
        self.lacking = {d: set(self.makers[d]) for d in self.until if d in self.makers}
        self.phantom = {int(c): i for i, c in enumerate(at.phantom_backward.tolist())}
        self.begun = {int(c): i for i, c in enumerate(at.phantom_forward.tolist())}
        self.wanted: dict[int, int] = {}

    def run(self) -> None:
        """Scan all steps."""
        for step in range(len(self.plan.node) - 1, -1, -1):
            self._data(step)
            self._phantoms(step)

    def _data(self, step: int) -> None:
        at, makers, until, lacking = self.program.at, self.makers, self.until, self.lacking
        k, phase = int(self.plan.node[step]), int(self.plan.phase[step])
        run = at.runs[int(self.plan.choice[step])]
        needs = at.number[run.tensor[run.needs]].tolist()
        there = _held(self.program, self.plan, step, until)
        made = [d for d in at.number[run.tensor[run.makes]].tolist() if d not in there]
        for d in needs:  # a run that also contributes to a buffer reads it afterwards
            if d in makers:
                until.setdefault(d, phase)
                lacking[d] = set(makers[d])
        for d in made:
            if d not in makers:
                if d in until:
                    self._keep("P", d, step, until.pop(d))
            elif k in lacking.get(d, ()):
                self.values[self.given[phase, self.parts[k, d]]] = 1
                self._keep("S", self.parts[k, d], step, until[d])
                lacking[d].discard(k)
                if not lacking[d]:
                    self._keep("P", d, step, until.pop(d))
        for d in needs:
            if d not in makers:
                until.setdefault(d, phase)

    def _phantoms(self, step: int) -> None:
        at, choice, phase = self.program.at, int(self.plan.choice[step]), int(self.plan.phase[step])
        if choice in self.phantom:
            self.wanted.setdefault(self.phantom[choice], phase)
        if choice in self.begun:
            number = self.begun[choice]
            back = int(at.node[at.phantom_backward[number]])
            # phantoms are held at least until then
            least = phase if self.program.phases.may[phase, back] else phase + 1
            self._keep("Sp", number, step, max(self.wanted.pop(number, least), least))

    def _keep(self, what: str, number: int, step: int, until: int) -> None:
        """Set the variables that keep a result of `step` until a phase."""
        at, phase = self.program.at, int(self.plan.phase[step])
        columns = self.tables[what][phase + 1 : min(until, at.T - 1) + 1, number]
        if (columns == NONE).any():
            name = at.whole.nodes[int(self.plan.node[step])].name
            raise ProblemError(f"the schedule keeps what {name!r} makes for longer than is of use")
        self.values[columns[columns >= 0]] = 1


def _held(program: Program, plan: Plan, step: int, until: dict[int, int]) -> set[int]:
    """Return data that are live throughout a step that leaves out their ops; `until`: phase of their last read."""
    at, arrays = program.at, program.at.whole.arrays
    phase, left_out = int(plan.phase[step]), plan.left_out[step]
    ops = np.setdiff1d(at.runs[int(plan.choice[step])].ops, left_out)
    found = set()
    for op in left_out.tolist():
        for d in at.number[arrays.op_outputs[op]].tolist():
            if d >= 0 and d not in until and any(int(at.tensor[d]) in arrays.op_inputs[other] for other in ops):
                until[d] = phase + (
                    program.phases.kept[phase + 1, d] != NONE
                )  # live throughout the step, hence also after it
            if d in until:
                found.add(d)
    return found


def _fill(program: Program, values: Values) -> None:
    """Set Q, L, B, over and U to the least values that the others allow."""
    x, at, phases, levels = program.x, program.at, program.phases, program.levels
    worth = known(values)
    number, _ = phases.phantom
    t, j = np.nonzero(number != NONE)
    held = worth(levels.Sp[t + 1, j])
    for choice in (at.phantom_forward, at.phantom_backward):
        held = np.maximum(held, worth(column(x.R, phases.run_column(t, choice[j]))))
    values[x.Q.index[number[t, j]]] = held
    t, _, last, *_ = phases.reads
    place, term = phases.read_terms
    read = np.bincount(place, worth(column(x.R, term)), minlength=len(t))
    held = np.maximum(read, np.where(last, worth(levels.following), 0))
    own = np.isin(levels.live, x.L.index)
    values[levels.live[own]] = largest_onward(held, last)[own]
    t, make, last, *_ = phases.makes
    for m in np.flatnonzero(~last).tolist():
        given = column(x.K, phases.contribution[t[m : m + 1], phases.part_of[make[m : m + 1]]])
        values[levels.after[m]] = max(worth(levels.before[m : m + 1])[0], worth(given)[0])
    _, spare = sums_without(program.model, "(a3) made and not wanted", x.over, values)
    values[x.over.index] = np.maximum(0, spare)
    values[x.U.index] = running_values(program.model, "(u) memory", x.U, values, phases.run_phase)


def known(values: Values) -> Callable[[Int], Values]:
    """Return a function from columns to their values; 0 for NONE and 1 for ONE."""

    def worth(columns: Int) -> Values:
        found = np.where(columns == ONE, 1.0, 0.0)
        found[columns >= 0] = values[columns[columns >= 0]]
        return found

    return worth


def plan_in(program: Program, values: Values) -> Plan:
    """Return the plan that values represent, less recomputations of single outputs that are not live afterwards."""
    x, at, phases, levels = program.x, program.at, program.phases, program.levels
    slot, choice = (part[values[x.R.index] > 0.5] for part in phases.run_choice)
    sure = np.flatnonzero(phases.sure)
    slots = np.concatenate([slot, sure])
    choices = np.concatenate([choice, at.first[phases.run_node[sure]]])
    by = np.argsort(slots, kind="stable")
    slots, choices = slots[by], choices[by]
    phase, node = phases.run_phase[slots], phases.run_node[slots]
    again = np.flatnonzero((phase > node) & at.single[node])
    make = np.full(at.T, NONE, dtype=np.int64)
    make[at.make_node] = np.arange(len(at.make_node))
    place = phases.makes.place(phase[again], make[node[again]])
    of_use = np.ones(len(slots), dtype=np.bool_)
    of_use[again] = known(values)(levels.after[place]) > 0.5
    return Plan(node[of_use], choices[of_use], phase[of_use], [NOTHING] * int(of_use.sum()))


def steps_in(program: Program, values: Values) -> list[Step]:
    """Return the steps that values represent, with the tensors live throughout each of them."""
    at, plan = program.at, plan_in(program, values)
    steps = []
    for k, choice, phase in zip(plan.node.tolist(), plan.choice.tolist(), plan.phase.tolist(), strict=True):
        alone = program.at.whole.nodes[k].composite < 0
        live = NOTHING if alone else _live(program, values, phase, k, choice)
        steps.append(Step(k, at.runs[choice].option, live))
    return steps


def _live(program: Program, values: Values, phase: int, k: int, choice: int) -> Int:
    """Return the tensors that the run writes and that are live and complete from before node k until after it."""
    x, at, phases, levels = program.x, program.at, program.phases, program.levels
    arrays, worth = at.whole.arrays, known(values)
    written = np.unique(np.concatenate([arrays.op_outputs[op] for op in at.runs[choice].ops.tolist()]))
    found = []
    for d in at.number[written][at.number[written] >= 0].tolist():
        first = int(at.first_make[d])
        if at.makers[d] > 1:
            places = np.searchsorted(phases.parts, np.arange(first, first + at.makers[d]))
            columns = column(x.S, phases.contribution_kept[phase, places])
        else:
            columns = levels.P[phase, [d] if k <= at.maker[d] else []]
        since = (k, k + 1) if k > at.last_maker[d] else (k + 1,)
        columns = np.append(columns, [_level(program, phase, node, d) for node in since])
        if (worth(columns) > 0.5).all():
            found.append(int(at.tensor[d]))
    return np.array(found, dtype=np.int64)


def _level(program: Program, phase: int, k: int, d: int) -> int:
    """Return the column of the liveness of datum d when node k, after its makers, starts."""
    at, phases, levels = program.at, program.phases, program.levels
    first, end = np.searchsorted(at.read_data, [d, d + 1])
    readers = first + np.flatnonzero(phases.may[phase, at.read_node[first:end]])
    later = readers[at.read_node[readers] >= k]
    if len(later):
        return int(levels.live[phases.reads.place(phase, later[0])])
    if len(readers):
        return int(levels.following[phases.reads.place(phase, readers[-1])])
    return int(levels.first[phase, d])
