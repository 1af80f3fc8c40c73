"""One graph and one schedule for all processes that communicate in a step; otherwise they would wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from remat.errors import CaptureError, ExecutionError, RematError
from remat.graphs import ComputeGraph
from remat.torch import private
from remat.torch.captured import Traced
from remat.torch.distributed import COLLECTIVES

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Agreement:
    """Processes that run the collectives of a step. Without collectives a process decides alone.

    Attributes
    ----------
    groups : tuple
        Process groups of the collectives, in order. They are the rows, columns, ... of a mesh.
    """

    groups: tuple[Any, ...]

    @classmethod
    def of(cls, steps: Iterable[Traced]) -> Agreement:
        """Return the processes that take part in some captured steps."""
        found: dict[Any, None] = {}
        for step in steps:
            for node in step.module.graph.nodes:
                if getattr(node.target, "namespace", "") in COLLECTIVES:
                    found.update(dict.fromkeys(_groups(node)))
        return cls(tuple(found))

    def graph(self, graph: ComputeGraph, facts: object = None) -> ComputeGraph:
        """Return a graph with costs and workspaces of the first process, and the largest constant memory.

        These may differ: costs may be measured, and a part of a parameter may share the memory of the whole. Raise
        CaptureError in all processes if their graphs differ otherwise, or the `repr` of `facts` does.
        """
        if not self.groups:
            return graph
        plain = replace(
            graph, ops=[replace(op, cost=0, workspace=0) for op in graph.ops], constant_memory=0, meta={}
        )  # fmt: skip
        found = {torch.distributed.get_rank(): ((plain.digest, repr(facts)), graph.constant_memory)}
        for group in self.groups:
            told: list[Any] = [None] * group.size()
            torch.distributed.all_gather_object(told, found, group)
            found = {key: facts for each in told for key, facts in each.items()}
        first = min(found)
        other = next((key for key in sorted(found) if found[key][0] != found[first][0]), None)
        if other is not None:
            raise CaptureError(
                f"process {other} captured another step of {graph.name!r} than process {first}: parameters and "
                "arguments must have equal shapes in all processes of the mesh",
                "unlike-processes",
            )
        numbers = self.once(lambda: [(op.cost, op.workspace) for op in graph.ops])
        ops = [replace(op, cost=cost, workspace=space) for op, (cost, space) in zip(graph.ops, numbers, strict=True)]
        return replace(graph, ops=ops, constant_memory=max(constant for _, constant in found.values()))

    def once(self, work: Callable[[], _Found]) -> _Found:
        """Call `work` in the first process; return its result in all of them.

        Raise in all of them the error that it raises.
        """
        if not self.groups:
            return work()
        found: tuple[Any, RematError | None] = None, None
        stopped: BaseException | None = None
        if all(group.rank() == 0 for group in self.groups):
            try:
                found = work(), None
            except RematError as error:
                found = None, error
            except BaseException as error:
                stopped = error
                found = None, ExecutionError(f"process {torch.distributed.get_rank()} stopped: {error!r}", "stopped")
        for group in self.groups:
            shared = [found]
            torch.distributed.broadcast_object_list(shared, group=group, group_src=0)
            found = shared[0]
        result, refused = found
        if stopped is not None:
            raise stopped
        if refused is not None:
            raise refused
        return result


def _groups(node: torch.fx.Node) -> list[Any]:
    """Return the process groups among the arguments of a collective, which has their names."""
    declared = [each.name for each in node.target._schema.arguments]
    given = {**dict(zip(declared, node.args, strict=False)), **node.kwargs}
    return [private.resolve_process_group(value) for name, value in given.items() if name == "group_name"]
