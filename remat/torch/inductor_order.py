"""Order of least peak for Inductor, the compiler of PyTorch, as a pass of its scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat._version import __version__
from remat.graphs.arrays import Csr
from remat.ordering.instance import OrderInstance
from remat.ordering.valley import Portfolio
from remat.runtime.arrays import Int
from remat.runtime.compiled import begin
from remat.runtime.deadline import Deadline
from remat.torch.inductor_allocations import Allocated, allocated
from remat.torch.private import (
    CustomSchedulerPass,
    OrderedSet,
    V,
    contains_collective,
    contains_wait,
    get_hash_for_files,
)
from remat.torch.private import inductor_config as config
from remat.torch.private import inductor_ir as ir
from remat.torch.private import inductor_memory as memory


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
        """Simulate the buffers that the compiled program allocates in an order."""
        return allocated(self.scheduler, order, self.freeable)


def _rows(pairs: list[tuple[int, int]], count: int) -> Csr:
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Csr.from_pairs(both[:, 0], both[:, 1], count)
