"""Memory of a training step, without and with recomputation: :func:`estimate`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch import nn

from remat.errors import CaptureError, FormatError
from remat.experiments.frontier import frontier
from remat.experiments.frontier_cell import Cell
from remat.experiments.frontier_result import Frontier
from remat.experiments.max_batch import read_memory
from remat.experiments.runs import Watch
from remat.io.figures import SUFFIXES, figure_of, write_figure
from remat.io.files import write_atomic
from remat.problem import Problem
from remat.runtime.interruption import interrupts
from remat.runtime.sizes import size_text
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.runtime.text import json_text
from remat.solving.training_steps import check_options, costs_text
from remat.torch.capture import capture
from remat.torch.capture.fakes import refuse_distributed, sample_tuple
from remat.torch.costs import CostModel
from remat.torch.fit.eager_step import EagerStep, eager_step
from remat.torch.fit.growth import Family, Largest, Limits, dimensions, largest_size
from remat.torch.fit.optimizers import OptimizerLike, optimizer_name
from remat.torch.fit.plots import Drawn, plot_estimate
from remat.torch.modes import kept_modes
from remat.torch.private import pytree
from remat.torch.rematerialized.planning import Settings, step_problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Budgets of the curve, as shares of the step's peak without recomputation.
SHARES = tuple(range(90, 10, -10))
#: Part of the time limit for the curve; the rest is for the largest sizes.
FOR_CURVE = 0.6


class EstimateOptions(TypedDict, total=False):
    """Further options of :func:`estimate`, which documents them."""

    loss: str | int | Callable[[Any], torch.Tensor] | None
    costs: str | CostModel | type[CostModel]
    workspaces: str | None
    time_limit: float
    solver: SolveOptions
    watch: Watch


@dataclass(frozen=True)
class Estimate:
    """Memory of a training step in bytes; made by :func:`remat.torch.estimate`.

    Attributes
    ----------
    name : str
        Class of the module.
    optimizer : str
    parameters, buffers, inputs : int
    gradients : int
        Gradients of parameters after the backward pass.
    state : int or None
        State of the optimizer; None if there is one and the eager step cannot run on fake tensors.
    eager : EagerStep or None
        Memory of the step as eager PyTorch runs it.
    unknown : str
        Why there is no `eager`; otherwise empty.
    step : int
        Peak of the step without recomputation if each tensor is freed after its last use, as a rematerialized module
        does: activations, temporaries and gradients.
    workspace : int or None
        Largest workspace of a kernel, included in `step`; None if workspaces were not measured and do not count.
    memory : int or None
        Memory of the device.
    curve : Frontier
        Least extra cost found at each budget of the step, with bounds and certified schedules.
    largest : tuple of Largest
        Largest batch and longest sequence in `memory`; empty without `memory`.
    costs : str
        Cost model and its figures.
    """

    name: str
    optimizer: str
    parameters: int
    buffers: int
    inputs: int
    gradients: int
    state: int | None
    eager: EagerStep | None
    unknown: str
    step: int
    workspace: int | None
    memory: int | None
    curve: Frontier = field(repr=False)
    largest: tuple[Largest, ...] = ()
    costs: str = ""

    @property
    def resident(self) -> int:
        """Bytes held throughout: parameters, buffers, inputs and known state of the optimizer."""
        return self.parameters + self.buffers + self.inputs + (self.state or 0)

    @property
    def update(self) -> int | None:
        """Bytes in the optimizer's step, which no recomputation reduces; None if unknown."""
        return None if self.eager is None else self.resident - (self.state or 0) + self.eager.update

    @property
    def total(self) -> int | None:
        """Bytes of the whole training step as it is; None if unknown."""
        return None if self.eager is None else self.resident - (self.state or 0) + self.eager.total

    @property
    def activations(self) -> int:
        """Bytes at the peak of forward and backward pass that are not gradients of parameters held to its end."""
        return max((self.step if self.eager is None else self.eager.peak) - self.gradients, 0)

    @property
    def cell(self) -> Cell | None:
        """Cell of the curve for `memory`; None without `memory`."""
        if self.memory is None:
            return None
        return next((each for each in self.curve.cells.values() if each.budget == self.memory - self.resident), None)

    @property
    def verdict(self) -> str:
        """``"as it is"``, ``"recomputation"``, ``"unknown"``, ``"no"``, or empty without `memory`.

        Unknown: no schedule was found in time, or the optimizer's state is unknown.
        """
        if self.memory is None:
            return ""
        if self.total is not None and self.total <= self.memory:
            return "as it is"
        if self.update is not None and self.update > self.memory:
            return "no"
        cell = self.cell
        if cell is None or cell.status == "infeasible":
            return "no"
        return "unknown" if cell.schedule is None or self.state is None else "recomputation"

    def lines(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        state = "unknown" if self.state is None else f"{self.state:,}"
        rows = [
            ("model", f"{self.name}, {self.optimizer}"),
            ("parameters", f"{self.parameters:,} bytes, gradients {self.gradients:,}, optimizer's state {state}"),
            ("other", f"{self.buffers:,} bytes of buffers, {self.inputs:,} of inputs"),
            ("activations", f"{self.activations:,} bytes at the peak, with temporaries"),
            ("workspaces", "unknown, not counted" if self.workspace is None else f"{self.workspace:,} bytes at most"),
            ("as it is", self._total_text()),
        ]  # fmt: skip
        if self.state is None:
            rows.append(("recomputing", "all bytes without the optimizer's state"))
        rows += [("recomputing", text) for text in self._curve_lines()] or [("recomputing", "no smaller budget solved")]
        if self.memory is not None:
            rows.append(("fits", self._verdict_text()))
        rows += [(each.dimension, _largest_text(each)) for each in self.largest]
        rows.append(("costs", self.costs))
        return rows

    def _total_text(self) -> str:
        if self.eager is None or self.total is None:
            return f"unknown, more than {self.resident:,} bytes: {self.unknown}"
        is_update = self.eager.update > self.eager.peak + self.eager.state
        at = "the optimizer's step" if is_update else self.eager.op
        return f"{self.total:,} bytes ({size_text(self.total)}), peak at {at}"

    def _curve_lines(self) -> list[str]:
        cells = [cell for cell in self.curve.cells.values() if cell.schedule is not None]
        # of several budgets with one answer, the smallest has the best bound
        found = {(self._needed(cell), cell.cost): cell for cell in sorted(cells, key=lambda cell: -cell.budget)}
        return [self._price(cell) for cell in found.values()]

    def _price(self, cell: Cell) -> str:
        return f"{self._needed(cell):,} bytes: {self.price(cell)}"

    def _needed(self, cell: Cell) -> int:
        """Return the bytes of the whole step with the schedule of a cell."""
        return max(self.resident + int(cell.row["peak"]), self.update or 0)

    def price(self, cell: Cell) -> str:
        """Return the extra cost of a cell's schedule, and its bound, as text."""
        base = self.curve.problem.graph.base_cost
        bound, cost = self.curve.bound(cell), cell.cost
        if not base or cost is None:
            return "extra cost unknown"
        text = f"+{100 * (cost - base) / base:.4g} %"
        if cell.status == "optimal":
            return f"{text}, proved least"
        return text if bound is None else f"{text}, at least +{100 * (bound - base) / base:.4g} %"

    def _verdict_text(self) -> str:
        memory, verdict, cell = self.memory or 0, self.verdict, self.cell
        if verdict == "as it is":
            assert self.total is not None
            return f"yes, as it is: {memory - self.total:,} bytes to spare"
        if verdict == "recomputation":
            assert cell is not None
            return f"with recomputation: {self._needed(cell):,} of {memory:,} bytes, {self.price(cell)}"
        if self.update is not None and self.update > memory:
            return f"no: the optimizer's step alone needs {self.update:,} of {memory:,} bytes"
        if verdict == "unknown" and self.state is None:
            return "unknown, as the optimizer's state is; its step did not run on fake tensors"
        if verdict == "unknown":
            return "no schedule found in time, which proves nothing"
        least = self.resident + self.curve.problem.structural_peak
        return f"no: {least:,} bytes are needed at least, {memory:,} available"

    def rows(self) -> list[dict[str, Any]]:
        """Return the curve as JSON values, smallest memory first: bytes of the whole step, extra cost, bound."""
        base = self.curve.problem.graph.base_cost
        found = []
        for cell in sorted(self.curve.cells.values(), key=lambda cell: cell.budget):
            bound = self.curve.bound(cell)
            found.append({
                "memory": self.resident + cell.budget,
                "needed": None if cell.schedule is None else self._needed(cell),
                "status": cell.status,
                "overhead_percent": cell.row["overhead_percent"],
                "bound_percent": None if bound is None or not base else 100 * (bound - base) / base,
            })  # fmt: skip
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON values; unknown ones are None."""
        plain = (
            "name", "optimizer", "parameters", "buffers", "inputs", "gradients", "state", "step", "workspace",
            "memory", "resident", "activations", "total", "update", "verdict", "costs",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in plain},
            "eager": None if self.eager is None else asdict(self.eager),
            "curve": self.rows(),
            "largest": [
                {name: value for name, value in vars(each).items() if name != "certificate"} for each in self.largest
            ],
        }  # fmt: skip

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw what the memory is for, and the extra cost of smaller memories."""
        parts = {
            "parameters, buffers, inputs": self.parameters + self.buffers + self.inputs,
            "optimizer's state": self.state or 0,
            "gradients": self.gradients,
            "activations and temporaries": self.activations,
        }
        title = f"{self.name}, {self.optimizer}: memory of a training step"
        if self.state is None:
            title += " without the optimizer's state, which is unknown"
            del parts["optimizer's state"]
        return figure_of(plot_estimate(Drawn(title, parts, self.rows(), self.total, self.memory), ax))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers (``.json``) or the picture (``.png``, ``.svg``, ``.pdf``).

        Raises
        ------
        FormatError
            If the file has another suffix or cannot be written; names it.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".json":
            write_atomic(path, json_text(self.as_dict()))
        elif suffix in SUFFIXES:
            write_figure(path, self.plot)
        else:
            raise FormatError(f"{path}: an estimate is written as .json, {', '.join(SUFFIXES)}", "table")

    def __str__(self) -> str:
        last, lines = "", []
        for word, text in self.lines():
            lines.append(f"{'' if word == last else word:<12} {text}")
            last = word
        return "\n".join(lines)


def _largest_text(each: Largest) -> str:
    plain = "unknown" if each.plain is None else f"{each.plain:,}"
    if each.size is None:
        found = "unknown with recomputation"
    elif each.overhead is None:
        found = "none found with recomputation"
    else:
        found = f"{each.size:,} with recomputation (+{each.overhead:.4g} %)"
    limit = "" if each.limit is None else f"; beyond {each.limit:,} one op alone seems too large (extrapolated)"
    note = f"; {each.note}" if each.note else ""
    return f"{plain} as it is, {found}{limit}{note}"


@interrupts()
def estimate(
    module: nn.Module,
    sample_args: Sequence[Any] | torch.Tensor,
    *,
    sample_kwargs: Mapping[str, Any] | None = None,
    optimizer: OptimizerLike = "adamw",
    memory: int | str | None = None,
    sizes: bool = True,
    **options: Unpack[EstimateOptions],
) -> Estimate:
    """Return the memory of a training step, and the price of fitting it into less.

    Nothing is allocated: the eager step runs on fake tensors, and so does the capture. Bytes are those that
    :func:`remat.torch.track_storages` measures in the second and later steps. A device with an allocator of its own
    needs more, by its rounding and fragmentation. Schedules are certified for what
    :func:`~remat.torch.rematerialize` would run.

    Parameters
    ----------
    module : torch.nn.Module
        Real, or made under :func:`remat.torch.fake_tensors`. Estimated in training mode.
    sample_args : sequence or a single tensor
        Arguments of a typical call, real or fake.
    sample_kwargs : mapping, optional
    optimizer : str, callable, Optimizer or None
        Name of a class of ``torch.optim`` with its defaults, in lower case; ``"momentum"``; a function of the trained
        parameters; or an optimizer of `module`.
    memory : int or str, optional
        Bytes of the device (``"24GiB"``).
    sizes : bool
        With `memory`: search the largest batch and the longest sequence, which captures the step several times.
    loss
        Start of the backward pass, as in :func:`remat.torch.capture`. Default: the only number that the module returns,
        or all its outputs.
    costs : str or CostModel, optional
        As in :func:`remat.torch.capture`.
    workspaces : {"measured"}, optional
        Count the workspaces of kernels; each distinct op runs on this machine, with its real memory.
    time_limit : float, optional
        Seconds for all searches together, 60 by default.
    solver : SolveOptions, optional
        Threads, seed and others, as for :func:`remat.solve`.
    watch : callable, optional
        See :data:`remat.experiments.runs.Watch`; called for each budget of the curve.

    Returns
    -------
    Estimate

    Raises
    ------
    CaptureError
        If the module cannot be captured.
    ProblemError
        If the optimizer or the memory is invalid.

    Examples
    --------
    >>> from torch import nn
    >>> from remat.torch import fake_tensors
    >>> with fake_tensors():
    ...     model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    ...     x = torch.empty(64, 512)
    >>> found = estimate(model, (x,), optimizer="adamw", time_limit=5)
    >>> found.parameters, found.state
    (4202496, 8405024)
    """
    check_options("estimate", options, EstimateOptions)
    if not isinstance(module, nn.Module):
        raise CaptureError(f"estimate takes a torch.nn.Module, not a {type(module).__name__}", "no-module")
    args = sample_tuple(sample_args)
    available = None if memory is None else read_memory(memory)
    step = _Step(module, optimizer, options)
    deadline = time.monotonic() + options.get("time_limit", 60.0)
    begun, solver = time.monotonic(), options.get("solver", DEFAULT_OPTIONS)
    eager: EagerStep | None = None
    unknown_why = ""
    try:
        eager = step.eager(args, sample_kwargs)
    except CaptureError as error:
        unknown_why = str(error)
    problem = step.problem(args, sample_kwargs)
    graph = problem.graph
    state = eager.state if eager is not None else 0 if optimizer_name(optimizer) == "none" else None
    curve = _curve(
        problem, available, state or 0, Limits(FOR_CURVE * max(deadline - begun, 1.0), solver), options.get("watch")
    )
    found = Estimate(
        name=graph.name, optimizer=optimizer_name(optimizer), **_facts(module, problem, eager), state=state,
        eager=eager, unknown=unknown_why, step=problem.reference_peak,
        workspace=max(op.workspace for op in graph.ops) if options.get("workspaces") else None,
        memory=available, curve=curve,
        costs=costs_text(graph),
    )  # fmt: skip
    if available is None or not sizes:
        return found
    return replace(found, largest=tuple(_largest(step, (args, sample_kwargs or {}), found, deadline)))


@dataclass
class _Step:
    """A training step of a module at any size of its arguments."""

    module: nn.Module
    optimizer: OptimizerLike
    options: EstimateOptions

    def eager(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> EagerStep:
        """Return the eager step; raise CaptureError if it cannot run on fake tensors."""
        return eager_step(self.module, args, kwargs, loss=self.options.get("loss"), optimizer=self.optimizer)

    def problem(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Problem:
        """Capture the step in training mode; return its problem without a budget."""
        refuse_distributed(self.module)
        how: dict[str, Any] = {key: self.options[key] for key in ("loss", "costs", "workspaces") if key in self.options}
        with kept_modes(self.module):
            self.module.train()
            captured = capture(self.module, args, kwargs, **how)
        return step_problem(captured, Settings(None))


def _facts(module: nn.Module, problem: Problem, eager: EagerStep | None) -> dict[str, Any]:
    """Return the bytes of parameters, buffers, inputs and gradients."""
    kinds = problem.graph.meta["constant_bytes"]
    trained = sum(each.untyped_storage().nbytes() for each in module.parameters() if each.requires_grad)
    return {
        "parameters": kinds["param"], "buffers": kinds["buffer"], "inputs": kinds["input"],
        "gradients": trained if eager is None else eager.gradients,
    }  # fmt: skip


def _curve(problem: Problem, memory: int | None, state: int, limits: Limits, watch: Watch | None) -> Frontier:
    """Return the least extra cost found at shares of the peak, and at the budget that a memory leaves."""
    graph, least = problem.graph, problem.structural_peak
    budgets = [problem.reference_peak * share // 100 for share in SHARES]
    if memory is not None:
        budgets.append(memory - graph.constant_memory - state)
    chosen = sorted({budget for budget in budgets if budget >= least}) or [problem.reference_peak]
    return frontier(problem, chosen, ["auto"], stop=limits.seconds / len(chosen), options=limits.solver, watch=watch)


def _largest(
    step: _Step, sample: tuple[tuple[Any, ...], Mapping[str, Any]], estimated: Estimate, deadline: float
) -> list[Largest]:
    """Return the largest size of each dimension of the sample."""
    known = dimensions(*sample)
    curve, state, memory = estimated.curve, estimated.state, estimated.memory or 0
    if state is None:
        why = "the optimizer's state is unknown"
        return [Largest(each.name, each.size, None, None, note=why) for each in known]
    cells = [cell for cell in curve.cells.values() if cell.schedule is not None]
    schedules = [cell.schedule for cell in sorted(cells, key=lambda cell: -cell.budget) if cell.schedule is not None]
    constants = estimated.parameters + estimated.buffers
    found = []
    for number, dimension in enumerate(known):

        def problem_at(size: int, dimension: Any = dimension) -> Problem:
            if size == dimension.size:
                return curve.problem
            return step.problem(*dimension.sample(*sample, size))

        def total_at(size: int, dimension: Any = dimension) -> int | None:
            if estimated.eager is None:
                return None
            args, kwargs = dimension.sample(*sample, size)
            return constants + _bytes_of((args, kwargs)) + step.eager(args, kwargs).total

        family = Family(dimension, problem_at, total_at, memory, state)
        solver = step.options.get("solver", DEFAULT_OPTIONS)
        end = time.monotonic() + (deadline - time.monotonic()) / (len(known) - number)
        found.append(largest_size(family, schedules, Limits(end, solver)))
    return found


def _bytes_of(tree: Any) -> int:
    tensors = (each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor))
    return sum(each.untyped_storage().nbytes() for each in tensors)
