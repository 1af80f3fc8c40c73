"""Retention intervals of composites: optional intervals for each copy of a node, with a choice of its option."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.formulations.base import Formulation, Part, Preliminary, Values, VariableBounds
from remat.formulations.composites import recognition
from remat.formulations.composites.composite import Composite, CompositeProblem
from remat.formulations.composites.expansion import Step
from remat.formulations.composites.expansion import expand as expand_steps
from remat.formulations.composites.recognition import FoundRun
from remat.formulations.h_intervals.tables import Profile, tables_of
from remat.formulations.retention_intervals.encoder import IntervalsEncoder, RunSequence
from remat.formulations.retention_intervals.formulation import RetentionIntervals, RetentionIntervalsOptions
from remat.formulations.retention_intervals.tables import NodeTables
from remat.formulations.retention_intervals.variables import IntervalVariables
from remat.modeling.check import cumulative_use
from remat.modeling.naming import Labels
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.problem.scope import Restriction, Scope
from remat.runtime.checked_options import Options, Positive
from remat.schedule import Schedule


@dataclass(frozen=True)
class HierarchicalIntervalsOptions(Options):
    """Options of :class:`HierarchicalIntervals`."""

    composites: tuple[Composite, ...] = ()
    """Groups that run as a whole, with their options; every other op is a node."""
    copies: Positive = 2
    """C_k of the nodes for which the problem sets no limit of computes."""
    profile: Profile = "exact"
    """Memory of an option while it runs. ``"exact"``: segment by segment, with each interface only while it is live.
    ``"peak"``, a smaller model: its peak, with all of its interfaces throughout."""


class HierarchicalIntervals(RetentionIntervals):
    r"""Retention intervals of composites, each of whose copies chooses an option.

    After Moccasin (Bartan et al., ICML 2023; :class:`~remat.formulations.retention_intervals.RetentionIntervals`) for
    the hierarchical problem of HiRemate (Gusak et al. 2024, appendix B).

    **Sets.** Nodes k ∈ K: a single op, or the forward or backward part of a composite. Options o ∈ O_k, each a sequence
    of ops with a cost w_{k,o}. Copies i = 1..C_k of each node. A run with option o is divided into *segments*
    0..Q_{k,o} − 1 at each sub-step where one of its interfaces is made or freed. p_{k,o,q} is the peak of the bytes
    that it holds in segment q in addition to interfaces. Q is the largest Q_{k,o}. Time is a set D of events, and event
    d is the *window* of the Q units of time from (d − 1) Q + 1 on. *Tensors* t with size m_t are those that cross
    borders, and the phantoms: phantom (j, o) is the memory that layer j holds between its parts with option o. In a run
    with option o, tensor t is made at segment b_{o,t} and last touched at l_{o,t}. A phantom is made at b = Q_{F_j,o},
    after the last, and read at l = −1, before the first.

    **Variables.** s_k^i: start of copy i, at the start of a window; a_k^i ∈ {0, 1}: it runs; x_{k,o}^i ∈ {0, 1}: it
    runs with option o. For a set O of options with equal accesses to t, x_O is their sum. e_t^i: unit of time before
    which the instance of t that copy i makes is freed (exclusive). A single op has a in place of x.

    **Constraints**, with the numbers of retention intervals::

        (1)  minimise  sum_{k,i,o} w_{k,o} x_{k,o}^i
        (2)  x_O^i  ⇒  s_k^i + l_{O,t} + 1 ≤ e_t^i                              if options O make t
        (3)  a_k^{i+1}  ⇒  s_k^i + Q ≤ s_k^{i+1};   x_O^{i+1}  ⇒  e_t^i ≤ s_k^{i+1} + b_{O,t};   a_k^{i+1} ≤ a_k^i
        (4)  sum of m_t over instances with s + b ≤ τ < e, plus p_{k,o,q} of runs with s + q = τ,  ≤ M  for every τ
        (5)  x_O^i  ⇒  for every t that options O need, there is an instance (t, j) that a copy of node u makes, with
                       s_u^j + Q ≤ s_k^i   and   s_k^i + l_{O,t} + 1 ≤ e_t^j
        (6)  all s_k^i are different                                            (free order)
        (7)  a_k^1 = 1
        (8)  sum_o x_{k,o}^i = a_k^i
        (14) sum over copies and options of (computes of op v in option o) x_{k,o}^i ≤ limit of op v

    (5) for phantoms links the parts of a layer. A backward part runs with option o only if a forward part with option o
    ran before and its phantom is held. The phantom is an interval whose demand depends on the option (HiRemate's
    (7)–(9)). A tensor that only some options need binds these alone. (4) is one `Cumulative`. It includes HiRemate's
    correction terms, since an interface is live from the segment that makes it to the last that touches it. With the
    **fixed order**, nodes replace ops in Moccasin's stages: stage n of the grid has n events, the k-th for node k
    alone.

    Without composites Q = 1, every op is a node, and the model is that of retention intervals, built by the same code.
    A Boolean chooses the instance of a kept tensor that only some options make.

    **Least peak.** With this objective, M is a variable and is minimised.

    **Accumulation buffers** that cross borders are filled once, by the first copies of the nodes that write them, and
    read afterwards::

        buffer_start ≤ s_k^1 + b,   s_k^1 + l + 1 ≤ buffer_end             for every node k that writes it
        x_O^i  ⇒  s_u^1 + Q ≤ s_k^i   and   s_k^i + l + 1 ≤ buffer_end     if options O read it, for every
                                                                           other node u that writes it

    A later copy of a writer adds nothing while the buffer is live (*masked*: s + l + 1 ≤ buffer_end). Otherwise it
    holds a copy in segments b..l (*transient*). Buffers inside a run are part of p.

    **The model never claims too little memory.** Every read of the expanded schedule is served by an instance that is
    live from its writer to that read, or that is part of p. With implied frees, the schedule holds no more than that.
    It holds less if a run recomputes live tensors, if a phantom is held for another backward run, or if a forward run
    saves tensors that are never read. With ``profile="peak"`` every run is one segment, which claims more.

    Examples
    --------
    >>> from remat.formulations.composites import Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7])])
    >>> f = HierarchicalIntervals(Problem(unit_chain(4), 4), HierarchicalIntervalsOptions((middle,)))
    >>> print(f.build())  # doctest: +ELLIPSIS
    model h-intervals: ...
    """

    name = "h-intervals"
    options_type = HierarchicalIntervalsOptions

    def __init__(self, problem: Problem, options: HierarchicalIntervalsOptions | None = None) -> None:
        self.choices = options or HierarchicalIntervalsOptions()
        super().__init__(problem, RetentionIntervalsOptions(self.choices.copies))
        self.whole = CompositeProblem(problem, self.choices.composites)

    def tables(self) -> NodeTables:
        """Return the nodes, with the tensors that their runs touch."""
        return tables_of(self.whole, self.choices.profile, self.deadline)

    @cached_property
    def capacity(self) -> int:
        """Units left by the budget; without one, or with the peak as the objective, enough for all copies at once."""
        tables, copies = self.layout.tables, self.layout.copies
        held = int((tables.size[tables.makes.tensor] * copies[tables.makes.node]).sum())
        held += int(tables.size[tables.fills.tensor].sum()) * int(copies.max(initial=1))
        most = -(-(held + int(tables.piece_demand.max(initial=0))) // self.unit)
        budget = None if self.objective.is_memory else self.problem.budget_bytes
        return most if budget is None else min(most, (budget - self.held) // self.unit)

    @property
    def peaks(self) -> tuple[int, int]:
        """Smallest and largest τ in units."""
        return 0, self.capacity

    def named(self, node: int) -> str:
        """Return the name of a node in messages."""
        return repr(self.whole.nodes[node].name)

    def scope(self) -> Scope:
        scope = super().scope()
        if not self.choices.composites:
            return scope
        return Scope(scope.order, scope.staged, None, (*scope.notes, Restriction.COMPOSITES))

    def preliminary(self) -> Preliminary | None:
        return None

    def linear_estimate(self) -> ModelSize | None:
        return self.estimate()

    def labels(self) -> Labels:
        return {}

    def _offer_forms(self, variables: IntervalVariables, highest_peak: int | None = None) -> None:
        """Offer no other forms, since they cannot express options."""

    def encode_runs(self, schedule: Schedule) -> Values:
        """Encode a schedule; if its runs can be recognised in several ways, return the values that claim least."""

        def encode(steps: list[FoundRun]) -> Values:
            return IntervalsEncoder(self.layout, self._runs(steps), self.named).values(self.statement)

        def claim(values: Values) -> tuple[float, float]:
            used = cumulative_use(self.rows(self.statement).memory(), values)[1]
            return max(self.capacity, used.max(initial=0)), self.statement.model.objective.value(values)

        return recognition.encoded(self.whole, schedule, encode, claim)

    def _runs(self, steps: list[FoundRun]) -> RunSequence:
        places = [[run.option for run in self.whole.runs(step.node)].index(step.option) for step in steps]
        live = {number: step.live for number, step in enumerate(steps) if len(step.live)}
        nodes = np.array([step.node for step in steps], dtype=np.int64)
        return RunSequence(nodes, np.array(places, dtype=np.int64), live)

    def variable_bounds(self, schedule: Schedule, part: Part) -> VariableBounds:
        return Formulation.variable_bounds(self, schedule, part)

    def decode(self, values: Values) -> Schedule:
        return expand_steps(self.whole, self.steps(values), self.name)

    def steps(self, values: Values) -> list[Step]:
        """Return the runs that `values` represent, in sequence, with the tensors live throughout each."""
        at, variables, x = self.layout, self.statement, self.statement.blocks
        tables, made = at.tables, at.made
        start, end = (values[block.index].round().astype(np.int64) for block in (x.start, x.end))
        run = variables.chosen(values)
        nodes = np.flatnonzero(run >= 0)
        there = variables.holds(values, made.copy, made.runs) & (made.tensor < len(self.problem.kept))
        begin = start[made.copy] + made.begin
        complete = np.zeros(len(tables.buffers), dtype=np.int64)
        place = np.searchsorted(tables.buffers, at.filled.tensor)
        np.maximum.at(complete, place, np.where(at.copy_rank[at.filled.copy] == 0, start[at.filled.copy], 0))
        until = values[x.buffer_end.index]
        found = []
        for copy in nodes[np.argsort(start[nodes], kind="stable")].tolist():
            after = start[copy] + tables.run_segments[run[copy]]
            live = made.tensor[there & (begin < start[copy]) & (end >= after)]
            full = tables.buffers[(complete < start[copy]) & (until >= after)]
            option = int(tables.run_option[run[copy]])
            found.append(Step(int(at.copy_node[copy]), option, np.concatenate([live, full])))
        return found
