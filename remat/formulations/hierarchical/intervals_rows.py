"""The constraints of the hierarchical retention intervals, by their numbers in the formulation's docstring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.deadline import Deadline
from remat.formulations.hierarchical.composite import CompositeProblem
from remat.formulations.hierarchical.intervals_tables import EVERY
from remat.formulations.hierarchical.intervals_variables import IntervalVariables
from remat.modeling import ALWAYS, AllDifferent, Clauses, Cumulative, Domain
from remat.modeling.rows import difference_rows, expand, rows_from

Int = NDArray[np.int64]


class IntervalRows:
    """Adds the constraints to the model of some variables.

    Parameters
    ----------
    whole : CompositeProblem
    variables : IntervalVariables
    unit, held, capacity : int
        Bytes that memory is counted in, bytes that are always held, and units that the budget leaves.
    """

    def __init__(
        self, whole: CompositeProblem, variables: IntervalVariables, unit: int, held: int, capacity: int
    ) -> None:
        self.whole, self.variables, self.layout = whole, variables, variables.layout
        self.unit, self.held, self.capacity = unit, held, capacity
        self.model = variables.model

    def add_all(self, deadline: Deadline) -> None:
        """All but the memory."""
        steps = [self._options, self._times, self._instances, self._cover, self._keep, self._limits]
        if len(self.layout.tables.buffers):
            steps.append(self._buffers)
        for step in deadline.each(steps, 1):
            step()

    def _options(self) -> None:
        """(2)."""
        x = self.variables.blocks
        at = self.layout
        copy, rank = expand(self.variables.choice_counts)
        choosing = np.flatnonzero(self.variables.choice_counts)
        row_of = np.full(len(at.copy_node), -1, dtype=np.int64)
        row_of[choosing] = np.arange(len(choosing))
        row = np.arange(len(choosing))
        self.model.add(rows_from(
            "(2) one option", (row_of[copy], x.option.index, 1), (row, x.active.index[choosing], -1),
            num_rows=len(choosing), lower=0, upper=0,
        ))  # fmt: skip
        again = np.flatnonzero(at.copy_rank > 1)
        self.model.add(Clauses.pairs("(2) in sequence", ~x.active.index[again], x.active.index[again - 1]))
        owner, rank = expand(self.variables.set_counts)
        sets_first = np.searchsorted(at.tables.set_node, np.arange(len(at.copy_first)))
        members = [at.tables.sets[k] for k in (sets_first[at.copy_node[owner]] + rank).tolist()]
        row = np.repeat(np.arange(len(owner)), [len(each) for each in members])
        which = np.array([place for each in members for place in each], dtype=np.int64)
        options = x.option.index[self.variables.choice_first[owner[row]] + which] if len(row) else row
        own = np.arange(len(owner))
        self.model.add(rows_from(
            "(2) one of some", (row, options, 1), (own, x.some.index, -1), num_rows=len(owner), lower=0, upper=0
        ))  # fmt: skip

    def _times(self) -> None:
        """(8) and the windows, (3) one copy after the other, and the ticks."""
        x = self.variables.blocks
        at = self.layout
        later = np.flatnonzero(at.copy_rank > 0)
        if at.grid is None:
            self.model.add(AllDifferent("(8) different starts", x.start.index))
            if at.width > 1:
                events = np.tile(np.arange(1, at.events + 1), len(at.copy_node))
                indptr = np.arange(len(at.copy_node) + 1) * at.events
                self.model.add(Domain("windows", x.start.index, indptr, at.time(events)))
        elif len(later):
            slot = at.copy_node[later] + 1
            least = slot + at.copy_rank[later]
            stages = at.last_stage[at.copy_node[later]] - least + 1
            owner, rank = expand(stages)
            values = at.time(at.grid.event(least[owner] + rank, slot[owner]))
            self.model.add(Domain("stage grid", x.start[later], np.concatenate([[0], np.cumsum(stages)]), values))
        self.model.add(
            difference_rows("(3) one after the other", x.start[later], x.start[later - 1], at.width, x.active[later])
        )
        copy, units = np.nonzero(self.variables.tick_table >= 0)
        row = np.arange(len(copy))
        ticks = (row, x.tick.index, 1)
        self.model.add(
            rows_from("ticks", ticks, (row, x.start.index[copy], -1), num_rows=len(copy), lower=units, upper=units)
        )

    def _instances(self) -> None:
        """(4), and (3) one instance after the other."""
        x = self.variables.blocks
        at = self.layout
        made = at.made
        guard = self.variables.literal(made.copy, made.runs)
        row = np.arange(len(made))
        self.model.add(rows_from(
            "(4) while it is made", (row, x.end.index, 1), (row, x.start.index[made.copy], -1),
            num_rows=len(made), lower=made.last + 1, enforce=guard,
        ))  # fmt: skip
        key = made.copy * len(at.tables.size) + made.tensor
        order = np.argsort(key, kind="stable")
        following = (made.copy + 1) * len(at.tables.size) + made.tensor
        low, high = (np.searchsorted(key[order], following, side=side) for side in ("left", "right"))
        last = made.copy + 1 - at.copy_first[at.copy_node[made.copy]] == at.copies[at.copy_node[made.copy]]
        one, rank = expand(np.where(last, 0, high - low))
        other = order[low[one] + rank]
        row = np.arange(len(one))
        self.model.add(rows_from(
            "(3) until it is made anew", (row, x.start.index[made.copy[other]], 1), (row, x.end.index[one], -1),
            num_rows=len(one), lower=-made.begin[other], enforce=guard[other],
        ))  # fmt: skip

    def _cover(self) -> None:
        """(6)."""
        x = self.variables.blocks
        at = self.layout
        read, made = at.read, at.made
        wanted = self.variables.literal(read.copy, read.runs)
        literal = wanted[at.pair_read].copy()
        literal[self.variables.covered] = x.cover.index
        reader, maker = read.copy[at.pair_read], made.copy[at.pair_made]
        row = np.arange(len(reader))
        before, after = x.start.index[maker], x.start.index[reader]
        self.model.add(difference_rows("(6) made before", after, before, at.width, literal))
        self.model.add(rows_from(
            "(6) still live", (row, x.end.index[at.pair_made], 1), (row, x.start.index[reader], -1),
            num_rows=len(row), lower=read.last[at.pair_read] + 1, enforce=literal,
        ))  # fmt: skip
        given = self.variables.literal(made.copy, made.runs)[at.pair_made[self.variables.covered]]
        unsure = given != ALWAYS
        self.model.add(Clauses.pairs("(6) by one that is made", ~x.cover.index[unsure], given[unsure]))
        sure = np.ones(len(at.pair_read), dtype=np.bool_)
        sure[self.variables.covered] = False
        served = np.ones(len(read), dtype=np.bool_)
        served[at.pair_read[sure]] = False
        reads = np.flatnonzero(served)
        number = np.cumsum(served) - 1
        free = wanted[reads] != ALWAYS
        self.model.add(Clauses.grouped(
            "(6) some instance", np.concatenate([number[at.pair_read[self.variables.covered]], np.flatnonzero(free)]),
            np.concatenate([x.cover.index, ~wanted[reads[free]]]), len(reads),
        ))  # fmt: skip

    def _keep(self) -> None:
        """(7)."""
        x = self.variables.blocks
        at, kept = self.layout, self.variables.kept
        made = at.made.only(np.isin(np.arange(len(at.made)), kept))
        given = self.variables.literal(made.copy, made.runs)
        unsure = given != ALWAYS
        self.model.add(Clauses.pairs("(7) kept by one that is made", ~x.keep.index[unsure], given[unsure]))
        tensors, group = np.unique(made.tensor, return_inverse=True)
        self.model.add(Clauses.grouped("(7) something is kept", group, x.keep.index, len(tensors)))
        row = np.arange(len(kept))
        self.model.add(rows_from("(7) to the end", (row, x.end.index[kept], 1), num_rows=len(kept),
                            lower=at.horizon + 1, enforce=x.keep.index))  # fmt: skip

    def _buffers(self) -> None:
        """(10), (11), and contributions of later copies."""
        x = self.variables.blocks
        at, arrays = self.layout, self.whole.problem.graph.arrays
        number = np.full(len(arrays.size), -1, dtype=np.int64)
        number[at.tables.buffers] = np.arange(len(at.tables.buffers))
        first = at.filled.only(at.copy_rank[at.filled.copy] == 0)
        guard, row = self.variables.literal(first.copy, first.runs), np.arange(len(first))
        buffer = number[first.tensor]
        start = x.start.index[first.copy]
        self.model.add(rows_from("(10) buffer begins", (row, start, 1), (row, x.buffer_start.index[buffer], -1),
                            num_rows=len(row), lower=-first.begin, enforce=guard))  # fmt: skip
        self.model.add(rows_from("(10) buffer filled", (row, x.buffer_end.index[buffer], 1), (row, start, -1),
                            num_rows=len(row), lower=first.last + 1, enforce=guard))  # fmt: skip
        used = at.used
        guard, row = self.variables.literal(used.copy, used.runs), np.arange(len(used))
        self.model.add(rows_from("(11) buffer live", (row, x.buffer_end.index[number[used.tensor]], 1),
                            (row, x.start.index[used.copy], -1), num_rows=len(row), lower=used.last + 1,
                            enforce=guard))  # fmt: skip
        use, k = expand(arrays.producers.counts[used.tensor])
        writer = arrays.producers.indices[arrays.producers.indptr[used.tensor[use]] + k]
        pairs = np.unique(np.stack([use, self.whole.node_of[writer]]), axis=1)
        other = at.copy_node[used.copy[pairs[0]]] != pairs[1]
        use, node = pairs[0][other], pairs[1][other]
        reader, writer = x.start.index[used.copy[use]], x.start.index[at.copy_first[node]]
        self.model.add(difference_rows("(11) buffer complete", reader, writer, at.width, guard[use]))
        kept = np.flatnonzero(self.whole.problem.kept[at.tables.buffers])
        self.model.add(rows_from("(7) buffer kept", (np.arange(len(kept)), x.buffer_end.index[kept], 1),
                            num_rows=len(kept), lower=at.horizon + 1))  # fmt: skip
        again = self.variables.contributions
        running, row = self.variables.literal(again.copy, again.runs), np.arange(len(again))
        self.model.add(rows_from("masked while live", (row, x.buffer_end.index[number[again.tensor]], 1),
                            (row, x.start.index[again.copy], -1), num_rows=len(row), lower=again.last + 1,
                            enforce=x.masked.index))  # fmt: skip
        self.model.add(Clauses.grouped("masked or transient", np.tile(row, 3),
                                  np.concatenate([~running, x.masked.index, x.transient.index]), len(row)))  # fmt: skip

    def _limits(self) -> None:
        """(9), for ops in composites; an op alone has no more copies than it may have computes."""
        at, tables = self.layout, self.layout.tables
        limits = self.whole.problem.compute_limits
        rows: list[tuple[int, int, int]] = []  # row, column, computes
        upper: list[int] = []
        for number, composite in enumerate(self.whole.composites):
            nodes = [k for k, node in enumerate(self.whole.nodes) if node.composite == number]
            for op in [op for op in (*composite.forward.tolist(), *composite.backward.tolist()) if limits[op]]:
                terms = []
                for node in nodes:
                    for place, run in enumerate(self.whole.runs(node)):
                        times = int((run.ops == op).sum())
                        code = EVERY if len(self.whole.runs(node)) == 1 else place
                        copies = at.copy_first[node] + np.arange(at.copies[node])
                        terms += [(int(c), code, times) for c in copies.tolist() if times]
                if sum(times for _, _, times in terms) > (limits[op] or 0):
                    copy, code, _ = np.array(terms, dtype=np.int64).T
                    literal = self.variables.literal(copy, code)
                    sure = sum(t for (_, _, t), lit in zip(terms, literal.tolist(), strict=True) if lit == ALWAYS)
                    rows += [(len(upper), lit, t) for (_, _, t), lit in zip(terms, literal.tolist(), strict=True)
                             if lit != ALWAYS]  # fmt: skip
                    upper.append((limits[op] or 0) - sure)
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        assert len(tables.run_node) >= len(at.copy_first)
        self.model.add(rows_from("(9) limits of computes", (table[:, 0], table[:, 1], table[:, 2]), num_rows=len(upper),
                            upper=np.array(upper, dtype=np.float64)))  # fmt: skip

    def memory(self, tau: int | None = None) -> Cumulative:
        """(5): instances, what runs hold besides, buffers, and contributions to buffers that are gone."""
        x = self.variables.blocks
        at, tables = self.layout, self.layout.tables
        made, again = at.made, self.variables.contributions
        run, rank = expand(at.copies[tables.run_node[tables.piece_run]])
        piece_run = tables.piece_run[run]
        copy = at.copy_first[tables.run_node[piece_run]] + rank
        place = piece_run - tables.run_first[tables.run_node[piece_run]]
        place[self.variables.choice_counts[copy] == 0] = EVERY
        always = np.full(len(tables.buffers), ALWAYS, dtype=np.int64)
        time, literal = self.variables.time, self.variables.literal
        start = [time(made.copy, made.begin), time(copy, tables.piece_begin[run]), x.buffer_start.index,
                 time(again.copy, again.begin)]  # fmt: skip
        end = [x.end.index, time(copy, tables.piece_end[run]), x.buffer_end.index, time(again.copy, again.last + 1)]
        presence = [literal(made.copy, made.runs), literal(copy, place), always, x.transient.index]
        demand = np.concatenate([tables.size[made.tensor], tables.piece_demand[run], tables.size[tables.buffers],
                                 tables.size[again.tensor]])  # fmt: skip
        heavy = demand > 0
        return Cumulative(
            "(5) memory", np.concatenate(start)[heavy], np.concatenate(end)[heavy], -(-demand[heavy] // self.unit),
            np.concatenate(presence)[heavy], self.capacity, tau,
        )  # fmt: skip

    def minimise_cost(self) -> None:
        """(1)."""
        x = self.variables.blocks
        at, tables = self.layout, self.layout.tables
        runs = np.diff(tables.run_first)
        copy, place = expand(self.variables.choice_counts)
        chosen = tables.run_cost[tables.run_first[at.copy_node[copy]] + place]
        plain = np.flatnonzero((self.variables.choice_counts == 0) & (at.copy_rank > 0))
        sure = int(tables.run_cost[tables.run_first[:-1][runs == 1]].sum())
        index = np.concatenate([x.option.index, x.active.index[plain]])
        self.model.minimize(
            index, np.concatenate([chosen, tables.run_cost[tables.run_first[at.copy_node[plain]]]]), sure
        )
