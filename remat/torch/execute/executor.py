"""Execution of any certified schedule of a captured step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree

from remat.errors import ExecutionError, ScheduleError
from remat.runtime.arrays import Int
from remat.schedule import Certificate, Rules, Schedule, StepKind, Verdict, simulate, validate, with_frees
from remat.torch.captured import Captured, Input
from remat.torch.effects import device_of
from remat.torch.execute.step import Step, give_buffers, give_gradients, returned
from remat.torch.execute.tangents import Loss, scalar_outputs, tangents
from remat.torch.layout import Layout
from remat.torch.unrolled import Unrolled, begin_backward, unroll


@dataclass(frozen=True, slots=True)
class OpRun:
    """One run of one op, as told to `on_op`.

    Attributes
    ----------
    step : int
        Position in ``executor.schedule``.
    op : str
    number : int
        0 for its first run, above that for recomputations.
    seconds : float
        How long it took; on an accelerator until the device had finished it.
    """

    step: int
    op: str
    number: int
    seconds: float


OnOp = Callable[[OpRun], None]


class Executor:
    """Runs a captured step in the order, with the recomputations and the frees of a schedule.

    What it holds between two steps of the schedule is what the schedule says is live, to the byte: values that own
    storage; views and items of tuples are derived beside each reader. Random ops that run again draw the numbers of
    their first run. Batch norm that runs again leaves the running statistics alone. Parameters, buffers and inputs are
    never freed nor changed.

    Parameters
    ----------
    captured : Captured
    schedule : Schedule
        Any that the validator finds valid; with frees of its own or with implied ones.
    rules : Rules, optional
        What it must keep to besides (a budget, say).

    Attributes
    ----------
    schedule : Schedule
        With all frees written out.
    certificate : Certificate
    timeline : int64 array, shape (steps,)
        Predicted bytes at each step of `schedule`, workspace included, constant memory not: at a compute, what is held
        while it runs; at a free, what is left after it.

    Raises
    ------
    ScheduleError
        With the first violation, if the schedule is not valid.
    ExecutionError
        Naming the op, if the graph cannot be executed.

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
        self.certificate: Certificate = validate(captured.graph, schedule, rules)
        if self.certificate.verdict is not Verdict.VALID:
            raise ScheduleError(f"the schedule is not executed: {self.certificate.first}", "not-executed")
        self.schedule = with_frees(captured.graph, schedule)
        self.timeline: Int = simulate(captured.graph, self.schedule).memory
        self._unrolled = unroll(captured, self.schedule)

    def __repr__(self) -> str:
        return f"Executor({self.captured.graph.name!r}, {self.schedule.num_computes} computes)"

    # -- calls -----------------------------------------------------------------------------------------------------

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
        """One step; nothing that is given is changed.

        Parameters
        ----------
        parameters, buffers : mapping of str to Tensor
            By name, as the module names them; what is shared is needed under its first name.
        args, kwargs
            As the module takes them.
        loss : callable, optional
            Makes a scalar of what the module returns. Not needed where the module returns one scalar itself. What it
            allocates is not in the schedule's account.
        on_op : callable, optional
            Called after each run of an op.

        Raises
        ------
        ExecutionError
            Naming the parameter, buffer or input that is missing or not as captured; if a loss is needed.
        """
        leaves = _pytree.tree_leaves((tuple(args), dict(kwargs or {})))
        known = {**self.captured.constants, **buffers}
        given = {"parameter": parameters, "buffer": known, "input": {str(i): x for i, x in enumerate(leaves)}}
        inputs = [each for each in self.captured.inputs if each.kind != "tangent"]
        places = self._unrolled.graph.find_nodes(op="placeholder")
        values = {place: _checked(each, given[each.kind]) for place, each in zip(places, inputs, strict=True)}
        run = _Run(self.captured, self._unrolled, loss, on_op)
        with torch.no_grad(), torch._C._DisableAutocast():
            return self._results(run.run(initial_env=values, enable_io_processing=False), run.loss_value)

    def step(
        self,
        module: torch.nn.Module,
        *args: Any,
        loss: Loss | None = None,
        on_op: OnOp | None = None,
        **kwargs: Any,
    ) -> Step:
        """One step of a module: gradients go to ``.grad`` (added, as autograd does), new statistics into its buffers.

        Parameters
        ----------
        module : torch.nn.Module
            The one that was captured, or one with the same parameters and buffers.
        loss, on_op
            As for a call.

        Raises
        ------
        ExecutionError
            As for a call.
        """
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        done = self(parameters, buffers, args, kwargs, loss=loss, on_op=on_op)
        leaves = {str(i): leaf for i, leaf in enumerate(_pytree.tree_leaves((args, kwargs)))}
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
        """Largest of `timeline` at a compute, in bytes."""
        computes = self.schedule.kinds == StepKind.COMPUTE
        return int(self.timeline[computes].max())


class _Run(fx.Interpreter):
    """One run of an unrolled step: frees values where the schedule does, and takes the tangents from a loss."""

    def __init__(self, captured: Captured, unrolled: Unrolled, loss: Loss | None, on_op: OnOp | None) -> None:
        super().__init__(captured.module, garbage_collect_values=False, graph=unrolled.graph)
        self.extra_traceback = False
        self.loss_value: Any = None
        self._captured, self._unrolled, self._loss, self._on_op = captured, unrolled, loss, on_op
        devices = {device_of(node) for node in captured.nodes if node is not None}
        self._accelerators = [torch.device(device) for device in devices if device != "cpu"]

    def run_node(self, n: fx.Node) -> Any:
        """Free what is freed before a node, and run it."""
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
        """Call an op, or make the tangents."""
        if target is not begin_backward:
            return super().call_function(target, args, kwargs)
        self.loss_value, found = tangents(self._captured, args, self._loss)
        return found

    def _now(self) -> float:
        """Return the time when all accelerators in use are idle."""
        for device in self._accelerators:
            torch.get_device_module(device.type).synchronize(device)
        return time.perf_counter()


def _checked(each: Input, given: Mapping[str, Any]) -> Any:
    """The value for a placeholder, if it is like the one that was captured."""
    if each.name not in given:
        raise ExecutionError(f"{each.kind} {each.name!r} is missing", "missing")
    value, sample = given[each.name], each.node.meta["val"]
    if not isinstance(sample, torch.Tensor):
        if value != sample:
            raise ExecutionError(f"{each.kind} {each.name!r} is {value!r}; the graph was captured with {sample!r}")
        return value
    if not isinstance(value, torch.Tensor):
        raise ExecutionError(f"{each.kind} {each.name!r} is no tensor but a {type(value).__name__}", "unlike-capture")
    difference = _layout(sample).difference(_layout(value))
    if difference:
        raise ExecutionError(f"{each.kind} {each.name!r} has {difference} as in the captured graph", "unlike-capture")
    return value.detach()


def _layout(tensor: torch.Tensor) -> Layout:
    """Layout as far as ops see it: the kind of device, and strides of dimensions with more than one element."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    strides = tuple(stride if length > 1 else 0 for stride, length in pairs) if tensor.numel() else ()
    return Layout.of(tensor)._replace(strides=strides, device=torch.device(tensor.device.type))
