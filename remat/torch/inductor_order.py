"""Order of least peak for Inductor, the compiler of PyTorch, as a pass of its scheduler."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from remat._version import __version__
from remat.graphs.arrays import Csr
from remat.ordering.instance import OrderInstance
from remat.ordering.valley import Portfolio
from remat.runtime.arrays import Int
from remat.runtime.compiled import begin
from remat.runtime.deadline import Deadline
from remat.torch.private import (
    BaseSchedulerNode,
    CustomSchedulerPass,
    Kernel,
    OrderedSet,
    SchedulerBuffer,
    V,
    contains_collective,
    contains_wait,
    get_hash_for_files,
    pytree,
)
from remat.torch.private import inductor_config as config
from remat.torch.private import inductor_ir as ir
from remat.torch.private import inductor_memory as memory
from remat.torch.private import inductor_wrapper as lines


@dataclass(frozen=True)
class OrderedGraph:
    """Result for one graph; all numbers but `ops` are in bytes, without parameters and other inputs that stay.

    Attributes
    ----------
    ops : int
        Number of ops after fusion.
    estimate : int
        Inductor's estimate of the peak of its own order, which knows neither buffers used again nor results in place.
    least : int
        The lowest such estimate of an order found.
    bound : int
        No order has a lower estimate.
    allocated : int
        Peak of the buffers that the compiled program allocates in Inductor's own order.
    chosen : int
        Likewise in the order chosen; equal to `allocated` where Inductor's own order stays.
    """

    ops: int
    estimate: int
    least: int
    bound: int
    allocated: int
    chosen: int

    @property
    def already_least(self) -> bool:
        """True if no order has a lower estimate than Inductor's own."""
        return self.estimate <= self.bound

    def __str__(self) -> str:
        status = "already least" if self.already_least else f"least found {self.least:,}, bound {self.bound:,}"
        kept = "kept" if self.chosen == self.allocated else f"{self.chosen:,} in the new order"
        return f"{self.ops} ops: estimate {self.estimate:,} ({status}); allocated {self.allocated:,}, {kept}"


class InductorOrder(CustomSchedulerPass):
    """Pass that orders the fused ops of each graph for the least memory; see :func:`inductor_order`.

    `graphs` has a result for each graph compiled, but not for those from Inductor's cache.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.graphs: list[OrderedGraph] = []

    def uuid(self) -> bytes:
        """Return a key for Inductor's cache of compiled graphs."""
        key: bytes = get_hash_for_files((__file__,), f"remat {__version__} {self.seconds}")
        return key

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """Return the ops in an order that allocates less, or the given list."""
        if len(nodes) < 2 or any(contains_collective(node) or contains_wait(node) for node in nodes):
            return nodes  # all ranks must run collectives in the same order
        clock, graph = Deadline.after(self.seconds), SchedulerGraph(nodes)
        own = graph.final(nodes)
        estimate, before = graph.estimate(own), graph.allocated(own)
        bound, found = graph.searched(clock.earlier(SEARCH_SHARE * clock.remaining))
        best, chosen = nodes, before.peak
        for number, (_, order) in enumerate(reversed(found)):
            if number and clock.expired:
                break
            allocated = graph.allocated(graph.final(order))
            if allocated.improves(before) and allocated.peak < chosen:
                best, chosen = order, allocated.peak
        least = min([estimate, *(peak for peak, _ in found)])
        self.graphs.append(OrderedGraph(len(nodes), estimate, least, bound, before.peak, chosen))
        return best


#: Share of the time for the search, and number of orders found last whose allocations are simulated.
SEARCH_SHARE, MOST_EVALUATED = 0.7, 4


def inductor_order(seconds: float = 1.0) -> InductorOrder:
    """Return a pass for ``torch._inductor.config._post_fusion_custom_pass`` that orders ops for the least memory.

    The pass searches for an order with the least peak by Inductor's own estimate, in which a buffer lives from the op
    that allocates it to its last reader. Then it simulates the allocations of the program that Inductor would write,
    with buffers used again and results in place. An order replaces Inductor's only if that peak is lower, both if the
    gradients given to a backward pass are freed at their last use and if they are held. No library call that may have a
    workspace may start with more bytes than the worst of its kind did. Graphs with collective ops keep their order.

    Parameters
    ----------
    seconds : float
        Most seconds per graph. Kernels of the search that are not compiled yet are compiled meanwhile; ``remat
        warm-up`` does so beforehand.

    Examples
    --------
    >>> import torch
    >>> from torch._inductor import config
    >>> from remat.torch import inductor_order
    >>> with config.patch(_post_fusion_custom_pass=(order := inductor_order())):
    ...     compiled = torch.compile(torch.nn.Linear(3, 3))  # run it here
    >>> order.graphs
    []
    """
    return InductorOrder(seconds)


class Allocated(NamedTuple):
    """Bytes of the buffers that a program allocates.

    Attributes
    ----------
    peak : int
        At the peak, if the caller holds the inputs that Inductor takes for held.
    freed : int
        Likewise if gradients given to the backward pass are freed after their last reader, as autograd's are.
    at_calls : dict of str to tuple of int
        Both at calls with a workspace of unknown size, the most of all calls with the same sizes.
    """

    peak: int
    freed: int
    at_calls: dict[str, tuple[int, int]]

    def improves(self, other: Allocated) -> bool:
        """Return True if both peaks are lower, and would not be higher whatever the sizes of the workspaces are."""
        calls = ((self.at_calls[key], other.at_calls[key]) for key in self.at_calls)
        return (
            self.peak < other.peak
            and self.freed < other.freed
            and all(now[0] <= then[0] and now[1] <= then[1] for now, then in calls)
        )


class SchedulerGraph:
    """Fused ops of Inductor's scheduler with their buffers, while it runs."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes, self.scheduler = list(nodes), V.graph.scheduler
        self.inputs, self.outputs = OrderedSet(V.graph.graph_inputs), OrderedSet(V.graph.get_output_names())
        _, self.freeable = memory.prepare_planning_info(
            self.nodes, self.scheduler.name_to_buf, self.scheduler.name_to_fused_node, self.inputs, self.outputs
        )

    def estimate(self, order: list[Any]) -> int:
        """Return Inductor's estimate of the peak of an order in bytes."""
        peak: int = memory.estimate_peak_memory(order, self.freeable, self.outputs)[0]
        return peak

    def final(self, order: list[Any]) -> list[Any]:
        """Return the order that Inductor will use after the pass returns `order`: it tries three more."""
        if not config.reorder_for_peak_memory:
            return order
        names = self.scheduler.name_to_buf, self.scheduler.name_to_fused_node
        found: list[Any] = memory.reorder_for_peak_memory(order, *names, self.inputs, self.outputs)
        return found

    def searched(self, deadline: Deadline) -> tuple[int, list[tuple[int, list[Any]]]]:
        """Return a bound for the estimates of all orders, and the last orders found with theirs, each the best yet."""
        instance, search = self.instance(), Portfolio()
        found: list[tuple[int, list[Any]]] = []

        def keep(order: Int, peak: int) -> bool:
            found.append((peak, [self.nodes[op] for op in order.tolist()]))
            return False

        if not search.prepared(deadline):
            begin(*search.kernels)
            return instance.structural_bound, []
        bound = search.search(instance, deadline=deadline, on_order=keep).bound
        return bound, found[-MOST_EVALUATED:]

    def instance(self) -> OrderInstance:
        """Return the ordering problem whose peaks are Inductor's estimates, ops numbered in the given order."""
        number = {node: at for at, node in enumerate(self.nodes)}
        sizes: list[int] = []
        kept: list[bool] = []
        writes: list[tuple[int, int]] = []
        reads: list[tuple[int, int]] = []

        def add(buffer: Any, writer: int | None, readers: set[int]) -> None:
            if buffer.mpi_buffer.size_free:
                if writer is not None:
                    writes.append((writer, len(sizes)))
                reads.extend((reader, len(sizes)) for reader in sorted(readers - {writer}))
                sizes.append(buffer.mpi_buffer.size_free)
                kept.append(buffer.get_name() in self.outputs)

        for buffer in self.freeable.values():
            add(buffer, None, {number[node] for node in buffer.mpi_buffer.succ_nodes})
        live = len(sizes)
        for node in self.nodes:
            for buffer in node.get_outputs():
                readers = {number[each] for each in buffer.mpi_buffer.succ_nodes}
                add(buffer, number[self._allocating(buffer, node)], readers | {number[node]})
        before = [(at, number[each]) for at, node in enumerate(self.nodes) for each in node.mpi_node.pred_nodes]
        ops, tensors = len(self.nodes), len(sizes)
        return OrderInstance(
            np.array(sizes, dtype=np.int64), np.zeros(ops, dtype=np.int64),
            _rows(reads, ops), _rows(writes, ops), _rows(before, ops),
            live=np.arange(tensors) < live, kept=np.array(kept, dtype=np.bool_), held=0,
            ops=np.arange(ops), tensors=np.arange(tensors),
        )  # fmt: skip

    def _allocating(self, buffer: Any, node: Any) -> Any:
        """Return the op that allocates a buffer: for one of several results, the op that makes them all."""
        while not buffer.mpi_buffer.size_alloc and isinstance(buffer.node, ir.MultiOutput):
            buffer = self.scheduler.name_to_buf[buffer.node.inputs[0].get_name()]
            node = self.scheduler.name_to_fused_node[buffer.defining_op_name()]
        return node

    def allocated(self, order: list[Any]) -> Allocated:
        """Simulate the buffers that the compiled program allocates in an order.

        Inductor's own code decides which results are written in place, and which buffers are used again, on a program
        without text.
        """
        with self._scratch(order) as program:
            return _Allocations(self, program).simulated(order)

    @contextmanager
    def _scratch(self, order: list[Any]) -> Iterator[Any]:
        """Give the scheduler an order and an empty program; restore its state afterwards."""
        graph, scheduler = V.graph, self.scheduler
        saved = graph.wrapper_code, graph.removed_buffers, scheduler.nodes, scheduler.current_node
        completed = scheduler.completed_operations
        program = copy.copy(graph.wrapper_code)
        program.lines, program.reuses = [], {}
        program.allocated, program.freed = OrderedSet(), OrderedSet()
        try:
            graph.wrapper_code, graph.removed_buffers = program, OrderedSet(graph.removed_buffers)
            scheduler.nodes, scheduler.completed_operations = order, OrderedSet()
            scheduler.compute_last_usage()
            program.estimate_peak = lines.EfficientPeakEstimate()
            yield program
        finally:
            graph.wrapper_code, graph.removed_buffers, scheduler.nodes, scheduler.current_node = saved
            scheduler.completed_operations = completed


class _Allocations:
    """Allocations and frees of a program, in sequence."""

    def __init__(self, graph: SchedulerGraph, program: Any) -> None:
        self.scheduler, self.program, self.freeable = graph.scheduler, program, graph.freeable
        self.waiting: OrderedSet[str] = OrderedSet()

    def simulated(self, order: list[Any]) -> Allocated:
        for node in order:
            alone = node.is_extern() or node.is_template()
            if alone:
                self._free()
            self.scheduler.current_node = node
            self.waiting.update(node.last_usage)
            self._run(node, alone)
            self.scheduler.completed_operations.update(node.get_operation_names())
            device = node.get_device()
            # on a CPU consecutive loops become one function, which allocates all results first
            if alone or (device is not None and device.type != "cpu"):
                self._free()
        self._free()
        state = lines.MemoryPlanningState()
        return self._highest(
            [each.plan(state) if isinstance(each, lines.MemoryPlanningLine) else each for each in self.program.lines]
        )

    def _run(self, node: Any, alone: bool) -> None:
        """Write the allocations of an op; results that no other op reads are none, unless it runs alone."""
        with V.set_kernel_handler(Kernel(increase_kernel_count=False)):
            for part in node.get_nodes():
                part.decide_inplace_update()
                part.mark_run()
            replaced = V.kernel.args.inplace_buffers
        if not alone:
            inner = self._inner(node)
            V.graph.removed_buffers.update(
                name for name in inner if name not in replaced or set(replaced[name].other_names) <= inner
            )
        for buffer in node.get_outputs():
            if buffer.get_name() not in self.program.allocated | V.graph.removed_buffers:
                self.program.writeline(buffer)  # allocated by the call
        if alone:
            self.program.writeline(node)

    def _inner(self, node: Any) -> set[str]:
        """Return the buffers of an op that are never stored, since one loop writes and reads them."""
        loop: dict[str, int] = {}
        for part in node.get_nodes():
            made = {each.name: self.scheduler.name_to_buf.get(each.name) for each in part.read_writes.reads}
            makers = [each.defining_op for each in made.values() if each is not None]
            loop[part.get_name()] = max(
                (loop[each.get_name()] + each.is_reduction() for each in makers if each.get_name() in loop), default=0
            )
        fused = OrderedSet(node.get_operation_names())
        return {
            buffer.get_name()
            for buffer in node.get_outputs()
            if self.scheduler.can_buffer_be_removed_through_fusion(buffer.get_name(), fused)
            and {loop.get(each.get_name()) for each in buffer.users} <= {loop.get(buffer.defining_op_name())}
        }

    def _free(self) -> None:
        """Write the frees that wait for the end of a function."""
        self.scheduler.buffer_names_to_free = self.waiting
        self.scheduler.free_buffers()
        self.waiting = OrderedSet()

    def _highest(self, planned: list[Any]) -> Allocated:
        """Simulate a program after the plan of which buffers are used again."""
        size = self.program.estimate_peak._get_size
        inputs = {name: buffer.mpi_buffer.size_free for name, buffer in self.freeable.items()}
        given = {name: size(each) for name, each in V.graph.graph_inputs.items() if name.startswith("tangents_")}
        (peak, at_calls), (freed, later) = self._followed(planned, inputs), self._followed(planned, given | inputs)
        return Allocated(peak, freed, {key: (live, later[key]) for key, live in at_calls.items()})

    def _followed(self, planned: list[Any], held: dict[str, int]) -> tuple[int, dict[str, int]]:
        """Return the peak of a program, and the bytes live at its calls, from the inputs that it frees."""
        at_calls: dict[str, int] = {}
        held = dict(held)
        live = peak = sum(held.values())
        for line in planned:
            if isinstance(line, SchedulerBuffer):
                live += line.mpi_buffer.size_alloc
                held[line.get_name()] = line.mpi_buffer.size_free
            elif isinstance(line, lines.AllocateLine):
                held[line.node.get_name()] = self.program.estimate_peak._get_size(line.node)
                live += held[line.node.get_name()]
            elif isinstance(line, lines.ReuseLine):
                held[line.reused_as.get_name()] = held.pop(line.node.get_name(), 0)
            elif isinstance(line, lines.FreeLine | lines.FreeIfNotReusedLine) and not getattr(line, "is_reused", False):
                live -= held.pop(line.node.get_name(), 0)
            elif isinstance(line, BaseSchedulerNode) and (key := _workspace_key(line)):
                at_calls[key] = max(live, at_calls.get(key, 0))
            peak = max(peak, live)
        return int(peak), at_calls


def _workspace_key(node: Any) -> str:
    """Return a text that is equal for calls with equal workspaces; empty if there is none.

    On a CPU, products of matrices of 32 or 64 bits whose rows or columns are contiguous need none of the allocator.
    """
    call = node.node
    if isinstance(call, ir.MultiOutput | ir.NopKernel):
        return ""
    layouts = [
        each.maybe_get_layout() for each in (*pytree.tree_leaves(call.inputs), call) if isinstance(each, ir.IRNode)
    ]
    if str(call.python_kernel_name).removeprefix("extern_kernels.") in PRODUCTS and all(map(_plain, layouts)):
        return ""
    return f"{call.python_kernel_name} {layouts} {call.constant_args} {call.kwargs}"


#: Calls for products of matrices.
PRODUCTS = ("mm", "addmm", "bias_addmm", "bmm", "baddbmm")


def _plain(layout: Any) -> bool:
    """Return True if BLAS reads matrices where they are: on a CPU, and each with contiguous rows or columns."""
    if layout is None or layout.device.type != "cpu" or layout.dtype not in (torch.float32, torch.float64):
        return False
    sizes, strides = (V.graph.sizevars.optimization_hints(each) for each in (layout.size[-2:], layout.stride[-2:]))
    return len(sizes) < 2 or any(
        strides[one] == 1 and strides[other] >= max(1, sizes[one]) for one, other in ((0, 1), (1, 0))
    )


def _rows(pairs: list[tuple[int, int]], count: int) -> Csr:
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Csr.from_pairs(both[:, 0], both[:, 1], count)
