"""Retention intervals of composites: optional intervals for each copy of a node, whose option is chosen with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat.formulations.base import Formulation, Values
from remat.formulations.hierarchical.composite import Composite, CompositeProblem
from remat.formulations.hierarchical.expand import Step
from remat.formulations.hierarchical.expand import expand as expand_steps
from remat.formulations.hierarchical.intervals_encoder import encoded
from remat.formulations.hierarchical.intervals_layout import IntervalsLayout
from remat.formulations.hierarchical.intervals_rows import IntervalRows
from remat.formulations.hierarchical.intervals_tables import Profile, Segments
from remat.formulations.hierarchical.intervals_variables import IntervalVariables
from remat.formulations.sequence import MemoryScale, standing_buffers
from remat.modeling import ALWAYS, Model
from remat.modeling.rows import rows_from
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.runtime.options import Options, Positive
from remat.schedule import OrderRule, Schedule
from remat.scope import Restriction, Scope

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class HierarchicalIntervalsOptions(Options):
    """Options of :class:`HierarchicalIntervals`.

    Attributes
    ----------
    composites : tuple of Composite
        The groups that are run as a whole, and how they can be; every other op is a node by itself.
    copies : int
        C_k of the nodes for which the problem sets no limit of computes.
    profile : ``"exact"`` or ``"peak"``
        What an option holds while it runs: segment by segment, with its interfaces there only while they are; or, in
        a smaller model, its most at once and all of its interfaces throughout.
    """

    composites: tuple[Composite, ...] = ()
    copies: Positive = 2
    profile: Profile = "exact"


class HierarchicalIntervals(Formulation):
    r"""Retention intervals of composites, each of whose copies chooses an option.

    After Moccasin (Bartan et al., ICML 2023; :class:`~remat.formulations.retention_intervals.RetentionIntervals`) for
    the hierarchical question of HiRemate (Gusak et al. 2024, appendix B).

    **Sets.** Nodes k ∈ K: an op alone, or the forward or backward part of a composite. Options o ∈ O_k, each a
    sequence of ops with a cost w_{k,o}. Copies i = 1..C_k of each node. A run with option o is cut into *segments*
    0..Q_{k,o} − 1 where one of its interfaces comes or goes; p_{k,o,q} are the most bytes that it holds in segment q
    besides interfaces. Q is the largest Q_{k,o}; time is a set D of events, and event d is the *window* of the Q units
    of time from (d − 1) Q + 1 on. *Tensors* t with size m_t are those that cross borders, and the phantoms: phantom
    (j, o) is what layer j holds between its parts with option o. In a run with option o, tensor t is made at segment
    b_{o,t} and touched last at l_{o,t}; a phantom is made at b = Q_{F_j,o}, after the last, and read at l = −1, before
    the first.

    **Variables.** s_k^i: start of copy i, at the beginning of a window; a_k^i ∈ {0, 1}: whether it runs;
    x_{k,o}^i ∈ {0, 1}: with option o. For a set O of options that touch t alike, x_O is their sum. e_t^i: unit of time
    before which the instance of t that copy i makes is freed (exclusive). An op alone has no x, but a.

    **Constraints**::

        (1)  minimise  sum_{k,i,o} w_{k,o} x_{k,o}^i
        (2)  sum_o x_{k,o}^i = a_k^i;   a_k^1 = 1;   a_k^{i+1} ≤ a_k^i
        (3)  a_k^{i+1}  ⇒  s_k^i + Q ≤ s_k^{i+1};   x_O^{i+1}  ⇒  e_t^i ≤ s_k^{i+1} + b_{O,t}
        (4)  x_O^i  ⇒  s_k^i + l_{O,t} + 1 ≤ e_t^i                              where options O make t
        (5)  sum of m_t over instances with s + b ≤ τ < e, plus p_{k,o,q} of runs with s + q = τ,  ≤ M  for every τ
        (6)  x_O^i  ⇒  for every t that options O need, there is an instance (t, j) that a copy of node u makes, with
                       s_u^j + Q ≤ s_k^i   and   s_k^i + l_{O,t} + 1 ≤ e_t^j
        (7)  for every kept t there is an instance with e = |D| Q + 1
        (8)  all s_k^i are different                                            (free order)
        (9)  sum over copies and options of (computes of op v in option o) x_{k,o}^i ≤ limit of op v

    (6) for phantoms ties the parts of a layer: a backward part runs with option o only if a forward part with option o
    ran before and its phantom is held, an interval whose demand depends on the option (HiRemate's (7)–(9)). What only
    some options need binds these alone. (5) is one `Cumulative`; as an interface is there from the segment that makes
    it to the last that touches it, HiRemate's correction terms are in it. With the **fixed order** nodes take the
    place of ops in Moccasin's stages: stage n of the grid has n events, the k-th for node k alone.

    Without composites Q = 1, every op is a node, and the model is that of retention intervals.

    **Least peak.** Where the problem asks for it, M is a variable, and is minimised.

    **Accumulation buffers** that cross borders are filled once, by the first copies of the nodes that write them, and
    read afterwards::

        (10) buffer_start ≤ s_k^1 + b,   s_k^1 + l + 1 ≤ buffer_end             for every node k that writes it
        (11) x_O^i  ⇒  s_u^1 + Q ≤ s_k^i   and   s_k^i + l + 1 ≤ buffer_end     where options O read it, for every
                                                                                other node u that writes it

    A later copy of a writer adds nothing while the buffer is live (*masked*: s + l + 1 ≤ buffer_end), and holds it for
    itself in segments b..l otherwise (*transient*). Buffers inside a run are part of p.

    **Never too little.** Every read of the expanded schedule is served by an instance that is live from its writer to
    that read, or is in p; with implied frees the schedule holds no more than that. It holds less where a run makes
    anew what is live, where a phantom stays on for another backward run, and where a forward run saves what nobody
    reads. With ``profile="peak"`` every run is one segment, which claims more.

    Examples
    --------
    >>> from remat.formulations.hierarchical import Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7])])
    >>> f = HierarchicalIntervals(Problem(unit_chain(4), 4), HierarchicalIntervalsOptions((middle,)))
    >>> print(f.build())  # doctest: +ELLIPSIS
    model h-intervals: ...
    """

    name = "h-intervals"
    options_type = HierarchicalIntervalsOptions
    objectives = frozenset(Objective)

    def __init__(self, problem: Problem, options: HierarchicalIntervalsOptions | None = None) -> None:
        super().__init__(problem)
        self.options = options or HierarchicalIntervalsOptions()
        self.whole = CompositeProblem(problem, self.options.composites)
        _, workspace = standing_buffers(problem)
        scale = MemoryScale.of(problem, workspace)
        self.unit, self.held = scale.unit, scale.held

    @cached_property
    def layout(self) -> IntervalsLayout:
        """Which copies, instances and reads there are."""
        return IntervalsLayout.of(self.whole, self.options.copies, self.options.profile)

    @cached_property
    def most(self) -> int:
        """Units that all copies of everything hold at once, which no model can exceed."""
        tables, copies = self.layout.tables, self.layout.copies
        held = int((tables.size[tables.makes.tensor] * copies[tables.makes.node]).sum())
        held += int(tables.size[tables.fills.tensor].sum()) * int(copies.max(initial=1))
        return -(-(held + int(tables.piece_demand.max(initial=0))) // self.unit)

    @cached_property
    def capacity(self) -> int:
        """Units that the budget leaves for what is not always held."""
        budget = self.problem.budget_bytes
        return self.most if budget is None else min(self.most, (budget - self.held) // self.unit)

    @property
    def asks_peak(self) -> bool:
        """Whether the peak is to be minimised."""
        return self.problem.objective is Objective.LEAST_PEAK

    def scope(self) -> Scope:
        notes: list[Restriction] = []
        if len(self.layout.tables.buffers):
            notes.append(Restriction.FILLED_ONCE)
        if self.options.composites:
            notes.append(Restriction.COMPOSITES)
            return Scope(OrderRule(self.problem.order), self.layout.grid is not None, None, tuple(notes))
        most = max(self.options.copies if limit is None else limit for limit in self.problem.compute_limits)
        return Scope(OrderRule(self.problem.order), self.layout.grid is not None, most, tuple(notes))

    def estimate(self) -> ModelSize:
        at = self.layout
        copies, pairs = len(at.copy_node), len(at.pair_read)
        choices = int((np.diff(at.tables.run_first) * at.copies).sum())
        ticks = copies * at.width
        pieces = int(at.copies[at.tables.run_node[at.tables.piece_run]].sum())
        variables = 2 * copies + choices + ticks + len(at.made) + pairs
        rows = copies + choices + ticks + 3 * len(at.made) + 4 * pairs
        return ModelSize(variables, rows, 2 * rows + 3 * (len(at.made) + pieces))

    def build(self) -> Model:
        return self.statement.model

    @cached_property
    def statement(self) -> IntervalVariables:
        """The variables, and with them the model."""
        model = Model(self.name)
        variables = IntervalVariables(self.layout, model)
        tau = None
        if self.asks_peak:
            tau = model.integers("tau", 1, 0, self.most)
            model.add(rows_from("budget", (np.zeros(1), tau.index, 1), num_rows=1, upper=self.capacity))
        self.deadline.check()
        rows = self.rows(variables)
        rows.add_all(self.deadline)
        model.add(rows.memory(None if tau is None else int(tau.index[0])))
        if tau is not None:
            model.minimize(tau.index, self.unit, self.held)  # in bytes
        else:
            rows.minimise_cost()
        return variables

    def rows(self, variables: IntervalVariables) -> IntervalRows:
        """The constraints on them."""
        return IntervalRows(self.whole, variables, self.unit, self.held, self.capacity)

    # -- translation ---------------------------------------------------------------------------------------------------

    def encode(self, schedule: Schedule) -> Values:
        return encoded(self, schedule)

    def decode(self, values: Values) -> Schedule:
        return expand_steps(self.whole, self.steps(values), self.name)

    def steps(self, values: Values) -> list[Step]:
        """The runs that `values` stand for, in sequence, with the tensors that each finds and leaves there."""
        at, x = self.layout, self.statement.blocks
        tables, made = at.tables, at.made
        start, end = (values[block.index].round().astype(np.int64) for block in (x.start, x.end))
        run = self.statement.chosen(values)
        nodes = np.flatnonzero(run >= 0)
        there = self.statement.holds(values, made.copy, made.runs) & (made.tensor < len(self.problem.kept))
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

    def claims(self, values: Values) -> list[Int]:
        """Bytes that the model says are held at each sub-step of each of :meth:`steps`."""
        at, x = self.layout, self.statement.blocks
        use = self.rows(self.statement).memory()
        sure = use.presence == ALWAYS
        there = sure | (values[np.where(sure, 0, use.presence)] > 0.5)
        begin, end, demand = values[use.start][there], values[use.end][there], use.demand[there]
        run, start = self.statement.chosen(values), values[x.start.index]
        is_buffer = np.isin(np.arange(len(self.problem.kept)), at.tables.buffers)
        found = []
        for copy in sorted(np.flatnonzero(run >= 0).tolist(), key=lambda copy: float(start[copy])):
            node, number = int(at.copy_node[copy]), int(run[copy])
            own = self.whole.runs(node)[number - int(at.tables.run_first[node])]
            cut = Segments.of(own, at.tables.size, is_buffer, self.options.profile)
            time = start[copy] + cut.of_step
            load = ((begin <= time[:, None]) & (time[:, None] < end)) @ demand
            found.append(self.held + self.unit * load - cut.demand[cut.of_step] + cut.memory)
        return found
