"""Problems: a graph, a budget, rules and an objective."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.errors import FormatError, ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.io import as_graph
from remat.io.figures import SUFFIXES, figure_of, write_figure
from remat.io.files import write_atomic
from remat.io.views import html_pairs, html_picture
from remat.problem.budget import parse_budget
from remat.problem.objective import Objective
from remat.runtime.arrays import Bool, Int
from remat.runtime.text import nearest, short
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate
from remat.schedule.machine import Machine
from remat.schedule.rules import OrderRule, Rules
from remat.schedule.simulate import Simulation, simulate
from remat.schedule.validate import validate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.graphs.io import GraphLike

#: Largest limit of computes per op: solvers count in 32 bits.
MOST_COMPUTES = 2**31 - 1


@dataclass(frozen=True, eq=False, init=False)
class Problem:
    """A graph, a budget, rules and an objective.

    Parameters
    ----------
    graph : ComputeGraph, path, str or networkx.DiGraph
        Graph, or a file, the name of a zoo graph, or a networkx graph (:func:`remat.graphs.io.as_graph`).
    budget : str, int, float or None
        See :func:`remat.problem.budget.parse_budget`; None: unlimited. Shares are of the reference peak.
    order : OrderRule or str
        ``"fixed"``: first computes follow the reference order. ``"free"``: any order.
    max_computes : int, mapping of op name to int, or None
        Most computes of each op.
    keep : iterable of str
        Tensors to be alive at the end, in addition to the graph's outputs.
    count_constant_memory : bool
        Count the graph's constant memory in peak and budget (a share then refers to peak plus constant memory).
    objective : Objective or str, optional
        ``"least-cost"`` (default), ``"least-peak"``, which needs no budget, or ``"least-time"``, which needs a machine
        and is its default; see :class:`remat.problem.Objective`.
    machine : Machine, str or mapping, optional
        Host to which schedules may move tensors, such as ``"pcie4,host=64GiB"``: see :meth:`remat.schedule.Machine.of`.

    Raises
    ------
    ProblemError
        For a budget or machine that cannot be read, unknown names, a limit below one, a machine with another objective,
        or costs that are no times on a machine without a compute rate.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.op("a", size=4, cost=1), b.op("b", inputs=["a"], size=6, cost=1)
    >>> Problem(b.build(), "80%").budget_bytes
    8
    >>> Problem(b.build(), "80%", machine="pcie4,compute=1G").objective  # a billion of its cost units per second
    'least-time'
    """

    graph: ComputeGraph
    budget: str | int | float | None
    order: OrderRule
    max_computes: int | Mapping[str, int] | None
    keep: frozenset[str]
    count_constant_memory: bool
    objective: Objective
    machine: Machine | None

    def __init__(  # noqa: PLR0913, PLR0917  (a user may give all by position, as to any dataclass)
        self, graph: GraphLike, budget: str | int | float | None = None, order: OrderRule | str = OrderRule.FIXED,
        max_computes: int | Mapping[str, int] | None = None, keep: Iterable[str] = (),
        count_constant_memory: bool = False, objective: Objective | str | None = None,
        machine: Machine | str | Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        graph = as_graph(graph)
        try:
            order = OrderRule(order)
        except ValueError:
            raise ProblemError(f"order {order!r} is not one of fixed, free") from None
        machine = None if machine is None else Machine.of(machine)
        objective = resolved_objective(objective, machine)
        if machine is not None:
            machine.per_second(graph)  # costs that are no times are refused here
        if isinstance(max_computes, Mapping):  # a copy, so that later changes of the mapping have no effect
            max_computes = MappingProxyType(dict(max_computes))
        rules = order, max_computes, _names(keep, graph), count_constant_memory
        values = graph, budget, *rules, objective, machine
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)
        _check_limits(max_computes, graph)
        self.budget_bytes  # noqa: B018  (an unreadable budget is refused here)

    def __reduce__(self) -> tuple[type[Problem], tuple[object, ...]]:  # a mapping proxy cannot be pickled
        limits = self.max_computes
        limits = dict(limits) if isinstance(limits, Mapping) else limits
        most = (self.keep, self.count_constant_memory, self.objective, self.machine)
        return type(self), (self.graph, self.budget, self.order, limits, *most)

    @classmethod
    def of(cls, problem: Problem | GraphLike) -> Problem:
        """Return a problem as it is, or that of a graph without a budget."""
        return problem if isinstance(problem, Problem) else cls(problem)

    def __repr__(self) -> str:
        budget = "no budget" if self.budget is None else f"budget {self.budget}"
        return f"Problem({self.graph.name!r}, {budget}, order {self.order}, {self.objective})"

    def rows(self) -> list[tuple[str, str]]:
        """Return graph, budget, rules and objective as pairs of label and text."""
        budget = self.budget_bytes
        limit = "any number" if self.max_computes is None else str(self.max_computes)
        rows = [
            *self.graph.rows(),
            ("budget", "none" if budget is None else f"{budget:,} bytes ({self.budget})"),
            ("order", str(self.order)),
            ("computes per op", limit if not isinstance(self.max_computes, Mapping) else "limited by op"),
            ("objective", str(self.objective)),
        ]
        if self.machine is not None:
            rows.append(("machine", str(self.machine)))
        return [*rows, ("keep", ", ".join(sorted(self.keep)))] if self.keep else rows

    def _repr_html_(self) -> str:
        """Return the notebook's view: the problem's figures, and the memory without recomputation."""
        return f"<div>{html_pairs(self.rows())}{html_picture(self.plot(), 'memory without recomputation')}</div>"

    def plot(self, schedule: Schedule | None = None, ax: Axes | None = None) -> Figure:
        """Draw the memory of a schedule and the budget; default: the reference order without recomputation."""
        from remat.schedule.plots import plot_memory

        axes = plot_memory(
            self.graph, schedule or Schedule.reference(self.graph), self.budget_bytes, ax,
            keep=self.keep, count_constant_memory=self.count_constant_memory,
        )  # fmt: skip
        return figure_of(axes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the problem as a configuration for ``remat solve -c``, with its graph next to it.

        ``save("net.toml")`` also writes ``net.graph.json``. Pictures (``.png``, ``.svg``, ``.pdf``) show :meth:`plot`.

        Raises
        ------
        FormatError
            If the file has another suffix or one cannot be written; names it.
        """
        target = Path(path)
        if target.suffix.lower() in SUFFIXES:
            write_figure(path, self.plot)
            return
        if target.suffix.lower() != ".toml":
            raise FormatError(f"{path}: a problem is written as .toml, {', '.join(SUFFIXES)}", "suffix")
        graph = target.with_suffix(".graph.json")
        self.graph.save(graph)
        write_atomic(path, self._toml(graph.name))

    def _toml(self, graph: str) -> str:
        limits = self.max_computes
        fields = {
            "graph": graph, "budget": self.budget, "order": str(self.order), "objective": str(self.objective),
            "max_computes": limits if not isinstance(limits, Mapping) else None, "keep": sorted(self.keep) or None,
            "count_constant_memory": self.count_constant_memory,
            "machine": None if self.machine is None else self.machine.settings,
        }  # fmt: skip
        text = partial(json.dumps, ensure_ascii=False)  # a TOML string, too
        lines = [f"{name} = {text(value)}" for name, value in fields.items() if value is not None]
        if isinstance(limits, Mapping):
            lines += ["", "[problem.max_computes]", *(f"{text(op)} = {limit}" for op, limit in limits.items())]
        return "\n".join(["[problem]", *lines, ""])

    @property
    def constant_bytes(self) -> int:
        """Constant memory that counts in peak and budget."""
        return self.graph.constant_memory if self.count_constant_memory else 0

    @property
    def reference_peak(self) -> int:
        """Bytes that 100 % stands for."""
        return self.graph.reference_peak + self.constant_bytes

    @cached_property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, or None for no limit."""
        return None if self.budget is None else parse_budget(self.budget, self.reference_peak)

    @property
    def hopeless(self) -> bool:
        """True when the budget is below :attr:`structural_peak`."""
        return self.budget_bytes is not None and self.budget_bytes < self.structural_peak

    @property
    def structural_peak(self) -> int:
        """Bytes below which no schedule exists: the needs of the largest op, or the tensors alive at the end."""
        arrays = self.graph.arrays
        at_end = int(arrays.size[self.kept | arrays.is_input].sum())
        return max(self.graph.structural_bound.peak, at_end) + self.constant_bytes

    @property
    def can_move(self) -> bool:
        """True if there is a host to which tensors can be moved."""
        return self.machine is not None and self.machine.can_move

    @cached_property
    def one_memory(self) -> Problem:
        """Same problem without its machine, for the least cost; itself if it has none.

        Each of its schedules is valid for this problem and takes the time of its computes. Bounds and proofs carry over
        only if this problem cannot move tensors (:attr:`can_move`).
        """
        return self if self.machine is None else replace(self, machine=None, objective=Objective.LEAST_COST)

    @cached_property
    def plain(self) -> Problem:
        """Same problem without outputs in place of inputs; itself if it has none.

        Each of its schedules is valid for this problem and holds at most as much here. The converse does not hold, so
        neither bounds nor proofs carry over.
        """
        graph = self.graph
        return replace(self, graph=graph.plain, budget=self.budget_bytes) if graph.in_place else self

    def of_plain(self, schedule: Schedule) -> Schedule:
        """Return a schedule of :attr:`plain` as one of this problem; any other one unchanged."""
        return _signed(schedule, self.plain.graph, self.graph)

    def for_plain(self, schedule: Schedule) -> Schedule:
        """Return a schedule of this problem as one of :attr:`plain`; any other one unchanged."""
        return _signed(schedule, self.graph, self.plain.graph)

    @cached_property
    def relaxed(self) -> tuple[Problem, int]:
        """Problem without outputs in place of inputs whose bounds hold for this one, and bytes to subtract from a peak.

        Each op holds as little as if it wrote everything it may in place; see :meth:`saving`.
        """
        return self.saving(self.graph.arrays.in_place_most)

    def saving(self, saved: Int) -> tuple[Problem, int]:
        """Return a problem without outputs in place of inputs in which each op holds `saved` bytes less, and a shift.

        The shift, in bytes, is added to the budget and to every workspace, so that none is negative. A schedule whose
        ops save at most `saved` bytes here has a peak there that exceeds its peak here by at most the shift.

        Parameters
        ----------
        saved : int64 array, shape (ops,)
        """
        graph, arrays = self.graph, self.graph.arrays
        if not graph.in_place:
            return self, 0
        workspace = arrays.workspace - saved
        shift = max(0, -int(workspace.min()))
        ops = [
            replace(op, in_place=(), workspace=least + shift)
            for op, least in zip(graph.ops, workspace.tolist(), strict=True)
        ]
        budget = None if self.budget_bytes is None else self.budget_bytes + shift
        return replace(self, graph=replace(graph, ops=ops), budget=budget), shift

    @cached_property
    def kept(self) -> Bool:
        """Mask of tensors that must be alive at the end; shape (tensors,)."""
        kept = self.graph.arrays.is_output.copy()
        kept[[self.graph.tensor_index[name] for name in self.keep]] = True
        return kept

    @cached_property
    def compute_limits(self) -> list[int | None]:
        """Most computes of each op, by position; None: unlimited. 1 for ops that are not recomputable."""
        limits = self.max_computes
        return [
            1 if not op.recomputable else limits.get(op.name) if isinstance(limits, Mapping) else limits
            for op in self.graph.ops
        ]

    @cached_property
    def once(self) -> Bool:
        """Ops that may not run again, bool array of shape (ops,)."""
        return np.array([limit == 1 for limit in self.compute_limits], dtype=np.bool_)

    def value(self, certificate: Certificate) -> int:
        """Return the objective of a certified schedule, such as its cost or its peak."""
        return self.objective.value(certificate)

    def simulate(self, schedule: Schedule) -> Simulation:
        """Simulate a schedule with the kept tensors and the constant memory of this problem; check no rules.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> problem = Problem(unit_chain(8))
        >>> problem.simulate(Schedule.reference(problem.graph)).peak
        10
        """
        return simulate(self.graph, schedule, keep=self.keep, count_constant_memory=self.count_constant_memory)

    def validate(self, schedule: Schedule) -> Certificate:
        """Check a schedule by the rules of this problem."""
        return validate(self.graph, schedule, self.rules)

    @cached_property
    def rules(self) -> Rules:
        """The rules for the validator."""
        limits = self.max_computes
        return Rules(
            self.budget_bytes,
            self.order,
            dict(limits) if isinstance(limits, Mapping) else limits,
            self.keep,
            self.count_constant_memory,
            self.machine,
        )


def resolved_objective(given: Objective | str | None, machine: Machine | None) -> Objective:
    """Return an objective, by default the time on a machine and otherwise the cost.

    Raise ProblemError if it is unknown or does not go with the machine.
    """
    if given is None:
        return Objective.DEFAULT if machine is None else Objective.LEAST_TIME
    try:
        objective = Objective(given)
    except ValueError:
        known = ", ".join(Objective)
        raise ProblemError(f"objective {short(given)} is not one of {known}", "bad-objective") from None
    if objective.needs_machine and machine is None:
        raise ProblemError(f"objective {str(objective)!r} needs a machine, such as pcie4,host=64GiB", "no-machine")
    if machine is not None and not objective.needs_machine:
        raise ProblemError(
            f"objective {str(objective)!r} does not depend on a machine; leave out the objective or the machine",
            "no-machine",
        )
    if objective.needs_power and machine is not None and machine.link_power is None:
        raise ProblemError(
            f"objective {str(objective)!r} needs the power of transfers, such as pcie4,link-power=0.4", "no-energy"
        )
    return objective


def _signed(schedule: Schedule, given: ComputeGraph, wanted: ComputeGraph) -> Schedule:
    """Return a schedule of one graph as one of another graph with the same ops and tensors."""
    if given is wanted or schedule.graph_digest != given.digest:
        return schedule
    return schedule.signed_for(wanted)


def _names(keep: Iterable[str], graph: ComputeGraph) -> frozenset[str]:
    """Return the names of the tensors to keep, which the graph must have."""
    if isinstance(keep, str):
        raise ProblemError(f"keep must be a list of tensor names, not the single name {short(keep)}", "keep")
    if not isinstance(keep, Iterable):
        raise ProblemError(f"keep must be a list of tensor names, not {short(keep)}")
    names = tuple(keep)
    for name in names:
        if not isinstance(name, str):
            raise ProblemError(f"keep must be names of tensors, not {short(name)}")
    for name in names:
        if name not in graph.tensor_index:
            several = all(part in graph.tensor_index for part in name.split(","))
            hint = "; name each tensor separately" if several else nearest(name, graph.tensor_index)
            raise ProblemError(f"tensor {name!r} to keep is not in graph {graph.name!r}{hint}")
    return frozenset(names)


def _check_limits(limits: int | Mapping[str, int] | None, graph: ComputeGraph) -> None:
    """Require limits of computes of at least 1, for ops of the graph only."""
    for name, limit in limits.items() if isinstance(limits, Mapping) else [("every op", limits)]:
        if name != "every op" and name not in graph.op_index:
            raise ProblemError(f"op {name!r} with a limit of computes is not in graph {graph.name!r}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ProblemError(f"the limit of computes for {name} must be a whole number from 1, not {short(limit)}")
        if limit is not None and limit > MOST_COMPUTES:
            raise ProblemError(f"the limit of computes for {name} is at most {MOST_COMPUTES:,}; leave it out for none")
