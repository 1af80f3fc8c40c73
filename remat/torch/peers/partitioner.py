"""Schedules of torch's partitioner: its forward and backward graph of a captured step as one schedule."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition

from remat.errors import CaptureError, RematError, ScheduleError
from remat.runtime.text import one_line
from remat.schedule import Schedule
from remat.torch.captured import BEGIN_BACKWARD, Captured
from remat.torch.lock import in_turn
from remat.torch.private import TracingContext, detect_fake_mode, functorch_config, tracing

#: Names of torch's solvers of the knapsack (``activation_memory_budget_solver``).
SOLVERS = ("dp", "greedy", "ilp", "dp_knapsack_sliding_hirschberg", "dynamic_memory_budget_dp")
SOURCE = "torch's partitioner"

_SAVES, _RESTORES = "run_and_save_rng_state", "run_with_rng_state"


def partitioner_schedule(captured: Captured, budget: float = 1.0, solver: Any = "dp") -> Schedule:
    """Return the schedule that ``torch.compile`` would run with this ``activation_memory_budget``.

    The budget is torch's: a share of the *saved bytes* between recomputing everything and its own optimum of
    runtime. It does not limit the peak. Common subexpressions are not merged, so that ops keep their names. Order and
    recomputations are torch's; each value is freed after its last use.

    Parameters
    ----------
    captured : Captured
        A training step of route ``"joint"``; it remains unchanged.
    budget : float
        Between 0 and 1.
    solver : str or torch's CustomKnapsackSolver
        One of :data:`SOLVERS`.

    Raises
    ------
    CaptureError
        For another route, an unknown budget or solver, or if torch's partitioner fails.
    ScheduleError
        With the name of a node of torch's graphs that represents no node of the captured step.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget <= 1:
        raise CaptureError(
            f"torch's activation memory budget is a share between 0 and 1, not {budget!r}", "partitioner"
        )
    if isinstance(solver, str) and solver not in SOLVERS:
        raise CaptureError(
            f"torch's partitioner has no solver {solver!r}; its solvers are {', '.join(SOLVERS)}", "partitioner"
        )
    with functorch_config.patch(
        activation_memory_budget=float(budget), activation_memory_budget_solver=solver, cse=False
    ):
        graphs = _partition(captured, min_cut_rematerialization_partition)
    meta = {"budget": float(budget), "solver": solver if isinstance(solver, str) else type(solver).__name__}
    return _schedule(captured, *graphs, source=SOURCE, meta=meta)


def default_partition_schedule(captured: Captured) -> Schedule:
    """Return the schedule of torch's ``default_partition``: it saves everything unless tags say otherwise.

    Raises
    ------
    CaptureError, ScheduleError
        As :func:`partitioner_schedule`.
    """
    with functorch_config.patch(cse=False):
        graphs = _partition(captured, default_partition)
    return _schedule(captured, *graphs, source="torch's default partition", meta={})


@in_turn
def _partition(captured: Captured, by: Callable[..., Any]) -> tuple[Any, Any]:
    facts = captured.partitioner_facts
    if captured.route != "joint" or captured.mode != "training":
        raise CaptureError(
            f"torch's partitioner takes a training step captured by route 'joint', not {captured.route!r} "
            f"in mode {captured.mode!r}",
            "partitioner",
        )
    values = [node.meta.get("val") for node in captured.module.graph.find_nodes(op="placeholder")]
    try:
        with tracing(TracingContext(detect_fake_mode(values))):  # tagged random ops need it
            return by(
                copy.deepcopy(captured.module), None, num_fwd_outputs=facts["num_forward_outputs"],
                static_lifetime_input_indices=list(facts["static_lifetime_input_indices"]),
            )  # fmt: skip
    except RematError:
        raise
    except Exception as error:  # the partitioner documents no exception types
        raise CaptureError(
            f"torch's partitioner failed: {one_line(str(error)) or type(error).__name__}", "partitioner-failed"
        ) from error


def _schedule(captured: Captured, forward: Any, backward: Any, *, source: str, meta: dict[str, Any]) -> Schedule:
    random = _random_pairs(captured, forward, backward)
    first, second = (_ops_of(graph, captured, random) for graph in (forward, backward))
    ops = captured.graph.op_index
    between = [BEGIN_BACKWARD] if BEGIN_BACKWARD in ops else []
    again = {node.name for node in backward.graph.nodes if node.op == "call_function"}
    # redrawn in the backward graph without their state, which makes gradients wrong
    unsafe = [op for op in captured.random_ops if op in again and op in first]
    computes = [ops[op] for op in (*first, *between, *second)]
    return Schedule.of_computes(captured.graph, computes, source=source, meta={**meta, "unsafe": unsafe})


def _ops_of(graph: Any, captured: Captured, random: dict[torch.fx.Node, str]) -> list[str]:
    """Return the names of the ops that the nodes of one of torch's graphs represent."""
    known = {node.name for node in captured.module.graph.nodes}
    found = []
    for node in graph.graph.nodes:
        if node in random:
            found.append(random[node])
        elif node.op != "call_function" or (node.target is operator.getitem and node.args[0] in random):
            continue
        elif node.name not in known:
            raise ScheduleError(
                f"node {node.name!r} ({node.target}) of torch's partition stands for no node of the captured step",
                "partitioner-node",
            )
        elif node.name in captured.graph.op_index:
            found.append(node.name)
    return found


def _random_pairs(captured: Captured, forward: Any, backward: Any) -> dict[torch.fx.Node, str]:
    """Return torch's wrappers of random ops that it recomputes, which save and restore the generator's state.

    The k-th wrapper of the forward graph represents the k-th op that torch wrapped. Its state is the input
    ``rng_state_output_k`` of the backward graph.
    """
    plain = {node.name for node in forward.graph.nodes}
    wrapped = iter([(op, captured.node_of(op)) for op in captured.random_ops if op not in plain])
    found: dict[torch.fx.Node, str] = {}
    states: dict[str, str] = {}
    for node in forward.graph.nodes:
        if _SAVES in str(node.target):
            # Ops whose value no node needs are in neither graph; the others come in order, each with its own target.
            op = next((op for op, own in wrapped if own is not None and own.target is node.args[0]), None)
            if op is None:
                raise ScheduleError(f"node {node.name!r} of torch's partition keeps the state of no known random op")
            found[node] = states[f"rng_state_output_{len(states)}"] = op
    for node in backward.graph.nodes:
        if _RESTORES in str(node.target):
            state = getattr(node.args[0], "name", "")
            if state not in states:
                raise ScheduleError(f"node {node.name!r} of torch's partition has the state of no known random op")
            found[node] = states[state]
    return found
