"""A captured training step and a schedule make a forward and a backward graph, with copies wherever it recomputes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen

from remat.errors import ScheduleError
from remat.schedule import Schedule
from remat.schedule.early_frees import running
from remat.torch.captured import BEGIN_BACKWARD, Captured
from remat.torch.effects import plain_random_pair
from remat.torch.partition.copies import Copies

#: How a random op runs that is computed again: (run and save the state, run with a saved state).
RandomPair = tuple[Callable[..., Any], Callable[..., Any]]


@dataclass(frozen=True)
class Saved:
    """What the backward pass reads of the forward pass.

    Attributes
    ----------
    kind : str
        ``"value"`` (a tensor that the forward pass computed), ``"state"`` (a state of a random number generator),
        ``"input"`` (a parameter, buffer or input as it is) or ``"copy"`` (a buffer or input as it was before the
        forward pass changed it).
    name : str
        Of the fx node.
    size : int
        Bytes that it holds besides parameters, buffers and inputs.
    """

    kind: str
    name: str
    size: int


@dataclass(frozen=True, eq=False)
class Split:
    """The two graphs of a training step.

    Both modules are *boxed*: they take one list, which they empty, and free every value after its last use.

    Attributes
    ----------
    captured : Captured
    schedule : Schedule
    forward : torch.fx.GraphModule
        Takes the inputs at `forward_inputs`; returns the results at `forward_results`, then what is `saved`.
    backward : torch.fx.GraphModule
        Takes what is `saved`, then the tangents at `tangents`; returns the results at `gradients`.
    forward_inputs, tangents : tuple of int
        Positions in ``captured.inputs``.
    forward_results, gradients : tuple of int
        Positions in ``captured.results``.
    saved : tuple of Saved
    recomputed : tuple of str
        Ops that are computed more than once.
    """

    captured: Captured
    schedule: Schedule
    forward: fx.GraphModule
    backward: fx.GraphModule
    forward_inputs: tuple[int, ...]
    tangents: tuple[int, ...]
    forward_results: tuple[int, ...]
    gradients: tuple[int, ...]
    saved: tuple[Saved, ...]
    recomputed: tuple[str, ...]

    @property
    def saved_bytes(self) -> int:
        """Bytes that cross from the forward to the backward pass, besides parameters, buffers and inputs."""
        return sum(each.size for each in self.saved)

    def __repr__(self) -> str:
        return (
            f"Split({self.captured.graph.name!r}, {len(self.forward.graph.nodes)} + {len(self.backward.graph.nodes)} "
            f"nodes, {len(self.saved)} saved)"
        )


def split(captured: Captured, schedule: Schedule, *, random_pair: RandomPair | None = None) -> Split:
    """The forward and the backward graph that carry out `schedule`, step by step.

    Everything before ``begin_backward`` is the forward pass, everything after it the backward pass. An op that is
    computed again is copied (``x_recompute``, ``x_recompute_2``, ...); views are derived again beside their consumers,
    items of tuples are taken right after their producer, and every value is freed after its last use. A random op that
    is computed again starts from the state of the random number generator that its first run started from; a batch
    normalisation that is computed again leaves its statistics alone.

    Parameters
    ----------
    captured : Captured
        A training step with tangents (route ``joint``).
    schedule : Schedule
        A valid schedule of its graph.
    random_pair : pair of callables, optional
        How random ops run that are computed again; default: plain functions that any dispatch mode sees through.

    Returns
    -------
    Split

    Raises
    ------
    ScheduleError
        If the schedule does not run on the graph; if it computes random ops in another order than the module does, so
        that they would draw other numbers; if the new value of a buffer is computed after the forward pass.

    Examples
    --------
    >>> from torch import nn, randn
    >>> from remat import Schedule
    >>> from remat.torch import capture
    >>> step = capture(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (randn(2, 3),))
    >>> parts = split(step, Schedule.reference(step.graph))
    >>> sum(step.results[position].node is not None for position in parts.gradients), parts.recomputed
    (4, ())
    """
    if captured.mode != "training" or BEGIN_BACKWARD not in captured.graph.op_index:
        raise ScheduleError(f"graph {captured.graph.name!r} has no {BEGIN_BACKWARD!r}: it is no training step")
    written = running(captured.graph, schedule)
    _check_random_order(captured, written)
    copies = Copies(captured, written, plain_random_pair() if random_pair is None else random_pair)
    in_backward = False
    for word, name in written.steps():
        if word == "free":
            copies.free(name)
        elif name == BEGIN_BACKWARD:
            in_backward = True
            forward_results = tuple(i for i, each in enumerate(captured.results) if each.kind != "gradient")
            copies.begin_backward(forward_results)
        else:
            copies.compute(name)
    if not in_backward:
        raise ScheduleError(f"the schedule never computes {BEGIN_BACKWARD!r}")
    gradients = tuple(i for i, each in enumerate(captured.results) if each.kind == "gradient")
    forward, backward, saved = copies.finish(gradients)
    kinds = {each.node: each.kind for each in captured.inputs}
    return Split(
        captured, schedule, _boxed(captured.module, forward, "Forward"), _boxed(captured.module, backward, "Backward"),
        tuple(i for i, each in enumerate(captured.inputs) if kinds[each.node] != "tangent"),
        tuple(i for i, each in enumerate(captured.inputs) if kinds[each.node] == "tangent"),
        forward_results, gradients,
        tuple(Saved(kind, node.name, size) for kind, node, size in saved),
        tuple(name for name in captured.graph.op_names if copies.counts[name] > 1),
    )  # fmt: skip


def _boxed(root: torch.nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    graph.set_codegen(_BoxedCodeGen())
    graph.lint()
    return fx.GraphModule(root, graph, name)


def _check_random_order(captured: Captured, schedule: Schedule) -> None:
    """First computations of random ops must come in the module's order: the generator's numbers are drawn in turn."""
    random = set(captured.random_ops)
    expected = [
        name for name in (captured.graph.op_names[i] for i in captured.graph.arrays.order.tolist()) if name in random
    ]
    drawn = list(dict.fromkeys(name for name in schedule.computes() if name in random))
    for wanted, found in zip(expected, drawn, strict=False):
        if wanted != found:
            raise ScheduleError(
                f"random op {found!r} is computed before {wanted!r}, which the module runs first: it would draw other "
                "numbers; ask for a schedule of fixed order"
            )
