"""Recognition of the runs of nodes in a schedule of the flat graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.composites.composite import CompositeProblem
from remat.formulations.composites.runs import Run
from remat.problem.op_sequence import check_limits, computed_ops, useful_computes
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule

#: Rules to choose among the runs that match at a position: see :func:`encoded`.
WAYS = ("whole", "longest", "apart")


@dataclass(frozen=True, eq=False)
class FoundRun:
    """Run recognised in a schedule."""

    node: int
    """Node and `option` as in :class:`remat.formulations.composites.expansion.Step`."""
    option: int
    left_out: Int
    """Ops of the option that are not computed, since their outputs are live."""
    live: Int
    """Tensors that the run reads and that its left-out ops would have made."""


@dataclass
class _Part:
    """Node in the sequence, its computes there, and the runs that match, those with the fewest ops left out first.

    `live` contains, by option, the tensors that a run reads and that its left-out ops would have made.
    """

    node: int
    runs: list[Run]
    ops: Int
    live: dict[int, set[int]]

    @property
    def options(self) -> set[int]:
        return {run.option for run in self.runs}

    def found(self) -> FoundRun:
        """Return the part with the first of its runs."""
        run = self.runs[0]
        live = np.array(sorted(self.live[run.option]), dtype=np.int64)
        return FoundRun(self.node, run.option, np.setdiff1d(run.ops, self.ops), live)


def encoded(
    whole: CompositeProblem,
    schedule: Schedule,
    encode: Callable[[list[FoundRun]], Values],
    claim: Callable[[Values], tuple[float, ...]],
) -> Values:
    """Return values that represent a schedule; among several encodings, those with the least claim.

    Runs may leave out recomputations. Each of three rules divides the schedule into runs by the choice at each
    position:

    * *whole*: the longest run with nothing left out, otherwise the longest;
    * *longest*: the longest run;
    * *apart*: as *whole*, but a forward part precedes a longer backward part that starts with the same ops. Reading
      it as a forward part and another backward part claims less memory if the forward part's outputs are live.

    Equal results are encoded once. If a forward run matches several options, it gets that of the backward run
    that follows. Without one it gets the fast-forward, or else the option that saves least.

    `encode` returns values of the runs in sequence, or raises ProblemError if there are none; `claim` is called only if
    there are several encodings. Raise ProblemError if the schedule names an unknown op, misses one or computes one too
    often; or if no rule gives an encoding, with the reason of the last one.
    """
    sequence = computed_ops(whole.problem, schedule)
    sequence = sequence[useful_computes(whole.problem, sequence, refills=True)]
    check_limits(whole.problem, sequence)
    found: list[Values] = []
    faults: list[ProblemError] = []
    seen: list[list[tuple[int, int, int]]] = []
    for way in WAYS:
        try:
            parts = _parts(whole, sequence, way)
            _settle(whole, parts)
            this = [(part.node, part.runs[0].option, len(part.ops)) for part in parts]
            if this not in seen:
                seen.append(this)
                found.append(encode([part.found() for part in parts]))
        except ProblemError as error:
            faults.append(error)
    if not found:
        raise faults[-1]
    return found[0] if len(found) == 1 else min(found, key=claim)


def _parts(whole: CompositeProblem, sequence: Int, way: str) -> list[_Part]:
    """Divide the sequence into parts, from its start."""
    layer_of = {node: layer for layer in whole.layers for node in layer}
    forward_of = {backward: forward for forward, backward in whole.layers}
    done = np.zeros(len(whole.arrays.cost), dtype=np.bool_)
    begun: dict[int, set[int]] = {}
    parts: list[_Part] = []
    start = 0
    while start < len(sequence):
        node = int(whole.node_of[sequence[start]])
        candidates: list[tuple[tuple[int, ...], int, int, Run, set[int]]] = []
        for each in layer_of.get(node, (node,)):
            forward = forward_of.get(each)
            for run in whole.runs(each):
                if forward is not None and run.option not in begun.get(forward, ()):
                    continue
                length, left_out, live = _fits(whole, run.ops, sequence, start, done)
                if length:
                    first = {"whole": (left_out > 0,), "longest": (), "apart": (left_out > 0, forward is not None)}[way]
                    candidates.append(((*first, -length, left_out, each, run.option), each, length, run, live))
        if not candidates:
            raise ProblemError(
                f"compute {start} of the schedule, op {whole.problem.graph.op_names[int(sequence[start])]!r}, "
                f"begins no run of {whole.nodes[node].name!r} that there is an option for"
            )
        candidates.sort(key=lambda each: each[0])
        _, best, length, *_ = candidates[0]
        fitting = [(run, live) for _, each, until, run, live in candidates if (each, until) == (best, length)]
        lives = {run.option: live for run, live in fitting}
        parts.append(_Part(best, [run for run, _ in fitting], sequence[start : start + length], lives))
        begun.setdefault(best, set()).update(lives)
        done[parts[-1].ops] = True
        start += length
    return parts


def _fits(whole: CompositeProblem, ops: Int, sequence: Int, start: int, done: Bool) -> tuple[int, int, set[int]]:
    """Return the number of computes from `start` that match a run, the number left out, and tensors that must be live.

    Ops that ran before may be left out, unless the run later reads an internal tensor that only they make. If the run
    does not match, the number of computes is 0.
    """
    window = sequence[start : start + len(ops)]
    if len(window) == len(ops) and (window == ops).all():
        return len(ops), 0, set()
    arrays, internal = whole.arrays, whole.border.internal
    at, left_out = start, 0
    here, unmade, live = set[int](), set[int](), set[int]()
    for op in ops.tolist():
        outputs = arrays.op_outputs[op].tolist()
        if at < len(sequence) and sequence[at] == op:
            read = unmade.intersection(arrays.op_inputs[op].tolist())
            if any(internal[t] for t in read):
                break
            live |= read
            at += 1
            here.add(op)
            unmade.difference_update(outputs)
        elif done[op] or op in here:
            left_out += 1
            unmade.update(outputs)
        else:
            break
    else:
        return at - start, left_out, live
    return 0, 0, live


def _settle(whole: CompositeProblem, parts: list[_Part]) -> None:
    """Choose one run for each part, so that a backward part has the option of the forward part before it."""
    by_node: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        by_node.setdefault(part.node, []).append(place)
    for forward, backward in whole.layers:
        behind: dict[int, list[_Part]] = {}
        for place in by_node.get(backward, []):
            part = parts[place]
            before = [k for k in by_node.get(forward, []) if k < place]
            mate = next((k for k in reversed(before) if part.options & parts[k].options), None)
            if mate is None:
                raise ProblemError(f"the schedule runs {whole.nodes[backward].name!r} without its forward part")
            group = behind.setdefault(mate, [parts[mate]])
            group.append(part)
            both = part.options & parts[mate].options
            for each in group:
                each.runs = [run for run in each.runs if run.option in both]
        for group in behind.values():
            options = [{run.option: run for run in part.runs} for part in group]
            best = min(options[0], key=lambda o: (sum(len(each[o].ops) for each in options), options[0][o].saved, o))
            for each in group:
                each.runs = [run for run in each.runs if run.option == best]
        goes_on = {run.option for run in whole.runs(backward)}
        for place in by_node.get(forward, []):
            if place not in behind:
                runs = parts[place].runs
                least = len(runs[0].ops)
                alone = min(runs, key=lambda r: (len(r.ops) > least, r.option in goes_on, r.saved, r.option))
                parts[place].runs = [alone]
