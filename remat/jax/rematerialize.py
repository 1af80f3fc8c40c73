"""Losses of JAX that are trained within a memory budget: :func:`rematerialize`."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from remat.errors import ExecutionError, ProblemError
from remat.jax.capture import name_of, positions
from remat.jax.plan import Plan
from remat.jax.planning import Settings, fitted, planned, step_problem, warn_over_budget
from remat.jax.report import Report
from remat.jax.step import Arguments, Step, StepOptions, capture_step
from remat.jax.verify import verify as run_verification
from remat.schedule import Schedule
from remat.schedule.io import write_schedule
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.training_steps import check_options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OTHER_SHAPES = ("error", "capture")


class RematerializeOptions(StepOptions, total=False):
    """Further options of :func:`rematerialize`, which documents them."""

    constants_counted: bool
    compiled: bool
    compiler_options: Mapping[str, Any] | None
    method: MethodLike
    method_options: Any
    time_limit: float | None
    on_progress: OnProgress | None


class Rematerialized:
    """A loss whose gradients keep a memory budget; made by :func:`rematerialize`.

    Use it as the original: in ``jax.grad``, ``jax.value_and_grad`` and ``jax.jit``. A call without a gradient runs the
    original.

    Attributes
    ----------
    original : callable
    """

    def __init__(self, loss: Callable[..., Any], settings: Settings, other_shapes: str) -> None:
        functools.update_wrapper(self, loss)
        self.original = loss
        self._settings = settings
        self._captures_others = other_shapes == "capture"
        self._plans: list[Plan] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loss, or loss and auxiliary output.

        Raises
        ------
        ExecutionError
            With the argument that differs from the sample.
        """
        given, refused = Arguments(args, dict(kwargs)), None
        for plan in self._plans:
            try:
                leaves = plan.leaves(given)
            except ExecutionError as error:
                refused = refused or error
                continue
            return plan(leaves)
        if refused is not None and not self._captures_others:
            raise refused
        plan = self._capture(given)
        return plan(plan.leaves(given))

    def __repr__(self) -> str:
        report = self.report
        return f"Rematerialized({report.name!r}, {report.predicted_peak:,} of {report.reference_peak:,} bytes)"

    @property
    def report(self) -> Report:
        """Prediction, certificate and verification for the sample."""
        return self._plans[0].report

    @property
    def reports(self) -> list[Report]:
        """Reports of all kinds of calls so far."""
        return [plan.report for plan in self._plans]

    @property
    def schedule(self) -> Schedule:
        """Schedule of the sample's step."""
        return self._plans[0].schedule

    @property
    def step(self) -> Step:
        """Captured step of the sample."""
        return self._plans[0].program.step

    def save_schedule(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule; ``rematerialize(..., schedule=path)`` uses it instead of solving again."""
        write_schedule(self.schedule, path)

    def plot(self, max_tensors: int | None = None) -> Figure:
        """Draw the memory over the schedule with the budget, and below it the lifetimes of tensors.

        `max_tensors`: draw only the largest ones; default: layers if there are many.
        """
        from remat.schedule.plots import plot_schedule

        report = self.report
        return plot_schedule(
            self.step.captured.graph, self.schedule, report.budget, max_tensors,
            count_constant_memory=report.constants_counted,
        )  # fmt: skip

    def _capture(self, given: Arguments, schedule: Schedule | str | os.PathLike[str] | None = None) -> Plan:
        """Add the plan of a kind of call: captured, solved or with the given schedule, and certified."""
        settings, begun = self._settings, time.monotonic()
        step = capture_step(
            self.original, given, wrt=positions(settings.wrt), has_aux=settings.has_aux, unroll=settings.unroll,
            label=name_of(self.original, settings.name),
        )  # fmt: skip
        problem, seconds = step_problem(step, settings), time.monotonic() - begun
        plan = planned(self.original, step, problem, settings, schedule)
        if settings.compiled:
            plan = fitted(plan, given, self.original, problem, settings)
            warn_over_budget(plan.report)
        plan.report = dataclasses.replace(plan.report, seconds={"capture": seconds} | plan.report.seconds)
        if not self._plans:  # a share is relative to the peak of the sample
            self._settings = dataclasses.replace(settings, budget=problem.budget_bytes)
        self._plans.append(plan)
        return plan

    def _verify(self, given: Arguments) -> None:
        plan, settings = self._plans[0], self._settings
        found = run_verification(self.original, self, given, positions(settings.wrt), settings.has_aux)
        compiled = plan.report.xla_memory is not None
        plan.report = dataclasses.replace(
            plan.report, verification=found, xla_memory=plan.report.xla_memory or found.memory
        )
        if not compiled:
            warn_over_budget(plan.report, "; compiled=True looks for a schedule that keeps it")


def rematerialize(
    loss: Callable[..., Any],
    args: tuple[Any, ...],
    budget: str | int | float | None = None,
    *,
    schedule: Schedule | str | os.PathLike[str] | None = None,
    verify: bool = False,
    other_shapes: str = "error",
    **options: Unpack[RematerializeOptions],
) -> Rematerialized:
    """Return a loss like `loss` whose gradients keep a memory budget by recomputation.

    It captures the loss and its gradients, finds and certifies a schedule, and returns a function with a derivative of
    its own (``jax.custom_vjp``). The forward pass keeps what the schedule keeps; the backward pass recomputes in the
    order of the schedule. XLA can neither merge recomputations with the first run nor move them forward. The result
    works within ``jit``, ``value_and_grad`` and ``vmap``; only reverse mode is defined.

    Parameters
    ----------
    loss : callable
        Returns a real scalar, or with `has_aux` a pair of it and anything else. Without side effects.
    args : tuple
        Arguments of a typical call: arrays in any pytrees, or ``jax.ShapeDtypeStruct`` instead. Later calls need the
        same structure, shapes and types.
    budget : str, int, float or None
        Bytes (``8 * 2**30``, ``"8GiB"``), or a share of the peak without recomputation (``"60%"``, 0.6). See
        :class:`~remat.jax.report.Report` for what counts. None: only with `schedule`.
    schedule : Schedule or path, optional
        A saved schedule of this step (``.save_schedule``), used instead of solving.
    verify : bool
        Run one compiled step of both functions on the sample; compare loss, gradients and XLA's memory.
    other_shapes : {"error", "capture"}
        Response to a call unlike the sample: an error that names the argument, or another capture and solve, once for
        each kind of call, within the sample's budget in bytes.

    Other Parameters
    ----------------
    kwargs : mapping, optional
        Keyword arguments of the typical call.
    wrt : int or sequence of int, optional
        Arguments to differentiate by, 0 by default: their floating-point arrays.
    has_aux : bool, optional
        As in ``jax.grad``: the loss returns a pair. The second has no gradient.
    unroll : bool, optional
        Give each iteration of a ``scan`` ops of its own; otherwise a ``scan`` is one op.
    name : str, optional
        Name of the graph.
    constants_counted : bool, optional
        Count parameters and other arguments in budget and peak.
    compiled : bool, optional
        Compile the step for the sample. If XLA's memory misses the budget, or leaves room, solve for up to three other
        budgets, and keep the cheapest schedule whose compiled step keeps this one. Warn if none does.
    compiler_options : mapping, optional
        Options of XLA for that, as for ``jax.jit(...).lower(...).compile``.
    method, method_options, on_progress : Any, optional
        As in :func:`remat.solve`.
    time_limit : float or None, optional
        Seconds for the search, 60 by default; None: no limit.

    Returns
    -------
    Rematerialized

    Raises
    ------
    CaptureError
        If JAX cannot trace the loss or its gradient.
    ExecutionError
        If the loss cannot run by a schedule: side effects, no real scalar, nothing to differentiate by.
    ProblemError
        If no schedule within the budget exists or was found; with the smallest budget known to suffice.
    ScheduleError
        If `schedule` does not belong to this step.
    VerificationError
        If the gradients differ from those of `loss`.

    Examples
    --------
    >>> import jax
    >>> from jax import numpy as jnp
    >>> def loss(layers, x):
    ...     for w in layers:
    ...         x = jnp.tanh(x @ w)
    ...     return jnp.mean(x**2)
    >>> layers, x = [jnp.eye(32) / 2] * 6, jnp.ones((256, 32))
    >>> within = rematerialize(loss, (layers, x), "60%", verify=True)
    >>> gradients = jax.jit(jax.grad(within))(layers, x)
    >>> within.report.predicted_peak <= 0.6 * within.report.reference_peak, len(gradients)
    (True, 6)
    """
    if not callable(loss):
        raise ExecutionError(
            f"rematerialize takes a function, not an object of type {type(loss).__name__}", "jax-function"
        )
    if isinstance(loss, Rematerialized):
        raise ExecutionError("the loss is rematerialized already; use loss.original", "jax-function")
    if not isinstance(args, tuple):
        raise ExecutionError(
            f"args is a {type(args).__name__}, not the tuple of arguments of a call, such as (parameters, batch)",
            "jax-sample",
        )
    if budget is None and schedule is None:
        raise ProblemError('rematerialize needs a budget ("8GiB", "60%", bytes) or a schedule', "step-budget")
    if other_shapes not in OTHER_SHAPES:
        raise ProblemError(f"other_shapes {other_shapes!r} is not one of {', '.join(OTHER_SHAPES)}", "step-setting")
    check_options("rematerialize", options, RematerializeOptions)
    made = Rematerialized(loss, Settings(budget, **options), other_shapes)
    given = Arguments(args, dict(options.get("kwargs") or {}))
    made._capture(given, schedule)
    if verify:
        made._verify(given)
    return made
