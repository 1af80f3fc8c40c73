"""Method ``torch-min-cut``: torch's partitioner on any training graph."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np

from remat.errors import CaptureError, ProblemError
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline
from remat.runtime.text import one_line
from remat.schedule import Schedule
from remat.schedule.saved_sets import schedule_of_saved
from remat.torch.lock import in_turn
from remat.torch.versions import check_version

#: Seconds per op that one uninterruptible partition may take: 0.4 s on 71 ops, 1.6 s on 353.
SECONDS_PER_OP = 0.005


@dataclass(frozen=True)
class TorchMinCutOptions(Options):
    """Options of :class:`TorchMinCut`."""

    knobs: tuple[Annotated[float, Range(0, 1)], ...] = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
    """Values of torch's ``activation_memory_budget``, tried in turn."""
    solver: Literal["dp", "greedy", "ilp", "dp_knapsack_sliding_hirschberg"] = "dp"
    """Solver of the knapsack (``activation_memory_budget_solver``)."""


class TorchMinCut(Heuristic):
    """The partitioner of ``torch.compile``: a knapsack over what the forward pass saves, and a minimum cut.

    Torch receives the graph as a joint graph of forward and backward pass. Each op is a matrix product whose runtime
    is the cost of the op; an op of cost 0 is an addition, which torch recomputes freely. Ops that may run only once are
    tagged to be saved. For each value of `knobs` torch chooses the *saved set*. The backward pass recomputes the other
    tensors, each op at most once and right before its first reader
    (:func:`remat.schedule.saved_sets.schedule_of_saved`). The result is the cheapest schedule within the budget.

    Torch's budget is a share of saved bytes, not a peak, so it may happen that no knob fits. For a captured step,
    :func:`remat.torch.peers.partitioner_schedule` lets torch decide by its own classes of ops.

    Needs the extra ``torch``. For training graphs without accumulation buffers.

    Source: ``torch/_functorch/partitioners.py``, ``min_cut_rematerialization_partition``, of the PyTorch installed.

    Examples
    --------
    >>> from remat.graphs.zoo import unet
    >>> problem = Problem(unet(), "70%")
    >>> certificate = problem.validate(TorchMinCut().run(problem, HeuristicRun()))
    >>> str(certificate.verdict), round(certificate.overhead, 2)
    ('valid', 1.82)
    """

    name = "torch-min-cut"
    options_type = TorchMinCutOptions

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        try:
            check_version()
        except CaptureError as error:
            raise ProblemError(f"{self.name}: {error}", "no-torch") from None
        needed = SECONDS_PER_OP * len(problem.graph.ops)
        joint, best, seen = _JointGraph(problem), Best(problem, run, problem.graph.base_cost), set[frozenset[str]]()
        for knob in self.options.knobs:
            if run.deadline.remaining < needed:
                break
            began = run.deadline.elapsed
            saved = joint.saved(knob, self.options.solver)
            if saved not in seen:
                seen.add(saved)
                meta = {"torch": version("torch"), "activation_memory_budget": knob, "solver": self.options.solver}
                best.offer(replace(joint.schedule(saved, self.name), meta=meta))
            if best.enough:
                break
            needed = max(needed, run.deadline.elapsed - began)
        return best.schedule

    def prepared(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
        """Wait for the import of torch, at most until the deadline; also true without torch, which `run` refuses."""
        if "functorch.compile" in sys.modules or find_spec("torch") is None:
            return True
        if on_wait is not None:
            on_wait()
        loading = threading.Thread(target=_load, daemon=True)
        loading.start()
        loading.join(None if deadline is None or math.isinf(deadline.remaining) else max(0.0, deadline.remaining))
        return not loading.is_alive()


def _load() -> None:
    with contextlib.suppress(Exception):  # run() raises and reports it
        import_module("functorch.compile")
        _estimator([])


class _JointGraph:
    """Training step in the form that torch's partitioner takes.

    Raise ProblemError for other graphs, if several ops write one buffer, or if the partitioner fails.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.graph, self.step = problem, problem.graph, TrainingStep.of(problem)
        shared = np.flatnonzero(self.graph.arrays.producers.counts > 1)
        if len(shared):
            raise ProblemError(
                f"torch's partitioner has no buffers that several ops write, such as "
                f"{self.graph.tensor_names[shared[0]]!r}",
                "buffer",
            )
        self.order = self.graph.arrays.order.tolist()
        self.first_backward = self.step.first_backward

    @cached_property
    def ends(self) -> tuple[list[int], list[int]]:
        """Tensors that forward and backward pass return: outputs, and tensors without a reader in their own pass."""
        arrays, ends = self.graph.arrays, ([], [])  # type: tuple[Any, tuple[list[int], list[int]]]
        writer = arrays.position[arrays.producers.indices]
        for tensor, place in zip(np.flatnonzero(arrays.producers.counts).tolist(), writer.tolist(), strict=True):
            backward = place >= self.first_backward
            readers = arrays.position[arrays.consumers[tensor]]
            own = readers if backward else readers[readers < self.first_backward]
            if not len(own) or self.problem.kept[tensor]:
                ends[backward].append(tensor)
        return ends

    @in_turn
    def saved(self, knob: float, solver: str) -> frozenset[str]:
        """Return the tensors of the forward pass that torch saves with this budget."""
        from functorch.compile import min_cut_rematerialization_partition

        from remat.torch.private import TracingContext, detect_fake_mode, functorch_config, tracing

        module = self._module()
        values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        count = len(self.ends[0])
        try:
            with (
                functorch_config.patch(
                    activation_memory_budget=float(knob), activation_memory_budget_solver=solver, cse=False,
                    activation_memory_budget_runtime_estimator=_estimator([op.cost for op in self.graph.ops]),
                ),
                tracing(TracingContext(detect_fake_mode(values))),
            ):  # fmt: skip
                forward, _ = min_cut_rematerialization_partition(module, None, num_fwd_outputs=count)
        except Exception as error:  # the partitioner documents no exception types
            reason = one_line(str(error)) or type(error).__name__
            raise ProblemError(f"torch's partitioner failed: {reason}", "partitioner-failed") from error
        (output,) = forward.graph.find_nodes(op="output")
        return frozenset(
            self.graph.tensor_names[int(node.name[1:])] for node in output.args[0][count:] if node.name[0] == "t"
            and node.name[1:].isdigit()
        )  # fmt: skip

    def schedule(self, saved: frozenset[str], source: str) -> Schedule:
        """Return the schedule of a saved set, with the outputs of the loss and of ops that may run only once."""
        return schedule_of_saved(
            self.graph, [*saved, *self._always()], source=source, first_backward=self.first_backward
        )

    def _always(self) -> Iterator[str]:
        limits = self.problem.compute_limits
        for place, op in enumerate(self.order[: self.first_backward]):
            if place >= self.step.num_forward or limits[op] == 1:
                yield from self.graph.ops[op].outputs

    def _module(self) -> Any:
        """Return the joint graph as a module, with a fake tensor of bytes for each tensor."""
        import torch
        from torch.utils.checkpoint import CheckpointPolicy

        from remat.torch.private import FakeTensorMode

        fakes, joint = FakeTensorMode(), torch.fx.Graph()

        def empty(size: int) -> Any:
            with fakes:
                return torch.empty(size, dtype=torch.uint8)

        def placeholder(name: str, size: int) -> Any:
            node = joint.placeholder(name)
            node.meta["val"] = empty(size)
            return node

        arrays, limits = self.graph.arrays, self.problem.compute_limits
        sizes = arrays.size.tolist()
        nothing = placeholder("primals_1", 0)  # read by ops without inputs
        given = np.flatnonzero(arrays.is_input).tolist()
        nodes = {tensor: placeholder(f"primals_{k}", sizes[tensor]) for k, tensor in enumerate(given, 2)}
        tangent = placeholder("tangents_1", 1)
        for place, op in enumerate(self.order):
            reads = [nodes[tensor] for tensor in arrays.op_inputs[op].tolist()] or [nothing]
            if place >= self.first_backward:
                reads.append(tangent)
            dear = self.graph.ops[op].cost > 0
            target = torch.ops.aten.mm.default if dear else torch.ops.aten.add.Tensor
            writes = arrays.op_outputs[op].tolist()
            values = [empty(sizes[tensor]) for tensor in writes]
            single = len(writes) == 1
            node = joint.create_node(
                "call_function", target, tuple(reads), {}, f"t{writes[0]}" if single else f"op{op}"
            )
            node.meta["val"] = values[0] if single else tuple(values)
            node.meta["cost"] = op
            if place < self.first_backward and limits[op] == 1:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            if single:
                nodes[writes[0]] = node
                continue
            for k, (tensor, value) in enumerate(zip(writes, values, strict=True)):
                nodes[tensor] = joint.create_node("call_function", operator.getitem, (node, k), {}, f"t{tensor}")
                nodes[tensor].meta["val"] = value
        joint.output(tuple(nodes[tensor] for end in self.ends for tensor in end))
        return torch.fx.GraphModule({}, joint)


def _estimator(costs: list[int]) -> Any:
    """Return an estimator of runtimes that returns the costs of the ops."""
    from remat.torch.private import CustomRuntimeEstimator

    class Costs(CustomRuntimeEstimator):
        def __call__(self, node: Any) -> float:
            return float(costs[node.meta["cost"]])

        def uuid(self) -> None:
            return None

    return Costs()
