"""Peak against extra time on one captured step, for torch, given schedules and this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from remat.errors import CaptureError, RematError
from remat.experiments.contestant import Contestant
from remat.experiments.frontier import frontier
from remat.experiments.runs import Watch
from remat.experiments.trade_off import Point, TradeOff
from remat.problem import Problem
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import OrderRule, Schedule
from remat.solving.method import MethodLike
from remat.solving.stop import Stop
from remat.torch.capture import capture
from remat.torch.captured import Captured
from remat.torch.peers.partitioner import partitioner_schedule

#: Budgets of torch's partitioner, in torch's sense of a budget.
KNOBS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
#: Budgets that give this package's methods the peaks of the peers' schedules.
AT_PEAKS = "peaks of the peers"


def compare_peers(  # noqa: PLR0913 - independent options of users
    step: Captured | torch.nn.Module,
    budgets: Sequence[str | int | float] | str = AT_PEAKS,
    methods: Sequence[Contestant | MethodLike] = ("auto",),
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    knobs: Sequence[float] = KNOBS,
    solvers: Sequence[Any] = ("dp",),
    others: Mapping[str, Schedule | Callable[[Captured], Schedule]] | None = None,
    order: str | OrderRule = "free",
    stop: Stop = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    watch: Watch | None = None,
) -> TradeOff:
    """Compare schedules of torch and of this package for one step: same graph, costs and validator.

    Parameters
    ----------
    step : Captured or torch.nn.Module
        A module is captured with `args` and `kwargs` by route ``"joint"``.
    budgets : sequence, or :data:`AT_PEAKS`
        Budgets of this package's methods, as for :class:`remat.problem.Problem`. The default is the peak of each valid
        schedule of torch that saves anything.
    methods : sequence
        As for :func:`remat.experiments.frontier.frontier`: each budget starts from the schedule of the one below.
    knobs : sequence of float
        Values of ``activation_memory_budget`` of torch's partitioner.
    solvers : sequence
        Solvers of torch's partitioner; see :data:`remat.torch.peers.SOLVERS`.
    others : mapping, optional
        More schedules of the captured step, or functions from it to a schedule, by the names of their makers.
    order : {"free", "fixed"}
        Order rule for this package's methods; torch's own schedules are free.
    stop, options
        Limits and options of each solve.
    watch : callable, optional
        Called for each budget, as in :func:`remat.experiments.frontier.frontier`.

    Returns
    -------
    TradeOff
        A maker that fails has a point with the reason, and the others continue. Remarks name requirements on an
        executor: random ops that torch redraws without their state, and ops whose effects happen twice.

    Examples
    --------
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> found = compare_peers(net, args=(torch.zeros(32, 8),), knobs=(1, 0), methods=["greedy"])
    >>> sorted(found.by_maker())
    ['greedy', "torch's partitioner (dp)"]
    """
    captured = step if isinstance(step, Captured) else capture(step, args, kwargs, route="joint")
    graph = captured.graph
    points: list[Point] = []
    for solver in solvers:
        who = f"torch's partitioner ({solver if isinstance(solver, str) else type(solver).__name__})"
        points += [
            _point(captured, who, f"{knob:g}", partial(partitioner_schedule, budget=knob, solver=solver))
            for knob in knobs
        ]
    for who, made in (others or {}).items():
        points.append(_point(captured, who, "", made))
    if isinstance(budgets, str):
        if budgets != AT_PEAKS:
            raise CaptureError(f"budgets are a list, or {AT_PEAKS!r}, not the text {budgets!r}")
        budgets = sorted({min(point.peak, graph.reference_peak) for point in points if point.peak is not None})
    if budgets and methods:
        points += _ours(Problem(graph, order=order), budgets, methods, stop=stop, options=options, watch=watch)
    return TradeOff(graph, tuple(points))


def _point(captured: Captured, who: str, knob: str, made: Schedule | Callable[[Captured], Schedule]) -> Point:
    try:
        schedule = made if isinstance(made, Schedule) else made(captured)
    except RematError as error:
        return Point.failed(who, knob, str(error))
    return Point.of(captured.graph, schedule, who, knob, remarks=remarks_on(captured, schedule))


def remarks_on(captured: Captured, schedule: Schedule) -> list[str]:
    """Return remarks on random ops that are redrawn without their state, and on effects that happen twice."""
    remarks = []
    unsafe = list(schedule.meta.get("unsafe", ()))
    if unsafe:
        remarks.append(f"{_some(unsafe, 'random op')} drawn again without its state, which only Inductor makes good")
    counts = Counter(schedule.computes())
    twice = [op for op in captured.graph.meta.get("effects", ()) if counts[op] > 1]
    if twice:
        remarks.append(
            f"{_some(twice, 'op')} with effects computed again: statistics count once only if that is seen to"
        )
    return remarks


def _some(names: Iterable[str], what: str) -> str:
    names = list(names)
    return f"{what} {names[0]!r} is" if len(names) == 1 else f"{len(names)} {what}s ({names[0]!r}, ...) are"


def _ours(
    problem: Problem, budgets: Sequence[str | int | float], methods: Sequence[Contestant | MethodLike], **more: Any
) -> list[Point]:
    found = frontier(problem, budgets, methods, **more)
    points = []
    for method in found.methods:
        for cell in found.of(method):
            if cell.schedule is None:
                why = str(cell.row["message"]) if cell.status == "failed" else f"no schedule: {cell.status}"
                points.append(Point.failed(method.label, f"{cell.budget}", why))
            else:
                bound = found.bound(cell) if cell.complete else None
                points.append(Point.of(problem.graph, cell.schedule, method.label, f"{cell.budget}", bound=bound))
    return points


@dataclass(frozen=True)
class EqualPeak:
    """A schedule of a peer, and the cheapest other schedule that needs no more memory.

    Attributes
    ----------
    peer : Point
    ours : Point or None
        None if no other schedule has a peak as small.
    bound : int or None
        Proven lower bound on the cost of schedules within the peer's peak, or None.
    """

    peer: Point
    ours: Point | None
    bound: int | None = None

    @property
    def ratio(self) -> float | None:
        """Our extra time over the peer's; None if either is unknown, or the peer has none."""
        if self.ours is None or self.ours.overhead is None or not self.peer.overhead:
            return None
        return self.ours.overhead / self.peer.overhead

    @property
    def least_ratio(self) -> float | None:
        """Lower bound on the ratio of any schedule; None if unknown."""
        base = 0 if self.peer.certificate is None else self.peer.certificate.base_cost
        if self.bound is None or not base or not self.peer.overhead:
            return None
        return max(self.bound - base, 0) / base * 100 / self.peer.overhead


def at_equal_peak(found: TradeOff, peer: str) -> list[EqualPeak]:
    """Pair each valid schedule of one maker with the cheapest of all others with at most its peak.

    Parameters
    ----------
    peer : str
        As in :attr:`remat.experiments.trade_off.Point.who`; makers with the same first words do not count as others.
    """
    family = peer.split(" (", maxsplit=1)[0]
    ours = TradeOff(found.graph, tuple(point for point in found.points if not point.who.startswith(family)))
    valid = [point for point in found.points if point.who == peer and point.peak is not None]
    proofs = [(int(point.knob), point.bound) for point in ours.points if point.bound is not None]
    pairs = []
    for point in valid:
        # a bound at a budget holds for every smaller budget
        bounds = [bound for budget, bound in proofs if budget >= (point.peak or 0)]
        pairs.append(EqualPeak(point, ours.best(point.peak or 0), max(bounds, default=None)))
    return pairs
