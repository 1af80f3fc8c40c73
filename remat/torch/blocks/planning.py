"""Plan of one kind of step: calls recorded, kinds of blocks captured, the budget divided, the whole certified."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from remat.errors import CaptureError, ProblemError, RematError
from remat.formulations.composites import Option
from remat.hierarchy.division import Division, Part, divide, least_peak
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import Budgets, farthest_first, options_of, plain_options
from remat.hierarchy.groups import Group
from remat.hierarchy.subproblem import SubProblem, numbers, translated
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule
from remat.solving.training_steps import costs_text
from remat.torch.agreement import Agreement
from remat.torch.blocks.calls import Call, record_calls
from remat.torch.blocks.composing import Composed, compose
from remat.torch.blocks.remainder import BlockOp, capture_remainder
from remat.torch.blocks.report import BlockChoice, BlocksReport
from remat.torch.capture.fakes import FakeWorld
from remat.torch.captured import Captured
from remat.torch.modes import without_hooks
from remat.torch.rematerialized.arguments import Sample
from remat.torch.rematerialized.autograd_function import Program
from remat.torch.rematerialized.plan import Plan, autocast_as
from remat.torch.rematerialized.planner import captured_step
from remat.torch.rematerialized.planning import Settings, planned
from remat.torch.rematerialized.python_state import Attributes, check_python_state

#: Grid of budgets for each kind of block, and most options of each.
GRID, OPTIONS = Budgets(peaks=4, saved=8), 24
#: Share of the time for options; the rest is for the choice.
OPTIONS_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class BlockPlans:
    """Steps of each block for one kind of call of the model."""

    plans: Mapping[nn.Module, list[Plan]]
    report: BlocksReport
    schedule: Schedule
    composed: Composed


def plan_blocks(
    model: nn.Module,
    blocks: Mapping[str, nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    settings: Settings,
) -> BlockPlans:
    """Capture each kind of block, divide the budget, certify the whole step, and make the steps of each block.

    Raise CaptureError if the model or a block cannot be captured, and ProblemError if the budget is too small.
    """
    clock = _Clock()
    world = FakeWorld.of(model, tuple(args), kwargs, distributed=True)
    calls = _numbered(record_calls(world, blocks, (tuple(args), dict(kwargs))))
    clock.take("calls")
    kinds = {kind: _step(next(call for call in calls if call.kind == kind), settings) for kind in _kinds(calls)}
    ops = [BlockOp.of(call, kinds[call.kind].captured) for call in calls]
    rest = capture_remainder(model, world.args, world.kwargs, ops, costs=settings.costs, workspaces=settings.workspaces)
    composed = compose(rest)
    processes = Agreement.of([*(kind.captured for kind in kinds.values()), rest.captured])
    composed = dataclasses.replace(composed, graph=processes.graph(composed.graph, [call.kind for call in calls]))
    clock.take("capture")
    problem = Problem(
        composed.graph, settings.budget, OrderRule.FIXED, composed.once or None,
        count_constant_memory=settings.constants_counted,
    )  # fmt: skip
    deadline = Deadline.after(settings.time_limit)
    options = processes.once(
        lambda: _options(problem, composed.groups, [call.kind for call in calls], settings, deadline)
    )
    parts = [
        Part(group, [translated(each, numbers(group)) for each in options[call.kind]], (call.kind, call.block))
        for group, call in zip(composed.groups, calls, strict=True)
    ]
    clock.take("options")
    division = processes.once(lambda: _divided(problem, parts, deadline))
    clock.take("choice")
    plans, states, choices = _plans(composed, calls, ops, parts, division, kinds, settings)
    clock.take("wrap")
    certificate, graph = division.certificate, composed.graph
    report = BlocksReport(
        name=graph.name, blocks=choices, ops=len(graph.ops), recomputations=certificate.recomputations,
        reference_peak=problem.reference_peak, budget=problem.budget_bytes or 0, predicted_peak=certificate.peak,
        overhead=certificate.overhead, bound=division.bound, options=tuple(len(options[kind]) for kind in kinds),
        constant_memory=graph.constant_memory, constants_counted=settings.constants_counted, random_state_bytes=states,
        certificate=certificate, seconds=clock.seconds,
        costs=costs_text(graph),
    )  # fmt: skip
    return BlockPlans(plans, report, division.schedule, composed)


class _Clock:
    """Seconds of one piece of work after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()

    def take(self, word: str) -> None:
        now = time.monotonic()
        self.seconds[word], self._begun = now - self._begun, now


@dataclass(frozen=True, eq=False)
class _Kind:
    """A captured block that represents all of its kind."""

    captured: Captured
    call: Call
    fallback: str
    attributes: Attributes


def _numbered(calls: Sequence[Call]) -> list[Call]:
    """Return calls whose kinds are numbers in their order: digests differ from process to process."""
    known = {kind: str(number) for number, kind in enumerate(_kinds(calls))}
    return [dataclasses.replace(call, kind=known[call.kind]) for call in calls]


def _kinds(calls: Sequence[Call]) -> list[str]:
    return list(dict.fromkeys(call.kind for call in calls))


def _step(call: Call, settings: Settings) -> _Kind:
    try:
        with autocast_as(call.autocast), without_hooks(call.block):
            attributes = check_python_state(call.block, call.args, call.kwargs)
            captured, fallback = captured_step(
                call.block, call.args, call.kwargs, costs=settings.costs, workspaces=settings.workspaces
            )
    except CaptureError as error:
        raise CaptureError(f"block {call.path!r}: {error}") from error
    return _Kind(captured, call, fallback, attributes)


def _options(
    problem: Problem, groups: Sequence[Group], kinds: Sequence[str], settings: Settings, deadline: Deadline
) -> dict[str, list[Option]]:
    """Return the options of each kind of block, in op numbers of its sub-problem; undominated ones, cheapest first."""
    found: dict[str, list[Option]] = {}
    fits = problem.budget_bytes is None or problem.reference_peak <= problem.budget_bytes
    method = "drops" if settings.method == "auto" else settings.method
    effort = Effort((method,), seconds=max(0.1, OPTIONS_SHARE * deadline.remaining / 4))
    first = {kind: group for group, kind in reversed(list(zip(groups, kinds, strict=True)))}
    for number, (kind, group) in enumerate(reversed(first.items())):
        part = SubProblem.of(problem, group)
        if fits:
            found[kind] = plain_options(part)[:1]
            continue
        share = deadline.share(OPTIONS_SHARE / (len(first) - number))
        measured = farthest_first(options_of(part, GRID, effort, share), OPTIONS)
        found[kind] = [each.option for each in measured if each.option.backward is not None or part.outside is None]
    return found


def _divided(problem: Problem, parts: Sequence[Part], deadline: Deadline) -> Division:
    """Divide the budget; raise ProblemError with the least peak if it is too small."""
    division = divide(problem, parts, deadline)
    if division is None:
        raise _too_small(problem, parts, deadline)
    return division


def _too_small(problem: Problem, parts: Sequence[Part], deadline: Deadline) -> RematError:
    least = least_peak(problem, parts, deadline.earlier(30.0))
    budget = problem.budget_bytes
    if least is None or budget is None or least.certificate.peak <= budget:
        return ProblemError(f"no choice of options within {budget:,} bytes was found in time; give more as time_limit")
    peak = least.certificate.peak
    return ProblemError(
        f"budget {budget:,} bytes is too small for {problem.graph.name!r}: with blocks of their own schedules the step "
        f"needs {peak:,} bytes ({100 * peak / problem.reference_peak:.1f} %), at {least.certificate.peak_op}; "
        "rematerialize(...) can also recompute across blocks",
        "blocks-budget",
    )


def _plans(  # noqa: PLR0917 - all that was found for one kind of call
    composed: Composed,
    calls: Sequence[Call],
    ops: Sequence[BlockOp],
    parts: Sequence[Part],
    division: Division,
    kinds: Mapping[str, _Kind],
    settings: Settings,
) -> tuple[dict[nn.Module, list[Plan]], int, tuple[BlockChoice, ...]]:
    """Return the steps of each block, the bytes of generator states, and the choices."""
    programs: dict[tuple[str, int], tuple[Program, Any]] = {}
    plans: dict[nn.Module, list[Plan]] = {}
    made: set[tuple[str, nn.Module]] = set()
    states, choices = 0, []
    order = list(kinds)
    for number, (call, part, choice) in enumerate(zip(calls, parts, division.options, strict=True)):
        kind, option = kinds[call.kind], part.options[choice]
        if (call.kind, choice) not in programs:
            backward = [] if option.backward is None else option.backward.tolist()
            schedule = composed.block_schedule(number, ops[number], option.forward.tolist(), backward)
            split, report = planned(
                kind.captured, dataclasses.replace(settings, budget=None), schedule, capture_seconds=0.0
            )
            passes: tuple[Any, ...] = ()
            if settings.engine == "inductor":
                from remat.torch.rematerialized.inductor import compiled

                passes = compiled(split)
            report = dataclasses.replace(report, fallback=kind.fallback, unset=kind.attributes.unset)
            programs[call.kind, choice] = Program(split, *passes), report
        program, report = programs[call.kind, choice]
        states += report.random_state_bytes
        choices.append(BlockChoice(call.path, order.index(call.kind), report.saved_bytes, report.overhead or 0.0))
        if (call.kind, call.block) not in made:
            made.add((call.kind, call.block))
            sample = Sample(call.block.forward, call.args, call.kwargs)
            with autocast_as(call.autocast):
                plan = Plan(call.block, sample, program, report, read=kind.attributes.read, captured_of=kind.call.block)
            plans.setdefault(call.block, []).append(plan)
    return plans, states, tuple(choices)
