"""Which runs of nodes a schedule of the flat graph consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.hierarchical.composite import CompositeProblem
from remat.formulations.hierarchical.expand import Step, needed_computes
from remat.schedule import Schedule

Int = NDArray[np.int64]


@dataclass
class _Found:
    """A run: its node, the options that it may be, and the computes of it that the schedule has."""

    node: int
    options: list[int]
    ops: Int


def recognise(whole: CompositeProblem, schedule: Schedule, *, apart: bool = False) -> list[Step]:
    """The runs that make up a schedule, in sequence; recomputations may have been left out of them.

    The longest run that fits is taken, again and again, one of which nothing is left out before others. Where several
    options look alike, it is the one of the backward run that follows; a forward run without one is a fast-forward, or
    else what saves least. A step's `live` is what it reads that an op left out of it would have made.

    Parameters
    ----------
    whole : CompositeProblem
    schedule : Schedule
    apart : bool
        Take forward parts before longer backward parts that begin like them: in their place a forward part and another
        backward part may have run, which hold less where a forward part's outputs are live.

    Raises
    ------
    ProblemError
        If the schedule names an unknown op, misses one, or has a compute that fits no run; the message names it.
    """
    graph = whole.problem.graph
    sequence = _sequence(whole, schedule)
    layer_of = {node: layer for layer in whole.layers for node in layer}
    done = np.zeros(len(graph.ops), dtype=np.bool_)
    found: list[_Found] = []
    place = 0
    while place < len(sequence):
        op = int(sequence[place])
        node = int(whole.node_of[op])
        candidates = []
        for each in layer_of.get(node, (node,)):
            possible = None
            if node in layer_of and each == layer_of[node][1]:
                possible = {o for run in found if run.node == layer_of[node][0] for o in run.options}
            for run in whole.runs(each):
                if possible is None or run.option in possible:
                    until, left_out = _fits(whole, run.ops, sequence, place, done)
                    if until > place:
                        late = apart and node in layer_of and each == layer_of[node][1]
                        candidates.append((left_out > 0, late, -until, left_out, each, run.option))
        if not candidates:
            raise ProblemError(
                f"compute {place} of the schedule, op {graph.ops[op].name!r}, begins no run of "
                f"{whole.nodes[node].name!r} that there is an option for"
            )
        chosen = min(candidates)
        until, best = -chosen[2], chosen[4]
        alike = [each[-1] for each in candidates if each[:-1] == chosen[:-1]]
        found.append(_Found(best, alike, sequence[place:until]))
        done[sequence[place:until]] = True
        place = until
    return _settled(whole, found)


def _sequence(whole: CompositeProblem, schedule: Schedule) -> Int:
    """Op numbers, without recomputations whose results nobody reads."""
    graph = whole.problem.graph
    names, index = schedule.computes(), graph.op_index
    unknown = next((name for name in names if name not in index), None)
    if unknown is not None:
        raise ProblemError(f"the schedule computes op {unknown!r}, which graph {graph.name!r} does not have")
    sequence = np.array([index[name] for name in names], dtype=np.int64)
    missing = np.flatnonzero(np.bincount(sequence, minlength=len(index)) == 0)
    if len(missing):
        raise ProblemError(f"the schedule never computes op {graph.ops[missing[0]].name!r}")
    return sequence[needed_computes(whole.problem, sequence)]


def _fits(whole: CompositeProblem, ops: Int, sequence: Int, place: int, done: NDArray[np.bool_]) -> tuple[int, int]:
    """How far the sequence from `place` is the run `ops`, and how many of these are left out; 0, 0: it is not.

    Left out may be what ran before, unless it is the only one to make what the run reads later.
    """
    arrays, internal = whole.arrays, whole.border.internal
    at, left_out = place, 0
    here: set[int] = set()
    unmade: set[int] = set()
    for op in ops.tolist():
        outputs = arrays.op_outputs[op].tolist()
        if at < len(sequence) and sequence[at] == op:
            if unmade and any(t in unmade and internal[t] for t in arrays.op_inputs[op].tolist()):
                return 0, 0
            at += 1
            here.add(op)
            unmade.difference_update(outputs)
        elif done[op] or op in here:
            left_out += 1
            unmade.update(outputs)
        else:
            return 0, 0
    return at, left_out


def _settled(whole: CompositeProblem, found: list[_Found]) -> list[Step]:
    """One option for each run."""
    for forward, backward in whole.layers:
        before: list[_Found] = []
        for run in found:
            if run.node == forward:
                before.append(run)
            elif run.node == backward:
                mate = next((f for f in reversed(before) if set(f.options) & set(run.options)), None)
                if mate is None:
                    raise ProblemError(f"the schedule runs {whole.nodes[backward].name!r} without its forward part")
                both = [o for o in run.options if o in mate.options]
                run.options[:] = mate.options[:] = both[:1]
        saved = {run.option: (run.option in _options(whole, backward), run.saved) for run in whole.runs(forward)}
        for run in before:
            run.options[:] = [min(run.options, key=lambda o: saved[o])]
    return [Step(run.node, run.options[0], _live(whole, run)) for run in found]


def _live(whole: CompositeProblem, run: _Found) -> Int:
    """Tensors that a run reads, and that it would make before if nothing were left out."""
    arrays = whole.arrays
    own = next(each for each in whole.runs(run.node) if each.option == run.options[0])
    live: set[int] = set()
    left_out: set[int] = set()
    place = 0
    for op in own.ops.tolist():
        if place < len(run.ops) and run.ops[place] == op:
            place += 1
            live |= left_out & set(arrays.op_inputs[op].tolist())
            left_out -= set(arrays.op_outputs[op].tolist())
        else:
            left_out |= set(arrays.op_outputs[op].tolist())
    return np.array(sorted(live), dtype=np.int64)


def _options(whole: CompositeProblem, node: int) -> set[int]:
    return {run.option for run in whole.runs(node)}
