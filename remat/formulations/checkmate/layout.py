"""Options of Checkmate's programme, and its index arithmetic: stages and slots, uses, retentions and frees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.formulations.staging import TensorUses
from remat.modeling.rows import NONE, expand
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.problem.op_sequence import MemoryScale, standing_buffers
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Positive


@dataclass(frozen=True)
class CheckmateOptions(Options):
    """Options of :class:`remat.formulations.checkmate.Checkmate`."""

    frontier: bool = True
    """Frontier-advancing stages, (8a)-(8c). False: (1d)-(1e), any op in any stage, and a free order of first computes.
    This relaxation is far weaker and the solve far slower; it serves the comparison of §4.6 and appendix A."""
    stages: Positive | None = None
    """T, the number of stages without `frontier`; None: as many as ops, as with `frontier`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frontier and self.stages is not None:
            raise ProblemError("frontier-advancing stages are as many as ops; stages is for frontier = false", "option")


class CheckmateLayout:
    """Variables of the programme, by stage and by position in the reference order.

    With `stages` None they are frontier-advancing: stage k ends with op k.

    Attributes
    ----------
    n, T : int
        Numbers of ops and stages.
    frontier : bool
    width, first_slot : int64 arrays, shape (stages,)
        Number of ops that may run in each stage (the first ones of the order), and index of its first run.
    unit, capacity : int
        Bytes per unit of size, and units that the budget leaves for tensors that are not always held.
    size : int64 array, shape (tensors,)
    workspace : int64 array, shape (ops,)
        In bytes, by number of the op.
    writer, last_writer : int64 arrays, shape (tensors,)
        Positions; `writer` is n for graph inputs.
    is_buffer, kept : bool arrays, shape (tensors,)
        Accumulation buffers that are held until they are read; tensors that must be alive at the end.
    tensors : int64 array
        Tensors that can be retained.
    use_tensor, use_op : int64 arrays, shape (uses,)
        Every read, by tensor, then position of the reader.
    free_tensor, free_op : int64 arrays
        Pairs of FREE: every use, and the writer itself if needed.
    s_count, s_first, free_count, free_first : int64 arrays
        Number of stages of each tensor of S, and of each (tensor, op) of FREE; number of the first one.
    place_output, place_source, place_op, place_count : int64 arrays
        Pairs of an output and an input in whose place an op may write it, the op, and the number of stages of each.
    place_most : int64 array, shape (ops,)
        Largest number of units that the op at each position can save by writing in place.
    part_tensor, part_op, part_count : int64 arrays
        Contributions to buffers that may be transient, after the stage of the buffer's last writer.
    """

    def __init__(self, problem: Problem, stages: int | None) -> None:
        arrays = problem.graph.arrays
        n = self.n = len(arrays.cost)
        self.frontier = stages is None
        self.T = n if stages is None else stages
        self.width = np.arange(1, n + 1, dtype=np.int64) if stages is None else np.full(stages, n, dtype=np.int64)
        self.first_slot = np.cumsum(self.width) - self.width
        self.is_buffer, self.workspace = standing_buffers(problem)
        scale = MemoryScale.of(problem, self.workspace)
        self.unit, self.capacity = scale.unit, scale.capacity
        uses = TensorUses.of(problem)
        self.writer, self.last_writer = uses.first_writer, uses.last_writer
        self.use_tensor, self.use_op = uses.tensor, uses.op
        self.size = arrays.size // self.unit
        self.kept = problem.kept & ~arrays.is_input
        fleeting = (arrays.producers.counts > 1) & ~self.is_buffer  # counted as workspace
        self.tensors = np.flatnonzero(~arrays.is_input & ~fleeting)
        own = self._freed_by_their_writers(problem)
        self.free_tensor = np.concatenate([self.use_tensor, own])
        self.free_op = np.concatenate([self.use_op, self.writer[own]])
        self.s_count = np.where(fleeting | arrays.is_input, 0, self.T - 1 - self.begin(self.writer))
        self.s_first = np.cumsum(self.s_count) - self.s_count
        self.free_count = self.T - self.begin(self.free_op)
        self.free_first = np.cumsum(self.free_count) - self.free_count
        op, self.place_output, self.place_source = arrays.in_place
        self.place_op = arrays.position[op]
        self.place_count = self.T - self.begin(self.place_op)
        self.place_most = arrays.in_place_most[arrays.order] // self.unit
        # (writer position, buffer) pairs
        writer, self.part_tensor = arrays.writes_of(self.is_buffer)
        self.part_op = arrays.position[writer]
        self.part_count = n - 1 - self.last_writer[self.part_tensor]

    def _freed_by_their_writers(self, problem: Problem) -> Int:
        """Return the tensors that have FREE[k,t,p(t)].

        These are the outputs of ops with several outputs, which are computed together. With free stages, tensors that
        are never read also have it, since their op need not be the last of its stage.
        """
        arrays = problem.graph.arrays
        some = np.zeros(self.n + 1, dtype=np.bool_)
        some[arrays.position[arrays.op_outputs.counts > 1]] = True
        mine = some[self.writer]
        if not self.frontier:
            mine |= arrays.consumers.counts == 0
        own = self.tensors[~self.is_buffer[self.tensors]]
        return own[mine[own]]

    def size_of_model(self) -> ModelSize:
        """Return the size of the model, by counting."""
        runs, retained, freed = int(self.width.sum()), int(self.s_count.sum()), int(self.free_count.sum())
        parts = int(self.part_count.sum())
        used = self.T - self.begin(self.use_op)
        earlier = np.arange(len(used)) - np.searchsorted(self.use_tensor, self.use_tensor)  # uses of the same tensor
        earlier += np.bincount(self.free_tensor[len(used) :], minlength=len(self.size))[self.use_tensor]
        late = int((earlier * used).sum())
        placed = int(self.place_count.sum())
        return ModelSize(4 * placed + 3 * int(used.sum()) + 4 * retained + 3 * runs + 7 * freed + 2 * late + 6 * parts)

    def begin(self, op: Int) -> Int:
        """Return the first stage in which each op may run."""
        return op if self.frontier else np.zeros_like(op)

    def runs(self) -> tuple[Int, Int]:
        """Return (stage, op) of every R, stage after stage."""
        return expand(self.width)

    def slot(self, stage: Int, op: Int) -> Int:
        """Return the number of R[stage, op] among `runs`."""
        return self.first_slot[stage] + op

    def retained(self) -> tuple[Int, Int]:
        """Return (stage, tensor) of every S, tensor after tensor."""
        tensor, rank = expand(self.s_count)
        return self.begin(self.writer[tensor]) + 1 + rank, tensor

    def retention(self, stage: Int, tensor: Int) -> Int:
        """Return the number of S[stage, tensor] among `retained`, or NONE."""
        later = stage - self.begin(self.writer[tensor])
        return np.where(later > 0, self.s_first[tensor] + later - 1, NONE)

    def places(self) -> tuple[Int, Int]:
        """Return (stage, number of the pair) of every PLACE."""
        pair, rank = expand(self.place_count)
        return self.begin(self.place_op[pair]) + rank, pair

    def freed_at(self, stage: Int, tensor: Int, op: Int) -> Int:
        """Return the number of FREE[stage, tensor, op] for tensors that the ops read."""
        use = np.searchsorted(self.use_tensor * self.n + self.use_op, tensor * self.n + op)
        return self.free_first[use] + stage - self.begin(op)

    def frees(self) -> tuple[Int, Int]:
        """Return (stage, number of the (tensor, op) pair) of every FREE."""
        freed, rank = expand(self.free_count)
        return self.begin(self.free_op[freed]) + rank, freed
