"""Exhaustive search for the cheapest composite schedule; without groups, for the cheapest schedule of ops.

The search follows the rules (liveness, order, frees) in plain Python. It shares no code with the formulations of
composite graphs, the validator, or the exhaustive search of ``remat.testing``.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hierarchies import RandomHierarchy, RandomOption

from remat.graphs import ComputeGraph
from remat.problem import Problem
from remat.schedule import OrderRule


@dataclass(frozen=True)
class PlainNode:
    """Single op (`group` is None), or forward or backward part of a group.

    `ops` are in the reference order; `options` map the number of an option to its op sequence.
    """

    group: int | None
    is_backward: bool
    ops: tuple[int, ...]
    options: dict[int, tuple[int, ...]]


def nodes_of(hierarchy: RandomHierarchy) -> list[PlainNode]:
    """Return the nodes in the reference order."""
    graph = hierarchy.graph
    nodes = []
    inside: set[int] = set()
    for number, group in enumerate(hierarchy.groups):
        inside |= {*group.forward, *group.backward}
        options = {o: option.forward for o, option in enumerate(group.options)}
        nodes.append(PlainNode(number, False, group.forward, options))
        if group.backward:
            options = {o: option.backward for o, option in enumerate(group.options) if option.backward}
            nodes.append(PlainNode(number, True, group.backward, options))
    nodes += [PlainNode(None, False, (k,), {0: (k,)}) for k in range(len(graph.ops)) if k not in inside]
    position = graph.arrays.position
    return sorted(nodes, key=lambda node: int(position[list(node.ops)].min()))


def phantom_of(graph: ComputeGraph, option: RandomOption, inner: frozenset[str]) -> frozenset[str]:
    """Return the inner tensors that the backward part of `option` reads before it computes them."""
    ran: set[int] = set()
    found = set()
    for number in option.backward:
        for name in set(graph.ops[number].inputs) & inner:
            if not {k for k, op in enumerate(graph.ops) if name in op.outputs} <= ran:
                found.add(name)
        ran.add(number)
    return frozenset(found)


def inner_of(hierarchy: RandomHierarchy, group: int) -> frozenset[str]:
    """Return the tensors that only ops of the group touch and that are not kept."""
    graph, mine = hierarchy.graph, {*hierarchy.groups[group].forward, *hierarchy.groups[group].backward}
    touched = {name for k in mine for name in (*graph.ops[k].inputs, *graph.ops[k].outputs)}
    others = {name for k, op in enumerate(graph.ops) if k not in mine for name in (*op.inputs, *op.outputs)}
    return frozenset(touched - others - set(graph.inputs) - set(graph.outputs))


class _State(NamedTuple):
    """Search state.

    `runs` counts runs of each node as far as limits need it, and `slot` is the last slot of the stage. `live` holds
    tensors that cross borders, `filled` pairs (buffer, writer op), `gone` dropped buffers, and `phantoms` triples
    (group, option, made in this phase). `run` is the current run: (node, option, steps done, keeps its phantom, live
    inner tensors).
    """

    runs: tuple[int, ...]
    slot: int
    live: frozenset[str]
    filled: frozenset[tuple[str, int]]
    gone: frozenset[str]
    phantoms: frozenset[tuple[int, int, bool]]
    run: tuple[int, int, int, bool, frozenset[str]] | None


class CompositeSearch:
    """Least cost over all choices of nodes, options, phases and retained tensors.

    Tensors that cross borders may be freed after any step that touches them, inner ones after their last read in the
    run. Only the part that contains an op writes its border tensors for others; a backward part's recomputations of
    forward ops stay inside it. A backward part runs with the option of a held phantom. It may keep the phantom for
    another run; the phantom then counts in addition to the run's own tensors. A phantom may stay held while the forward
    part runs again.

    Parameters
    ----------
    hierarchy : RandomHierarchy
        At most about six nodes: the search is exponential.
    problem : Problem
        Problem of the same graph.
    staged : bool or None
        True for phases: phase t ends with the first run of node t, and every earlier node may run once in it, in
        order. None: staged if the order is fixed.
    refill : bool
        Allow accumulation buffers that cross borders to be dropped and filled again.
    one_phantom : bool
        A group holds only the phantom of its latest forward run that made one, at least until the end of the phase or
        its backward part's run.
    copies : int or None
        Most runs of each node.
    """

    def __init__(
        self, hierarchy: RandomHierarchy, problem: Problem, *, refill: bool = False, one_phantom: bool = False,
        copies: int | None = None, staged: bool | None = None,
    ) -> None:  # fmt: skip
        self.one_phantom = one_phantom
        self.graph, self.problem, self.refill = hierarchy.graph, problem, refill
        self.nodes = nodes_of(hierarchy)
        self.copies = copies
        self.fixed = problem.order is OrderRule.FIXED
        self.staged = self.fixed if staged is None else staged
        graph = self.graph
        held = frozenset(graph.inputs)
        self.size = {tensor.name: tensor.size for tensor in graph.tensors}
        self.base = sum(self.size[name] for name in held)
        self.kept = (frozenset(graph.outputs) | frozenset(problem.keep)) - held
        self.reads = [frozenset(op.inputs) - held for op in graph.ops]
        self.writes = [frozenset(op.outputs) for op in graph.ops]
        writers: dict[str, list[int]] = {}
        for number, op in enumerate(graph.ops):
            for name in op.outputs:
                writers.setdefault(name, []).append(number)
        self.parts = {t: frozenset((t, k) for k in ops) for t, ops in writers.items() if len(ops) > 1}
        self.inner = [inner_of(hierarchy, g) - self.kept for g in range(len(hierarchy.groups))]
        self.phantom = [
            {o: phantom_of(graph, option, self.inner[g]) for o, option in enumerate(group.options) if option.backward}
            for g, group in enumerate(hierarchy.groups)
        ]
        self.unread = {t for t in self.parts if not any(t in reads for reads in self.reads) and t not in self.kept}
        self.limits = problem.compute_limits
        self.backward = {node.group: j for j, node in enumerate(self.nodes) if node.is_backward}

    def cheapest(self, budget: int | None = None, most_states: int = 200_000) -> int | None:
        """Return the least cost within `budget` (default: the problem's); None if infeasible.

        Raises
        ------
        OverflowError
            After `most_states` states.
        """
        most = self.problem.budget_bytes if budget is None else budget
        limit = math.inf if most is None else most
        nothing: frozenset[str] = frozenset()
        start = _State((0,) * len(self.nodes), -1, nothing, frozenset(), nothing, frozenset(), None)
        best: dict[_State, int] = {start: 0}
        heap = [(0, 0, start)]
        tick = itertools.count(1)
        while heap:
            value, _, state = heapq.heappop(heap)
            if value > best[state]:
                continue
            if state.run is None and all(state.runs) and all(self._ready(t, state) for t in self.kept):
                return value
            if len(best) > most_states:
                raise OverflowError(f"more than {most_states} states")
            for cost, target in self._steps(state, limit) if state.run else self._starts(state):
                if value + cost < best.get(target, math.inf):
                    best[target] = value + cost
                    heapq.heappush(heap, (value + cost, next(tick), target))
        return None

    def _ready(self, tensor: str, state: _State) -> bool:
        return tensor in state.live and self.parts.get(tensor, frozenset()) <= state.filled

    def _starts(self, state: _State) -> Iterator[tuple[int, _State]]:
        """Yield the possible next runs and drops of phantoms."""
        for one in state.phantoms:
            if not (self.one_phantom and one[2] and state.slot < self.backward[one[0]]):
                yield 0, state._replace(phantoms=state.phantoms - {one})
        done = next((j for j, count in enumerate(state.runs) if not count), len(self.nodes))
        for j, node in enumerate(self.nodes):
            if self.fixed and j > done:
                continue
            if self.staged and (j <= state.slot or done == len(self.nodes)):
                continue
            if self.copies is not None and state.runs[j] >= self.copies:
                continue
            once = any(self.limits[op] == 1 for op in node.ops)
            if once and state.runs[j]:
                continue
            for option in node.options:
                stays: tuple[bool, ...] = (False,)
                if node.group is not None and node.is_backward:
                    if not {(node.group, option, False), (node.group, option, True)} & state.phantoms:
                        continue
                    stays = (False, True)
                for stay in stays:
                    yield 0, state._replace(run=(j, option, 0, stay, frozenset()))

    def _steps(self, state: _State, limit: float) -> Iterator[tuple[int, _State]]:
        """Yield the states after the next op of the run, with each set of frees."""
        assert state.run is not None
        j, option, place, stay, inside = state.run
        node = self.nodes[j]
        sequence = node.options[option]
        op = sequence[place]
        inner = self.inner[node.group] if node.group is not None else frozenset()
        own = self.phantom[node.group].get(option, frozenset()) if node.group is not None else frozenset()
        if node.is_backward and place == 0:
            inside = own
        if not all(t in inside or (t not in inner and self._ready(t, state)) for t in self.reads[op]):
            return
        taken = self.reads[op] - inner - inside
        made = self.writes[op] - inner if op in node.ops else frozenset()
        inside |= self.writes[op] - made
        during = state.live | made
        held = self.base + sum(self.size[t] for t in during) + sum(self.size[t] for t in inside)
        held += self.graph.ops[op].workspace
        for group, other, _ in state.phantoms:
            if (group, other) != (node.group, option) or not node.is_backward or stay:
                held += sum(self.size[t] for t in self.phantom[group][other])
        if held > limit:
            return
        later = self._read_before_written(sequence[place + 1 :])
        after = frozenset(t for t in inside if t in later or (not node.is_backward and t in own
                          and not self._written(t, sequence[place + 1 :])))  # fmt: skip
        touched = list(taken | made)
        filled = state.filled | {(t, op) for t in made if t in self.parts}
        cost = self.graph.ops[op].cost
        for count in range(len(touched) + 1):
            for freed in map(frozenset, itertools.combinations(touched, count)):
                next_state = self._after(state, during - freed, filled, freed, after)
                if next_state is not None:
                    yield cost, self._closed(next_state) if place + 1 == len(sequence) else next_state

    def _after(
        self, state: _State, live: frozenset[str], filled: frozenset[tuple[str, int]], freed: frozenset[str],
        inside: frozenset[str],
    ) -> _State | None:  # fmt: skip
        assert state.run is not None
        j, option, place, stay, _ = state.run
        gone = state.gone
        for t in freed:
            if t in self.parts:
                if not self.refill and t not in self.unread and t not in gone and not self.parts[t] <= filled:
                    return None
                filled -= self.parts[t]
                if not self.refill:
                    gone |= {t}
        if not self.refill and live & gone:  # a dropped buffer lives only during its writer's step
            return None
        return state._replace(live=live, filled=filled, gone=gone, run=(j, option, place + 1, stay, inside))

    def _closed(self, state: _State) -> _State:
        """End the run."""
        assert state.run is not None
        j, option, _, stay, _ = state.run
        node = self.nodes[j]
        phantoms = state.phantoms
        if node.group is not None and option in self.phantom[node.group]:
            mine = {(node.group, option, False), (node.group, option, True)}
            if not node.is_backward:
                phantoms = (phantoms - mine) | {(node.group, option, self.staged)}
                if self.one_phantom:
                    phantoms = frozenset(x for x in phantoms if x[0] != node.group or x[1] == option)
            elif not stay:
                phantoms -= mine
        first = not state.runs[j]
        count = 1 if self.copies is None else state.runs[j] + 1
        runs = (*state.runs[:j], count, *state.runs[j + 1 :])
        if not first and self.staged:
            return state._replace(runs=runs, slot=j, phantoms=phantoms, run=None)
        old = frozenset((group, o, False) for group, o, _ in phantoms)
        return state._replace(runs=runs, slot=-1, phantoms=old, run=None)

    def _read_before_written(self, sequence: Sequence[int]) -> set[str]:
        found: set[str] = set()
        made: set[str] = set()
        for op in sequence:
            found |= self.reads[op] - made
            made |= {t for t in self.writes[op] if t not in self.parts}
        return found

    def _written(self, tensor: str, sequence: Sequence[int]) -> bool:
        return any(tensor in self.writes[op] for op in sequence)
