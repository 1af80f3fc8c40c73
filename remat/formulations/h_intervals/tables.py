"""Tables of nodes for hierarchical retention intervals: segments of runs, and the tensors read, made and filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from remat.formulations.composites.composite import CompositeProblem
from remat.formulations.composites.runs import Run
from remat.formulations.retention_intervals.tables import EVERY, NodeTables, Touches
from remat.problem.op_sequence import standing_buffers
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline

Profile = Literal["exact", "peak"]


@dataclass(frozen=True)
class Segments:
    """Segments of a run, divided where one of its interfaces is made or freed; each has the peak of its sub-steps."""

    demand: Int
    """Bytes held in addition to interfaces; shape (segments,)."""
    begin: Int
    """Segment in which each interface of the run is made; 0 if it is live before."""
    last: Int
    """Last segment that touches each interface."""
    of_step: Int
    """Segment of each sub-step."""
    memory: Int
    """Bytes held in addition to interfaces at each sub-step."""

    @classmethod
    def of(cls, run: Run, size: Int, is_buffer: Bool, profile: Profile) -> Segments:
        """Return the segments of a run.

        A tensor that a run makes more than once counts as an interface from the last time on, and as internal before.
        """
        steps = len(run.ops)
        memory = run.memory.copy()
        begin = np.zeros(len(run.tensor), dtype=np.int64)
        for place, tensor in enumerate(run.tensor.tolist()):
            if not run.makes[place]:
                continue
            gaps = run.absent_tensor == tensor
            begin[place] = run.absent_until[gaps].max(initial=0)
            if is_buffer[tensor] or not begin[place]:
                continue
            there = np.zeros(steps, dtype=np.bool_)
            there[: begin[place]] = True
            for start, end in zip(run.absent_from[gaps].tolist(), run.absent_until[gaps].tolist(), strict=True):
                there[start:end] = False
            memory[there] += size[tensor]
        if profile == "peak" or steps <= 1:
            marks = np.zeros(1, dtype=np.int64)
        else:
            heavy = size[run.tensor] > 0
            marks = np.unique(np.concatenate([[0], begin[heavy], run.last[heavy] + 1]))
            marks = marks[marks < steps]
        of_step = np.searchsorted(marks, np.arange(steps), side="right") - 1
        demand = np.maximum.reduceat(memory, marks) if steps else np.zeros(1, dtype=np.int64)
        if not steps:
            return cls(demand, begin, begin, of_step, memory)
        return cls(demand, of_step[begin], of_step[run.last], of_step, memory)


def tables_of(whole: CompositeProblem, profile: Profile, clock: Deadline) -> NodeTables:
    """Return the tables of a problem with composites; check the clock between nodes."""
    return _Gatherer(whole, profile).tables(clock)


class _Gatherer:
    """Builder of the tables of nodes and the tensors that their runs touch."""

    def __init__(self, whole: CompositeProblem, profile: Profile) -> None:
        self.whole, self.profile = whole, profile
        arrays = whole.arrays
        self.size = arrays.size
        self.is_buffer = standing_buffers(whole.problem)[0] & ~whole.border.internal
        # rows (node, tensor, first segment, last segment, set of runs) of each table
        self.touches: dict[str, list[tuple[int, ...]]] = {name: [] for name in ("reads", "makes", "fills", "uses")}
        self.codes: dict[tuple[int, tuple[int, ...]], int] = {}
        self.sets_of: dict[int, int] = {}

    def tables(self, clock: Deadline) -> NodeTables:
        whole = self.whole
        runs: list[Run] = []
        nodes, pieces, counts = [], [], []
        phantom: dict[tuple[int, int], int] = {}
        saved: list[int] = []
        for number, layer in enumerate(whole.layers):
            for run in whole.runs(layer[1]):
                phantom[number, run.option] = len(self.size) + len(saved)
                saved.append(next(f.saved for f in whole.runs(layer[0]) if f.option == run.option))
        ends = {layer[side]: (number, side) for number, layer in enumerate(whole.layers) for side in (0, 1)}
        segments_of = []
        for node in clock.each(range(len(whole.nodes))):
            own = whole.runs(node)
            counts.append(len(own))
            segments = [Segments.of(run, self.size, self.is_buffer, self.profile) for run in own]
            for run, cut in zip(own, segments, strict=True):
                pieces += [(len(runs), begin, end, most) for begin, end, most in _pieces(cut.demand)]
                runs.append(run)
                nodes.append(node)
                segments_of.append(len(cut.demand))
            self._touches(node, own, segments)
            if node in ends:
                number, side = ends[node]
                for place, (run, cut) in enumerate(zip(own, segments, strict=True)):
                    tensor = phantom.get((number, run.option))
                    if tensor is None:
                        continue
                    code = EVERY if len(own) == 1 else place
                    if side:
                        self.touches["reads"].append((node, tensor, 0, -1, code))
                    else:
                        self.touches["makes"].append((node, tensor, len(cut.demand), len(cut.demand) - 1, code))
        piece = np.array(pieces, dtype=np.int64).reshape(-1, 4)
        kept = np.zeros(len(self.size) + len(saved), dtype=np.bool_)
        kept[: len(self.size)] = whole.problem.kept
        return NodeTables(
            position=np.arange(len(whole.nodes), dtype=np.int64),
            limit=whole.most_runs,
            run_first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            run_node=np.array(nodes, dtype=np.int64),
            run_option=np.array([run.option for run in runs], dtype=np.int64),
            run_cost=np.array([run.cost for run in runs], dtype=np.int64),
            run_segments=np.array(segments_of, dtype=np.int64),
            piece_run=piece[:, 0], piece_begin=piece[:, 1], piece_end=piece[:, 2], piece_demand=piece[:, 3],
            **{name: Touches(*np.array(rows, dtype=np.int64).reshape(-1, 5).T) for name, rows in self.touches.items()},
            set_node=np.array([node for node, _ in self.codes], dtype=np.int64),
            sets=tuple(members for _, members in self.codes),
            size=np.concatenate([self.size, np.array(saved, dtype=np.int64)]),
            kept=kept,
            buffers=np.flatnonzero(self.is_buffer),
            compute_limits=whole.compute_limits,
        )  # fmt: skip

    def _touches(self, node: int, runs: tuple[Run, ...], segments: list[Segments]) -> None:
        """Add the interfaces of a node; runs with equal accesses share an entry."""
        alike: dict[tuple[str, int, int, int], list[int]] = {}
        for place, (run, cut) in enumerate(zip(runs, segments, strict=True)):
            for i, tensor in enumerate(run.tensor.tolist()):
                begin, last = int(cut.begin[i]), int(cut.last[i])
                if self.is_buffer[tensor]:
                    if run.makes[i]:
                        alike.setdefault(("fills", tensor, 0 if run.needs[i] else begin, last), []).append(place)
                    if run.needs[i]:
                        alike.setdefault(("uses", tensor, 0, last), []).append(place)
                elif run.makes[i]:
                    alike.setdefault(("makes", tensor, begin, last), []).append(place)
                elif run.needs[i]:
                    alike.setdefault(("reads", tensor, 0, last), []).append(place)
        for (table, tensor, begin, last), places in alike.items():
            self.touches[table].append((node, tensor, begin, last, self._code(node, tuple(places), len(runs))))

    def _code(self, node: int, places: tuple[int, ...], count: int) -> int:
        if len(places) == count:
            return EVERY
        if len(places) == 1:
            return places[0]
        if (node, places) not in self.codes:
            self.codes[node, places] = count + self.sets_of.get(node, 0)
            self.sets_of[node] = self.sets_of.get(node, 0) + 1
        return self.codes[node, places]


def _pieces(demand: Int) -> list[tuple[int, int, int]]:
    """Return (begin, end, bytes) of adjacent segments with equal, positive demand."""
    marks = np.flatnonzero(np.append(True, demand[1:] != demand[:-1])).tolist()
    ends = [*marks[1:], len(demand)]
    return [(begin, end, int(demand[begin])) for begin, end in zip(marks, ends, strict=True) if demand[begin] > 0]
