"""Plan for a framework: its settings, certified, and the best of them within a budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from remat.bounds import best_bound
from remat.errors import ProblemError
from remat.experiments.framework_plans.candidates import CANDIDATES, HUGGING_FACE, SOURCES, Candidate
from remat.experiments.framework_plans.layers import Layers
from remat.formulations.policies import PoliciesOptions
from remat.problem import Problem
from remat.problem.regions import Replays, Saved
from remat.runtime.deadline import Deadline
from remat.runtime.text import nearest
from remat.schedule import Certificate, Schedule
from remat.schedule.certificate import overhead_percent
from remat.solving.policies import best_policy
from remat.solving.result import Result
from remat.solving.solve import solve

#: Names of the frameworks.
FRAMEWORKS = tuple(CANDIDATES)
#: Shares of the time limit for the best policy by ops, for the best schedule, and for bounds of other budgets.
POLICY, BEST, OTHERS = 0.3, 0.5, 0.2
#: Code for the best policy by ops, for frameworks whose checkpoints take a policy of PyTorch.
POLICY_CODE = {
    "hf": (
        "policy = remat.torch.policy(model, (), {budget!r}, sample_kwargs=batch)\n"
        + HUGGING_FACE.format(options='{{"use_reentrant": False, "context_fn": policy}}')
    ),
    "torchtitan": (
        "# torchtitan's configuration cannot name single ops: set activation_checkpoint=None, and before the model is\n"
        "# compiled and sharded, run each block under torch.utils.checkpoint.checkpoint(..., context_fn=policy):\n"
        "policy = remat.torch.policy(model, sample, {budget!r})\n"
        "policy.checkpoint(model)"
    ),
}


@dataclass(frozen=True)
class Setting:
    """Setting of a framework on a graph.

    Attributes
    ----------
    name : str
    code : str
        To paste: flags, configuration or Python.
    certificate : Certificate
        Of the schedule that the framework follows with it.
    schedule : Schedule
    gap : float or None
        Share of its cost above the bound for all schedules within the budget, or within its own peak if that is above
        the budget. None for a cost of 0.
    """

    name: str
    code: str
    certificate: Certificate = field(repr=False)
    schedule: Schedule = field(repr=False)
    gap: float | None = None

    @property
    def fits(self) -> bool:
        """True if the peak is within the budget."""
        return self.certificate.accepted


@dataclass(frozen=True)
class FrameworkPlan:
    """Settings of a framework, cheapest first, and the best schedule without its limits.

    Attributes
    ----------
    framework : str
    problem : Problem
    settings : tuple of Setting
        Those that fit by cost, then the others by peak.
    best : Result
    """

    framework: str
    problem: Problem = field(repr=False)
    settings: tuple[Setting, ...]
    best: Result = field(repr=False)

    @property
    def chosen(self) -> Setting | None:
        """Cheapest setting within the budget; None if none fits."""
        first = self.settings[0] if self.settings else None
        return first if first is not None and first.fits else None

    @property
    def source(self) -> str:
        """Version and file of the framework that define its options."""
        return SOURCES[self.framework]

    @property
    def bound_overhead(self) -> float | None:
        """Extra cost in % that no schedule within the budget can undercut; None if unknown."""
        base = self.problem.graph.base_cost
        return None if self.best.bound is None else overhead_percent(max(self.best.bound, base), base)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        chosen = self.chosen
        return {
            "framework": self.framework, "source": self.source, "graph": self.problem.graph.name,
            "budget": self.problem.budget_bytes, "reference_peak": self.problem.reference_peak,
            "chosen": None if chosen is None else chosen.name, "code": None if chosen is None else chosen.code,
            "bound_overhead": self.bound_overhead, "best_overhead": self.best.overhead,
            "settings": [
                {"name": each.name, "peak": each.certificate.peak, "overhead": each.certificate.overhead,
                 "fits": each.fits, "gap": each.gap, "code": each.code}
                for each in self.settings
            ],
        }  # fmt: skip


def framework_plan(problem: Problem, framework: str, *, time_limit: float = 20.0) -> FrameworkPlan:
    """Certify the settings of a framework on a training graph, and find the best schedule and bound to compare with.

    Parameters
    ----------
    problem : Problem
        With a budget and a fixed order; the graph has module paths.
    framework : {"hf", "megatron", "torchtitan", "maxtext", "jax"}
    time_limit : float
        Seconds for the searches.

    Raises
    ------
    ProblemError
        If the framework is unknown, there is no budget, or the graph has no layers.

    Examples
    --------
    >>> from remat.graphs.zoo.language_models import decoder
    >>> plan = framework_plan(Problem(decoder(layers=4), "90%"), "megatron", time_limit=2)
    >>> plan.chosen.fits, plan.chosen.code.startswith("--recompute")
    (True, True)
    """
    if framework not in CANDIDATES:
        raise ProblemError(
            f"framework {framework!r} is not one of {', '.join(FRAMEWORKS)}{nearest(framework, FRAMEWORKS)}",
            "framework",
        )
    if problem.budget_bytes is None:
        raise ProblemError("a plan needs a budget, such as '60%' or '8GiB'", "no-budget")
    layers = Layers(problem)
    found = [(each, schedule_of(problem, each)) for each in CANDIDATES[framework](layers)]
    found.append((Candidate("no checkpoints", (), "# no checkpoints"), Schedule.reference(problem.graph)))
    if framework in POLICY_CODE:
        found += _by_ops(problem, layers, time_limit * POLICY, POLICY_CODE[framework])
    settings = [Setting(each.name, each.code, problem.validate(schedule), schedule) for each, schedule in found]
    start = min((each for each in settings if each.fits), key=lambda each: each.certificate.cost, default=None)
    best = solve(problem, "auto", stop=time_limit * BEST, warm_start=None if start is None else start.schedule)
    bounds = _bounds(problem, best, [each for each in settings if not each.fits], time_limit * OTHERS)
    settings = [replace(each, gap=_gap(each.certificate, bounds)) for each in settings]
    settings.sort(key=lambda each: (not each.fits, each.certificate.cost if each.fits else each.certificate.peak))
    return FrameworkPlan(framework, problem, tuple(settings), best)


def schedule_of(problem: Problem, candidate: Candidate) -> Schedule:
    """Return the schedule that a framework follows with a setting."""
    replays = Replays(problem, candidate.regions)
    index = problem.graph.op_index
    stored = frozenset(op for op in candidate.saved if index[op] in replays.region_of)
    return replays.schedule(Saved(replays.least_saved.ops | stored), candidate.name)


def _by_ops(problem: Problem, layers: Layers, seconds: float, code: str) -> list[tuple[Candidate, Schedule]]:
    """Return the best policy by ops, if one fits."""
    regions = layers.regions([[name] for name in layers.names])
    try:
        found = best_policy(problem, PoliciesOptions(regions, plain=False), time_limit=seconds)
    except ProblemError:
        return []
    code = code.format(budget=problem.budget)
    return [(Candidate("policy by ops", regions, code, found.saved.ops), found.schedule)]


def _bounds(problem: Problem, best: Result, others: list[Setting], seconds: float) -> dict[int, int]:
    """Return bounds on the cost by peak: that of the budget, and those of the peaks of settings above it."""
    assert problem.budget_bytes is not None
    clock, base = Deadline.after(seconds), problem.graph.base_cost
    bounds = {problem.budget_bytes: max(best.bound or 0, base)}
    peaks = sorted({each.certificate.peak for each in others})
    for left, peak in zip(range(len(peaks), 0, -1), peaks, strict=True):
        within = replace(problem, budget=peak)
        bounds[peak] = best_bound(within, clock.earlier(clock.remaining / left)).value or base
    return bounds


def _gap(certificate: Certificate, bounds: dict[int, int]) -> float | None:
    if not certificate.cost:
        return None
    bound = bounds[max(certificate.peak, min(bounds))]
    return max(0.0, (certificate.cost - bound) / certificate.cost)
