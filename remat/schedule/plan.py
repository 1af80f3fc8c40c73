"""Execution plans: schedules as allocations, computes and deallocations of virtual registers."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
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


Statement = Allocate | Compute | Deallocate


@dataclass(frozen=True)
class ExecutionPlan:
    """Program of allocations, computes and deallocations for an interpreter or a code generator.

    A register holds one instance of a tensor, from its allocation, right before the compute that first writes it, to
    its deallocation. An allocation takes the smallest free register number, so the same schedule gives the same plan.
    Graph inputs are in registers from start to end.

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
        """Return the plan of a schedule, with deallocations at its explicit or implied frees.

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
        given_back: list[int] = []  # a heap
        fresh = count()
        held: dict[str, int] = {}

        def taken(tensor: str) -> Allocate:
            held[tensor] = heapq.heappop(given_back) if given_back else next(fresh)
            return Allocate(held[tensor], tensor, graph.tensors[graph.tensor_index[tensor]].size)

        inputs = tuple(taken(name) for name in graph.inputs)

        def statements() -> Iterator[Statement]:
            for kind, target in zip(written.kinds.tolist(), graph_positions(graph, written).tolist(), strict=True):
                if kind == StepKind.FREE:
                    register = held.pop(graph.tensor_names[target])
                    heapq.heappush(given_back, register)
                    yield Deallocate(register)
                    continue
                op = graph.ops[target]
                for name in op.outputs:
                    if name not in held:
                        yield taken(name)
                yield Compute(op.name, *(tuple(held[name] for name in some) for some in (op.inputs, op.outputs)))

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
        held = {given.register: given.tensor for given in self.inputs}
        steps: list[tuple[str, str]] = []
        for number, statement in enumerate(self.statements):
            if isinstance(statement, Compute):
                steps.append(("compute", statement.op))
                continue
            holds = held.pop(statement.register, None)
            if (holds is None) is isinstance(statement, Deallocate):
                what = "nothing" if holds is None else f"tensor {holds!r}"
                raise FormatError(f"statement {number} is {statement}, but the register holds {what}", "plan-register")
            if isinstance(statement, Allocate):
                held[statement.register] = statement.tensor
            else:
                steps.append(("free", str(holds)))
        found = Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest, source=self.source)
        inputs, due = self._parts(graph, running(graph, found))
        numbers: dict[int, int] = {}
        mine, right = (sorted(some, key=lambda given: given.tensor) for some in (self.inputs, inputs))
        _compare("input", mine, right, numbers)
        _compare("statement", self.statements, due, numbers)
        return found


def _compare(what: str, given: Iterable[Statement], due: Iterable[Statement], numbers: dict[int, int]) -> None:
    """Refuse the first statement that differs from the one due; `numbers` maps its live registers to those due."""
    for place, (mine, right) in enumerate(zip_longest(given, due)):
        draw()
        if isinstance(mine, Allocate) and isinstance(right, Allocate) and mine.register not in numbers:
            numbers[mine.register] = right.register
        if mine is None or _renumbered(mine, numbers) != right:
            raise FormatError(
                f"{what} {place} is {mine or 'missing'}, but the steps of the plan need {right or 'nothing'} there",
                "plan-statement",
            )
        if isinstance(mine, Deallocate):
            del numbers[mine.register]


def _renumbered(statement: Statement, numbers: Mapping[int, int]) -> Statement:
    """Return the statement with other registers; -1 for those that are not in `numbers`."""
    if isinstance(statement, Compute):
        reads, writes = (
            tuple(numbers.get(register, -1) for register in some) for some in (statement.reads, statement.writes)
        )
        return replace(statement, reads=reads, writes=writes)
    return replace(statement, register=numbers.get(statement.register, -1))
