"""Messages for violations that the simulation finds."""

from __future__ import annotations

from collections.abc import Sequence

from remat.graphs import ComputeGraph
from remat.runtime.arrays import Int
from remat.schedule.certificate import Rule, Violation
from remat.schedule.schedule import Schedule, StepKind

#: What a step does to a tensor, by its kind.
_VERBS = ("computes", "frees", "offloads", "fetches", "discards the copy of")


class Faults:
    """Violations of a graph's semantics; the first ones are described, the others counted."""

    def __init__(self, graph: ComputeGraph, schedule: Schedule, ops: Int, limit: int) -> None:
        self.graph, self.schedule, self.ops, self.limit = graph, schedule, ops, limit
        self.found: list[Violation] = []
        """At most `limit`, by step, then those at the end."""
        self.count = 0
        """Number of violations, described or not."""

    def _has_room(self) -> bool:
        """Count a violation; return True if it should be described."""
        self.count += 1
        return len(self.found) < self.limit

    def unknown(self, step: int) -> None:
        """Record a step whose op or tensor the graph does not have."""
        if not self._has_room():
            return
        target, lacks = int(self.schedule.targets[step]), f"which graph {self.graph.name!r} does not have"
        if self.schedule.kinds[step] == StepKind.COMPUTE:
            name = self.schedule.op_names[target]
            found = Violation(step, name, None, Rule.UNKNOWN_OP, f"step {step} computes op {name!r}, {lacks}")
        else:
            name = self.schedule.tensor_names[target]
            verb = _VERBS[self.schedule.kinds[step]]
            found = Violation(step, None, name, Rule.UNKNOWN_TENSOR, f"step {step} {verb} tensor {name!r}, {lacks}")
        self.found.append(found)

    def read(self, step: int, tensor: int, begun: int, freed: int) -> None:
        """Record a read of a tensor that is not live, or that lacks contributions."""
        if begun < 0:
            self.at(step, Rule.INPUT_NOT_LIVE, tensor, freed)
        else:
            self.at(step, Rule.INPUT_INCOMPLETE, tensor, begun)

    def at(self, step: int, rule: Rule, tensor: int, since: int) -> None:
        """Record an illegal use of a tensor.

        `since`: the step of its free, of its first contribution or fetch, or of the offload of its copy.
        """
        if not self._has_room():
            return
        name, reader = self.graph.tensor_names[tensor], None
        if self.schedule.kinds[step] == StepKind.COMPUTE:
            reader = self.graph.op_names[self.ops[step]]
            message = (
                f"step {step}: op {reader!r} reads tensor {name!r}, which {self._reason(step, rule, tensor, since)}"
            )
        elif rule is Rule.FREE_GRAPH_INPUT:
            message = f"step {step} frees graph input {name!r}"
        else:
            verb = _VERBS[self.schedule.kinds[step]]
            message = f"step {step} {verb} tensor {name!r}, which {self._reason(step, rule, tensor, since)}"
        self.found.append(Violation(step, reader, name, rule, message))

    def _reason(self, step: int, rule: Rule, tensor: int, since: int) -> str:
        if rule is Rule.NO_HOST_COPY:
            return "has no copy on the host"
        if rule is Rule.OFFLOAD_AGAIN:
            return f"has a copy on the host since step {since}"
        if rule is Rule.FETCH_OF_LIVE:
            return f"is on the device since step {since}"
        if rule in (Rule.INPUT_INCOMPLETE, Rule.OFFLOAD_INCOMPLETE):
            return self._lacking(self.ops[since:step], tensor)
        return _absence(since)

    def at_the_end(self, never: list[int], lost: list[int], begun: Sequence[int], freed: Sequence[int]) -> None:
        """Record ops that are never computed, and kept tensors that are dead or incomplete at the end."""
        for op in never:
            if self._has_room():
                name = self.graph.op_names[op]
                self.found.append(Violation(None, name, None, Rule.OP_NOT_COMPUTED, f"op {name!r} is never computed"))
        for tensor in lost:
            if self._has_room():
                name = self.graph.tensor_names[tensor]
                what = "graph output" if self.graph.arrays.is_output[tensor] else "kept tensor"
                rule, why = Rule.OUTPUT_NOT_LIVE, f"is not live: it {_absence(freed[tensor])}"
                if begun[tensor] >= 0:
                    rule, why = Rule.OUTPUT_INCOMPLETE, self._lacking(self.ops[begun[tensor] :], tensor)
                self.found.append(Violation(None, None, name, rule, f"at the end {what} {name!r} {why}"))

    def _lacking(self, ops: Int, tensor: int) -> str:
        """Name the producers of `tensor` that are not among the computes since its instance started."""
        producers = self.graph.arrays.producers[tensor].tolist()
        absent = [self.graph.op_names[op] for op in producers if op not in ops]
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        return (
            f"lacks contributions of {', '.join(map(repr, absent[:5]))}{more} "
            f"({len(absent)} of {len(producers)} producers)"
        )


def _absence(freed: int) -> str:
    return "was never produced" if freed < 0 else f"was freed at step {freed}"
