"""Partitioner of TorchInductor that follows a schedule: :func:`inductor`."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from torch import fx

from remat.backends.choice import BackendLike
from remat.schedule.machine import Machine
from remat.solving.training_steps import check_options
from remat.torch.captured import Captured
from remat.torch.execute.split import Split
from remat.torch.private import CustomPartitionerFn, inductor_config
from remat.torch.rematerialized.compile_backend import CompileBackend
from remat.torch.rematerialized.inductor_feedback import Layouts, fitted
from remat.torch.rematerialized.inductor_transfers import movable, with_operators
from remat.torch.rematerialized.planning import SearchOptions, Settings
from remat.torch.rematerialized.report import Report


class ScheduledPartitioner(CustomPartitionerFn):
    """Partitioner for ``torch._inductor.config.custom_partitioner_fn``, made by :func:`inductor`.

    Attributes
    ----------
    reports : list of Report
        Predictions for the training graphs so far; ``compiled_peak`` is that after fusion.
    """

    def __init__(self, settings: Settings) -> None:
        self._backend = _Once(settings)
        self._name = uuid.uuid4().hex
        self.reports = self._backend.reports

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **facts: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split a joint graph into forward and backward graph: the interface of Inductor."""
        return self._backend._partition(gm, joint_inputs, **facts)

    def uuid(self) -> str:
        """Return a name of this object: Inductor's cache would otherwise reuse partitions by other schedules."""
        return self._name


class _Once(CompileBackend):
    """Backend that runs random ops once: Inductor's kernels read their seeds, which are computed only once."""

    def _prepared(self, captured: Captured) -> Captured:
        random = set(captured.random_ops)
        graph = captured.graph
        ops = [replace(op, recomputable=False) if op.name in random else op for op in graph.ops]
        captured = replace(captured, graph=replace(graph, ops=ops))
        return captured if self.settings.host is None else movable(captured)

    def _planned(self, captured: Captured, capture_seconds: float) -> tuple[Split, Report]:
        make = super()._planned if self.settings.host is not None else partial(fitted, settings=self.settings)
        parts, report = make(captured, capture_seconds=capture_seconds)
        return parts, replace(report, engine="inductor")

    def _graphs(self, parts: Split) -> tuple[fx.GraphModule, fx.GraphModule]:
        return with_operators(parts) if parts.schedule.has_transfers else super()._graphs(parts)


class InductorOptions(SearchOptions, total=False):
    """Further options of :func:`inductor`."""

    offload: str | int | None
    machine: Machine | str | None


def inductor(
    budget: str | int | float, *, solver: BackendLike | None = "cp-sat", **options: Unpack[InductorOptions]
) -> dict[str, Any]:
    """Return options of ``torch.compile`` under which Inductor recomputes by a schedule within a memory budget.

    Dynamo, AOTAutograd and Inductor's kernels remain as they are; only the split of the joint graph into forward and
    backward pass follows the schedule. Inductor then fuses and reorders, so that the peak changes. The peak of the
    compiled program is computed, workspaces of library calls included. If it misses the budget, a few further schedules
    are solved, and convolutions may keep their inputs' layout instead of channels-last. They have the time limit again,
    all together. Each object compiles its graphs once more: they are not read from Inductor's cache.

    With `offload` or `machine`, tensors move to the host and back by ``torch.ops.ao``: PyTorch's own pinned memory, and
    one stream for both directions, so that the machine counts as half duplex. Those operators need an accelerator.

    Parameters
    ----------
    budget : str, int or float
        Bytes, or a share of each graph's peak without recomputation, before fusion.
    solver
        The `backend` of :func:`remat.torch.rematerialize`.
    method, time_limit, costs, constants, method_options, on_progress
        As in :func:`remat.torch.rematerialize`, for each graph.
    offload, machine
        As in :func:`remat.torch.rematerialize`. Tensors whose storage holds several values, or one of other size, stay
        on the device.

    Returns
    -------
    dict
        Pass it as a whole. The ``reports`` of its ``custom_partitioner_fn`` have the predictions for each graph.

    Warns
    -----
    CaptureRemark
        If the compiled program of no schedule tried keeps the budget; the best one is used.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> within = inductor("60%", time_limit=10)
    >>> model = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), options=within)
    >>> within["custom_partitioner_fn"].reports  # one for each graph, when the model is called for the first time
    []
    """
    check_options("inductor", options, InductorOptions)
    settings = Settings(budget, backend=solver, **options)
    if settings.host is not None:
        settings = replace(settings, machine=replace(settings.host, full_duplex=False), offload=None)
    return {
        "custom_partitioner_fn": ScheduledPartitioner(settings),
        "post_grad_custom_post_pass": Layouts(),
        "layout_optimization": inductor_config.layout_optimization,  # restored after each graph, as all entries
    }
