"""Neighbourhoods of a schedule for large neighbourhood search, and the adaptive choice of their kinds and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from remat.formulations.base import Part
from remat.graphs.arrays import first_computes
from remat.problem import Problem
from remat.problem.op_sequence import computed_ops
from remat.runtime.arrays import Int
from remat.schedule import Schedule

#: Fewest ops of a neighbourhood.
LEAST = 4
#: Decay of past success, and least weight of every kind.
FADING, FLOOR = 0.1, 0.08
#: Factors of the size after a neighbourhood that was solved without success, and after one that was too large.
GROWTH, DECAY = 1.15, 0.85


class ScheduleProfile:
    """Schedule as seen by neighbourhoods: computes, stages, memory and recomputations."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        graph = problem.graph
        self.problem, self.num_ops = problem, len(graph.ops)
        self.sequence = computed_ops(problem, schedule)
        self.run = problem.simulate(Schedule.of_computes(graph, self.sequence))
        first = first_computes(self.sequence)
        self.stage: Int = np.cumsum(first) - first
        """`sequence` and `stage`: op that each step computes, and its stage, from 0 (number of first computes before
        it). Shape (steps,)."""
        self.memory = self.run.memory
        """Shape (steps,)."""
        self.again = np.flatnonzero(~first)
        """Steps that recompute."""

    def held_at(self, step: int) -> Int:
        """Return the ops whose outputs are held at `step`."""
        writers = self.problem.graph.arrays.producers.shared_lists()
        return np.array(sorted({op for t in self.run.intervals.live_at(step).tolist() for op in writers[t]}), dtype=int)


#: Returns a part of about the given number of ops.
Pick = Callable[[ScheduleProfile, np.random.Generator, int], Part]


def part_of(profile: ScheduleProfile, ops: Int, centre: int, span: int) -> Part:
    """Return the part with those ops, in about `span` stages around that of step `centre`."""
    chosen = np.zeros(profile.num_ops, dtype=np.bool_)
    chosen[ops] = True
    middle = int(profile.stage[centre])
    first = max(0, middle - span // 2)
    return Part(chosen, first, min(profile.num_ops - 1, first + span))


def _around(profile: ScheduleProfile, rng: np.random.Generator, size: int, step: int) -> Part:
    """Return a part of ops held at a step, and of ops computed before and after it, the nearest first."""
    held = rng.permutation(profile.held_at(step))
    by_distance = profile.sequence[np.argsort(np.abs(np.arange(len(profile.sequence)) - step), kind="stable")]
    half = held[: max(1, 2 * size // 3)]
    ops = _first_different(np.concatenate([half, by_distance, held]), size)
    span = round(profile.num_ops * 2.0 ** rng.uniform(-3, 0))  # from an eighth of the stages to all
    return part_of(profile, ops, step, span)


def _first_different(ops: Int, count: int) -> Int:
    """Return the first `count` distinct ops, in order."""
    _, first = np.unique(ops, return_index=True)
    return ops[np.sort(first)[:count]]


def in_time(profile: ScheduleProfile, rng: np.random.Generator, size: int) -> Part:
    """Return a part around a random step."""
    return _around(profile, rng, size, int(rng.integers(len(profile.sequence))))


def around_peak(profile: ScheduleProfile, rng: np.random.Generator, size: int) -> Part:
    """Return a part around one of the steps with the most memory."""
    rank = np.argsort(-profile.memory, kind="stable")
    return _around(profile, rng, size, int(rank[int(len(rank) * rng.random() ** 4)]))


def around_highest(profile: ScheduleProfile, rng: np.random.Generator, size: int) -> Part:
    """Return a part around a step with the largest memory."""
    highest = np.flatnonzero(profile.memory == profile.memory.max())
    return _around(profile, rng, size, int(rng.choice(highest)))


def around_recomputation(profile: ScheduleProfile, rng: np.random.Generator, size: int) -> Part:
    """Return a part around a recomputation or within the gap before it; expensive ones more often."""
    if not len(profile.again):
        return in_time(profile, rng, size)
    cost = profile.problem.graph.arrays.cost[profile.sequence[profile.again]].astype(np.float64) + 1e-9
    step = int(rng.choice(profile.again, p=cost / cost.sum()))
    op = profile.sequence[step]
    before = np.flatnonzero(profile.sequence[:step] == op)
    away = int(rng.integers(before[-1], step + 1))
    part = _around(profile, rng, max(LEAST, size - 1), away)
    ops = part.ops.copy()
    ops[op] = True
    first, last = min(part.first, int(profile.stage[step])), max(part.last, int(profile.stage[step]))
    return Part(ops, first, last)


def related(profile: ScheduleProfile, rng: np.random.Generator, size: int) -> Part:
    """Return a part of a random op and its relatives in the graph, the nearest first, in all stages."""
    arrays = profile.problem.graph.arrays
    before, after = arrays.op_predecessors.shared_lists(), arrays.op_successors.shared_lists()
    pool = profile.sequence[profile.again] if len(profile.again) and rng.random() < 0.7 else profile.sequence
    found = [int(rng.choice(pool))]
    seen = set(found)
    for op in found:  # the loop extends the list
        near = [other for other in (*before[op], *after[op]) if other not in seen]
        rng.shuffle(near)
        found += near
        seen.update(near)
        if len(found) >= size:
            break
    chosen = np.zeros(profile.num_ops, dtype=np.bool_)
    chosen[found[:size]] = True
    return Part(chosen, 0, profile.num_ops - 1)


def scattered(profile: ScheduleProfile, rng: np.random.Generator, size: int) -> Part:
    """Return a random part of which half are recomputed ops."""
    again = rng.permutation(np.unique(profile.sequence[profile.again]))[: size // 2]
    ops = _first_different(np.concatenate([again, rng.permutation(profile.num_ops)]), size)
    return part_of(profile, ops, 0, 2 * profile.num_ops)


#: Kinds of neighbourhoods by name.
KINDS: dict[str, Pick] = {
    "in time": in_time,
    "peak": around_peak,
    "recomputation": around_recomputation,
    "related": related,
    "scattered": scattered,
}


@dataclass
class Portfolio:
    """Adaptive choice of kinds by success (adaptive large neighbourhood search), and of sizes by difficulty."""

    kinds: Mapping[str, Pick]
    size: float
    """Ops of the first neighbourhoods."""
    most: int
    """Largest number of ops: those of the graph."""
    weight: dict[str, float] = field(init=False)
    sizes: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.weight = dict.fromkeys(self.kinds, 1.0)
        self.sizes = dict.fromkeys(self.kinds, float(self.size))

    def choose(self, profile: ScheduleProfile, rng: np.random.Generator) -> tuple[str, Part]:
        """Return a kind, and a part of the schedule of that kind."""
        names = list(self.kinds)
        weights = np.array([max(FLOOR, self.weight[name]) for name in names])
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        return name, self.kinds[name](profile, rng, min(self.most, max(LEAST, round(self.sizes[name]))))

    def learn(self, name: str, *, better: bool, finished: bool) -> None:
        """Record whether the last part of a kind improved the schedule, and whether its model was solved to the end."""
        self.weight[name] += FADING * (float(better) - self.weight[name])
        if not finished:
            self.sizes[name] = max(float(LEAST), self.sizes[name] * DECAY)
        elif not better:
            self.sizes[name] = min(float(self.most), self.sizes[name] * GROWTH)
