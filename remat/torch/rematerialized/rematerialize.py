"""Conversion of a module into one that trains within a memory budget: :func:`rematerialize`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import nn

from remat.errors import ExecutionError, ProblemError, VerificationError
from remat.schedule import Schedule
from remat.solving.training_steps import check_options
from remat.torch.agreement import Agreement
from remat.torch.capture.fakes import sample_tuple
from remat.torch.captured import Captured
from remat.torch.lock import in_turn
from remat.torch.modes import in_training
from remat.torch.private import pytree
from remat.torch.rematerialized.module import Rematerialized, rematerialized
from remat.torch.rematerialized.plan import Plan
from remat.torch.rematerialized.planner import Planner
from remat.torch.rematerialized.planning import Settings, StepOptions
from remat.torch.rematerialized.verify import Expected
from remat.torch.rematerialized.verify import verify as run_verification

#: Tolerated difference between a fused kernel and its single ops, in units in the last place of the largest entry.
FUSED = 64


@in_turn
def rematerialize(  # noqa: PLR0913 - independent options of users
    module: nn.Module,
    sample_args: Sequence[Any] | torch.Tensor | None,
    budget: str | int | float | None = None,
    *,
    sample_kwargs: Mapping[str, Any] | None = None,
    schedule: Schedule | str | os.PathLike[str] | None = None,
    verify: bool = False,
    other_shapes: str = "error",
    shapes: str | Sequence[int] | None = None,
    **options: Unpack[StepOptions],
) -> Rematerialized:
    """Return a module like `module` whose training steps keep a memory budget by recomputation, and moves to the host.

    It captures forward and backward pass with the sample (on fake tensors, without memory), finds and certifies a
    schedule, and returns a module that follows it. The parameters are those of `module`. Outputs and gradients are
    bitwise the same if the kernels are deterministic, dropout included (``docs/pytorch/rematerialize`` lists where they
    round otherwise). The logger ``remat.torch`` and ``.report`` have the findings. Calls in several threads run one at
    a time; with `verify`, no other thread may draw random numbers of torch meanwhile.

    Parameters
    ----------
    module : torch.nn.Module
        Captured in training mode; a module in evaluation mode is captured as after ``.train()``.
    sample_args : sequence, a single tensor, or None
        Arguments of a typical call. Later calls with these arguments need the same shapes and types, and equal values
        of what is no tensor. A call with other arguments, such as one that a trainer adds, is captured once.
        None, also for `sample_kwargs`: the first call in training mode is the sample.
    budget : str, int, float or None
        Bytes (``8 * 2**30``, ``"8GiB"``), or a share of the peak without recomputation (``"60%"``, 0.6). See
        :class:`~remat.torch.rematerialized.report.Report` for what counts. None: only with `schedule`.
    sample_kwargs : mapping, optional
    schedule : Schedule or path, optional
        A saved schedule of this step (``.save_schedule``, or of another tool), used instead of solving.
    verify : bool
        Run one step of both modules on the sample and compare outputs, gradients, statistics and the measured peak;
        then restore all state.
    other_shapes : {"error", "capture"}
        Response to a call unlike the sample. ``"error"``: raise an error that names the argument. ``"capture"``:
        capture and solve again, once for each kind of call. All kinds keep the sample's budget in bytes; one that fits
        without recomputation is not solved.
    shapes : "bucket" or sequence of int, optional
        Plan calls of other sizes by buckets: powers of two, or the given sizes. A call runs with its own shapes, so all
        values stay those of eager PyTorch. Its schedule is the cheapest known one that fits, or one solved for the
        sizes rounded up to the bucket. Implies ``other_shapes="capture"``.
    method, backend, method_options, on_progress
        As in :func:`remat.solve`. Ctrl-C ends the search; the step then uses the best schedule found.
    engine : {"eager", "inductor"}, optional
        Execution of the two graphs. ``"eager"``: the kernels of eager PyTorch, one by one, in exactly the scheduled
        order. ``"inductor"``: TorchInductor, which fuses and reorders, so that predicted memory is approximate and
        results are equal up to rounding. It needs a C++ compiler or Triton.
    time_limit : float or None, optional
        Seconds for the search, 60 by default; None: no limit. With method ``"auto"``, torch's partitioner may take up
        to a tenth. The search starts from its schedule within the budget and never ends with a worse one.
    costs : str or CostModel, optional
        Costs of ops, ``"roofline"`` by default; see :mod:`remat.torch.costs`.
    constants : {"excluded", "included"}, optional
        ``"included"``: budget and peak count parameters, buffers and inputs.
    workspaces : {"measured"}, optional
        Include the workspaces of kernels in budget and peak: each distinct op runs twice on this machine, see
        :func:`remat.torch.costs.measured_workspaces`.
    offload : str or int, optional
        Bytes of main memory (``"16GiB"``) to which tensors may move between their uses. The schedule then takes the
        least time, with transfers next to computation. Costs must be times (the default ones are).
    machine : Machine or str, optional
        Links to the host, such as ``"pcie5"`` or ``"rate=20GB/s,latency=10us"`` (:meth:`remat.schedule.Machine.parse`);
        ``"pcie4"`` by default with `offload`. ``"measured"`` measures this GPU's. Alone it allows moves with as much
        main memory as it says.
    optimizer : str, callable or torch.optim.Optimizer, optional
        Optimizer of the module, its name (``"adamw"``) or a function of the parameters. Its state is constant memory;
        or memory of the host, taken from `offload`, if :func:`~remat.torch.offload_optimizer` moved it before.

    Returns
    -------
    Rematerialized
        An instance of the module's class. If its parameters, buffers or submodules change (another type, adapters),
        attributes that forward reads (also in a configuration), or hooks of submodules, the next call is captured and
        solved again.

    Raises
    ------
    CaptureError
        If the module cannot be captured.
    ProblemError
        If no schedule within the budget exists or was found; with the smallest budget known to suffice.
    ScheduleError
        If `schedule` does not belong to this step.
    VerificationError
        If the step's results differ from the original's.
    ExecutionError
        If the module or engine cannot be run.

    Examples
    --------
    >>> from torch import nn, randn
    >>> layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.Tanh())]
    >>> x = randn(256, 64)
    >>> model = rematerialize(nn.Sequential(*layers, nn.Linear(64, 1)), (x,), "80%", verify=True)
    >>> model(x).sum().backward()
    >>> model.report.predicted_peak <= 0.8 * model.report.reference_peak, model.report.verification.bitwise
    (True, True)
    """
    _check_module(module)
    if budget is None and schedule is None:
        raise ProblemError('rematerialize needs a budget ("8GiB", "60%", bytes) or a schedule', "step-budget")
    check_options("rematerialize", options, StepOptions)
    planner = Planner(Settings(budget, **options), other_shapes, shapes)
    if sample_args is None and sample_kwargs is None:
        if verify or schedule is not None:
            raise ProblemError(f"{'verify' if verify else 'schedule'} needs sample arguments", "step-sample")
        return rematerialized(module, [], planner)
    args = sample_tuple(sample_args)
    kwargs = dict(sample_kwargs or {})
    with in_training(module):
        plan = planner(module, args, kwargs, schedule)
    made = rematerialized(module, [plan], planner if planner.settings.budget is not None else None)
    if verify:
        with in_training(module), in_training(made):
            _verify(made, plan, args, kwargs)
    return made


def _check_module(module: Any) -> None:
    if isinstance(module, Rematerialized):
        raise ExecutionError("the module is rematerialized already; use module.original", "no-module")
    if not isinstance(module, nn.Module):
        raise ExecutionError(f"rematerialize takes a torch.nn.Module, not a {type(module).__name__}", "no-module")
    if isinstance(module, torch.jit.ScriptModule):
        raise ExecutionError("a ScriptModule cannot be captured; use the module that it was made of")


def _verify(made: Rematerialized, plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    report, eager = plan.report, plan.report.engine == "eager"
    # threads of a process group may release the tensors of a collective late
    measure = eager and not Agreement.of([made.captured]).groups
    expected = Expected(
        report.predicted_peak - (report.constant_memory if report.constants_counted else 0),
        tolerance=_rounding(made.captured) if eager else max(1e-3, _rounding(made.captured)), measure=measure,
        allocator=None if report.workspace is None else report.random_state_bytes,
    )  # fmt: skip
    found = run_verification(made.original, made, args, kwargs, expected)
    host, moved = plan.program.host, report.certificate.transfers
    if host is not None and moved is not None:
        if host.peak > moved.host_peak:
            raise VerificationError(
                f"copies on the host hold {host.peak:,} bytes, above the {moved.host_peak:,} bytes that were predicted",
                "peak",
            )
        found = dataclasses.replace(found, host_peak=host.peak)
    plan.report = dataclasses.replace(report, verification=found)


def _rounding(captured: Captured) -> float:
    """Return the tolerance of gradients for rounding, as a share of the largest entry.

    Eager dropout on a CPU multiplies by a rounded mask, captured dropout by a number: equal in 32 bits. The step runs
    the single ops of a fused LSTM, and out of place what eager runs in place on a part of a tensor; vector instructions
    may then round otherwise.
    """
    kinds = {
        value.dtype
        for node in captured.module.graph.nodes
        for value in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    short = max((torch.finfo(kind).eps for kind in kinds if torch.finfo(kind).bits < 32), default=0.0)
    return max(4 * short, FUSED * torch.finfo(torch.float32).eps)
