"""Memory planning of ExecuTorch by remat: order of the program's calls, results in place of inputs, and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import torch
from torch import fx

from remat.allocation import AllocationProblem, allocate
from remat.backends.choice import BackendLike
from remat.errors import CaptureError, ProblemError
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Buffers, Memory, Schedule, simulate
from remat.solving.order import order
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.torch.executorch.program_graph import (
    ProgramGraph,
    computing,
    is_item,
    is_leader,
    planned_storages,
    producer,
    read_nodes,
    root,
    specs_of,
)
from remat.torch.private import pytree

try:
    from executorch.exir.banked_memory_planning import BankedGreedy, BankPlacementError, TargetMemoryMap
    from executorch.exir.memory_planning import (
        MemoryAlgoResult,
        SpecAllocResult,
        Verifier,
        greedy,
        update_all_tensors_lifetime,
    )
    from executorch.exir.passes import MemoryPlanningPass
except ImportError:
    raise CaptureError(
        "executorch 1.5 or newer is not installed: pip install 'remat[executorch]'", "not-installed", "executorch"
    ) from None

#: Least seconds for addresses, even if the search for an order has used up the time.
ALLOCATION_SECONDS = 2.0


@dataclass(frozen=True)
class Plan:
    """Result of planning one method of a program.

    Attributes
    ----------
    before, after : tuple of int
        Bytes of each memory, by its number in the program (0: constants), by ExecuTorch's planner in the order of the
        program, and now. `before` is empty if its planner finds no addresses within the banks.
    bound : int
        Lower bound on the sum of the memories, for any order and any addresses. It counts results in place of inputs
        if the plan does.
    moved : int
        Number of calls that another call follows than before.
    in_place : int
        Number of results written in place of an input.
    result : Result or None
        Result of the search for the order of the calls outside of control flow, if there was one.
    notes : tuple of str
        Remarks: why a part is ExecuTorch's own plan, and what is proved of the slowest bank.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    bound: int
    moved: int
    in_place: int
    result: Result | None = None
    notes: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """True if no order and no addresses need less memory."""
        return sum(self.after) <= self.bound

    def __str__(self) -> str:
        before = f"{sum(self.before):,}" if self.before else "no plan"
        return f"{before} -> {sum(self.after):,} bytes, {'proved least' if self.proved else f'bound {self.bound:,}'}"


@dataclass(frozen=True, eq=False)
class _Part:
    """Plan of one graph module, without its submodules: bytes of each memory, and facts for the report."""

    before: tuple[int, ...] | None
    bound: int
    moved: int = 0
    in_place: int = 0
    result: Result | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Task:
    """Tensor specs of a graph module to place, as ExecuTorch gives them to an algorithm."""

    alignment: int
    specs: Sequence[Any]
    module: fx.GraphModule
    signature: Any
    padding: int
    bottom: Sequence[int]
    """Bytes of each memory that submodules use, below those of this module."""


class MemoryPlanning(MemoryPlanningPass):
    """Memory planning pass for ``ExecutorchBackendConfig(memory_planning_pass=...)``.

    It moves the calls of the program into an order of least memory, lets elementwise kernels write over an input that
    they read last, and places all tensors. Bodies of control flow are planned the same way. ExecuTorch's verifier
    checks every plan. A plan is never larger than that of ExecuTorch's own planner.

    Parameters
    ----------
    reorder : bool
        Move calls. Accesses of a changed tensor, random calls and calls with effects keep their order.
    in_place : bool
        Write results of elementwise kernels in place of an input. Requires ExecuTorch's portable or optimized kernels,
        or others that allow it.
    memory_map : executorch.exir.banked_memory_planning.TargetMemoryMap, optional
        Memories with sizes, fastest first. As few bytes as possible are put into the slowest one, then into the next.
    time_limit : float or None
        Seconds for each method; None: until a proof.
    backend, options, on_progress
        As for :func:`remat.order`.
    **arguments
        Of ExecuTorch's ``MemoryPlanningPass``, such as ``alloc_graph_input`` and ``alignment``.

    Attributes
    ----------
    plans : list of Plan
        One for each method planned so far.

    Raises
    ------
    CaptureError
        If ExecuTorch is not installed.
    ProblemError
        For an algorithm among the arguments, or banks together with shared mutable buffers.

    Examples
    --------
    >>> from executorch.exir import ExecutorchBackendConfig, to_edge  # doctest: +SKIP
    >>> planning = MemoryPlanning()  # doctest: +SKIP
    >>> config = ExecutorchBackendConfig(memory_planning_pass=planning)  # doctest: +SKIP
    >>> manager = to_edge(torch.export.export(model, args)).to_executorch(config)  # doctest: +SKIP
    >>> print(planning.plans[-1])  # doctest: +SKIP
    9,936,896 -> 6,021,120 bytes, proved least
    """

    def __init__(
        self,
        *,
        reorder: bool = True,
        in_place: bool = True,
        memory_map: TargetMemoryMap | None = None,
        time_limit: float | None = 60.0,
        backend: BackendLike | None = "cp-sat",
        options: SolveOptions = DEFAULT_OPTIONS,
        on_progress: OnProgress | None = None,
        **arguments: Any,
    ) -> None:
        if "memory_planning_algo" in arguments:
            raise ProblemError(
                "MemoryPlanning is an algorithm: pass memory_planning_algo to MemoryPlanningPass", "algorithm"
            )
        if memory_map is not None and arguments.get("share_mutable_buffers"):
            raise ProblemError(
                "shared mutable buffers use memory 2, which a memory map assigns: pass one of the two", "shared-buffers"
            )
        super().__init__(memory_planning_algo=self._allocate, **arguments)
        self.reorder, self.in_place, self.memory_map, self.time_limit = reorder, in_place, memory_map, time_limit
        self._backend, self._options, self._on_progress = backend, options, on_progress
        self.plans: list[Plan] = []
        self._parts: dict[fx.GraphModule, _Part] = {}
        self._placed: dict[Any, SpecAllocResult] = {}

    def run(self, graph_module: fx.GraphModule, graph_signature: Any = None) -> Any:
        """Plan one method; see the class.

        Raises
        ------
        executorch.exir.error.InternalError
            If two tensors that are live at once would share memory.
        BankPlacementError
            If the banks cannot hold the tensors.
        """
        self._parts, self._placed = {}, {}
        found = super().run(graph_module, graph_signature)
        self._place_results(graph_module)
        for module in self._parts:
            is_main = module is graph_module
            planned = [spec for node in module.graph.find_nodes(op="placeholder") for spec in specs_of(node)]
            Verifier(
                module,
                self.alloc_graph_input if is_main else any(spec in self._placed for spec in planned),
                self.alloc_graph_output if is_main else True,
                self.alloc_mutable_buffers and not self.share_mutable_buffers,
                graph_signature,
            ).verify_storage_reuse(self.allow_lifetime_and_storage_overlap)
        parts, main = self._parts.values(), self._parts.get(graph_module)
        self.plans.append(
            Plan(
                tuple(self._with_submodules(graph_module) or ()), tuple(graph_module.meta["non_const_buffer_sizes"]),
                self._bound(graph_module), sum(part.moved for part in parts), sum(part.in_place for part in parts),
                main.result if main is not None else None, tuple(note for part in parts for note in part.notes),
            )
        )  # fmt: skip
        return found

    def _place_results(self, module: fx.GraphModule) -> None:
        """Make the branches of each ``cond`` write results into memory of its caller.

        ExecuTorch leaves a result in the memory of the branch that ran. The next call with a body overwrites it, even
        if the result is read later.
        """
        for call in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
            for name in call.args[1:3]:
                body = getattr(module, str(name.target))
                for spec, result in zip(_returned(body.graph.output_node()), _returned(call), strict=True):
                    fits = spec in self._placed and result in self._placed
                    if fits and spec.allocated_memory <= result.allocated_memory:
                        spec.mem_id, spec.mem_offset = result.mem_id, result.mem_offset
        for body in _submodules(module):
            self._place_results(body)

    def _with_submodules(self, module: fx.GraphModule) -> list[int] | None:
        """Return the bytes of each memory by ExecuTorch's planner, submodules included; None without a plan."""
        sizes = [self._with_submodules(each) for each in _submodules(module)]
        part = self._parts.get(module)
        own = part.before if part is not None else ()
        if own is None or None in sizes:
            return None
        below = [max(column) for column in zip_longest(*(size for size in sizes if size), fillvalue=0)]
        return [a + b for a, b in zip_longest(own, below, fillvalue=0)]

    def _bound(self, module: fx.GraphModule) -> int:
        own = self._parts[module].bound if module in self._parts else 0
        return own + max((self._bound(each) for each in _submodules(module)), default=0)

    def _greedy(self, task: _Task) -> MemoryAlgoResult | None:
        """Return the result of ExecuTorch's planner, without submodules and padding; None if it finds none."""
        task.module.input_mem_buffer_sizes = []
        if self.memory_map is None:
            return greedy(task.alignment, task.specs, task.module, task.signature, 0)
        task.module.input_mem_buffer_sizes = list(task.bottom)
        try:
            found = BankedGreedy(self.memory_map)(task.alignment, task.specs, task.module, task.signature, task.padding)
        except BankPlacementError:
            return None
        for spec, place in found.spec_dict.items():
            if spec.storage_base is None:
                place.mem_offset -= _at(task.bottom, place.mem_id)
        return found

    def _allocate(
        self, alignment: int, specs: Sequence[Any], module: fx.GraphModule, signature: Any, padding: int
    ) -> list[int]:
        """Place the tensor specs of a graph module for ``apply_algo``; return the bytes of each memory."""
        bottom = list(getattr(module, "input_mem_buffer_sizes", None) or [])
        task = _Task(alignment, list(specs), module, signature, padding, bottom)
        given = self._greedy(task)
        own = None if given is None else _sizes(given.spec_dict)
        part, placed = self._plan(task, given) if task.specs else (_Part((), 0), {})
        module.input_mem_buffer_sizes = bottom
        if module not in self._parts:  # of several devices the first one orders the calls
            before = None if own is None else tuple(size + padding * (size > 0) for size in own)
            self._parts[module] = replace(part, before=before)
        self._placed |= placed
        for spec, place in placed.items():
            spec.mem_id, spec.mem_obj_id = place.mem_id, place.mem_obj_id
            spec.mem_offset = place.mem_offset + _at(bottom, place.mem_id)
        sizes = _sizes(placed)
        return [
            size + _at(bottom, k) + padding * (size > 0)
            for k, size in enumerate(sizes + [0] * (max(len(bottom), 2) - len(sizes)))
        ]

    def _plan(self, task: _Task, given: MemoryAlgoResult | None) -> tuple[_Part, dict[Any, SpecAllocResult]]:
        """Move the calls of a module, share memory and place the specs; keep ExecuTorch's plan if that is smaller."""
        clock = Deadline.after(self.time_limit)
        storages = planned_storages(task.module.graph, task.signature, task.specs, in_place=self.in_place)
        nodes, lifetimes = list(task.module.graph.nodes), {spec: list(spec.lifetime) for spec in _all(task.module)}
        read = read_nodes(task.module.graph, storages, "program") if task.module not in self._parts else None
        bound, moved, pairs, result = 0, 0, [], None
        if read is not None:
            schedule, bound, result = self._schedule(read, clock)
            pairs = _shared(read, schedule)
            moved = _move(task.module, read, schedule)
            for output, source in pairs:
                output.storage_base = source
            _update_lifetimes(task)
        placed, notes = self._place(task, clock)
        if given is not None and self._cost(placed) > self._cost(given.spec_dict):
            for output, _ in pairs:
                output.storage_base = None
            _restore(task.module, nodes, lifetimes)
            note = "the plan is ExecuTorch's own, which is smaller than the one found in the time limit"
            return _Part((), bound, result=result, notes=(note,)), given.spec_dict
        return _Part((), bound, moved, len(pairs), result, notes), placed

    def _schedule(self, read: ProgramGraph, clock: Deadline) -> tuple[Schedule, int, Result | None]:
        """Return the order of least memory found, a lower bound for any order, and the search's result."""
        graph, reference = read.graph, Schedule.reference(read.graph)
        if not self.reorder:
            return reference, graph.structural_bound.peak, None
        found = order(
            graph, "auto", self._backend, stop=clock, options=self._options, on_progress=self._on_progress
        )  # fmt: skip
        better = found.schedule is not None and (found.peak or 0) < graph.reference_peak
        return (found.schedule if better and found.schedule is not None else reference), found.bound, found

    def _cost(self, placed: dict[Any, SpecAllocResult]) -> tuple[int, ...]:
        """Return what is minimised: the total, or with banks the bytes of each, slowest first."""
        sizes = _sizes(placed)
        if self.memory_map is None:
            return (sum(sizes),)
        return tuple(_at(sizes, bank.mem_id) for bank in reversed(self.memory_map.banks))

    def _place(self, task: _Task, clock: Deadline) -> tuple[dict[Any, SpecAllocResult], tuple[str, ...]]:
        """Return places for the specs of a module in its present order, and remarks."""
        whole: dict[int | None, list[Any]] = {}
        planned = set(task.specs)
        for spec in task.specs:
            spec.realign(task.alignment)
            if spec.storage_base is None or root(spec) not in planned:
                whole.setdefault(spec.mem_id, []).append(spec)
        if self.memory_map is None:
            whole.setdefault(1, []).extend(whole.pop(None, []))
            placed: dict[Any, SpecAllocResult] = {}
            notes: tuple[str, ...] = ()
        else:
            banks = [bank.mem_id for bank in self.memory_map.banks]
            placed, notes = self._place_in_banks(
                task, [spec for number in (None, *banks) for spec in whole.pop(number, [])], clock
            )
        for number, specs in whole.items():
            found = self._addresses(_problem(specs, task.alignment), clock)
            assert found is not None  # without a capacity there always are
            placed |= {
                spec: SpecAllocResult(number, 0, offset)
                for spec, offset in zip(specs, found.offset.tolist(), strict=True)
            }
        for spec in task.specs:
            if spec not in placed:
                offset, base = 0, spec
                while base.storage_base is not None:
                    offset, base = offset + base.storage_base_offset, base.storage_base
                place = placed[base]
                placed[spec] = SpecAllocResult(place.mem_id, 0, place.mem_offset + offset)
        other = self._greedy(task)
        if other is not None and self._cost(other.spec_dict) < self._cost(placed):
            return other.spec_dict, notes
        return placed, notes

    def _addresses(self, problem: AllocationProblem, clock: Deadline) -> Any:
        seconds = max(clock.remaining, ALLOCATION_SECONDS)
        found = allocate(problem, time_limit=seconds if np.isfinite(seconds) else None, options=self._options)
        return found.addresses

    def _place_in_banks(
        self, task: _Task, specs: list[Any], clock: Deadline
    ) -> tuple[dict[Any, SpecAllocResult], tuple[str, ...]]:
        """Fill the banks, fastest first: the fewest bytes in the slowest one, then in the next.

        Raise BankPlacementError if the banks do not suffice.
        """
        assert self.memory_map is not None
        banks = list(self.memory_map.banks)
        unit = max(bank.alignment or task.alignment for bank in banks)
        room = [max(bank.size - _at(task.bottom, bank.mem_id) - task.padding, 0) for bank in banks]
        best, notes = None, []
        for last in range(len(banks) - 1, -1, -1):
            memories = [Memory(bank.name, size) for bank, size in zip(banks, room, strict=True)]
            memories = [*memories[:last], Memory(banks[last].name)]
            allowed = np.array(
                [[spec.mem_id in (None, bank.mem_id) for bank in banks[: last + 1]] for spec in specs], dtype=np.bool_
            ).reshape(len(specs), last + 1)
            if not allowed.any(axis=1).all():
                break
            problem = _problem(specs, unit, tuple(memories), allowed)
            seconds = max(clock.remaining, ALLOCATION_SECONDS)
            found = allocate(problem, time_limit=seconds if np.isfinite(seconds) else None, options=self._options)
            if found.addresses is None or (found.price or 0) > room[last]:
                break
            best, used = found.addresses, found.price or 0
            notes.append(
                f"bank {banks[last].name}: {used:,} bytes, {'' if found.proved else 'not '}proved least for this order"
            )
            if used:
                break
        if best is None:
            least = "" if found.price is None else f"; {banks[-1].name} would need {found.price:,} bytes"
            raise BankPlacementError(f"no addresses within the banks were found{least}: {self.memory_map.describe()}")
        for spec, k in zip(specs, best.memory.tolist(), strict=True):
            spec.realign(banks[k].alignment or task.alignment)
        return {
            spec: SpecAllocResult(banks[k].mem_id, 0, offset)
            for spec, k, offset in zip(specs, best.memory.tolist(), best.offset.tolist(), strict=True)
        }, tuple(notes)


def _problem(
    specs: Sequence[Any], alignment: int, memories: tuple[Memory, ...] = (Memory(),), allowed: Any = None
) -> AllocationProblem:
    names = [f"{k}" for k in range(len(specs))]
    lower, upper = [spec.lifetime[0] for spec in specs], [spec.lifetime[1] + 1 for spec in specs]
    buffers = Buffers.of(names, lower, upper, [spec.allocated_memory for spec in specs])
    return AllocationProblem(buffers, memories, alignment, allowed)


def _at(sizes: Sequence[int], number: int) -> int:
    return sizes[number] if number < len(sizes) else 0


def _sizes(placed: dict[Any, SpecAllocResult]) -> list[int]:
    """Return the bytes of each memory up to the end of its last spec."""
    sizes = [0] * (max((place.mem_id for place in placed.values()), default=0) + 1)
    for spec, place in placed.items():
        sizes[place.mem_id] = max(sizes[place.mem_id], place.mem_offset + spec.allocated_memory)
    return sizes


def _submodules(module: fx.GraphModule) -> list[fx.GraphModule]:
    """Return the bodies of control flow that a module runs."""
    named = (getattr(module, str(node.target), None) for node in module.graph.find_nodes(op="get_attr"))
    return [each for each in named if isinstance(each, fx.GraphModule)]


def _returned(node: fx.Node) -> list[Any]:
    """Return the specs of the results of a call or of a graph, one for each tensor or number."""
    return list(pytree.tree_leaves(node.meta["spec"]))


def _all(module: fx.GraphModule) -> list[Any]:
    return [spec for node in module.graph.nodes for spec in specs_of(node)]


def _update_lifetimes(task: _Task) -> None:
    """Let ExecuTorch set the lifetimes of a module's specs for its present order."""
    for spec in _all(task.module):
        spec.lifetime = [None, None]
    update_all_tensors_lifetime(task.module, task.signature)


def _restore(module: fx.GraphModule, nodes: Sequence[fx.Node], lifetimes: dict[Any, list[int]]) -> None:
    _arrange(module, nodes)
    for spec, lifetime in lifetimes.items():
        spec.lifetime = lifetime


def _shared(read: ProgramGraph, schedule: Schedule) -> list[tuple[Any, Any]]:
    """Return the pairs of specs, an output and the input in whose place it is written."""
    storage = [read.storage.get(name) for name in read.graph.tensor_names]
    pairs = simulate(read.graph, schedule).in_place.T.tolist()
    return [(storage[output], storage[source]) for _, output, source in pairs]


def _move(module: fx.GraphModule, read: ProgramGraph, schedule: Schedule) -> int:
    """Move the nodes of a module into the order of a schedule; return the number of calls followed by another one.

    Items stand right behind their call. Views, constants and allocations stand before their first reader, allocations
    last.
    """
    old = list(computing(module.graph))
    new = [read.nodes[name] for kind, name in schedule.steps() if kind == "compute" and name in read.nodes]
    items: dict[fx.Node, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if is_item(node):
            items.setdefault(node.args[0] if is_item(node.args[0]) else producer(node), []).append(node)
    sequence: dict[fx.Node, None] = dict.fromkeys(module.graph.find_nodes(op="placeholder"))

    def lead(node: fx.Node) -> None:
        """Add the leaders that a node needs, those of leaders first."""
        waiting = [each for each in node.all_input_nodes if is_leader(each) and each not in sequence]
        for each in sorted(waiting, key=lambda each: each in node.kwargs.values()):
            lead(each)
            sequence[each] = None

    def behind(node: fx.Node) -> None:
        sequence[node] = None
        for each in items.get(node, ()):
            behind(each)

    for node in new:
        lead(node)
        behind(node)
    lead(module.graph.output_node())
    sequence.update(dict.fromkeys(node for node in module.graph.nodes if node.op != "output"))
    _arrange(module, list(sequence))
    place = {node: k for k, node in enumerate(new)}
    return sum(place[a] + 1 != place[b] for a, b in pairwise(old))


def _arrange(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """Put the nodes of a module into an order, and check that each one stands behind those that it reads."""
    last = module.graph.output_node()
    for node in nodes:
        if node is not last:
            last.prepend(node)
    module.graph.lint()
    module.recompile()
