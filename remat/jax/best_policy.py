"""Choice of the names that ``jax.checkpoint`` saves: :func:`best_policy`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

import jax

from remat.errors import ProblemError
from remat.jax.capture import name_of, positions
from remat.jax.checkpoints import checkpointed
from remat.jax.moved_names import Choice, MovedNames
from remat.jax.naming import Suggestion, suggestions
from remat.jax.saved_names import SavedNames
from remat.jax.step import Arguments, Step, StepOptions, capture_step
from remat.problem import Problem, parse_budget
from remat.runtime.deadline import Deadline
from remat.schedule import Machine, OrderRule, Schedule
from remat.solving.method import MethodLike
from remat.solving.solve import solve
from remat.solving.training_steps import StepReport, check_options, host_machine

#: Places named at most.
SUGGESTIONS = 3


@dataclass(frozen=True, kw_only=True)
class PolicyReport(StepReport):
    """Certificate of the policy's schedule, and its distance to the best one. Memory is in bytes.

    The certified schedule is that of JAX's own trace with the policy, on the graph without checkpoints. Further
    attributes: :class:`StepReport`; `result` is the answer of the solver for the same budget, with its bound and scope.

    Attributes
    ----------
    saved, recomputed, offloaded : tuple of str
        Names of ``checkpoint_name``.
    regions : int
        Calls of ``jax.checkpoint``; 0: the whole function is one region.
    exact : bool
        True if no other choice for these names costs less (with a machine: takes less time) within the budget; False if
        a search ended.
    suggestions : tuple of Suggestion
        Expressions to name for less extra cost; none with a machine.
    """

    saved: tuple[str, ...]
    recomputed: tuple[str, ...]
    regions: int
    exact: bool
    offloaded: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = field(default=(), repr=False)

    @property
    def gap(self) -> float | None:
        """Share of the policy's cost above the bound for all schedules of `result.scope`; None without a bound.

        With a machine: share of its time.
        """
        machine = self.certificate.rules.machine
        cost = self.certificate.cost if machine is None else self.certificate.time
        return None if self.result is None or not cost else (cost - self.result.bound) / cost

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        regions = f"{self.regions} checkpointed regions" if self.regions else "the whole function is one region"
        tried = "sets" if self.certificate.rules.machine is None else "choices"
        how = f"all {tried} tried" if self.exact else "by a search"
        rows = [
            *self.opening_rows("function", regions),
            *self.budget_rows("parameters, other arguments and constants"),
            ("saves", f"{', '.join(self.saved) or 'no name'}; {how}"),
            ("recomputes", ", ".join(self.recomputed) or "no name"),
            *([("offloads", ", ".join(self.offloaded))] if self.offloaded else []),
            self.saved_row(),
            *self.best_known_rows(),
        ]
        if self.gap is not None:
            verb = "costs" if self.certificate.rules.machine is None else "takes"
            rows.append(("distance", f"no schedule of the scope {verb} over {100 * self.gap:.4g} % less"))
        rows += self.closing_rows()
        return [*rows, *(("name", str(each)) for each in self.suggestions)]


class NamedPolicy:
    """A policy of ``jax.checkpoint`` that saves some names and moves others to the host, with its report.

    Attributes
    ----------
    names, offloaded : tuple of str
        Names that are saved on the device, and on the host.
    policy : callable
        ``jax.checkpoint_policies.save_only_these_names(*names)``, or ``save_and_offload_only_these_names`` if names
        are offloaded.
    report : PolicyReport
    schedule : Schedule
        What JAX runs with the policy.
    """

    def __init__(self, report: PolicyReport, schedule: Schedule) -> None:
        self.names, self.offloaded = report.saved, report.offloaded
        self.report, self.schedule = report, schedule
        self.policy = jax_policy(self.names, self.offloaded)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return JAX's decision on an equation."""
        return self.policy(*args, **kwargs)

    def __repr__(self) -> str:
        if not self.offloaded:
            return f"save_only_these_names({', '.join(map(repr, self.names))})"
        return (
            f"save_and_offload_only_these_names(names_which_can_be_saved={list(self.names)}, "
            f"names_which_can_be_offloaded={list(self.offloaded)}, offload_src='device', offload_dst='pinned_host')"
        )


def jax_policy(saved: tuple[str, ...], offloaded: tuple[str, ...]) -> Callable[..., Any]:
    """Return JAX's policy for names that are saved on the device and on the host."""
    policies = jax.checkpoint_policies
    if not offloaded:
        return policies.save_only_these_names(*saved)
    return policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(saved), names_which_can_be_offloaded=list(offloaded), offload_src="device",
        offload_dst="pinned_host",
    )  # fmt: skip


class PolicyOptions(StepOptions, total=False):
    """Further options of :func:`best_policy`, which documents them."""

    method: MethodLike
    offload: str | int | None
    machine: Machine | str | None


def best_policy(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    budget: str | int | float,
    *,
    time_limit: float = 30.0,
    **options: Unpack[PolicyOptions],
) -> NamedPolicy:
    """Return the policy of ``jax.checkpoint`` that fits a training step into a budget for the least extra cost.

    The policy saves some of the names that ``checkpoint_name`` gives in the function. The regions are the calls of
    ``jax.checkpoint`` in the function; their own policies do not matter. A function without such calls is one region.
    With up to ten names, all sets of names are tried. The chosen set is certified on JAX's own trace, and compared with
    the best schedule that a solver finds.

    Parameters
    ----------
    function : callable
        The loss; returns a real scalar, or with `has_aux` a pair of it and anything else.
    args : tuple
        Arguments of a typical call: arrays in any pytrees, or ``jax.ShapeDtypeStruct`` instead.
    budget : str, int or float
        Bytes, or a share of the peak without checkpoints; as in :func:`remat.jax.rematerialize`.
    time_limit : float
        Seconds for the solver, and for the search if there are more than ten names.

    Other Parameters
    ----------------
    kwargs, wrt, has_aux, unroll, name, method : optional
        As in :func:`remat.jax.rematerialize`. With `unroll`, regions in a ``scan`` count.
    offload : str or int, optional
        Bytes of the host for tensors. Names may then move there and back, for the least time. With up to six names, all
        choices are tried.
    machine : Machine or str, optional
        The links, and the rate at which the device does floating-point operations (``"pcie4,compute=150T"``), by which
        costs become times; see :meth:`remat.schedule.Machine.parse`. Default of the links: ``pcie4``.

    Returns
    -------
    NamedPolicy
        A policy for ``jax.checkpoint``. Its report has peak, extra cost, the distance to the best schedule, and the
        places in the source where another name would help.

    Raises
    ------
    CaptureError, ExecutionError
        As :func:`remat.jax.rematerialize`.
    ProblemError
        If no set of names keeps the budget; with the least peak of them. If the machine has no compute rate.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> def block(x, w):
    ...     hidden = checkpoint_name(x @ w, "hidden")
    ...     return x + checkpoint_name(jnp.tanh(hidden), "activation") * 2
    >>> def loss(layers, x, policy=None):
    ...     for w in layers:
    ...         x = jax.checkpoint(block, policy=policy)(x, w)
    ...     return jnp.mean(jnp.cos(x))
    >>> args = [jnp.eye(32) / 2] * 6, jnp.ones((256, 32))
    >>> best_policy(loss, args, "100%", time_limit=20)
    save_only_these_names('hidden')
    """
    check_options("best_policy", options, PolicyOptions)
    parse_budget(budget, 0)  # refuse it before the capture
    begun = time.monotonic()
    settings: dict[str, Any] = {"kwargs": {}, "wrt": 0, "has_aux": False, "unroll": False, "method": "auto", **options}
    given = Arguments(args, dict(settings["kwargs"]))
    label = name_of(function, options.get("name"))
    program = checkpointed(function, given, label=label)

    def step_under(policy: Any, *, names: bool = False) -> Step:
        return capture_step(
            program.under(policy), given, wrt=positions(settings["wrt"]),
            has_aux=settings["has_aux"], unroll=settings["unroll"], label=label, names=names,
        )  # fmt: skip

    save_nothing = jax.checkpoint_policies.nothing_saveable
    plain, named = step_under(save_nothing), step_under(save_nothing, names=True)
    machine = host_machine(options.get("offload"), options.get("machine"))
    problem = Problem(plain.captured.graph, budget, OrderRule.FIXED, machine=machine)
    sets = SavedNames(named.captured, problem)
    choices = None if machine is None else MovedNames(sets)
    choice, exact = _choice(sets, choices, Deadline.after(time_limit))
    if choice is None:
        raise _refusal(sets, program.regions) if choices is None else _refusal_with_host(choices)
    chosen = choice.saved | choice.moved
    names = tuple(name for name in program.names if name in chosen)
    final = step_under(jax.checkpoint_policies.save_only_these_names(*names))
    schedule = final.captured.schedule_on(plain.captured)
    if choices is not None and choice.moved:
        schedule = choices.schedule(choice, schedule.computes())
    certificate = problem.validate(schedule)
    if not certificate.accepted:
        raise ProblemError(f"the trace of {label} with {', '.join(names) or 'no name'} saved: {certificate.first}")
    seconds = {"capture": time.monotonic() - begun}
    begun = time.monotonic()
    result = solve(problem, settings["method"], stop=time_limit, warm_start=schedule)
    seconds["solve"] = time.monotonic() - begun
    graph, traced = plain.captured.graph, final.captured
    on_host = certificate.transfers.bytes_written if certificate.transfers else 0
    report = PolicyReport(
        name=label, ops=len(graph.ops), recomputations=certificate.recomputations,
        reference_peak=problem.reference_peak, budget=problem.budget_bytes, predicted_peak=certificate.peak,
        overhead=certificate.overhead, constant_memory=graph.constant_memory, constants_counted=False,
        saved_bytes=sum(traced.graph.tensors[traced.graph.tensor_index[name]].size for name in traced.saved) - on_host,
        certificate=certificate, result=result, seconds=seconds, costs="floating-point operations",
        saved=tuple(name for name in names if name in choice.saved),
        offloaded=tuple(name for name in names if name in choice.moved),
        recomputed=tuple(name for name in program.names if name not in chosen), regions=program.regions, exact=exact,
        suggestions=() if machine else tuple(suggestions(named.captured, sets, chosen, SUGGESTIONS)),
    )  # fmt: skip
    return NamedPolicy(report, schedule)


def _choice(sets: SavedNames, choices: MovedNames | None, deadline: Deadline) -> tuple[Choice | None, bool]:
    """Return the best choice for the names, or None, and True if all were tried; `choices`: with a machine."""
    if choices is not None:
        return choices.best(deadline)
    chosen, exact = sets.best(deadline)
    return None if chosen is None else Choice(chosen), exact


def _refusal(sets: SavedNames, regions: int) -> ProblemError:
    """Return the error for a budget that no set of names keeps."""
    problem = sets.problem
    least, names = sets.least()
    advice = (
        "checkpoint smaller parts, or use rematerialize, which needs no names"
        if regions
        else "it has no jax.checkpoint, so that everything is recomputed at once: checkpoint its blocks"
    )
    saved = f"{', '.join(names)} saved" if names else "nothing saved"
    return ProblemError(
        f"no set of the {len(sets.names)} names of {problem.graph.name!r} keeps {problem.budget_bytes:,} bytes: the "
        f"least peak is {least:,} bytes, with {saved}; {advice}",
        "jax-names",
    )


def _refusal_with_host(choices: MovedNames) -> ProblemError:
    """Return the error for a budget and a host that no choice keeps."""
    problem = choices.problem
    least, choice = choices.least()
    saved, moved = (", ".join(sorted(each)) or "nothing" for each in choice)
    return ProblemError(
        f"no choice for the {len(choices.names)} names of {problem.graph.name!r} keeps {problem.budget_bytes:,} bytes "
        f"and the host: the least peak is {least:,} bytes, with {saved} saved and {moved} moved; name more values, or "
        "checkpoint smaller parts",
        "jax-names",
    )
