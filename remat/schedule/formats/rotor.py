"""Sequences of Rotor: which blocks of a chain run forward or backward, in order, and what they save.

Source: O. Beaumont et al., "Optimal checkpointing for heterogeneous chains: how to train deep neural networks with
limited memory", Inria RR-9302, 2019, section 3. Rotor and its ports in ColossalAI and Rockmate print sequences as
``[CF_0, Fn_1, Fe_2, L, B_2, ...]`` or with one operation per line; the paper's names are read too:

* ``F_all`` (``Fe``): run block *i* forward and save all that its backward part reads;
* ``F_ck`` (``CF``, ``Fc``): run it forward, keep its input and save only what the next block reads;
* ``F_null`` (``Fn``): the same, and discard its input;
* ``Loss`` (``L``): run the loss;
* ``B`` (``Bwd``): run it backward and discard what it has saved, the gradient that it reads, and its input unless
  another block saved that.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

import numpy as np

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.limits import check_count, draw
from remat.runtime.text import short
from remat.schedule.formats.base import ScheduleFormat, needed_graph, refuse_offload
from remat.schedule.schedule import Schedule, StepKind


class Kind(Enum):
    """Kind of an operation."""

    ALL = "F_all"
    CHECK = "F_ck"
    NULL = "F_null"
    LOSS = "Loss"
    BACKWARD = "B"
    OFFLOAD = "offload"


_WORDS = {
    Kind.ALL: ("Fe", "Fall", "F_all", "ForwardEnable"),
    Kind.CHECK: ("CF", "Fc", "Fck", "F_ck", "ForwardCheck"),
    Kind.NULL: ("Fn", "Fnull", "F_null", "ForwardNograd"),
    Kind.LOSS: ("L", "Loss"),
    Kind.BACKWARD: ("B", "Bwd", "Backward"),
    Kind.OFFLOAD: ("Off", "OffwBar", "Pre", "PrewBar", "WM", "RM", "DM"),
}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words}
_OPERATION = re.compile(r"(F_all|F_ck|F_null|[A-Za-z]+)(?:_([0-9]{1,7})(?:_([0-9]{1,7}))?|\(([0-9]{0,7})\))?")
_SEPARATOR = re.compile(r"[\s,\[\]]+")
#: Start of a sequence; no list of ops starts like this.
_BEGIN = re.compile(
    rb"\s*\[?\s*(?:(?:Fe|Fn|CF|Fck|Fall|F_all|F_ck|F_null|Forward(?:Enable|Check|Nograd))[_(]\d|Fc_\d+\s+F[cne]_\d)"
)
#: Memory in bytes for each operation.
_OPERATION_MEMORY = 300


@dataclass(frozen=True)
class Operation:
    """Operation of a sequence; `block` is -1 for the loss."""

    kind: Kind
    block: int = -1


def operations_of_text(text: str) -> list[Operation]:
    """Return the operations of a sequence.

    Raise FormatError, naming the first operation that is unknown, moves a value to or from the memory of the host, or
    selects an option of its block.

    Examples
    --------
    >>> [(each.kind.value, each.block) for each in operations_of_text("[CF_0, Fe_1, L, B_1]")]
    [('F_ck', 0), ('F_all', 1), ('Loss', -1), ('B', 1)]
    """
    check_count(sum(map(text.count, " \t\n,")), "operations", _OPERATION_MEMORY)
    words = [word for word in _SEPARATOR.split(text) if word]
    known: dict[str, Operation] = {}
    for number, word in enumerate(words):
        if word not in known:
            draw()
            known[word] = _operation(word, f"operation {number}")
    return [known[word] for word in words]


def _operation(word: str, at: str) -> Operation:
    found = _OPERATION.fullmatch(word)
    kind = _KINDS.get(found[1]) if found else None
    if found is None or kind is None:
        raise FormatError(f"{at} is {short(word)}, which is no operation of Rotor", "rotor-operation")
    if kind is Kind.OFFLOAD:
        refuse_offload(at, f"is {word}, which moves a value to or from the memory of the host")
    block = found[2] or found[4]
    if (kind is Kind.LOSS) is bool(block):
        raise FormatError(f"{at} is {short(word)}: the loss has no number, and every block has", "rotor-operation")
    if found[3] and int(found[3]):
        raise FormatError(f"{at} is {short(word)}: the blocks of a chain have option 0 alone", "rotor-operation")
    return Operation(kind) if kind is Kind.LOSS else Operation(kind, int(block))


@dataclass(frozen=True)
class ChainOps:
    """Training graph as a chain of blocks with one forward and at most one backward op each."""

    graph: ComputeGraph
    forward: list[list[int]]
    """Forward ops of each block, as positions in ``graph.ops``."""
    loss: list[int]
    """Ops between the forward and the backward part."""
    backward: list[list[int]]

    @classmethod
    def of_graph(cls, graph: ComputeGraph) -> ChainOps:
        """Find the blocks by the phases of the ops, or else by their positions around the middle of the order.

        In some graphs, such as Checkmate's, the gradient op of a forward op also reads the output of the next forward
        op. It is then the backward part of the next block, and the last gradient op is part of the loss. Raise
        FormatError, naming an offending op, if the graph is not such a chain.
        """
        order, phases = graph.arrays.order.tolist(), [op.phase for op in graph.ops]
        if any(phases):
            forward, loss, backward = ([o for o in order if phases[o] == p] for p in ("forward", "loss", "backward"))
        else:
            half = len(order) // 2  # with an odd number of ops, the one in the middle is the loss
            forward, loss, backward = order[:half], order[half : len(order) - half], order[len(order) - half :]
        if not len(forward) == len(backward) == (len(order) - len(loss)) / 2:
            raise _no_chain(f"graph {graph.name!r} has {len(forward)} forward and {len(backward)} backward ops")
        gradients = [[op] for op in backward[::-1]]
        reads, writes = graph.arrays.op_inputs.shared_lists(), graph.arrays.op_outputs.shared_lists()
        pairs = zip(gradients, forward[1:], strict=False)
        if any(not set(reads[op]).isdisjoint(writes[after]) for (op,), after in pairs):
            loss, gradients = [*loss, *gradients[-1]], [[], *gradients[:-1]]
        found = cls(graph, [[op] for op in forward], loss, gradients)
        found._check_reads()
        return found

    def _check_reads(self) -> None:
        """Require that each op reads only from its own and neighbouring blocks."""
        reads, writes = (each.shared_lists() for each in (self.graph.arrays.op_inputs, self.graph.arrays.op_outputs))
        blocks = len(self.forward)
        parts = [("forward", i, op) for i, ops in enumerate(self.forward) for op in ops]
        parts += [("backward", i, op) for i, ops in enumerate([*self.backward, self.loss]) for op in ops]
        known: dict[int, tuple[str, int]] = {}
        for part, block, op in parts:
            for tensor in writes[op]:
                if tensor in known:
                    raise _no_chain(f"tensor {self.graph.tensor_names[tensor]!r} has several producers")
                known[tensor] = part, block
        for part, block, op in parts:
            near = {("forward", block - 1)}
            if part == "backward":
                near |= {("forward", block), ("backward", min(block + 1, blocks))}
            for tensor in reads[op]:
                if known.get(tensor, ("forward", block - 1)) not in near:  # a graph input may be read anywhere
                    names = self.graph.op_names[op], self.graph.tensor_names[tensor]
                    raise _no_chain(f"op {names[0]!r} reads {names[1]!r} of a block that is not next to its own")


def _no_chain(why: str) -> FormatError:
    return FormatError(
        f"a sequence of Rotor is for a chain of blocks with one forward and one backward op each; {why}", "rotor-chain"
    )


@dataclass
class _Run:
    """Steps of a sequence so far, and the tensors live after them."""

    ops: ChainOps
    kinds: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)  # blocks whose forward part has saved everything

    def __post_init__(self) -> None:
        arrays = self.ops.graph.arrays
        self.writes, self.is_output = arrays.op_outputs.shared_lists(), arrays.is_output.tolist()
        self.gradients = [*self.ops.backward, self.ops.loss]  # writers of the gradients of each block, the loss last
        reads = arrays.op_inputs.shared_lists()
        ahead, back = chain(*self.ops.forward, self.ops.loss), chain(*self.ops.backward)
        self.read_ahead, self.read_back = (set(chain.from_iterable(reads[op] for op in ops)) for ops in (ahead, back))

    def compute(self, ops: Iterable[int], kept: Container[int] | None = None) -> None:
        """Compute ops, then free newly made tensors that are not in `kept`."""
        new: list[int] = []
        for op in ops:
            self.kinds.append(StepKind.COMPUTE)
            self.targets.append(op)
            new += [tensor for tensor in self.writes[op] if tensor not in self.live]
            self.live.update(self.writes[op])
        if kept is not None:
            self.free(tensor for tensor in new if tensor not in kept)

    def free(self, tensors: Iterable[int]) -> None:
        """Free those of `tensors` that are live and not graph outputs."""
        for tensor in tensors:
            if tensor in self.live and not self.is_output[tensor]:
                self.live.discard(tensor)
                self.kinds.append(StepKind.FREE)
                self.targets.append(tensor)

    def carry_out(self, operation: Operation) -> None:
        kind, block, ops = operation.kind, operation.block, self.ops
        if kind is Kind.LOSS:
            self.compute(ops.loss, self.read_back)
        elif kind is Kind.BACKWARD:
            self.compute(ops.backward[block], self.read_back)
            if block - 1 not in self.saved:
                self.discard(block - 1)
            self.free(chain.from_iterable(self.writes[op] for op in self.gradients[block + 1]))
            self.discard(block)
        elif kind is Kind.ALL:
            self.compute(ops.forward[block])
            self.saved.add(block)
        else:
            self.compute(ops.forward[block], self.read_ahead)
            if kind is Kind.NULL:
                self.discard(block - 1)

    def discard(self, block: int) -> None:
        """Free what the forward part of a block has written."""
        if block >= 0:
            self.free(chain.from_iterable(self.writes[op] for op in self.ops.forward[block]))
            self.saved.discard(block)


def schedule_from_sequence(graph: ComputeGraph, operations: Iterable[Operation]) -> Schedule:
    """Return the schedule of a sequence, with its frees; graph outputs are never freed.

    `graph` is a chain with one forward and one backward op per block, and the loss between them. Raise FormatError if
    the graph is not a chain, or lacks a block of the sequence.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> s = schedule_from_sequence(unit_chain(2), operations_of_text("CF_0 Fe_1 L B_1 Fe_0 B_0"))
    >>> " ".join(name if word == "compute" else f"-{name}" for word, name in s.steps())
    'f0 f1 loss g1 -f0 -loss -f1 f0 g0 -g1 -f0'
    """
    ops = ChainOps.of_graph(graph)
    run = _Run(ops)
    for number, operation in enumerate(operations):
        if not number % 1000:
            draw()
        if operation.block >= len(ops.forward):
            raise FormatError(
                f"operation {number} runs block {operation.block}; graph {graph.name!r} has {len(ops.forward)} blocks, "
                "counted from 0",
                "rotor-block",
            )
        run.carry_out(operation)
    kinds, targets = np.array(run.kinds, dtype=np.int8), np.array(run.targets, dtype=np.int64)
    return Schedule.for_graph(graph, kinds, targets, source="Rotor")


def operation_of_steps(graph: ComputeGraph, operations: Iterable[Operation]) -> list[int]:
    """Return the number of the operation that each step of :func:`schedule_from_sequence` belongs to."""
    run, numbers = _Run(ChainOps.of_graph(graph)), list[int]()
    for number, operation in enumerate(operations):
        run.carry_out(operation)
        numbers += [number] * (len(run.kinds) - len(numbers))
    return numbers


FORMAT = ScheduleFormat(
    name="rotor",
    description="sequence of Rotor (F_all, F_ck, F_null, Loss, B) for a chain of blocks",
    recognizes=lambda source: _BEGIN.match(source.data[:4096]) is not None,
    read=lambda source, graph: schedule_from_sequence(
        needed_graph(graph, "a sequence of Rotor"), operations_of_text(source.text)
    ),
)
