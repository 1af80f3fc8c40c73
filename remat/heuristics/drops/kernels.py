"""Kernels of drops: compiled, or run by the interpreter, which takes thirty times as long but needs no compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from remat.runtime.arrays import Int
from remat.runtime.compiled.interpreted import interpreted

if TYPE_CHECKING:
    from remat.heuristics.drops.stages_kernel import StagedSchedule, StageGraph


class Kernels(NamedTuple):
    """The kernels of one kind, and what they take as arrays."""

    start: Callable[..., None]
    candidates: Callable[..., int]
    change_many: Callable[..., tuple[int, int]]
    room: Callable[[int, type], Any]
    """Return an array with room for a number of values of a type."""
    batch: int
    """Drops to evaluate before the clock is checked for the first time."""


def kernels_of(state: Any) -> Kernels:
    """Return the kernels for the arrays of a schedule."""
    return interpreted_kernels() if isinstance(state.runs, dict) else _compiled_kernels()


def _compiled_kernels() -> Kernels:
    from remat.heuristics.drops import search_kernel, stages_kernel

    return Kernels(stages_kernel.start, search_kernel.candidates, search_kernel.change_many, np.empty, 1_000)


@cache
def interpreted_kernels() -> Kernels:
    """Return kernels for what :func:`as_lists` returns.

    The first call imports numba, which takes longer than drops on a small graph.
    """
    from remat.heuristics.drops import search_kernel, stages_kernel
    from remat.heuristics.drops.stages_kernel import BUDGET, EXCESS

    def excess_change(state: Any, first: int, last: int, amount: int) -> int:
        over = state.memory[first : last + 1] - state.number[BUDGET]
        return int((np.maximum(over + amount, 0) - np.maximum(over, 0)).sum())

    def add(state: Any, first: int, last: int, amount: int) -> None:
        state.number[EXCESS] += excess_change(state, first, last, amount)
        state.memory[first : last + 1] += amount

    def sort(values: list[int], number: int) -> None:
        values[:number] = sorted(values[:number])

    def measure(*_: object) -> None:
        """Do nothing: memory is one array instead of blocks."""

    unsettled = set[int]()
    instead: dict[str, Any] = {"excess_change": excess_change, "add": add, "measure": measure, "sort": sort}
    settle = interpreted(stages_kernel.settle, instead)
    change_runs = interpreted(stages_kernel.change, {**instead, "settle": lambda _net, _state, s: unsettled.add(s)})

    def change(net: Any, state: Any, *what: Any) -> None:
        """Settle each stage once: the interpreter takes most of its time for that."""
        unsettled.clear()
        change_runs(net, state, *what)
        for stage in unsettled:
            settle(net, state, stage)

    instead["change"] = change
    return Kernels(
        interpreted(stages_kernel.start, instead),
        interpreted(search_kernel.candidates, instead),
        interpreted(search_kernel.change_many, instead),
        lambda number, kind: [kind(0)] * number,
        10,
    )


def as_lists(net: StageGraph, state: StagedSchedule) -> tuple[StageGraph, StagedSchedule]:
    """Return a graph and a schedule for the interpreter: lists, runs by op and number, and memory as an array."""
    times = state.times.tolist()
    runs = {(op, run): int(state.runs[op, run]) for op in range(len(times)) for run in range(times[op])}
    graph: Any = type(net)(*(table.tolist() for table in net))
    schedule: Any = type(state)(runs, *(table.tolist() for table in state[1:]))  # type: ignore[arg-type]
    return graph, schedule._replace(memory=state.memory, lazy=[0] * len(state.lazy))


def runs_of(state: Any) -> tuple[Int, Int]:
    """Return ops and stages of all runs, by op and stage; both of shape (runs,)."""
    if isinstance(state.runs, dict):
        runs = [(op, stage) for (op, run), stage in state.runs.items() if run < state.times[op]]
        found = np.array(sorted(runs), dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]
    there = np.arange(state.runs.shape[1]) < state.times[:, None]
    return np.nonzero(there)[0], state.runs[there].astype(np.int64)
