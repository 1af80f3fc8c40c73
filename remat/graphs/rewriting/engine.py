"""Search for rewrites in a graph, and their application."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from remat.graphs.graph import ComputeGraph
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.rewrite import Rewrite, RewriteOptions
from remat.graphs.rewriting.rules import RULES
from remat.runtime.deadline import Deadline

SUFFIX = "_rewritten"
#: Ops between two checks of the deadline.
PIECE = 64


@dataclass(frozen=True)
class Rewritten:
    """Graph after rewriting.

    Attributes
    ----------
    graph : ComputeGraph
        The original graph if nothing was found; otherwise a new one, whose ``meta["rewriting"]`` lists the rewrites.
        In the new graph, parts of ops write no output in place of an input.
    rewrites : tuple of Rewrite
        Applied rewrites, in order.
    complete : bool
        True if the whole graph was searched; false after a deadline or an interruption.
    """

    graph: ComputeGraph
    rewrites: tuple[Rewrite, ...]
    complete: bool = True

    @property
    def never_worse(self) -> bool:
        """True when no rewrite can raise the least peak."""
        return all(rewrite.never_worse for rewrite in self.rewrites)


def find_rewrites(graph: ComputeGraph, options: RewriteOptions | None = None) -> list[Rewrite]:
    """Return the possible rewrites of the unchanged graph; some rewrites enable others.

    Raises
    ------
    GraphError
        If the shapes or attributes in its ``meta`` are wrong, naming the tensor or op.
    """
    options = options or RewriteOptions()
    draft = Draft(graph, kernels=options.kernels)
    found = (RULES[rule].match(draft, op, options) for op in draft.order for rule in options.rules)
    return [_priced(rewrite, graph) for rewrite in found if rewrite is not None]


def rewrite_graph(
    graph: ComputeGraph,
    options: RewriteOptions | None = None,
    only: Collection[tuple[str, str]] | None = None,
    *,
    deadline: Deadline | None = None,
) -> Rewritten:
    """Apply all rewrites that the options allow, from the inputs of the graph to its outputs.

    Parameters
    ----------
    graph : ComputeGraph
        With shapes in ``meta["shapes"]`` and attributes in ``meta["attrs"]``; ops without shapes are not rewritten.
    only : collection of (rule, op), optional
        Apply only these (`Rewrite.key`), as far as possible.
    deadline : Deadline, optional
        After the deadline or an interruption, the rewrites made so far remain.

    Raises
    ------
    GraphError
        As :func:`find_rewrites`.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> shapes = {**dict.fromkeys("abc", [1, 8, 8, 4]), "y": [1, 8, 8, 4]}
    >>> attrs = {"y": {"layout": "NHWC", "concat_inputs": True, "concat_axis": 3}}
    >>> b = GraphBuilder("g", meta={"shapes": shapes, "attrs": attrs})
    >>> for name in "abc":
    ...     _ = b.op(name, size=256, type="Input")
    >>> _ = b.op("y", inputs=["a", "b", "c"], size=256, type="Conv")
    >>> done = rewrite_graph(b.build())
    >>> [str(rewrite) for rewrite in done.rewrites], done.graph.op_names[3:]
    (['y: 3 parts, added up in one buffer'], ('y/part0', 'y/part1', 'y/part2'))
    """
    options = options or RewriteOptions()
    draft = Draft(graph, kernels=options.kernels)
    done: list[Rewrite] = []
    clock, complete = deadline or Deadline(), True
    for number, op in enumerate(list(draft.order)):
        if number % PIECE == 0 and clock.expired:
            complete = False
            break
        for rule in options.rules:
            if op not in draft.ops or (only is not None and (rule, op) not in only):
                continue
            rewrite = RULES[rule].match(draft, op, options)
            if rewrite is not None:
                RULES[rule].perform(draft, rewrite)
                done.append(_priced(rewrite, graph))
    return Rewritten(_built(draft, done) if done else graph, tuple(done), complete)


def _priced(rewrite: Rewrite, graph: ComputeGraph) -> Rewrite:
    """Return a rewrite of `graph`, marked as possibly worse if any op is in place, since parts of ops are not."""
    return replace(rewrite, never_worse=False) if graph.in_place else rewrite


def _built(draft: Draft, done: list[Rewrite]) -> ComputeGraph:
    graph = draft.graph
    earlier = graph.meta.get("rewriting")
    record = {"graph": graph.name, "digest": graph.digest, "rewrites": [rewrite.as_dict() for rewrite in done]}
    name = graph.name if graph.name.endswith(SUFFIX) else graph.name + SUFFIX
    return draft.build([*(earlier if isinstance(earlier, list) else []), record], name)
