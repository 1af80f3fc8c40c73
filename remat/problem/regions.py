"""Checkpointed regions of a training step, and the schedules of selective checkpointing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.problem.op_sequence import Instances, computed_ops
from remat.problem.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule
from remat.schedule.schedule import StepKind

#: Path of a module up to its first number.
_BLOCK = re.compile(r"((?:[^.]+\.)*?\d+)(?:\.|$)")


def block_of(path: str) -> str | None:
    """Return the outermost numbered module of a module path; None without one.

    Examples
    --------
    >>> block_of("model.layers.0.experts.3.up"), block_of("model.head")
    ('model.layers.0', None)
    """
    match = _BLOCK.match(path)
    return None if match is None else match[1]


@dataclass(frozen=True)
class Region:
    """Part of the forward pass that the backward pass runs again, at once, except for what is saved.

    Attributes
    ----------
    name : str
    ops : tuple of str
        Ops of the forward pass, in the reference order.
    replayed : tuple of str
        Those that the replay reaches, a first part of `ops`: a replay ends with the last value that the backward pass
        needs.
    entry : str
        Op of the backward pass right before which the replay runs.
    unsavable : frozenset of str
        Ops of `replayed` that are replayed in any case, such as changes in place.
    """

    name: str
    ops: tuple[str, ...]
    replayed: tuple[str, ...]
    entry: str
    unsavable: frozenset[str] = frozenset()


def regions_of(
    problem: Problem, groups: Mapping[str, Iterable[str]], backward: Mapping[str, Iterable[str]] | None = None
) -> tuple[Region, ...]:
    """Return regions with these ops; replay and entry follow from the reads of the backward pass.

    A group without a value that the backward pass reads is left out.

    Parameters
    ----------
    problem : Problem
    groups : mapping of str to iterable of str
        Ops of the forward pass of each region.
    backward : mapping of str to iterable of str, optional
        Ops of the backward pass of each region, whose reads count. Otherwise those of all ops do, although what the
        next region reads is kept as its input.

    Raises
    ------
    ProblemError
        If the graph is no training graph, or a group has an unknown op, one of another group, or none of the forward
        pass; names it.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> [region.entry for region in regions_of(Problem(unit_chain(4)), {"a": ["f0", "f1"], "b": ["f2", "f3"]})]
    ['g1', 'g3']
    """
    graph, step = problem.graph, TrainingStep.of(problem)
    arrays, found, owner = graph.arrays, [], dict[str, str]()
    order = arrays.order.tolist()
    for name, ops in groups.items():
        members = list(ops)
        for op in members:
            if op not in graph.op_index:
                raise ProblemError(f"region {name!r} has op {op!r}, which graph {graph.name!r} does not have", "region")
            if arrays.position[graph.op_index[op]] >= step.first_backward:
                raise ProblemError(f"region {name!r} has op {op!r}, which is not of the forward pass", "region")
            if owner.setdefault(op, name) != name:
                raise ProblemError(f"op {op!r} is in region {owner[op]!r} and in region {name!r}", "region")
        places = sorted({int(arrays.position[graph.op_index[op]]) for op in members})
        last, entry = -1, len(order)
        own = None if backward is None else {int(arrays.position[graph.op_index[op]]) for op in backward.get(name, ())}
        for rank, place in enumerate(places):
            for tensor in arrays.op_outputs[order[place]].tolist():
                readers = arrays.position[arrays.consumers[tensor]]
                counted = [at for at in readers.tolist() if at >= step.first_backward and (own is None or at in own)]
                if counted:
                    last, entry = rank, min(entry, *counted)
        if last >= 0:
            names = tuple(graph.op_names[order[place]] for place in places)
            found.append(Region(name, names, names[: last + 1], graph.op_names[order[entry]]))
    return tuple(found)


def regions_of_blocks(problem: Problem) -> tuple[Region, ...]:
    """Return a region for each outermost numbered module in the names of forward ops, such as ``layers.0.mlp``.

    Raises
    ------
    ProblemError
        If the graph is no training graph, or no name has a numbered module.

    Examples
    --------
    >>> from remat.graphs.io import as_graph
    >>> [region.name for region in regions_of_blocks(Problem(as_graph("gpt")))][:2]
    ['layers.0', 'layers.1']
    """
    step, graph = TrainingStep.of(problem), problem.graph
    groups: dict[str, list[str]] = {}
    for op in graph.arrays.order[: step.first_backward].tolist():
        if (block := block_of(graph.ops[op].name)) is not None:
            groups.setdefault(block, []).append(graph.ops[op].name)
    if not groups:
        raise ProblemError(
            f"no op of graph {graph.name!r} is named after a numbered module, such as layers.0.mlp: give regions",
            "region",
        )
    return regions_of(problem, groups)


class Slot(NamedTuple):
    """Turn of an op: its first compute, or its replay in a region."""

    op: int
    """Number of the op."""
    region: int
    """Number of the region whose replay it is; -1 for first computes."""


@dataclass(frozen=True)
class Saved:
    """Choice of selective checkpointing.

    Attributes
    ----------
    ops : frozenset of str
        Ops of regions whose outputs are stored until the replay of their region, which then skips them.
    plain : frozenset of str
        Regions that run without a checkpoint: they keep what the backward pass reads, and have no replay.
    """

    ops: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Replays:
    """Turns of all ops of a training step with regions.

    Raise ProblemError if a region has an unknown op, one of another region or of the backward pass, or one that writes
    a buffer together with other ops; or if its replay is no first part of it.
    """

    problem: Problem
    regions: tuple[Region, ...]
    region_of: dict[int, int] = field(init=False, default_factory=dict)
    """Region of each op that a replay reaches."""

    def __post_init__(self) -> None:
        graph, end = self.problem.graph, self.first_backward
        seen: dict[int, str] = {}
        for number, region in enumerate(self.regions):
            for name in (*region.ops, region.entry, *region.replayed):
                if name not in graph.op_index:
                    raise ProblemError(
                        f"region {region.name!r} has op {name!r}, which graph {graph.name!r} does not have", "region"
                    )
            places = [int(graph.arrays.position[graph.op_index[name]]) for name in region.ops]
            if any(a >= b for a, b in pairwise(places)) or (places and places[-1] >= end):
                raise ProblemError(
                    f"region {region.name!r} needs ops of the forward pass in the reference order", "region"
                )
            if region.replayed != region.ops[: len(region.replayed)]:
                raise ProblemError(f"the replay of region {region.name!r} must be a first part of its ops", "region")
            for name in region.ops:
                op = graph.op_index[name]
                if op in seen:
                    raise ProblemError(f"op {name!r} is in region {seen[op]!r} and in region {region.name!r}", "region")
                seen[op] = region.name
            self.region_of.update(dict.fromkeys((graph.op_index[name] for name in region.replayed), number))
        shared = graph.arrays.producers.counts > 1
        for op in self.region_of:
            if shared[graph.arrays.op_outputs[op]].any():
                raise ProblemError(
                    f"op {graph.op_names[op]!r} of a region writes a buffer that other ops write too", "region-buffer"
                )

    @cached_property
    def first_backward(self) -> int:
        """Position of the first op of the backward pass."""
        return TrainingStep.of(self.problem).first_backward

    @cached_property
    def slots(self) -> list[Slot]:
        """Turns of all ops in sequence, if nothing is saved."""
        graph = self.problem.graph
        entering: dict[int, list[int]] = {}
        for number, region in enumerate(self.regions):
            entering.setdefault(graph.op_index[region.entry], []).append(number)
        slots: list[Slot] = []
        for op in graph.arrays.order.tolist():
            for number in reversed(entering.get(op, ())):
                slots += [Slot(graph.op_index[name], number) for name in self.regions[number].replayed]
            slots.append(Slot(op, -1))
        return slots

    @cached_property
    def must_save(self) -> frozenset[int]:
        """Ops of regions that may run only once."""
        limits = self.problem.compute_limits
        return frozenset(op for op in self.region_of if limits[op] == 1)

    @cached_property
    def least_saved(self) -> Saved:
        """Choice that replays all ops except those that may run only once."""
        return Saved(frozenset(self.problem.graph.op_names[op] for op in self.must_save))

    @cached_property
    def must_replay(self) -> frozenset[int]:
        """Ops of regions that cannot be saved."""
        index = self.problem.graph.op_index
        return frozenset(index[name] for region in self.regions for name in region.unsavable)

    def replayed(self, saved: Saved) -> list[bool]:
        """Return, for each slot, whether it runs.

        Raise ProblemError if the choice saves an op that cannot be saved, or runs one again that may run only once.
        """
        graph = self.problem.graph
        stored = {graph.op_index[name] for name in saved.ops}
        for op in (self.must_replay & stored) | (self.must_save - stored):
            region = self.regions[self.region_of[op]].name
            if region not in saved.plain:
                word = "cannot be saved" if op in stored else "may run only once, so that it must be saved"
                raise ProblemError(f"op {graph.op_names[op]!r} of region {region!r} {word}", "unsavable")
        return [
            region < 0 or (op not in stored and self.regions[region].name not in saved.plain)
            for op, region in self.slots
        ]

    def schedule(self, saved: Saved, source: str = "selective checkpointing") -> Schedule:
        """Return the schedule of a choice.

        The outputs of a saved op are stored until its turn in the replay, even without a reader; then frees are
        explicit. Raise ProblemError as :meth:`replayed`.
        """
        problem, graph = self.problem, self.problem.graph
        runs = self.replayed(saved)
        sequence = np.array([op for (op, _), on in zip(self.slots, runs, strict=True) if on], dtype=np.int64)
        instances = Instances.of(problem, sequence)
        # steps done before each slot: a value taken from the store in a replay may be freed after the step before it
        before = np.cumsum(runs) - 1
        stored = {graph.op_index[name] for name in saved.ops}
        until: dict[int, int] = {}
        for slot, (op, region) in enumerate(self.slots):
            if region >= 0 and op in stored and self.regions[region].name not in saved.plain:
                until.update(dict.fromkeys(graph.arrays.op_outputs[op].tolist(), int(before[slot])))
        last = instances.last_use.copy()
        for number, tensor in enumerate(instances.tensor.tolist()):
            last[number] = max(last[number], until.get(tensor, -1))
        if (last == instances.last_use).all():
            return Schedule.of_computes(graph, sequence, source=source)
        return _with_frees(problem, sequence, instances, last, source)

    def choice(self, schedule: Schedule, *, plain: bool) -> Saved:
        """Return the choice that a schedule follows; with `plain`, regions without a replay have no checkpoint.

        Raise ProblemError, which names the first difference, if it is no schedule of selective checkpointing.
        """
        graph, sequence = self.problem.graph, computed_ops(self.problem, schedule)
        twice = np.bincount(sequence, minlength=len(graph.ops)) > 1
        bare = frozenset(
            region.name
            for region in self.regions
            if plain and not any(twice[graph.op_index[name]] for name in region.replayed)
        )
        ops = frozenset(
            graph.op_names[op]
            for op, number in self.region_of.items()
            if not twice[op] and self.regions[number].name not in bare
        )
        saved = Saved(ops, bare)
        runs = self.replayed(saved)
        wanted = [op for (op, _), on in zip(self.slots, runs, strict=True) if on]
        given = sequence.tolist()
        if wanted != given:
            step = next((k for k, (a, b) in enumerate(zip(wanted, given, strict=False)) if a != b), len(wanted))
            name = graph.op_names[given[step]] if step < len(given) else "no op"
            raise ProblemError(
                f"compute {step} of the schedule runs {name!r}, where selective checkpointing runs "
                f"{graph.op_names[wanted[step]] if step < len(wanted) else 'no op'!r}",
                "no-policy",
            )
        return saved


def _with_frees(problem: Problem, sequence: Int, instances: Instances, last: Int, source: str) -> Schedule:
    """Return a schedule that frees each instance after its step `last`."""
    graph = problem.graph
    ends: dict[int, list[int]] = {}
    shared: Bool = graph.arrays.producers.counts > 1
    kept = problem.kept
    latest: dict[int, int] = {}
    for tensor, end in zip(instances.tensor.tolist(), last.tolist(), strict=True):
        if shared[tensor]:
            latest[tensor] = max(latest.get(tensor, -1), end)
        elif end < len(sequence):
            ends.setdefault(end, []).append(tensor)
    for tensor, end in latest.items():
        if not kept[tensor] and end < len(sequence):
            ends.setdefault(end, []).append(tensor)
    kinds: list[int] = []
    targets: list[int] = []
    for step, op in enumerate(sequence.tolist()):
        freed = ends.get(step, ())
        kinds += [StepKind.COMPUTE, *[StepKind.FREE] * len(freed)]
        targets += [op, *freed]
    return Schedule.for_graph(graph, np.array(kinds, dtype=np.int8), np.array(targets, dtype=np.int64), source=source)


def contiguous_groups(problem: Problem, cuts: Sequence[int]) -> dict[str, list[str]]:
    """Return the ops of the forward pass as groups that begin at these positions of the reference order.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> contiguous_groups(Problem(unit_chain(3)), [0, 2])
    {'ops 0-1': ['f0', 'f1'], 'ops 2-2': ['f2']}
    """
    graph, end = problem.graph, TrainingStep.of(problem).num_forward
    order = graph.arrays.order.tolist()
    ends = [*sorted({*cuts}), end]
    return {f"ops {a}-{b - 1}": [graph.op_names[op] for op in order[a:b]] for a, b in pairwise(ends) if a < b}
