"""Choice of a policy for selective checkpointing: :func:`policy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from remat.errors import CaptureError, ProblemError
from remat.formulations.policies import PoliciesOptions
from remat.problem import Problem, parse_budget
from remat.problem.regions import Region, Replays, Saved, block_of
from remat.runtime.text import nearest
from remat.schedule import OrderRule
from remat.solving.policies import BestPolicy, best_policy
from remat.solving.result import Result
from remat.solving.solve import solve
from remat.torch.capture import capture
from remat.torch.capture.explaining import explained, module_path, quiet_torch
from remat.torch.capture.fakes import FakeWorld, grouped_products, sample_tuple, without_onednn
from remat.torch.captured import Captured
from remat.torch.lock import in_turn
from remat.torch.modes import kept_modes
from remat.torch.peers.saved import schedule_of_saved_set
from remat.torch.policies.contexts import Policy, RegionTable
from remat.torch.policies.recording import Run, key_of, matched, recorded
from remat.torch.policies.report import PolicyReport

#: Run and position within it of a call; None without one.
Place = tuple[int, int] | None
#: Places of the call of each op, in eager mode and in a trace.
Places = Mapping[str, tuple[Place, Place]]
#: Share of the time limit for the best schedule without the limits of policies.
BEST = 0.4


@in_turn
def policy(  # noqa: PLR0913 - independent options of users
    model: torch.nn.Module,
    sample_args: Sequence[Any] | torch.Tensor,
    budget: str | int | float,
    *,
    sample_kwargs: Mapping[str, Any] | None = None,
    regions: str | Sequence[str] | None = None,
    plain: bool = False,
    costs: Any = "roofline",
    time_limit: float | None = 60.0,
    compare: bool = True,
) -> Policy:
    """Return a `context_fn` for ``torch.utils.checkpoint`` with which a model's training step keeps a memory budget.

    The model keeps its own checkpoints: ``checkpoint(block, x, use_reentrant=False, context_fn=policy)``, or for
    transformers ``activation_checkpointing_kwargs={"use_reentrant": False, "context_fn": policy}``. A model without
    checkpoints gets them by ``policy.checkpoint(model)``. The policy is a table of the ops of each region, by op and
    occurrence: a replay computes what is not saved. Outputs and gradients are bitwise those of the model.

    Parameters
    ----------
    model : torch.nn.Module
        Captured in training mode. It gets a hook that counts its regions.
    sample_args : sequence or a single tensor
        Arguments of a typical call.
    budget : str, int or float
        As for :func:`remat.torch.rematerialize`.
    sample_kwargs : mapping, optional
    regions : str or sequence of str, optional
        Paths of the modules around which the program has its checkpoints; ``*`` is a wildcard
        (``"transformer.h.*"``). Default: the layers that transformers checkpoints, or else the blocks, which are
        modules whose name is a number, outermost ones.
    plain : bool
        Regions may also have no checkpoint at all, which is cheaper than to save all of it. For
        ``policy.checkpoint(model)``, which leaves them as they are.
    costs : str or CostModel
        As for :func:`remat.torch.rematerialize`.
    time_limit : float or None
        Seconds for everything but the capture; None: no limit.
    compare : bool
        Also search for the best schedule at this budget without the limits of policies, for the report.

    Returns
    -------
    Policy
        A :class:`functools.partial`; `report` has the certificate.

    Raises
    ------
    CaptureError
        If the model cannot be captured, or has no module at a path.
    ProblemError
        If no policy for these regions keeps the budget; names the smallest peak known.

    Examples
    --------
    >>> from torch import nn, randn
    >>> block = lambda: nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
    >>> model = nn.Sequential(*(block() for _ in range(4)))
    >>> x = randn(64, 32)
    >>> chosen = policy(model, x, "70%", plain=True, compare=False)
    >>> chosen.checkpoint(model)
    >>> model(x).sum().backward()
    >>> chosen.report.predicted_peak <= 0.7 * chosen.report.reference_peak
    True
    """
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"policy takes a torch.nn.Module, not a {type(model).__name__}", "no-module")
    if budget is None:
        raise ProblemError('policy needs a budget ("8GiB", "60%", bytes)', "step-budget")
    parse_budget(budget, 0)  # refuse it before the capture
    args = sample_tuple(sample_args)
    with kept_modes(model):
        model.train()
        step = captured_regions(model, args, sample_kwargs, regions, costs)
    problem = step.problem(budget)
    options = PoliciesOptions(step.regions, plain=plain)
    found = best_policy(problem, options, time_limit=time_limit and time_limit * (1 - BEST * compare))
    best = None
    if compare:
        best = solve(problem, "auto", stop=time_limit and time_limit * BEST, warm_start=found.schedule)
    return Policy.of(model, step.tables(found.saved), step.report(problem, found, best))


@dataclass(frozen=True, eq=False)
class CapturedRegions:
    """Captured step with the runs of its regions, and where each op of a region is among their calls."""

    captured: Captured
    runs: tuple[Run, ...]
    traced: tuple[Run, ...]
    regions: tuple[Region, ...]
    places: Places
    """Run and position of each op among the calls in eager mode, and in a trace."""

    def problem(self, budget: str | int | float | None) -> Problem:
        """Return the problem: fixed order; ops with the module's outputs run once, unless they cannot be saved."""
        captured = self.captured
        homes = captured.homes_of("output")
        locked = {op for region in self.regions for op in region.unsavable}
        once = {op.name: 1 for op in captured.graph.ops if homes.intersection(op.outputs) and op.name not in locked}
        return Problem(captured.graph, budget, OrderRule.FIXED, once or None)

    def tables(self, saved: Saved) -> list[RegionTable]:
        """Return the tables of a choice."""
        kept: list[set[tuple[int, int]]] = [set(), set()]
        for op in saved.ops:
            for mine, place in zip(kept, self.places[op], strict=True):
                if place is not None:
                    mine.add(place)
        return [
            RegionTable(
                run.path,
                [(call.function, (number, place) in kept[0]) for place, call in enumerate(run.calls)],
                [(call.function, (number, place) in kept[1]) for place, call in enumerate(other.calls)],
                plain=region_name(run, number) in saved.plain,
            )
            for number, (run, other) in enumerate(zip(self.runs, self.traced, strict=True))
        ]

    def report(self, problem: Problem, found: BestPolicy, best: Result | None) -> PolicyReport:
        """Return the report of a choice."""
        graph, certificate, saved = self.captured.graph, found.certificate, found.saved
        assert problem.budget_bytes is not None
        inside = {op for region in self.regions if region.name not in saved.plain for op in region.ops}
        compiled = schedule_of_saved_set(
            self.captured,
            [t for op in graph.ops if op.phase != "backward" and (op.name not in inside or op.name in saved.ops)
             for t in op.outputs] + self._borders(),
        )  # fmt: skip
        replays = Replays(problem, self.regions)
        full = problem.validate(replays.schedule(replays.least_saved))
        return PolicyReport(
            name=graph.name, regions=len(self.runs), plain=len(saved.plain),
            ops=sum(len(region.replayed) for region in self.regions), saved=len(saved.ops),
            reference_peak=problem.reference_peak, budget=problem.budget_bytes, predicted_peak=certificate.peak,
            compiled_peak=problem.simulate(compiled).peak, replay_peak=full.peak, replay_overhead=full.overhead,
            found=found, best=best,
        )  # fmt: skip

    def _borders(self) -> list[str]:
        """Return the tensors of regions that other ops of the forward pass read: inputs of later regions."""
        graph = self.captured.graph
        of = {op: number for number, region in enumerate(self.regions) for op in region.ops}
        found = dict[str, None]()
        for op in graph.ops:
            if op.phase != "backward":
                for tensor in op.inputs:
                    for writer in graph.arrays.producers[graph.tensor_index[tensor]].tolist():
                        name = graph.op_names[writer]
                        if name in of and of.get(op.name, -1) != of[name]:
                            found[tensor] = None
        return list(found)


def region_name(run: Run, number: int) -> str:
    """Return the name of a run of a region: its path, and its number among all runs."""
    return f"{run.path} #{number}"


def captured_regions(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    regions: str | Sequence[str] | None,
    costs: Any = "roofline",
) -> CapturedRegions:
    """Capture a training step, and match the ops of its regions with the calls that a policy sees.

    Raise CaptureError if the model cannot be captured, or has no module at a path.
    """
    paths = paths_of(model, regions)
    captured = capture(model, args, kwargs, costs=costs)
    world = FakeWorld.of(model, args, kwargs)
    try:
        with quiet_torch(), without_onednn(), grouped_products():
            given = tuple(args), dict(kwargs or {})
            runs, traced = (recorded(world, paths, given, traced=each) for each in (False, True))
    except Exception as error:  # a module may raise anything
        raise explained(model, error) from error
    if not runs or [run.path for run in runs] != [run.path for run in traced]:
        raise CaptureError(f"the sample runs none of the regions of {type(model).__name__!r}", "no-region")
    return _matched(captured, runs, traced)


#: Class of the layers that models of transformers checkpoint.
_LAYER = "GradientCheckpointingLayer"


def paths_of(model: torch.nn.Module, regions: str | Iterable[str] | None) -> list[str]:
    """Return the paths of the modules that are regions.

    Raise CaptureError if a pattern matches none, one is inside another, or there is no block.
    """
    known = [path for path, _ in model.named_modules() if path]
    if regions is None:
        layers = [path for path, part in model.named_modules() if any(c.__name__ == _LAYER for c in type(part).__mro__)]
        found = [path for path in layers if not any(path.startswith(f"{other}.") for other in layers)]
        found = found or list(dict.fromkeys(block for path in known if (block := block_of(path)) is not None))
        if not found:
            raise CaptureError(
                f"{type(model).__name__!r} has no numbered blocks: name its regions, such as regions='encoder.*'",
                "no-blocks",
            )
        return found
    found = []
    for pattern in [regions] if isinstance(regions, str) else regions:
        depth = pattern.count(".")
        some = [path for path in known if path.count(".") == depth and fnmatchcase(path, pattern)]
        if not some:
            raise CaptureError(
                f"{type(model).__name__!r} has no module {pattern!r}{nearest(pattern, known)}", "unknown-region"
            )
        found += some
    for path in found:
        inside = next((other for other in found if path.startswith(f"{other}.")), None)
        if inside is not None:
            raise CaptureError(f"region {path!r} is inside region {inside!r}; give one of them", "nested-region")
    return list(dict.fromkeys(found))


def _matched(captured: Captured, runs: list[Run], traced: list[Run]) -> CapturedRegions:
    graph, paths = captured.graph, captured.graph.meta["modules"]
    roots = {run.path for run in runs}
    inside: list[tuple[str, Any]] = []
    for op, node in zip(graph.ops, captured.nodes, strict=True):
        if node is not None and op.phase == "forward" and _root(paths.get(op.name, ""), roots) is not None:
            inside.append((op.name, node))
    keys = [key_of(str(node.target), node.meta.get("val")) for _, node in inside]
    eager, other = matched(runs, keys), matched(traced, keys)
    places = {name: both for (name, _), both in zip(inside, zip(eager, other, strict=True), strict=True)}
    members: list[list[str]] = [[] for _ in runs]
    number = 0
    for name, _ in inside:
        found = places[name][0] or places[name][1]
        number = max(number, found[0]) if found is not None else number
        members[number].append(name)
    regions, random, counts = [], set(captured.random_ops), Counter(run.path for run in runs)
    for number, (run, ops) in enumerate(zip(runs, members, strict=True)):
        region = _region(captured, run, ops, places, name=region_name(run, number), sole=counts[run.path] == 1)
        if region is not None:
            draws = [op for op in region.replayed if op in random]  # a replay must draw all numbers before the last
            locked = {op for op in region.replayed if _locked(places[op], runs, traced)} | set(draws[:-1])
            regions.append(replace(region, unsavable=frozenset(locked)))
    return CapturedRegions(captured, tuple(runs), tuple(traced), tuple(regions), places)


def _root(path: str, roots: set[str]) -> str | None:
    while path:
        if path in roots:
            return path
        path = path.rpartition(".")[0]
    return None


def _locked(both: tuple[Place, Place], runs: list[Run], traced: list[Run]) -> bool:
    """Return True if an op is not one call in eager mode and in a trace, or its result is changed in place."""
    return any(
        place is None or table[place[0]].calls[place[1]].changed
        for place, table in zip(both, (runs, traced), strict=True)
    )


def _region(captured: Captured, run: Run, ops: list[str], places: Places, *, name: str, sole: bool) -> Region | None:
    """Return a region: its replay ends at the last value that autograd saves, and starts at the first one needed.

    `sole`: no other run is of the same module. Only then do parameters that a backward op reads belong to this run.
    """
    graph = captured.graph
    written = {tensor for op in ops for tensor in graph.ops[graph.op_index[op]].outputs}
    entry, needed = None, set[str]()
    for number in graph.arrays.order.tolist():
        op = graph.ops[number]
        node = captured.nodes[number] if op.phase == "backward" else None
        if node is not None and _root(module_path(node, "") or "", {run.path}) is not None:
            mine = written.intersection(op.inputs)
            needed |= mine
            if entry is None and (mine or (sole and _unpacks(captured, op.name))):
                entry = op.name
    last = -1
    for place, name_of_op in enumerate(ops):
        call = places[name_of_op][0]
        if (call is not None and call[1] < run.packed) or needed.intersection(
            graph.ops[graph.op_index[name_of_op]].outputs
        ):
            last = place
    return Region(name, tuple(ops), tuple(ops[: last + 1]), entry) if entry is not None and last >= 0 else None


def _unpacks(captured: Captured, op: str) -> bool:
    """Return True if an op of the backward pass reads a parameter, an input, or a value of the forward pass."""
    node, graph = captured.node_of(op), captured.graph
    homes = [home for read in ([] if node is None else node.all_input_nodes) for home in captured.homes.get(read, ())]
    return any(
        home is None
        or any(graph.ops[writer].phase == "forward" for writer in graph.arrays.producers[graph.tensor_index[home]])
        for home in homes
    )
