"""From a schedule of the flat graph to nodes and options."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.hierarchical.composite import NOTHING, CompositeProblem
from remat.formulations.hierarchical.expand import needed_computes
from remat.formulations.hierarchical.layout import Tables
from remat.formulations.sequence import check_limits, computed_ops
from remat.schedule import Schedule

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(eq=False)
class _Found:
    """A node in the sequence, and the choices that it may be computed with."""

    node: int
    choices: list[int]  # those that leave out the fewest computes first
    start: int
    end: int


def read_steps(
    whole: CompositeProblem, at: Tables, schedule: Schedule, *, apart: bool = False
) -> tuple[Int, Int, list[Int]]:
    """(node, choice, ops of the choice that are left out) of each step; recomputations that nobody reads are left out.

    With `apart`, forward parts are taken before longer backward parts that begin like them.

    Raises
    ------
    ProblemError
        If the schedule names an unknown op, misses one or computes one too often, or where its computes are none of the
        options of the composite.
    """
    sequence = computed_ops(whole.problem, schedule)
    sequence = sequence[needed_computes(whole.problem, sequence)]
    check_limits(whole.problem, sequence)
    node = whole.node_of[sequence]
    if not whole.composites:
        return node, at.first[node], [NOTHING] * len(node)
    composite = np.array([each.composite for each in whole.nodes], dtype=np.int64)[node]
    found: list[_Found] = []
    done = np.zeros(len(whole.arrays.cost), dtype=np.bool_)
    start = 0
    while start < len(sequence):
        if composite[start] < 0:
            found.append(_Found(int(node[start]), [int(at.first[node[start]])], start, start + 1))
        else:
            found.append(_match(whole, at, sequence, start, done, apart=apart))
        done[sequence[start : found[-1].end]] = True
        start = found[-1].end
    chosen = _agree(whole, at, found)
    left_out = [
        np.setdiff1d(at.runs[choice].ops, sequence[each.start : each.end])
        for each, choice in zip(found, chosen, strict=True)
    ]
    return np.array([each.node for each in found], dtype=np.int64), np.array(chosen, dtype=np.int64), left_out


def _match(whole: CompositeProblem, at: Tables, sequence: Int, start: int, done: Bool, *, apart: bool) -> _Found:
    """The node whose option takes the most computes from `start` on."""
    node = int(whole.node_of[sequence[start]])
    number = whole.nodes[node].composite
    nodes = [k for k in range(at.T) if whole.nodes[k].composite == number]
    found = []
    for k in nodes:
        for choice in range(int(at.first[k]), int(at.first[k] + at.num[k])):
            taken = _taken(at.runs[choice].ops, sequence, start, done)
            if taken:
                found.append((-taken, len(at.runs[choice].ops) - taken, k, choice))
    found.sort()  # most computes first, then fewest that are left out
    if apart:
        found.sort(key=lambda each: (each[1] > 0, whole.nodes[each[2]].is_backward))
    choices = [each[3] for each in found if (each[0], each[2]) == (found[0][0], found[0][2])]
    if not choices:
        name, op = whole.nodes[node].name, whole.problem.graph.op_names[int(sequence[start])]
        raise ProblemError(f"compute {start} of the schedule, op {op!r}, begins no option of composite {name!r}")
    return _Found(found[0][2], choices, start, start - found[0][0])


def _taken(ops: Int, sequence: Int, start: int, done: Bool) -> int:
    """How many computes from `start` on are those of a run, of which some that ran before may be left out; 0: not."""
    window = sequence[start : start + len(ops)]
    if len(window) == len(ops) and (window == ops).all():
        return len(ops)
    at, seen = start, set()
    for op in ops.tolist():
        if at < len(sequence) and sequence[at] == op:
            at += 1
            seen.add(op)
        elif not done[op] and op not in seen:
            return 0
    return at - start


def _agree(whole: CompositeProblem, at: Tables, found: list[_Found]) -> list[int]:
    """One choice for each step, so that a backward part has the option of the forward part before it."""
    option = [run.option for run in at.runs]
    chosen = [each.choices[0] for each in found]
    pending: dict[int, tuple[list[int], set[int]]] = {}
    for step in range(len(found) - 1, -1, -1):
        each = found[step]
        this = whole.nodes[each.node]
        own = {option[c]: c for c in each.choices}
        if this.composite < 0 or not len(whole.composites[this.composite].backward):
            chosen[step] = each.choices[0]
        elif this.is_backward:
            steps, options = pending.get(this.composite, ([], set(own)))
            pending[this.composite] = ([*steps, step], options & set(own))
        elif this.composite in pending:
            steps, options = pending.pop(this.composite)
            both = options & set(own)
            if not both:
                raise ProblemError(
                    f"the schedule runs composite {this.name!r} backward with another option than forward"
                )
            runs = {o: [next(c for c in found[s].choices if option[c] == o) for s in (step, *steps)] for o in both}
            best = min(both, key=lambda o: (sum(len(at.runs[c].ops) for c in runs[o]), at.saved[own[o]], o))
            for other, choice in zip((step, *steps), runs[best], strict=True):
                chosen[other] = choice
        else:
            saves = {
                c for c in each.choices if whole.composites[this.composite].options[option[c]].backward is not None
            }
            least = len(at.runs[each.choices[0]].ops)
            chosen[step] = min(each.choices, key=lambda c: (len(at.runs[c].ops) > least, c in saves, at.saved[c], c))
    if pending:
        name = whole.composites[next(iter(pending))].name
        raise ProblemError(f"the schedule runs composite {name!r} backward before forward")
    return chosen
