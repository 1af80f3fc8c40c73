"""Memory policies of torchtitan's graph trainer from certified schedules: :func:`memory_policy`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from remat.errors import ProblemError
from remat.problem import Problem, parse_budget
from remat.runtime.deadline import Deadline
from remat.schedule import Machine, OrderRule, Schedule
from remat.solving.method import MethodLike
from remat.solving.solve import solve
from remat.solving.training_steps import StepReport, costs_text, host_machine
from remat.torch.costs import cost_model
from remat.torch.links import machine_here
from remat.torch.policies.graph_tags import Tags, captured_step, fitted, saved_bytes

_log = logging.getLogger("remat.torch")


@dataclass(frozen=True, kw_only=True)
class MemoryPolicyReport(StepReport):
    """Certificate of the schedule that the tags of a graph ask for. Memory is in bytes.

    Further attributes: :class:`StepReport`; `result` is the best schedule found without the limits of tags.

    Attributes
    ----------
    saved, recomputed, moved : int
        Ops of the forward pass that are saved and recomputed, and tensors that move to the host.
    schedule : Schedule
    """

    saved: int
    recomputed: int
    moved: int
    schedule: Schedule

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        return [
            *self.opening_rows("graph", "tags"),
            *self.budget_rows("parameters and inputs"),
            ("tags", f"{self.saved:,} ops saved, {self.recomputed:,} recomputed, {self.moved:,} tensors to the host"),
            self.saved_row(), *self.best_known_rows(), *self.closing_rows(),
        ]  # fmt: skip


def memory_policy(
    budget: str | int | float,
    *,
    offload: str | int | None = None,
    machine: Machine | str | None = None,
    method: MethodLike = "auto",
    costs: Any = "roofline",
    time_limit: float = 60.0,
) -> Callable[..., fx.GraphModule]:
    """Return a memory policy for torchtitan's graph trainer: ``f(gm, *, config) -> gm``, which tags nodes.

    It takes one graph of forward pass, loss and backward pass, as ``make_fx`` records it. Nodes of the backward pass
    have ``meta["autograd_backward"]``. The policy sets ``meta["recompute"]`` of the others to ``MUST_SAVE``,
    ``MUST_RECOMPUTE`` or ``MUST_CPU_OFFLOAD``. Later passes carry the tags out. The tags are those nearest
    to the best schedule found, changed until the schedule that they ask for keeps the budget.

    Register it with ``register_memory_policy("remat")(memory_policy("24GiB"))`` and select it with
    ``--compile.memory_policy remat``.

    Parameters
    ----------
    budget : str, int or float
        Bytes of activations, gradients and temporaries, or a share of the peak without recomputation.
    offload, machine : optional
        Host memory and links, as in :func:`remat.torch.rematerialize`.
    method, costs : optional
        Search for the best schedule, and costs of ops, as there.
    time_limit : float
        Seconds for the search; half of it for the best schedule.

    Returns
    -------
    callable
        With the attribute ``reports``, a list of :class:`MemoryPolicyReport`, one for each graph.

    Raises
    ------
    CaptureError
        When called, if the graph has no backward pass, or collectives.
    ProblemError
        When called, if no tags within the budget are found; with the least peak of those tried.

    Examples
    --------
    >>> policy = memory_policy("24GiB", offload="64GiB")
    >>> policy.reports  # one for each graph that it has tagged
    []
    """
    parse_budget(budget, 0)  # refuse it before training begins
    model = cost_model(costs)
    host = host_machine(offload, machine and machine_here(machine))
    reports: list[MemoryPolicyReport] = []

    def tag(gm: fx.GraphModule, *, config: Any = None) -> fx.GraphModule:
        """Tag the nodes of a graph; `config` is torchtitan's and not read."""
        begun = time.monotonic()
        captured = captured_step(gm, f"graph {len(reports) + 1}", model)
        graph = captured.graph
        once = {op.name: 1 for op in graph.ops if not op.recomputable}
        problem = Problem(graph, budget, OrderRule.FIXED, once or None, machine=host)
        seconds = {"capture": time.monotonic() - begun}
        begun = time.monotonic()
        result = solve(problem, method, stop=time_limit / 2)
        everything = Tags(frozenset(op.name for op in graph.ops if op.phase != "backward"))
        starts = [everything, Tags(frozenset())]
        if result.schedule is not None:
            starts.insert(0, Tags.of(problem, result.schedule))
        tried = [fitted(problem, start, Deadline.after(time_limit / 6)) for start in starts]
        kept = [pair for pair in tried if pair[1].accepted]
        tags, certificate = (
            min(kept, key=lambda pair: problem.value(pair[1])) if kept else min(tried, key=lambda pair: pair[1].peak)
        )
        if not certificate.accepted:
            raise ProblemError(
                f"no tags keep {problem.budget_bytes:,} bytes: the least peak tried is {certificate.peak:,} bytes",
                "tags",
            )
        seconds["solve"] = time.monotonic() - begun
        tags.apply(gm, captured)
        schedule = tags.schedule(problem)
        computes = Counter(schedule.computes())
        forward = [op for op in graph.ops if op.phase != "backward"]
        report = MemoryPolicyReport(
            name=graph.name, ops=len(graph.ops), recomputations=certificate.recomputations,
            reference_peak=problem.reference_peak, budget=problem.budget_bytes, predicted_peak=certificate.peak,
            overhead=certificate.overhead, constant_memory=graph.constant_memory, constants_counted=False,
            saved_bytes=saved_bytes(problem, schedule),
            certificate=certificate, result=result, seconds=seconds, costs=costs_text(graph),
            saved=sum(op.name in tags.saved for op in forward),
            recomputed=sum(computes[op.name] > 1 for op in forward),
            moved=len(tags.moved), schedule=schedule,
        )  # fmt: skip
        reports.append(report)
        _log.info("memory policy: %s", report)
        return gm

    tag.reports = reports  # type: ignore[attr-defined]
    return tag
