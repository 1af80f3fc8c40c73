"""Execution of any certified schedule of a captured step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from remat.errors import ExecutionError, ScheduleError
from remat.runtime.arrays import Int
from remat.schedule import Certificate, Rules, Schedule, StepKind, Verdict, simulate, validate
from remat.torch.captured import Captured, Input, Layout
from remat.torch.effects import device_of
from remat.torch.execute.host import host_memory, host_space
from remat.torch.execute.step import Loss, Step, give_buffers, give_gradients, returned, scalar_outputs, tangents
from remat.torch.execute.unrolled import Unrolled, begin_backward, unroll
from remat.torch.private import DisableAutocast, pytree
from remat.torch.transfers.host_plan import HostPlan


@dataclass(frozen=True, slots=True)
class OpRun:
    """One run of one op, as passed to `on_op`.

    Attributes
    ----------
    step : int
        Position in ``executor.schedule``.
    op : str
    number : int
        0 for its first run, above that for recomputations.
    seconds : float
        Run time; on an accelerator until the device has finished.
    """

    step: int
    op: str
    number: int
    seconds: float


OnOp = Callable[[OpRun], None]


class Executor:
    """Runs a captured step with the order, recomputations and frees of a schedule.

    Between two steps of the schedule it holds exactly the live tensors, to the byte: values that own storage. Views and
    items of tuples are derived again at each reader. A random op that runs again draws the numbers of its first run.
    Batch norm that runs again leaves the running statistics unchanged. Parameters, buffers and inputs are never freed
    or changed. Tensors move to pinned host memory and back on streams of their own, next to the computation; on a CPU,
    copies end at once.

    Parameters
    ----------
    captured : Captured
    schedule : Schedule
        Any valid schedule, with its own frees or implied ones.
    rules : Rules, optional
        Further rules that the schedule must keep, for example a budget.

    Attributes
    ----------
    schedule : Schedule
        The schedule with all frees and discards written out, without copies to the host that no step reads.
    certificate : Certificate
    timeline : int64 array, shape (steps,)
        Predicted bytes at each step of `schedule`, with workspaces and without constant memory: at a compute, the
        memory held while it runs; at another step, the memory after it.
    host : HostMemory or None
        Memory for copies on the host; None if the schedule moves no tensor.

    Raises
    ------
    ScheduleError
        With the first violation, if the schedule is invalid.
    ExecutionError
        With the name of the op, if the graph cannot be executed.

    Examples
    --------
    >>> import torch, remat.torch
    >>> from remat.schedule import Schedule
    >>> module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> captured = remat.torch.capture(module, (torch.ones(2, 4),))
    >>> executor = remat.torch.Executor(captured, Schedule.reference(captured.graph))
    >>> step = executor.step(module, torch.ones(2, 4), loss=lambda y: y.sum())
    >>> sorted(step.gradients), module[0].weight.grad.shape
    (['0.bias', '0.weight', '2.bias', '2.weight'], torch.Size([8, 4]))
    """

    def __init__(self, captured: Captured, schedule: Schedule, rules: Rules | None = None) -> None:
        self.captured = captured
        spread = next((each for each in captured.inputs if each.spread is not None), None)
        if spread is not None:
            raise ExecutionError(
                f"{spread.kind} {spread.name!r} is distributed (DTensor), and an Executor runs on plain tensors: use "
                "rematerialize or rematerialize_blocks",
                "distributed",
            )
        self.certificate: Certificate = validate(captured.graph, schedule, rules)
        if self.certificate.verdict is not Verdict.VALID:
            raise ScheduleError(f"the schedule is not executed: {self.certificate.first}", "not-executed")
        plan = HostPlan.of(captured.graph, schedule)
        self.schedule = plan.schedule
        self.timeline: Int = simulate(captured.graph, self.schedule).memory
        machine = None if rules is None else rules.machine
        self.host = host_memory(captured, plan, full_duplex=machine is None or machine.full_duplex)
        self._unrolled = unroll(captured, plan)

    def __repr__(self) -> str:
        return f"Executor({self.captured.graph.name!r}, {self.schedule.num_computes} computes)"

    def __call__(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        loss: Loss | None = None,
        on_op: OnOp | None = None,
    ) -> Step:
        """Run one step; the arguments remain unchanged.

        Parameters
        ----------
        parameters, buffers : mapping of str to Tensor
            Tensors by their names in the module; a shared one has its first name.
        args, kwargs
            Arguments of the module.
        loss : callable, optional
            Function of the module's return value that returns a scalar. Not needed if the module returns a single
            scalar itself. The schedule does not count its allocations.
        on_op : callable, optional
            Called after each run of an op.

        Raises
        ------
        ExecutionError
            With the name of a parameter, buffer or input that is missing or unlike the captured one; or if a loss is
            needed.
        """
        leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
        known = {**self.captured.constants, **buffers}
        given = {"parameter": parameters, "buffer": known, "input": {str(i): x for i, x in enumerate(leaves)}}
        inputs = [each for each in self.captured.inputs if each.kind != "tangent"]
        places = self._unrolled.inputs
        values = {place: _checked(each, given[each.kind]) for place, each in zip(places, inputs, strict=True)}
        run = _Run(self.captured, self._unrolled, loss, on_op)
        with torch.no_grad(), DisableAutocast(), host_space(self.host) as space:
            if self._unrolled.space is not None:
                values[self._unrolled.space] = space
            del space
            return self._results(run.run(initial_env=values, enable_io_processing=False), run.loss_value)

    def step(
        self, module: torch.nn.Module, *args: Any, loss: Loss | None = None, on_op: OnOp | None = None, **kwargs: Any
    ) -> Step:
        """Run one step of a module; add gradients to ``.grad``, as autograd does; copy new statistics to its buffers.

        Parameters
        ----------
        module : torch.nn.Module
            The captured module, or one with the same parameters and buffers.
        loss, on_op
            As for a call.

        Raises
        ------
        ExecutionError
            As for a call.
        """
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        done = self(parameters, buffers, args, kwargs, loss=loss, on_op=on_op)
        leaves = {str(i): leaf for i, leaf in enumerate(pytree.tree_leaves((args, kwargs)))}
        give_gradients({**leaves, **parameters}, done.gradients)
        give_buffers({**self.captured.constants, **buffers}, done.buffers)
        give_buffers(leaves, done.inputs)
        return done

    def _results(self, values: Sequence[Any], loss: Any) -> Step:
        outputs: list[Any] = []
        named: dict[str, dict[str, Any]] = {"gradient": {}, "buffer": {}, "input": {}}
        is_buffer = {each.name for each in self.captured.inputs_of("buffer")}
        for each, value in zip(self.captured.results, values, strict=True):
            if each.kind == "output":
                outputs.append(each.value if each.node is None else value)
            elif each.node is not None:
                kind = each.kind if each.kind == "gradient" else "buffer" if each.name in is_buffer else "input"
                named[kind][each.name] = value
        own = scalar_outputs(self.captured)
        if loss is None and len(own) == 1:
            loss = outputs[own[0]]
        return Step(returned(self.captured, outputs), loss, named["gradient"], named["buffer"], named["input"])

    @property
    def predicted_peak(self) -> int:
        """Largest value of `timeline` at a compute or fetch, in bytes."""
        allocates = (self.schedule.kinds == StepKind.COMPUTE) | (self.schedule.kinds == StepKind.FETCH)
        return int(self.timeline[allocates].max())


class _Run(fx.Interpreter):
    """Interpreter of an unrolled step: frees values as scheduled, and computes the tangents from a loss."""

    def __init__(self, captured: Captured, unrolled: Unrolled, loss: Loss | None, on_op: OnOp | None) -> None:
        super().__init__(captured.module, garbage_collect_values=False, graph=unrolled.graph)
        self.extra_traceback = False
        self.loss_value: Any = None
        self._captured, self._unrolled, self._loss, self._on_op = captured, unrolled, loss, on_op
        devices = {device_of(node) for node in captured.nodes if node is not None}
        self._accelerators = [torch.device(device) for device in devices if device != "cpu"]

    def run_node(self, n: fx.Node) -> Any:
        """Free the values that the schedule frees before a node, and run it."""
        for each in self._unrolled.frees.get(n, ()):
            del self.env[each]
        run = self._unrolled.runs.get(n)
        if run is None or self._on_op is None:
            return super().run_node(n)
        begun = self._now()
        result = super().run_node(n)
        self._on_op(OpRun(*run, self._now() - begun))
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an op, or compute the tangents."""
        if target is not begin_backward:
            return super().call_function(target, args, kwargs)
        self.loss_value, found = tangents(self._captured, args, self._loss)
        return found

    def _now(self) -> float:
        """Wait until all accelerators in use are idle; return the time."""
        for device in self._accelerators:
            torch.get_device_module(device.type).synchronize(device)
        return time.perf_counter()


def _checked(each: Input, given: Mapping[str, Any]) -> Any:
    """Return the value for a placeholder if it is like the captured one."""
    if each.name not in given:
        raise ExecutionError(f"{each.kind} {each.name!r} is missing", "missing")
    value, sample = given[each.name], each.node.meta["val"]
    if not isinstance(sample, torch.Tensor):
        if value != sample:
            raise ExecutionError(f"{each.kind} {each.name!r} is {value!r}; the graph was captured with {sample!r}")
        return value
    if not isinstance(value, torch.Tensor):
        raise ExecutionError(f"{each.kind} {each.name!r} is a {type(value).__name__}, not a tensor", "unlike-capture")
    difference = _layout(sample).difference(_layout(value))
    if difference:
        raise ExecutionError(f"{each.kind} {each.name!r} has {difference} as in the captured graph", "unlike-capture")
    return value.detach()


def _layout(tensor: torch.Tensor) -> Layout:
    """Return the layout as ops see it: the kind of device, and strides of dimensions with more than one element."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    strides = tuple(stride if length > 1 else 0 for stride, length in pairs) if tensor.numel() else ()
    return Layout.of(tensor)._replace(strides=strides, device=torch.device(tensor.device.type))
