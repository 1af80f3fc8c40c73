"""Schedules of ``save_only_these_names``, from one trace that saves nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import combinations

from remat.graphs import Op
from remat.jax.captured import Captured
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import Certificate, Schedule

#: Most names whose sets are all tried: 1,024 sets take seconds for a graph of 2,000 ops.
MOST_EXACT = 10


class SavedNames:
    """Saved sets of a function and their schedules.

    JAX recomputes what the backward pass of a region needs, and stops at saved values. Of the recomputations of a trace
    that saves nothing, those remain whose results are still read.

    Parameters
    ----------
    named : Captured
        Trace that saves nothing, with an op for each ``checkpoint_name``.
    problem : Problem
        Budget and rules on the graph of the same trace without these ops.
    """

    def __init__(self, named: Captured, problem: Problem) -> None:
        graph = named.graph
        self.problem = problem
        self._named = graph
        self._is_name = [op.type == "name" for op in graph.ops]
        self._written: dict[str, list[str]] = {}
        for op, equation in zip(graph.ops, named.equations, strict=True):
            if op.type == "name":
                self._written.setdefault(str(equation.params["name"]), []).extend(op.outputs)
        self.names = tuple(self._written)
        self._steps: list[tuple[int, bool]] = []
        seen: set[int] = set()
        for name in named.schedule.computes():
            place = graph.op_index[name]
            self._steps.append((place, place in seen))
            seen.add(place)
        self.recomputed = tuple(dict.fromkeys(graph.ops[place].name for place, again in self._steps if again))
        self.certificate = lru_cache(maxsize=None)(self._certificate)

    def schedule(self, names: Collection[str], tensors: Collection[str] = ()) -> Schedule:
        """Return the schedule if the values of these names, and further tensors, are saved."""
        saved = {tensor for name in names for tensor in self._written[name]}.union(tensors)
        ops, kept, wanted = self._named.ops, list[int](), set[str]()
        for op, again in reversed(self._steps):
            outputs = ops[op].outputs
            needed = wanted.intersection(outputs)
            if again and not needed:
                continue
            wanted.difference_update(outputs)
            wanted.update(tensor for tensor in ops[op].inputs if tensor not in saved)
            if not self._is_name[op]:
                kept.append(self.problem.graph.op_index[ops[op].name])
        return Schedule.of_computes(self.problem.graph, kept[::-1], source="jax.checkpoint")

    @cached_property
    def tensors(self) -> dict[str, frozenset[str]]:
        """Tensors of the problem's graph that have each name; arguments are none."""
        return {name: frozenset(self._unnamed(written)) for name, written in self._written.items()}

    def _unnamed(self, written: Iterable[str]) -> Iterator[str]:
        """Yield the tensors of the problem's graph that ``checkpoint_name`` returns as these."""
        for tensor in written:
            source: str | None = tensor
            while source in self._writers and self._writers[source][0].type == "name":  # a name of a name
                source = next(iter(self._writers[source][0].inputs), None)
            if source in self._writers:
                op, number = self._writers[source]
                yield self.problem.graph.ops[self.problem.graph.op_index[op.name]].outputs[number]

    @cached_property
    def _writers(self) -> dict[str, tuple[Op, int]]:
        return {tensor: (op, number) for op in self._named.ops for number, tensor in enumerate(op.outputs)}

    def _certificate(self, names: frozenset[str], tensors: frozenset[str] = frozenset()) -> Certificate:
        return self.problem.validate(self.schedule(names, tensors))

    def best(self, deadline: Deadline) -> tuple[frozenset[str] | None, bool]:
        """Return the names of the cheapest saved set within the budget, or None, and True if all sets were tried.

        Fewer names never cost less, so sets are tried by rising cost.
        """
        if len(self.names) > MOST_EXACT:
            return self._searched(deadline), False
        for chosen in sorted(self._sets(), key=lambda each: (self._cost(each), len(each))):
            if self.certificate(chosen).accepted:
                return chosen, True
        return None, True

    def least(self) -> tuple[int, tuple[str, ...]]:
        """Return the least peak of the sets tried, if none keeps the budget, and its names."""
        exact = len(self.names) <= MOST_EXACT
        sets = self._sets() if exact else [frozenset[str](), frozenset(self.names)]
        peak, chosen = min(((self.certificate(each).peak, each) for each in sets), key=lambda pair: pair[0])
        return peak, tuple(name for name in self.names if name in chosen)

    def _sets(self) -> list[frozenset[str]]:
        return [frozenset(chosen) for size in range(len(self.names) + 1) for chosen in combinations(self.names, size)]

    def _searched(self, deadline: Deadline) -> frozenset[str] | None:
        """Drop names until the budget is kept, the most bytes for the least cost first; then exchange single ones."""
        chosen = frozenset(self.names)
        while chosen and not self.certificate(chosen).accepted:
            before = self.certificate(chosen)

            def price(name: str, before: Certificate = before, chosen: frozenset[str] = chosen) -> float:
                after = self.certificate(chosen - {name})
                return (after.cost - before.cost + 1) / max(before.peak - after.peak, 0.5)

            chosen -= {min(sorted(chosen), key=price)}
        best = chosen if self.certificate(chosen).accepted else None
        while best is not None and not deadline.expired:
            better = next(
                (each for each in self._neighbours(best) if self._cost(each) < self._cost(best)
                 and self.certificate(each).accepted), None,
            )  # fmt: skip
            if better is None:
                break
            best = better
        return best

    def _neighbours(self, chosen: frozenset[str]) -> Iterator[frozenset[str]]:
        for new in (name for name in self.names if name not in chosen):
            yield chosen | {new}
            yield from (chosen - {old} | {new} for old in sorted(chosen))

    def _cost(self, chosen: frozenset[str]) -> int:
        index, ops = self.problem.graph.op_index, self.problem.graph.ops
        return sum(ops[index[name]].cost for name in self.schedule(chosen).computes())
