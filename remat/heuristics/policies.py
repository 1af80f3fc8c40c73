"""Greedy search for a policy: save first what costs most to replay for its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from remat.formulations.policies import PoliciesOptions
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.problem import Problem
from remat.problem.regions import Replays, Saved
from remat.schedule import Schedule

#: Evaluations of choices; each takes about 5 µs per op.
MOST = 2000


class Move(NamedTuple):
    """Ops to save, or regions to leave without a checkpoint."""

    worth: float
    """Cost that it saves for each byte."""
    ops: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


class PolicySearch(Heuristic):
    """Choice of saved ops and plain regions, for selective checkpointing.

    It starts with replays of everything, then saves ops, and leaves whole regions without a checkpoint, by descending
    cost per byte, as long as the peak is within the budget. Several are tried at once: twice as many after a success,
    half as many after a failure. So it takes few evaluations on graphs with thousands of ops.

    The options are those of :class:`remat.formulations.policies.Policies`, whose model proves the best choice.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem.regions import contiguous_groups, regions_of
    >>> problem = Problem(unit_chain(6), 6)
    >>> regions = regions_of(problem, contiguous_groups(problem, [0, 2, 4]))
    >>> search = PolicySearch(PoliciesOptions(regions))
    >>> search.run(problem, HeuristicRun()).num_computes
    15
    """

    name = "policy-search"
    options_type: ClassVar[type | None] = PoliciesOptions

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        replays = Replays(problem, self.options.regions_of(problem))
        best = Best(problem, run, problem.graph.base_cost)
        chosen = replays.least_saved
        fits = best.offer(replays.schedule(chosen, self.name)).accepted
        moves = sorted(self._moves(problem, replays), key=lambda move: -move.worth)
        at, batch, left = 0, 1, MOST
        while at < len(moves) and left and not run.deadline.expired and not best.enough:
            some = moves[at : at + batch]
            tried = self._with(replays, chosen, some)
            certificate = best.offer(replays.schedule(tried, self.name))
            left -= 1
            if certificate.accepted or not fits:
                chosen, fits = tried, fits or certificate.accepted
                at, batch = at + len(some), batch * 2
            elif batch > 1:
                batch //= 2
            else:
                at += 1
        return best.schedule

    @staticmethod
    def _with(replays: Replays, chosen: Saved, moves: Sequence[Move]) -> Saved:
        """Return a choice after some moves."""
        index = replays.problem.graph.op_index
        plain = chosen.plain.union(*(move.plain for move in moves))
        ops = chosen.ops.union(*(move.ops for move in moves))
        return Saved(
            frozenset(op for op in ops if replays.regions[replays.region_of[index[op]]].name not in plain), plain
        )

    def _moves(self, problem: Problem, replays: Replays) -> Iterator[Move]:
        """Yield ops to save and regions to leave plain."""
        graph, arrays = problem.graph, problem.graph.arrays
        for op in replays.region_of:
            if op not in replays.must_replay and op not in replays.must_save:
                size = int(arrays.size[arrays.op_outputs[op]].sum())
                yield Move(int(arrays.cost[op]) / (size + 1), frozenset({graph.op_names[op]}))
        for region in replays.regions if self.options.plain else ():
            ops = [graph.op_index[name] for name in region.replayed]
            tensors = {tensor for op in ops for tensor in arrays.op_outputs[op].tolist()}
            read = [
                tensor
                for tensor in tensors
                if (arrays.position[arrays.consumers[tensor]] >= replays.first_backward).any()
            ]
            size = int(arrays.size[read].sum())
            cost = sum(int(arrays.cost[op]) for op in ops)
            yield Move(cost / (size + 1), plain=frozenset({region.name}))
