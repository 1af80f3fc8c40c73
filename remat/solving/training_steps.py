"""Schedules of captured training steps: found or given, certified, and reported."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from remat.errors import ProblemError, ScheduleError
from remat.graphs import ComputeGraph
from remat.problem import Problem
from remat.runtime.sizes import memory_bytes
from remat.runtime.text import nearest
from remat.schedule import Certificate, Machine, Rules, Schedule, Verdict, validate
from remat.schedule.certificate import overhead_text
from remat.schedule.io import read_schedule
from remat.solving.result import Result

#: Remedies where a function lacks an option that others have.
REMEDIES = {
    "optimizer": ": give a budget in bytes, less those of the optimizer's state",
    "offload": ": remat.torch.rematerialize, remat.torch.inductor and remat.jax.best_policy move tensors to the host",
}
REMEDIES["machine"] = REMEDIES["offload"]


def check_options(function: str, options: Mapping[str, Any], known: type) -> None:
    """Raise ProblemError if an option is not one of the typed dictionary `known`."""
    words = get_type_hints(known)
    for name in options:
        if name not in words:
            remedy = REMEDIES.get(name) or nearest(name, words) or f"; it has {', '.join(words)}"
            raise ProblemError(f"{function} has no option {name!r}{remedy}", "step-setting")


#: Machine for a host without one: the usual link of an accelerator.
DEFAULT_MACHINE = "pcie4"


def host_machine(offload: str | int | None, machine: Machine | str | None) -> Machine | None:
    """Return the machine of a step with `offload` bytes of host memory; None if no tensors move."""
    if offload is None and machine is None:
        return None
    made = Machine.of(DEFAULT_MACHINE if machine is None else machine)
    return made if offload is None else replace(made, host=memory_bytes(offload))


@dataclass(frozen=True, kw_only=True)
class StepReport(ABC):
    """Prediction and certificate of a training step that keeps a budget. Memory is in bytes.

    Attributes
    ----------
    name : str
        Name of the graph.
    ops, recomputations : int
        Ops of the step, and computes beyond the first of each op.
    reference_peak : int
        Peak without recomputation.
    budget : int or None
        None for a given schedule without a budget.
    predicted_peak : int
        Certified peak.
    overhead : float or None
        Extra cost in % under the chosen cost model; None if all costs are 0.
    constant_memory : int
    constants_counted : bool
        True if peak and budget count the constant memory.
    saved_bytes : int
        Bytes that the backward pass reads from the forward pass.
    certificate : Certificate
    result : Result or None
        Answer of the method; None for a given schedule.
    seconds : dict of str to float
        Times of capture and solving.
    costs : str
        Cost model, and its figures.
    """

    name: str
    ops: int
    recomputations: int
    reference_peak: int
    budget: int | None
    predicted_peak: int
    overhead: float | None
    constant_memory: int
    constants_counted: bool
    saved_bytes: int
    certificate: Certificate = field(repr=False)
    result: Result | None = field(default=None, repr=False)
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    costs: str = field(default="", repr=False)

    def opening_rows(self, label: str, how: str) -> list[tuple[str, str]]:
        """Return the rows of the step and its peak; `how`: the kind of execution."""
        share = 100 * self.predicted_peak / self.reference_peak if self.reference_peak else 100.0
        return [
            (label, f"{self.name}: {self.ops:,} ops, {self.recomputations:,} recomputations, {how}"),
            (
                "peak",
                f"{self.predicted_peak:,} bytes predicted, {share:.1f} % of the {self.reference_peak:,} "
                "without recomputation",
            ),
        ]

    def budget_rows(self, constants: str) -> list[tuple[str, str]]:
        """Return the rows of the budget and of the constant memory, which consists of `constants`."""
        rows = [] if self.budget is None else [("budget", f"{self.budget:,} bytes")]
        counted = "counted" if self.constants_counted else "not counted"
        return [*rows, ("constant", f"{self.constant_memory:,} bytes of {constants}, {counted}")]

    def saved_row(self) -> tuple[str, str]:
        """Return the row of the values between the passes."""
        return "saved", f"{self.saved_bytes:,} bytes from forward to backward pass"

    def best_known_rows(self) -> list[tuple[str, str]]:
        """Return the row of the best schedule that `result` has; none without one."""
        best = None if self.result is None else self.result.certificate
        if best is None:
            return []
        return [("best known", f"{best.overhead or 0:.4g} % extra cost, peak {best.peak:,} bytes")]

    def closing_rows(self) -> list[tuple[str, str]]:
        """Return the rows of cost, search, certificate and times."""
        rows = [
            ("extra cost", overhead_text(self.certificate.cost, self.certificate.base_cost)),
            *self.certificate.transfer_rows(),
            *self.certificate.time_rows(),
        ]
        if self.costs:
            rows.append(("costs", self.costs))
        if self.result is not None:
            gap = "" if self.result.gap is None else f", gap {100 * self.result.gap:.4g} %"
            rows.append(("found by", f"{self.result.source}: {self.result.status}{gap}"))
            rows.append(("scope", str(self.result.scope)))
        rows.append(self.certificate.verdict_row())
        rows.append(("seconds", ", ".join(f"{word} {value:.1f}" for word, value in self.seconds.items())))
        return rows

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""

    def __str__(self) -> str:
        return "\n".join(f"{word:<12} {text}" for word, text in self.rows())


def costs_text(graph: ComputeGraph) -> str:
    """Return the cost model of a captured graph and its figures, as far as its capture recorded them."""
    return ": ".join(filter(None, (graph.meta.get(key) for key in ("cost_model", "cost_figures"))))


@dataclass(frozen=True)
class CertifiedStep:
    """Schedule of a training step with its certificate; `result`: the answer of the method that found it."""

    schedule: Schedule
    certificate: Certificate
    result: Result | None


def certified(
    problem: Problem, schedule: Schedule | str | os.PathLike[str] | None, search: Callable[[], Result]
) -> CertifiedStep:
    """Return the given schedule, or that of a search, with its certificate.

    Raise ProblemError if no schedule within the budget exists or was found, and ScheduleError if the schedule does not
    belong to the graph, or exceeds the budget.
    """
    graph, result = problem.graph, None
    if schedule is None:
        result = search()
        if result.schedule is None:
            message = result.message.replace("the tensors alive at the end need", "outputs and gradients together need")
            raise ProblemError(f"no schedule of {graph.name!r}: {message}")
        found = result.schedule
    else:
        found = schedule if isinstance(schedule, Schedule) else read_schedule(schedule)
        # other costs (another machine, other threads) change the digest of the same step; the validator decides
        found = found.signed_for(graph)
    rules = Rules(
        budget=problem.budget_bytes, count_constant_memory=problem.count_constant_memory, machine=problem.machine
    )
    certificate = validate(graph, found, rules)
    if certificate.verdict is Verdict.OVER_BUDGET and (rules.budget is None or certificate.peak <= rules.budget):
        raise ScheduleError(f"the schedule does not fit the machine: {certificate.first}", "step-over-host")
    if certificate.verdict is Verdict.OVER_BUDGET:
        raise ScheduleError(
            f"the schedule holds {certificate.peak:,} bytes, over the budget of {rules.budget:,} bytes",
            "step-over-budget",
        )
    if not certificate.accepted:
        raise ScheduleError(f"the schedule is none of graph {graph.name!r}: {certificate.first}")
    return CertifiedStep(found, certificate, result)
