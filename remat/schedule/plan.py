"""Execution plans: schedules as statements over virtual registers, and over slots in the memory of a host."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, zip_longest

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.limits import draw
from remat.schedule.early_frees import running
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions


@dataclass(frozen=True, slots=True)
class Allocate:
    """``%register = allocate tensor``: allocates memory for one instance of a tensor."""

    register: int
    tensor: str
    size: int
    """Bytes."""

    def __str__(self) -> str:
        return f"%{self.register} = allocate {json.dumps(self.tensor)} {self.size}"


@dataclass(frozen=True, slots=True)
class Compute:
    """``compute op``: reads and writes registers, in the order in which the op lists its inputs and outputs."""

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    """Includes registers that already hold a value: buffers with earlier contributions, live values recomputed."""

    def __str__(self) -> str:
        reads, writes = (", ".join(f"%{number}" for number in some) for some in (self.reads, self.writes))
        return f"compute {json.dumps(self.op)} ({reads}) -> ({writes})"


@dataclass(frozen=True, slots=True)
class Deallocate:
    """``deallocate %register``: releases the register for another instance."""

    register: int

    def __str__(self) -> str:
        return f"deallocate %{self.register}"


@dataclass(frozen=True, slots=True)
class Offload:
    """``@slot = offload %register``: begins to write a copy of a register to a slot on the host."""

    slot: int
    register: int

    def __str__(self) -> str:
        return f"@{self.slot} = offload %{self.register}"


@dataclass(frozen=True, slots=True)
class Fetch:
    """``fetch @slot -> %register``: begins to read a slot into a register that was just allocated."""

    slot: int
    register: int

    def __str__(self) -> str:
        return f"fetch @{self.slot} -> %{self.register}"


@dataclass(frozen=True, slots=True)
class Discard:
    """``discard @slot``: waits for reads of the slot and releases it for another copy."""

    slot: int

    def __str__(self) -> str:
        return f"discard @{self.slot}"


Statement = Allocate | Compute | Deallocate | Offload | Fetch | Discard


class _Numbers:
    """Numbers of the tensors that are held; the smallest that is free comes next."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self._released: list[int] = []  # a heap
        self._fresh = count()

    def take(self, tensor: str) -> int:
        """Return a number for a tensor."""
        self.of[tensor] = heapq.heappop(self._released) if self._released else next(self._fresh)
        return self.of[tensor]

    def release(self, tensor: str) -> int:
        """Return the number of a tensor, which is free after that."""
        number = self.of.pop(tensor)
        heapq.heappush(self._released, number)
        return number


@dataclass(frozen=True)
class ExecutionPlan:
    """Program of allocations, computes, transfers and deallocations for an interpreter or a code generator.

    A register holds one instance of a tensor, from its allocation, right before the compute or fetch that first writes
    it, to its deallocation. An allocation takes the smallest free register number, so the same schedule gives the same
    plan. Graph inputs are in registers from start to end. A slot holds one copy of a tensor on the host, from its
    offload to its discard; slots are numbered in the same way. Waits are those of
    :func:`~remat.schedule.timing.time_schedule`: a deallocation waits for transfers of its register.

    Source: P. Jain et al., "Checkmate", MLSys 2020, section 4.9, Algorithm 1; extended to ops with several outputs,
    accumulation buffers, graph inputs and reuse of register numbers.

    Attributes
    ----------
    inputs : tuple of Allocate
        Registers of the graph inputs.
    statements : tuple of Statement
    graph, graph_digest, source : str
        As of :class:`~remat.schedule.schedule.Schedule`.
    """

    inputs: tuple[Allocate, ...]
    statements: tuple[Statement, ...]
    graph: str = ""
    graph_digest: str = ""
    source: str = ""

    @classmethod
    def of_schedule(
        cls, graph: ComputeGraph, schedule: Schedule, *, keep: Iterable[str] = frozenset()
    ) -> ExecutionPlan:
        """Return the plan of a schedule, with deallocations and discards where they are written or implied.

        :func:`~remat.schedule.early_frees.with_early_frees` moves explicit frees to the earliest step.

        Parameters
        ----------
        keep : iterable of str
            Tensors that must be live at the end besides the graph's outputs, if frees are implied.

        Raises
        ------
        ScheduleError
            Naming the first violation, if the schedule does not run on `graph`.

        Examples
        --------
        >>> from remat.graphs import GraphBuilder
        >>> b = GraphBuilder("chain")
        >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2), b.op("c", inputs=["b"], size=1)]
        >>> plan = ExecutionPlan.of_schedule(b.build(), Schedule.reference(b.build()))
        >>> print(*plan.statements[:4], sep="; ")
        %0 = allocate "a" 4; compute "a" () -> (%0); %1 = allocate "b" 2; compute "b" (%0) -> (%1)
        """
        inputs, statements = cls._parts(graph, running(graph, schedule, keep=keep))
        return cls(inputs, tuple(statements), graph.name, graph.digest, schedule.source)

    @classmethod
    def _parts(cls, graph: ComputeGraph, written: Schedule) -> tuple[tuple[Allocate, ...], Iterator[Statement]]:
        """Return the registers of the inputs and an iterator over the statements, whose list could take gigabytes."""
        held, copies = _Numbers(), _Numbers()

        def taken(tensor: str) -> Allocate:
            return Allocate(held.take(tensor), tensor, graph.tensors[graph.tensor_index[tensor]].size)

        inputs = tuple(taken(name) for name in graph.inputs)

        def statements() -> Iterator[Statement]:
            for kind, target in zip(written.kinds.tolist(), graph_positions(graph, written).tolist(), strict=True):
                if kind == StepKind.COMPUTE:
                    op = graph.ops[target]
                    for name in op.outputs:
                        if name not in held.of:
                            yield taken(name)
                    yield Compute(op.name, *(tuple(held.of[name] for name in some) for some in (op.inputs, op.outputs)))
                    continue
                name = graph.tensor_names[target]
                if kind == StepKind.FREE:
                    yield Deallocate(held.release(name))
                elif kind == StepKind.OFFLOAD:
                    yield Offload(copies.take(name), held.of[name])
                elif kind == StepKind.FETCH:
                    yield taken(name)
                    yield Fetch(copies.of[name], held.of[name])
                else:
                    yield Discard(copies.release(name))

        return inputs, statements()

    def schedule(self, graph: ComputeGraph) -> Schedule:
        """Return the schedule that the plan executes; its own plan is this one, up to register numbers.

        Raises
        ------
        FormatError
            If the plan is for another graph, or for the first statement that differs from the plan of its steps: one
            that allocates too late or too early, has a wrong size, or uses a register with another value.
        ScheduleError
            With the first violation, if the steps do not run on `graph`.
        """
        if self.graph_digest and self.graph_digest != graph.digest:
            raise FormatError(f"the plan is for another graph than {graph.name!r}: their digests differ", "plan-graph")
        found = Schedule.from_steps(self._steps(), graph=graph.name, graph_digest=graph.digest, source=self.source)
        inputs, due = self._parts(graph, running(graph, found))
        numbers = _Renumbering({}, {})
        mine, right = (sorted(some, key=lambda given: given.tensor) for some in (self.inputs, inputs))
        _compare("input", mine, right, numbers)
        _compare("statement", self.statements, due, numbers)
        return found

    def _steps(self) -> Iterator[tuple[str, str]]:
        """Yield the steps of the statements; refuse one whose register or slot holds something else than it needs."""
        held, copies = {given.register: given.tensor for given in self.inputs}, dict[int, str]()
        for number, statement in enumerate(self.statements):
            place = f"statement {number} is {statement}"
            match statement:
                case Compute(op):
                    yield "compute", op
                case Allocate(register, tensor):
                    _require(register not in held, place, held.get(register))
                    held[register] = tensor
                case Deallocate(register):
                    _require(register in held, place)
                    yield "free", held.pop(register)
                case Offload(slot, register):
                    _require(register in held, place)
                    _require(slot not in copies, place, copies.get(slot), "slot")
                    copies[slot] = held[register]
                    yield "offload", copies[slot]
                case Fetch(slot, register):
                    _require(slot in copies, place, word="slot")
                    _require(held.get(register) == copies[slot], place, held.get(register))
                    yield "fetch", copies[slot]
                case Discard(slot):
                    _require(slot in copies, place, word="slot")
                    yield "discard", copies.pop(slot)


def _require(right: bool, place: str, holds: str | None = None, word: str = "register") -> None:
    """Refuse a statement, described by `place`, because of the tensor that its register or slot holds."""
    if not right:
        what = "nothing" if holds is None else f"tensor {holds!r}"
        raise FormatError(f"{place}, but the {word} holds {what}", "plan-register")


@dataclass(frozen=True)
class _Renumbering:
    """Registers and slots of the plan due, by those of the given plan."""

    registers: dict[int, int]
    slots: dict[int, int]

    def begin(self, given: Statement | None, due: Statement | None) -> None:
        """Add the number that a statement takes."""
        match given, due:
            case Allocate(register), Allocate(other) if register not in self.registers:
                self.registers[register] = other
            case Offload(slot), Offload(other) if slot not in self.slots:
                self.slots[slot] = other

    def end(self, given: Statement) -> None:
        """Remove the number that a statement releases."""
        match given:
            case Deallocate(register):
                del self.registers[register]
            case Discard(slot):
                del self.slots[slot]

    def of(self, given: Statement) -> Statement:
        """Return the statement with other numbers; -1 for those that are not known."""

        def register(number: int) -> int:
            return self.registers.get(number, -1)

        def slot(number: int) -> int:
            return self.slots.get(number, -1)

        match given:
            case Compute(op, reads, writes):
                return Compute(op, tuple(map(register, reads)), tuple(map(register, writes)))
            case Allocate() | Deallocate():
                return replace(given, register=register(given.register))
            case Discard():
                return replace(given, slot=slot(given.slot))
            case Offload() | Fetch():
                return replace(given, slot=slot(given.slot), register=register(given.register))


def _compare(what: str, given: Iterable[Statement], due: Iterable[Statement], numbers: _Renumbering) -> None:
    """Refuse the first statement that differs from the one due."""
    for place, (mine, right) in enumerate(zip_longest(given, due)):
        draw()
        numbers.begin(mine, right)
        if mine is None or numbers.of(mine) != right:
            raise FormatError(
                f"{what} {place} is {mine or 'missing'}, but the steps of the plan need {right or 'nothing'} there",
                "plan-statement",
            )
        numbers.end(mine)
