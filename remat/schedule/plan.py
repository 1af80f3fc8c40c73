"""Execution plans: a schedule as allocations, computes and deallocations of virtual registers."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.schedule.early_frees import running
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions, with_frees


@dataclass(frozen=True, slots=True)
class Allocate:
    """``%register = allocate tensor``: memory for one instance of a tensor.

    Attributes
    ----------
    register : int
    tensor : str
    size : int
        Bytes.
    """

    register: int
    tensor: str
    size: int

    def __str__(self) -> str:
        return f"allocation of %{self.register}"


@dataclass(frozen=True, slots=True)
class Compute:
    """``compute op``: reads and writes registers, in the order in which the op lists its inputs and outputs.

    Attributes
    ----------
    op : str
    reads, writes : tuple of int
        A buffer that is contributed to, or a value that is computed over itself, is in `writes` alone.
    """

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def __str__(self) -> str:
        return f"compute of {self.op!r}"


@dataclass(frozen=True, slots=True)
class Deallocate:
    """``deallocate %register``: the register is free for another instance."""

    register: int

    def __str__(self) -> str:
        return f"deallocation of %{self.register}"


Statement = Allocate | Compute | Deallocate


@dataclass(frozen=True)
class ExecutionPlan:
    """A program of allocations, computes and deallocations: what an interpreter or a code generator needs.

    A register holds one instance of a tensor, from its allocation, right before the compute that first writes it, to
    its deallocation. The numbers of registers that are free again are used again, the smallest first, so the same
    schedule gives the same plan. Graph inputs are in registers from the start and stay there.

    Source: P. Jain et al., "Checkmate", MLSys 2020, section 4.9, Algorithm 1; here for ops with several outputs,
    accumulation buffers and graph inputs too, and with registers that are used again.

    Attributes
    ----------
    inputs : tuple of Allocate
        The registers of the graph inputs.
    statements : tuple of Statement
    graph, graph_digest, source : str
        As of :class:`~remat.schedule.schedule.Schedule`.
    """

    inputs: tuple[Allocate, ...]
    statements: tuple[Statement, ...]
    graph: str = ""
    graph_digest: str = ""
    source: str = ""

    @property
    def num_registers(self) -> int:
        """How many registers there are."""
        used = [s.register for s in (*self.inputs, *self.statements) if isinstance(s, Allocate)]
        return max(used, default=-1) + 1

    @classmethod
    def of_schedule(
        cls, graph: ComputeGraph, schedule: Schedule, *, keep: Iterable[str] = frozenset()
    ) -> ExecutionPlan:
        """The plan of a schedule, with deallocations where its frees are, or where they are implied.

        :func:`~remat.schedule.early_frees.with_early_frees` moves them to the front before that.

        Parameters
        ----------
        keep : iterable of str
            Tensors that must be live at the end besides the graph's outputs, where frees are implied.

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
        >>> len(plan.statements), plan.num_registers
        (9, 2)
        """
        written = running(graph, schedule, keep=keep)
        places = _Registers()
        held: dict[str, int] = {}

        def taken(tensor: str) -> Allocate:
            held[tensor] = places.take()
            return Allocate(held[tensor], tensor, graph.tensors[graph.tensor_index[tensor]].size)

        inputs = tuple(taken(name) for name in graph.inputs)
        statements: list[Statement] = []
        for kind, target in zip(written.kinds.tolist(), graph_positions(graph, written).tolist(), strict=True):
            if kind == StepKind.FREE:
                statements.append(Deallocate(places.give_back(held.pop(graph.tensor_names[target]))))
                continue
            op = graph.ops[target]
            statements += [taken(name) for name in op.outputs if name not in held]
            statements.append(
                Compute(op.name, tuple(held[name] for name in op.inputs), tuple(held[name] for name in op.outputs))
            )
        return cls(inputs, tuple(statements), graph.name, graph.digest, schedule.source)

    def schedule(self, graph: ComputeGraph) -> Schedule:
        """The schedule that the plan carries out; its own plan is this one, if registers are numbered as here.

        Raises
        ------
        FormatError
            Naming the statement that is wrong: an op or tensor that `graph` does not have, a size that is not its own,
            a register that is allocated twice, used after it was deallocated, or holds something else than the compute
            needs; an allocation that the next compute does not use. Also if the plan is for another graph.
        """
        if self.graph_digest and self.graph_digest != graph.digest:
            raise FormatError(f"the plan is for another graph than {graph.name!r} (their digests differ)")
        return _Reading(graph).of(self)


class _Registers:
    """Numbers of registers; those that were given back go first, the smallest before the others."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, register: int) -> int:
        heapq.heappush(self._free, register)
        return register


class _Reading:
    """A plan on its way back to a schedule: what every register holds."""

    def __init__(self, graph: ComputeGraph) -> None:
        self.graph = graph
        self.held: dict[int, str] = {}  # tensor by register
        self.where: dict[str, int] = {}  # register by tensor
        self.freed: dict[int, str] = {}  # where a register was deallocated last
        self.waiting: dict[int, str] = {}  # allocations that no compute has used yet

    def of(self, plan: ExecutionPlan) -> Schedule:
        steps: list[tuple[str, str]] = []
        for number, given in enumerate(plan.inputs):
            self._allocate(f"inputs[{number}]", given)
        if sorted(self.where) != sorted(self.graph.inputs):
            odd = min(set(self.where) ^ set(self.graph.inputs))
            what = "is no graph input" if odd in self.where else "is a graph input without a register"
            raise FormatError(f"inputs: tensor {odd!r} {what}")
        for number, statement in enumerate(plan.statements):
            at = f"statement {number} ({statement})"
            if isinstance(statement, Allocate):
                self._allocate(at, statement)
                self.waiting[statement.register] = at
            elif isinstance(statement, Compute):
                steps.append(("compute", self._compute(at, statement)))
            else:
                steps.append(("free", self._deallocate(at, statement)))
        self._nothing_waits("the end")
        header = {"graph": self.graph.name, "graph_digest": self.graph.digest, "source": plan.source}
        found = Schedule.from_steps(steps, **header)
        if not found.has_frees and with_frees(self.graph, found).has_frees:
            raise FormatError("the plan deallocates nothing, which a schedule can say only where nothing may be freed")
        return found

    def _allocate(self, at: str, statement: Allocate) -> None:
        index = self.graph.tensor_index.get(statement.tensor)
        if index is None:
            raise FormatError(f"{at}: graph {self.graph.name!r} has no tensor {statement.tensor!r}")
        size = self.graph.tensors[index].size
        if statement.size != size:
            raise FormatError(f"{at}: {statement.size} bytes for tensor {statement.tensor!r}, which has {size}")
        if statement.register in self.held:
            holds = self.held[statement.register]
            raise FormatError(f"{at}: register %{statement.register} is in use, it holds tensor {holds!r}")
        if statement.tensor in self.where:
            place = self.where[statement.tensor]
            raise FormatError(f"{at}: tensor {statement.tensor!r} is in register %{place} already")
        self.held[statement.register] = statement.tensor
        self.where[statement.tensor] = statement.register

    def _compute(self, at: str, statement: Compute) -> str:
        index = self.graph.op_index.get(statement.op)
        if index is None:
            raise FormatError(f"{at}: graph {self.graph.name!r} has no op {statement.op!r}")
        op = self.graph.ops[index]
        for what, tensors, registers in (
            ("reads", op.inputs, statement.reads),
            ("writes", op.outputs, statement.writes),
        ):
            if len(tensors) != len(registers):
                raise FormatError(
                    f"{at}: it {what} {len(registers)} registers, but the op {what} {len(tensors)} tensors"
                )
            for tensor, register in zip(tensors, registers, strict=True):
                if self.held.get(register) != tensor:
                    raise FormatError(
                        f"{at}: it {what} tensor {tensor!r} in register %{register}, {self._state(register)}"
                    )
                if what == "reads" and register in self.waiting:
                    raise FormatError(f"{at}: it reads register %{register}, which nothing has been written into")
        for register in statement.writes:
            self.waiting.pop(register, None)
        self._nothing_waits(at)
        return statement.op

    def _deallocate(self, at: str, statement: Deallocate) -> str:
        if statement.register not in self.held:
            raise FormatError(f"{at}: register %{statement.register}, {self._state(statement.register)}")
        self._nothing_waits(at)
        tensor = self.held.pop(statement.register)
        del self.where[tensor]
        self.freed[statement.register] = at
        return tensor

    def _state(self, register: int) -> str:
        """What a register holds, in words."""
        if register in self.held:
            return f"which holds tensor {self.held[register]!r}"
        if register in self.freed:
            return f"which is free since {self.freed[register]}"
        return "which was never allocated"

    def _nothing_waits(self, at: str) -> None:
        """A schedule has no allocations of its own, so each must belong to the compute that comes next."""
        if self.waiting:
            register, since = next(iter(self.waiting.items()))
            raise FormatError(f"{since}: nothing is written into register %{register} before {at}")
