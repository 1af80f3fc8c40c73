"""Buffers that a program of Inductor allocates, simulated before it is written, and workspaces of its library calls."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from remat.torch.costs.calls import Call
from remat.torch.costs.measured import call_workspaces
from remat.torch.private import BaseSchedulerNode, Kernel, OrderedSet, SchedulerBuffer, V, pytree
from remat.torch.private import inductor_ir as ir
from remat.torch.private import inductor_wrapper as lines


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

    def with_workspaces(self, sizes: Mapping[str, int]) -> int:
        """Return the peak if given gradients are freed, and the calls have workspaces of these sizes in bytes."""
        return max(self.freed, *(live[1] + sizes[key] for key, live in self.at_calls.items()), 0)


def workspaces(order: list[Any]) -> dict[str, int]:
    """Return the workspaces of library calls in bytes, by the keys of :attr:`Allocated.at_calls`.

    Each distinct call runs twice, alone, on tensors of the layouts that Inductor chose, on this machine. A call that
    cannot run counts 0, with a remark.
    """
    calls = {key: _call(node.node) for node in order if node.is_extern() and (key := _workspace_key(node))}
    known = {key: call for key, call in calls.items() if call is not None}
    return dict.fromkeys(calls, 0) | dict(zip(known, call_workspaces(list(known.values())), strict=True))


def _call(kernel: Any) -> Call | None:
    """Return the call of an op of PyTorch; None for other code."""
    if kernel.op_overload is None:
        return None
    tensors = [_fake(each.get_layout()) for each in kernel.inputs]
    if isinstance(kernel, ir.FallbackKernel):
        args, kwargs = kernel.unflatten_args(tensors, kernel.constant_args)
    else:
        args, kwargs = (*tensors, *kernel.constant_args), dict(kernel.kwargs)
        if isinstance(kernel, ir.ExternKernelOut):
            kwargs["out"] = _fake(kernel.get_layout())
    return Call(kernel.get_name(), kernel.op_overload, tuple(args), kwargs, None)


def _fake(layout: Any) -> torch.Tensor:
    """Return a fake tensor of a layout."""
    size, stride = map(V.graph.sizevars.optimization_hints, (layout.size, layout.stride))
    with V.fake_mode:
        return torch.empty_strided(size, stride, dtype=layout.dtype, device=layout.device)


def allocated(scheduler: Any, order: list[Any], freeable: Mapping[str, Any]) -> Allocated:
    """Simulate the buffers that the compiled program allocates in an order of the scheduler's ops.

    Inductor's own code decides which results are written in place, and which buffers are used again, on a program
    without text.

    Parameters
    ----------
    freeable : mapping of str to object
        Inputs that the program frees, as ``prepare_planning_info`` returns them.
    """
    with _scratch(scheduler, order) as program:
        return _Allocations(scheduler, freeable, program).simulated(order)


@contextmanager
def _scratch(scheduler: Any, order: list[Any]) -> Iterator[Any]:
    """Give the scheduler an order and an empty program; restore its state afterwards."""
    graph = V.graph
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

    def __init__(self, scheduler: Any, freeable: Mapping[str, Any], program: Any) -> None:
        self.scheduler, self.program, self.freeable = scheduler, program, freeable
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
        # Inductor's own size of an input is what one of its readers reads, which can be a part of it.
        inputs = {name: size(each) for name, each in V.graph.graph_inputs.items() if name in self.freeable}
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
