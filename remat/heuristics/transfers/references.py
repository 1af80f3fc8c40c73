"""Reference strategies that move tensors without search: all that the backward pass reads, or that of some layers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np

from remat.errors import ProblemError
from remat.heuristics.forward_blocks import all_cuts
from remat.heuristics.transfers.kernels import KERNELS
from remat.heuristics.transfers.state import State, Value
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule

#: Largest distance of layers that are moved.
MOST_APART = 12
#: Source of schedules of :func:`move_everything`.
EVERYTHING = "everything moved"


def move_everything(problem: Problem) -> Schedule:
    """Return the schedule that moves every tensor which the backward pass reads, and recomputes nothing.

    As ``torch.autograd.graph.save_on_cpu``: a tensor is written when it is computed, freed after its last use in
    the forward pass, and fetched once for the backward pass. Unlike there, transfers work at the same time as the
    device, and fetches are issued as late as they arrive on time.

    Parameters
    ----------
    problem : Problem
        A training step with a budget and a machine. The schedule is over the budget if that is too little for this
        strategy.

    Raises
    ------
    ProblemError
        If the graph is no training graph, or the problem has no budget.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> chain = replace(unit_chain(3), cost_unit="us")
    >>> problem = Problem(chain, 3, machine="rate=1MB/s")
    >>> problem.validate(move_everything(problem)).time
    9
    """
    step, state = TrainingStep.of(problem), _state(problem)
    return _moved(state, step, saved(step), EVERYTHING)


def move_layers(problem: Problem) -> Iterator[tuple[int, int, Schedule]]:
    """Yield the schedules that move what each k-th layer saves for the backward pass, for each k and choice of layers.

    Layers are blocks of the forward pass by modules, names, or positions where few bytes cross
    (:func:`remat.heuristics.forward_blocks.all_cuts`). The tensors that one of the layers k, 2 k, ... (from 1) computes
    are moved as in :func:`move_everything`.

    Yields
    ------
    layers, every : int
        Number of layers, and k.
    schedule : Schedule
        Perhaps over the budget.

    Raises
    ------
    ProblemError
        As :func:`move_everything`.
    """
    step, state = TrainingStep.of(problem), _state(problem)
    for layers, every, tensors in _layers(step):
        yield layers, every, _moved(state, step, tensors, _source(layers, every))


def best_of_layers(problem: Problem) -> Schedule | None:
    """Return the fastest schedule of :func:`move_layers` and :func:`move_everything` within the budget, if any.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> chain = replace(unit_chain(8), cost_unit="us")
    >>> problem = Problem(chain, 8, machine="rate=1MB/s")
    >>> problem.validate(best_of_layers(problem)).time
    17
    """
    step, state = TrainingStep.of(problem), _state(problem)
    found = move_best_layers(state, step)
    return None if found is None or found[0].excess else state.schedule(found[1])


def move_best_layers(state: State, step: TrainingStep, over: Callable[[], bool] = bool) -> tuple[Value, str] | None:
    """Set the choices to those of :func:`move_layers`, or all moved, with the least value; return it and a description.

    All moved comes first. Try no more of them when `over` returns True; None if none is tried.
    """
    best: tuple[Value, Int, str] | None = None
    layered = ((tensors, _source(layers, every)) for layers, every, tensors in _layers(step))
    for tensors, source in chain([(saved(step), EVERYTHING)], layered):
        if over():
            break
        _move(state, step, tensors)
        value = state.evaluate()
        if best is None or value < best[0]:
            best = value, tensors, source
    if best is None:
        return None
    value, tensors, source = best
    _move(state, step, tensors)
    return value, source


def saved(step: TrainingStep) -> Int:
    """Return the tensors of forward and loss that the backward pass reads."""
    arrays = step.problem.graph.arrays
    first = arrays.producers.lowest(arrays.position, len(arrays.order))
    crosses = (first < step.first_backward) & (step.first_backward_reads < len(arrays.order))
    return np.flatnonzero(crosses & ~arrays.is_input)


def _layers(step: TrainingStep) -> Iterator[tuple[int, int, Int]]:
    """Yield numbers of layers, distances k, and those saved tensors that each k-th layer computes."""
    arrays, tensors = step.problem.graph.arrays, saved(step)
    made = arrays.producers.lowest(arrays.position, len(arrays.order))[tensors]
    cuts: Iterable[tuple[int, ...]] = ()
    with contextlib.suppress(ProblemError):
        cuts = all_cuts(step, "auto")
    for each in cuts:
        layer = np.searchsorted(np.array(each), made, side="right")  # from 1
        for every in range(1, min(MOST_APART, len(each)) + 1):
            chosen: Bool = layer % every == 0
            if chosen.any():
                yield len(each), every, tensors[chosen]


def _source(layers: int, every: int) -> str:
    return f"each layer in {every} of {layers} moved"


def _state(problem: Problem) -> State:
    if problem.budget_bytes is None:
        raise ProblemError("a plan needs a budget, such as '60%' or '8GiB'", "no-budget")
    KERNELS.ready()
    return State(problem)


def _move(state: State, step: TrainingStep, tensors: Int) -> None:
    """Set the choices: fetch these tensors, each for the first op of the backward pass that reads it."""
    nothing = np.empty(0, dtype=np.int64)
    state.take(nothing, nothing, tensors, step.first_backward_reads[tensors])


def _moved(state: State, step: TrainingStep, tensors: Int, source: str) -> Schedule:
    _move(state, step, tensors)
    return state.schedule(source)
