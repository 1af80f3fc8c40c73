"""Schedules: sequences of steps that compute ops, free tensors, and move tensors between two memories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.errors import ScheduleError
from remat.graphs import ComputeGraph
from remat.graphs.graph import MAX_NAME_LENGTH
from remat.runtime.arrays import Int


class StepKind(IntEnum):
    """Kind of a step; the value is its code in :attr:`Schedule.kinds`."""

    COMPUTE = 0
    FREE = 1
    OFFLOAD = 2
    """Begins to write a copy of a tensor to the host."""
    FETCH = 3
    """Allocates a tensor on the device and begins to read its copy."""
    DISCARD = 4
    """Releases the copy of a tensor on the host."""

    @property
    def word(self) -> str:
        """Word in files, such as ``compute``."""
        return self.name.lower()


#: Words of the kinds, by code; all but the first are followed by the name of a tensor.
WORDS = tuple(kind.word for kind in StepKind)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Steps as two arrays of positions in tables of names. Immutable. A schedule has no graph, so it need not fit any.

    Without any free step, frees are *implied*: each value is freed right after its last use before it is computed or
    fetched again.

    Attributes
    ----------
    kinds : int8 array, shape (steps,)
        :class:`StepKind` codes.
    targets : int64 array, shape (steps,)
        Position in `op_names` (compute) or in `tensor_names` (all other kinds).
    op_names, tensor_names : tuple of str
    graph, graph_digest : str
        Name and digest of its graph; empty when unknown.
    source : str
        Method or file that it comes from.
    meta : mapping
        JSON values only.

    Raises
    ------
    ScheduleError
        Naming the step, for an unknown kind or a target outside its table.

    Examples
    --------
    >>> s = Schedule.from_steps([("compute", "a"), ("compute", "b"), ("free", "a")])
    >>> len(s), s.num_computes, s.has_frees
    (3, 2, True)
    """

    kinds: NDArray[np.int8]
    targets: Int
    op_names: tuple[str, ...]
    tensor_names: tuple[str, ...]
    graph: str = ""
    graph_digest: str = ""
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kinds.ndim != 1 or self.kinds.shape != self.targets.shape:
            raise ScheduleError(f"kinds of shape {self.kinds.shape} and targets of shape {self.targets.shape}")
        room = np.array([len(self.op_names), len(self.tensor_names)], dtype=np.int64)
        wrong = (self.kinds < 0) | (self.kinds > max(StepKind))
        wrong |= (self.targets < 0) | (self.targets >= room[(self.kinds != StepKind.COMPUTE).astype(np.int64)])
        if wrong.any():
            step = int(wrong.argmax())
            raise ScheduleError(
                f"step {step} has kind {self.kinds[step]} and target {self.targets[step]}: out of range", "step-range"
            )
        for name in ("kinds", "targets"):
            getattr(self, name).flags.writeable = False

    @classmethod
    def from_steps(cls, steps: Iterable[Sequence[str]], **header: Any) -> Schedule:
        """Make a schedule from ``("compute", op)`` pairs and pairs of another kind with a tensor, such as ``"free"``.

        `header` sets other attributes.

        Raises
        ------
        ScheduleError
            Naming the step, if it is no such pair, or its name is empty, overlong or unprintable.
        """
        codes = {word: code for code, word in enumerate(WORDS)}
        tables: tuple[dict[str, int], dict[str, int]] = ({}, {})
        kinds: list[int] = []
        targets: list[int] = []
        for number, step in enumerate(steps):
            if len(step) != 2 or not all(isinstance(word, str) for word in step) or step[0] not in codes:
                shown = repr(step)
                shown = shown if len(shown) <= 80 else shown[:77] + "..."
                others = ", ".join(WORDS[1:])
                raise ScheduleError(
                    f'step {number} is {shown}, not ["compute", op] or a pair of {others} and a tensor', "step"
                )
            code, name = codes[step[0]], step[1]
            table = tables[min(code, 1)]
            position = table.get(name)
            if position is None:
                if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
                    raise ScheduleError(
                        f"step {number} names no op or tensor: {name[:40]!r} is empty, too long or unprintable",
                        "step-name",
                    )
                position = table[name] = len(table)
            kinds.append(code)
            targets.append(position)
        return cls(
            np.array(kinds, dtype=np.int8),
            np.array(targets, dtype=np.int64),
            tuple(tables[0]),
            tuple(tables[1]),
            **header,
        )

    @classmethod
    def of_computes(cls, graph: ComputeGraph, ops: Iterable[int] | Int, **header: Any) -> Schedule:
        """Make a schedule of computes (positions in ``graph.ops``) with implied frees."""
        targets = np.array(ops if isinstance(ops, np.ndarray) else list(ops), dtype=np.int64)
        return cls.for_graph(graph, np.zeros(len(targets), dtype=np.int8), targets, **header)

    @classmethod
    def for_graph(cls, graph: ComputeGraph, kinds: NDArray[np.int8], targets: Int, **header: Any) -> Schedule:
        """Make a schedule from codes and positions in the graph, signed with the graph's name and digest."""
        header = {"graph": graph.name, "graph_digest": graph.digest, **header}
        return cls(kinds, targets, graph.op_names, graph.tensor_names, **header)

    @classmethod
    def reference(cls, graph: ComputeGraph) -> Schedule:
        """Return the schedule of the reference order: each op once, with implied frees."""
        return cls.of_computes(graph, graph.arrays.order.copy(), source="reference order")

    def __len__(self) -> int:
        return len(self.kinds)

    def steps(self) -> Iterator[tuple[str, str]]:
        """Iterate over the steps as pairs of a word and the name of an op or a tensor."""
        tables = (self.op_names, *[self.tensor_names] * (len(WORDS) - 1))
        for kind, target in zip(self.kinds.tolist(), self.targets.tolist(), strict=True):
            yield WORDS[kind], tables[kind][target]

    @cached_property
    def has_frees(self) -> bool:
        """True when frees are explicit; otherwise they are implied."""
        return bool((self.kinds == StepKind.FREE).any())

    @cached_property
    def has_transfers(self) -> bool:
        """True if a step moves a tensor between device and host, or releases a copy on the host."""
        return bool((self.kinds > StepKind.FREE).any())

    @property
    def num_computes(self) -> int:
        """Number of compute steps."""
        return int((self.kinds == StepKind.COMPUTE).sum())

    def computes(self) -> list[str]:
        """Return the names of the computed ops, in sequence."""
        return [self.op_names[t] for t in self.targets[self.kinds == StepKind.COMPUTE].tolist()]

    def without_frees(self) -> Schedule:
        """Return the same computes and transfers with implied frees, which minimise their memory."""
        keep = self.kinds != StepKind.FREE
        return replace(self, kinds=self.kinds[keep], targets=self.targets[keep])

    def signed_for(self, graph: ComputeGraph) -> Schedule:
        """Return the same steps with the name and digest of another graph that has the same ops and tensors."""
        return replace(self, graph=graph.name, graph_digest=graph.digest)

    def in_one_memory(self, what: str) -> Schedule:
        """Return the schedule itself, if it moves no tensors, for code that has no host.

        Raises
        ------
        ScheduleError
            Naming `what` cannot express transfers, and the first step that moves a tensor.
        """
        if not self.has_transfers:
            return self
        step = int((self.kinds > StepKind.FREE).argmax())
        name = self.tensor_names[self.targets[step]]
        raise ScheduleError(
            f"{what} cannot express step {step}, {WORDS[self.kinds[step]]} {name!r}: it has one memory only",
            "transfers",
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return len(self) == len(other) and list(self.steps()) == list(other.steps())

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Schedule({self.graph!r}, {len(self)} steps, {self.num_computes} computes)"

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the steps."""
        import hashlib

        text = "\n".join(f"{word} {name}" for word, name in self.steps())
        return hashlib.sha256(text.encode()).hexdigest()
