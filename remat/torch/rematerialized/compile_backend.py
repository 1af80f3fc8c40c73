"""Backend of torch.compile that trains each graph of Dynamo within a memory budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from torch import fx

from remat.backends.choice import BackendLike
from remat.errors import CaptureError
from remat.solving.training_steps import check_options
from remat.torch.capture.lowering import lower
from remat.torch.capture.traced import joint_io
from remat.torch.captured import Captured, Traced
from remat.torch.costs import cost_model
from remat.torch.execute.split import Split
from remat.torch.private import BoxedCodeGen, aot
from remat.torch.rematerialized.planning import SearchOptions, Settings, planned
from remat.torch.rematerialized.report import Report

_log = logging.getLogger("remat.torch")
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class CompileBackend:
    """Backend for ``torch.compile``, made by :func:`backend`.

    Attributes
    ----------
    reports : list of Report
        Reports of the training graphs so far, in the order in which torch compiled them.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reports: list[Report] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a function that runs the graph: the interface of torch.compile."""
        from remat.torch.private import aot_autograd

        made: Callable[..., Any] = aot_autograd(fw_compiler=_boxed, bw_compiler=_boxed, partition_fn=self._partition)(
            graph, inputs
        )
        return made

    def _partition(
        self, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **facts: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split a joint graph into forward and backward graph, by a schedule within the budget."""
        begun = time.monotonic()
        constant = frozenset(facts.get("static_lifetime_input_indices") or ())
        name = f"graph {len(self.reports) + 1}"
        captured = self._prepared(_captured(joint, num_fwd_outputs, constant, name, self.settings.costs))
        parts, report = self._planned(captured, time.monotonic() - begun)
        self.reports.append(report)
        _log.info("torch.compile: %s", report)
        return self._graphs(parts)

    def _prepared(self, captured: Captured) -> Captured:
        """Return a captured graph with further rules."""
        return captured

    def _planned(self, captured: Captured, capture_seconds: float) -> tuple[Split, Report]:
        """Solve a captured graph and split it."""
        return planned(captured, self.settings, None, capture_seconds=capture_seconds)

    def _graphs(self, parts: Split) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the forward and the backward graph to compile."""
        return parts.forward, parts.backward


def backend(
    budget: str | int | float, *, solver: BackendLike | None = "cp-sat", **options: Unpack[SearchOptions]
) -> CompileBackend:
    """Return a backend of ``torch.compile`` that keeps a memory budget by recomputation.

    Dynamo traces the module and guards its assumptions, AOTAutograd makes the joint forward and backward graph, and a
    schedule partitions it. Both graphs run the kernels of eager PyTorch, one by one in the scheduled order. Losses,
    gradients and statistics are bitwise those of eager PyTorch if kernels are deterministic. If Dynamo breaks the
    graph, the budget applies to each part separately.

    Parameters
    ----------
    budget : str, int or float
        Bytes, or a share of each graph's peak without recomputation; see :func:`remat.torch.rematerialize`.
    solver : str or backend, optional
        The `backend` of :func:`remat.torch.rematerialize`.
    method, time_limit, costs, constants, method_options, on_progress
        As in :func:`remat.torch.rematerialize`, for each graph.

    Returns
    -------
    CompileBackend
        A callable; its ``reports`` have the predictions for each graph.

    Raises
    ------
    ProblemError
        If `constants` is unknown. Torch wraps errors during its compilation; the text names the cause: no schedule
        within the budget (ProblemError), or sizes that change between calls (CaptureError). For the latter use
        ``torch.compile(..., dynamic=False)``.

    Examples
    --------
    >>> from torch import nn
    >>> within = backend("60%", time_limit=10)
    >>> model = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), backend=within)
    >>> within.reports  # one for each graph, when the model is called for the first time
    []
    """
    check_options("backend", options, SearchOptions)
    return CompileBackend(Settings(budget, backend=solver, **options))


def _captured(joint: fx.GraphModule, forward: int, constant: frozenset[int], name: str, costs: Any) -> Captured:
    """Lower the joint graph of AOTAutograd; `constant` has the positions of parameters and buffers."""
    graph = joint.graph
    if any(isinstance(node.meta.get("val"), _SYMBOLS) for node in graph.find_nodes(op="placeholder")):
        raise CaptureError(
            "a size changes from call to call: torch.compile(..., dynamic=False) makes a schedule for each"
        )
    mutations = [d for d in graph.output_node().meta["desc"] if isinstance(d, aot.InputMutationAOTOutput)]
    changed = {_position(each.mutated_input) for each in mutations}

    def input_of(number: int, descriptor: Any) -> tuple[str, str, None]:
        if isinstance(descriptor, aot.TangentAOTInput):
            return "tangent", str(number), None
        kind = "input" if number not in constant else "buffer" if number in changed else "parameter"
        return kind, str(number), None

    def result_of(number: int, descriptor: Any) -> tuple[str, str]:
        if number >= forward:
            return "gradient", str(number - forward)
        if isinstance(descriptor, aot.InputMutationAOTOutput):
            return "mutation", str(_position(descriptor.mutated_input))
        return "output", str(number)

    inputs, results = joint_io(graph, input_of, result_of)
    facts = {"num_forward_outputs": forward, "static_lifetime_input_indices": sorted(constant)}
    traced = Traced(module=joint, inputs=inputs, results=results, route="joint", partitioner_facts=facts)
    return lower(traced, name=name, costs=cost_model(costs))


def _position(source: Any) -> int:
    """Return the position of an input's placeholder."""
    if isinstance(source, aot.PlainAOTInput):
        return int(source.idx)
    raise CaptureError(f"the graph changes an input of a kind without a place here: {source.expr()}")


def _boxed(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Return a function that runs a graph on one list and empties it, to free each value after its last use."""
    if not isinstance(module.graph._codegen, BoxedCodeGen):  # graphs without gradients are not split
        module.graph.set_codegen(BoxedCodeGen())
        module.recompile()

    def run(values: list[Any]) -> Any:
        return module.forward(values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
