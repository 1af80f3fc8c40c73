"""Model of the hierarchical programme: its variables, columns of liveness, and rows."""

from __future__ import annotations

import numpy as np

from remat.formulations.h_ilp.layout import NodeRow
from remat.formulations.h_ilp.phases import Levels, Phases
from remat.modeling import Model, Vars
from remat.modeling.rows import NONE, ONE, Term, column, expand, first_of, rows_from, sum_rows
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline


def _is_plain(rows: list[NodeRow]) -> bool:
    """True if the only row of a node has no corrections."""
    return len(rows) == 1 and not len(rows[0].freed) and not len(rows[0].hidden)


def stated(rows: list[NodeRow]) -> list[NodeRow]:
    """Return the rows of a node that are tighter than the bound of U."""
    return [] if _is_plain(rows) and (rows[0].memory <= 0).all() else rows


class Program:
    """Model of the choices in `phases`; the rows have the numbers of :class:`HIlp`.

    `clock` is checked between its parts.
    """

    def __init__(self, name: str, phases: Phases, clock: Deadline) -> None:
        model, at = Model(name), phases.at
        self.model, self.at, self.phases, self.clock = model, at, phases, clock
        self.R = model.booleans("R", len(phases.run_choice[0]))
        P = model.booleans("P", int(phases.kept.max(initial=-1)) + 1)
        S = model.booleans("S", int(phases.contribution_kept.max(initial=-1)) + 1)
        K = model.booleans("K", int(phases.contribution.max(initial=-1)) + 1)
        Sp = model.booleans("Sp", int(phases.phantom_kept.max(initial=-1)) + 1)
        Q = model.implied("Q", int(phases.phantom[0].max(initial=-1)) + 1, 0, 1)
        clock.check()
        p, sp = column(P, phases.kept), column(Sp, phases.phantom_kept)
        number, kind = phases.phantom
        phantom = np.where(kind == 0, column(Q, number), np.where(kind == 1, sp[1:], sp[:-1]))
        t, read, last, *_ = phases.reads
        tail = np.where(last, p[t + 1, at.read_data[read]], NONE)
        live, following = self._chain(tail)
        first = np.where(phases.fixed, ONE, p[1:])
        head = first_of(last)
        first[t[head], at.read_data[read[head]]] = live[head]
        before, after = self._making(p, first)
        over = self._over(after)
        self.levels = Levels(p, first, live, following, before, after, over, phantom, sp)
        """Columns of liveness."""
        clock.check()
        self._runs()
        self._phantoms()
        self._data(S, K)
        clock.check()
        self._memory()
        self._limits()
        self._minimise()
        self.x = model.named
        """Variables of the model."""

    def _minimise(self) -> None:
        """Set the objective."""
        at, phases = self.at, self.phases
        _, choice = phases.run_choice
        priced = np.flatnonzero(at.cost[choice] > 0)
        sure = int(at.cost[at.first[phases.run_node[phases.sure]]].sum())
        self.model.minimize(self.R.index[priced], at.cost[choice[priced]], sure)

    def _data_otherwise(self, t: Int, d: Int) -> tuple[Int, ...]:
        """Return columns of other ways by which data are there in phases."""
        del t, d
        return ()

    def _phantoms_otherwise(self, t: Int, phantom: Int) -> tuple[Int, ...]:
        """Return columns of other ways by which phantoms are there in phases."""
        del t, phantom
        return ()

    def _computes(self, t: Int, node: Int) -> tuple[Int, Int]:
        """Return (index, column of R) of all choices of nodes in phases; none for nodes that cannot run."""
        at, phases = self.at, self.phases
        place, rank = expand(np.where(phases.may[t, node], at.num[node], 0))
        return place, column(self.R, phases.run_column(t[place], at.first[node[place]] + rank))

    def _chain(self, tail: Int) -> tuple[Int, Int]:
        """Add (a1); return the columns of L up to each read and after it."""
        at, phases = self.at, self.phases
        t, read, last, *_ = phases.reads
        data = at.read_data[read]
        place, term = phases.read_terms
        term = column(self.R, term)
        alone = (at.read_count[read] == 1) & last & (tail == NONE)
        fixed = phases.fixed[t, data]
        own = ~fixed & ~alone
        L = self.model.implied("L", int(own.sum()), 0, 1)
        live = np.full(len(t), ONE, dtype=np.int64)
        live[own] = L.index
        mine = ~fixed & alone
        live[place[mine[place]]] = term[mine[place]]
        following = np.where(last, tail, np.roll(live, -1))
        number = np.cumsum(own) - 1
        chosen, more = own[place], own & (following != NONE)
        self.model.add(
            rows_from("(a1) there for a reader", (number[place[chosen]], term[chosen], 1),
                      (np.arange(len(L)), L.index, -1), num_rows=len(L), upper=0),
            sum_rows("(a1) there before", following[more], live[more]),
        )  # fmt: skip
        return live, following

    def _making(self, p: Int, first: Int) -> tuple[Int, Int]:
        """Add B of (a2); return the columns of liveness before and after each maker."""
        at, phases = self.at, self.phases
        t, make, last, *_ = phases.makes
        data = at.make_data[make]
        own = ~last
        B = self.model.implied("B", int(own.sum()), 0, 1)
        after = first[t, data]
        after[own] = B.index
        before = p[t, data]
        on = np.flatnonzero(~first_of(last))
        before[on] = after[on - 1]
        return before, after

    def _over(self, after: Int) -> Int:
        """Add (a3) for recomputations that may make unused data; return the columns of `over`."""
        at, phases = self.at, self.phases
        t, make, *_ = phases.makes
        node, data = at.make_node[make], at.make_data[make]
        mine = np.flatnonzero((t > node) & ~(at.single[node] & (at.makers[data] == 1)) & (after != ONE))
        over = self.model.implied("over", len(mine), 0, 1)
        columns = np.full(len(t), NONE, dtype=np.int64)
        columns[mine] = over.index
        place, term = self._computes(t[mine], node[mine])
        row = np.arange(len(mine), dtype=np.int64)
        self.model.add(
            rows_from("(a3) made and not wanted", (place, term, 1), (row, after[mine], -1), (row, over.index, -1),
                      num_rows=len(mine), upper=0)
        )  # fmt: skip
        return columns

    def _runs(self) -> None:
        """Add (5)."""
        at, phases = self.at, self.phases
        several = np.flatnonzero(at.num[phases.run_node] > 1)
        t, node = phases.run_phase[several], phases.run_node[several]
        place, term = self._computes(t, node)
        least = np.where(t == node, 1, -np.inf)
        self.model.add(rows_from("(5) one option", (place, term, 1), num_rows=len(several), lower=least, upper=1))

    def _phantoms(self) -> None:
        """Add (6) to (9)."""
        at, phases = self.at, self.phases
        t, phantom = np.nonzero(np.arange(at.T)[:, None] >= at.node[at.phantom_forward])
        q, into, onward = self.levels.phantom[t, phantom], self.levels.Sp[t, phantom], self.levels.Sp[t + 1, phantom]
        ahead, back = (
            column(self.R, phases.run_column(t, choice[phantom]))
            for choice in (at.phantom_forward, at.phantom_backward)
        )
        for name, low in (("(8) kept", onward), ("(8) saved", ahead), ("(9) there for the backward part", back)):
            use = (low != NONE) & (low != q)
            self.model.add(sum_rows(name, low[use], q[use]))
        use = (q != NONE) & (q != into)
        other = self._phantoms_otherwise(t[use], phantom[use])
        self.model.add(sum_rows("(7) made by the forward part", q[use], into[use], ahead[use], *other))
        layer = t * max(1, len(at.layer_forward)) + at.phantom_layer[phantom]
        there = q != NONE
        keys, row = np.unique(layer[there], return_inverse=True)
        several = np.bincount(row, minlength=len(keys)) > 1
        number = np.cumsum(several) - 1
        mine = several[row]
        self.model.add(
            rows_from("(6) one phantom", (number[row[mine]], q[there][mine], 1), num_rows=several.sum(), upper=1)
        )

    def _data(self, S: Vars, K: Vars) -> None:
        """Add (d1) to (d3) and (a2)."""
        at, phases, levels = self.at, self.phases, self.levels
        # one contributor: a datum that is live after it was live before or is made
        t, d = np.nonzero(np.arange(at.T)[:, None] >= at.maker)
        alone = (at.makers[d] == 1) & (t > at.maker[d]) & (levels.first[t, d] != NONE)
        alone &= levels.first[t, d] != levels.P[t, d]
        t, d = t[alone], d[alone]
        there = levels.P[t, d], *self._data_otherwise(t, d)
        self._made("(d2)-(d3) kept or made", t, at.maker[d], levels.first[t, d], *there)
        # several contributors
        parts = phases.parts
        node, data = at.make_node[parts], at.make_data[parts]
        s, k = column(S, phases.contribution_kept), column(K, phases.contribution)
        t, m = np.nonzero(phases.contribution_kept[:-1] != NONE)
        self.model.add(sum_rows("(d1) contributions to what is there", s[t, m], levels.P[t, data[m]]))
        t, m = np.nonzero(k != NONE)
        self._made("(d2) contribute", t, node[m], k[t, m])
        t, m = np.nonzero((phases.contribution_kept[1:] != NONE) & (s[1:] != s[:-1]))
        self.model.add(sum_rows("(d2) contributions kept", s[t + 1, m], s[t, m], k[t, m]))
        self._complete(s, k)
        self._contributions(k)

    def _made(self, name: str, t: Int, node: Int, there: Int, *before: Int) -> None:
        """Add rows: a datum is live only if it was before, or if the node runs in the phase."""
        row = np.arange(len(t), dtype=np.int64)
        place, term = self._computes(t, node)
        kept = ((row, columns, -1) for columns in before)
        self.model.add(rows_from(name, (row, there, 1), *kept, (place, term, -1), num_rows=len(t), upper=0))

    def _complete(self, s: Int, k: Int) -> None:
        """Add (d3) for accumulation buffers."""
        at, phases = self.at, self.phases
        t, read, *_ = phases.reads
        shared = np.flatnonzero(at.makers[at.read_data[read]] > 1)
        use, rank = expand(at.makers[at.read_data[read[shared]]])
        place = shared[use]
        m = phases.part_of[at.first_make[at.read_data[read[place]]] + rank]
        row = np.arange(len(place), dtype=np.int64)
        entry, term = phases.read_terms
        first = np.searchsorted(entry, place)
        again, rank = expand(at.read_count[read[place]])
        self.model.add(
            rows_from(
                "(d3) complete",
                (again, column(self.R, term)[first[again] + rank], 1),
                (row, k[t[place], m], -1),
                (row, s[t[place], m], -1),
                num_rows=len(place),
                upper=0,
            )
        )

    def _contributions(self, k: Int) -> None:
        """Add the rows (a2)."""
        at, phases, levels = self.at, self.phases, self.levels
        t, make, *_ = phases.makes
        shared = np.flatnonzero(at.makers[at.make_data[make]] > 1)
        t, make = t[shared], make[shared]
        given = k[t, phases.part_of[make]]
        for name, low in (("(a2) there from before", levels.before[shared]), ("(a2) there once begun", given)):
            use = np.flatnonzero((low != NONE) & (low != levels.after[shared]))
            self.model.add(sum_rows(name, low[use], levels.after[shared][use]))

    def _limits(self) -> None:
        """Add the limits of computes of ops."""
        at, phases = self.at, self.phases
        limits = at.whole.compute_limits
        t, entry = np.nonzero(phases.may[:, at.node[limits.run]])
        by = np.argsort(limits.row[entry], kind="stable")
        t, entry = t[by], entry[by]
        runs = column(self.R, phases.run_column(t, limits.run[entry]))
        terms = (limits.row[entry], runs, limits.times[entry])
        self.model.add(rows_from("limit of computes", terms, num_rows=len(limits.most), upper=limits.most))

    def _memory(self) -> None:
        """Add (u) and (10), with a variable U in units for each slot."""
        at, phases = self.at, self.phases
        # a node with corrections holds less than U, so the budget does not bound its U
        loose = np.array([not _is_plain(rows) for rows in at.rows], dtype=np.bool_)[phases.run_node]
        U = self.model.implied("U", len(phases.run_phase), 0, np.where(loose, at.most, at.capacity))
        keys = phases.run_phase * at.T + phases.run_node
        terms: list[Term] = [(np.arange(len(keys)), U.index, 1)]
        for t, slot, column_, bytes_ in self.clock.each(self._changes(), 1):
            good = (slot <= t) & (column_ != NONE) & (bytes_ != 0)
            row = np.searchsorted(keys, (t * at.T + slot)[good])
            terms.append((row, column_[good], -(bytes_[good] // at.unit)))
        on = np.flatnonzero(phases.run_phase[1:] == phases.run_phase[:-1]) + 1
        terms.append((on, U.index[on - 1], -1))
        self.model.add(rows_from("(u) memory", *terms, num_rows=len(keys), lower=0, upper=0))
        self._budget(U)

    def _changes(self) -> list[tuple[Int, Int, Int, Int]]:
        """Return the changes of memory within phases: (phase, node from which it holds, column, bytes)."""
        at, phases, levels, found = self.at, self.phases, self.levels, []

        def put(t: Int, slot: Int, there: Int, size: Int) -> None:
            found.append((t, np.broadcast_to(slot, t.shape), there, np.broadcast_to(size, t.shape)))

        zero = np.zeros(1, dtype=np.int64)
        t, d = np.nonzero(np.arange(at.T)[:, None] > at.maker)
        put(t, zero, levels.P[t, d], at.size[d])
        # if no maker may run in the phase, `first` replaces P from the position of the last maker on
        runs = np.zeros((at.T, len(at.tensor)), dtype=np.bool_)
        phase, make, *_ = phases.makes
        runs[phase, at.make_data[make]] = True
        idle = ~runs[t, d] & (t > at.last_maker[d])
        put(t[idle], at.last_maker[d[idle]], levels.P[t, d][idle], -at.size[d[idle]])
        put(t[idle], at.last_maker[d[idle]], levels.first[t, d][idle], at.size[d[idle]])
        node, size = at.make_node[make], at.size[at.make_data[make]]
        put(phase, node, levels.before, -size)
        put(phase, node, np.where(phase == node, ONE, levels.after), size)
        put(phase, node, levels.over, size)
        put(phase, node + 1, levels.over, -size)
        phase, read, *_ = phases.reads
        node, size = at.read_node[read], at.size[at.read_data[read]]
        put(phase, node + 1, levels.live, -size)
        put(phase, node + 1, levels.following, size)
        ahead, back = at.node[at.phantom_forward], at.node[at.phantom_backward]
        size = at.saved[at.phantom_forward]
        t, j = np.nonzero(np.arange(at.T)[:, None] >= ahead)
        put(t, zero, levels.Sp[t, j], size[j])
        put(t, ahead[j], levels.Sp[t, j], -size[j])
        put(t, ahead[j], levels.phantom[t, j], size[j])
        put(t, back[j], levels.phantom[t, j], -size[j])
        put(t, back[j], levels.Sp[t + 1, j], size[j])
        return found

    def _budget(self, U: Vars) -> None:
        """Add the rows (10) that are tighter than the bound of U."""
        at, phases = self.at, self.phases
        terms: list[tuple[Int, Int, Int]] = []
        count = 0
        for k in range(at.T):
            t = np.flatnonzero(phases.may[:, k])
            slots, (place, runs) = phases.slot[t, k], self._computes(t, np.full(len(t), k))
            for each in self.clock.each(stated(at.rows[k]), 1):
                numbers = count + np.arange(len(slots), dtype=np.int64)
                terms.append((numbers, U.index[slots], np.ones(len(slots), dtype=np.int64)))
                terms.append((numbers[place], runs, np.tile(each.memory // at.unit, len(slots))))
                for there, size in self.corrections(k, slots, each):
                    terms.append((numbers, there, np.full(len(slots), size // at.unit)))
                count += len(slots)
        if count:
            row, there, units = (np.concatenate(part) for part in zip(*terms, strict=True))
            self.model.add(rows_from("(10) budget", (row, there, units), num_rows=count, upper=at.capacity))

    def corrections(self, k: int, slots: Int, row: NodeRow) -> list[tuple[Int, int]]:
        """Return the corrections (columns by slot, bytes) of a row of node k: less D of freed and C of hidden data."""
        at, phases, levels = self.at, self.phases, self.levels
        t, size = phases.run_phase[slots], at.size
        found: list[tuple[Int, int]] = []
        for d in row.freed.tolist():
            if (k, d) in at.read_of:
                place = phases.reads.place(t, at.read_of[k, d])
                found += [(levels.live[place], -int(size[d])), (levels.following[place], int(size[d]))]
        for d in {*row.freed.tolist(), *row.hidden.tolist()}:
            if (k, d) not in at.make_of:
                continue
            place = phases.makes.place(t, at.make_of[k, d])
            first, over, after = t == k, levels.over[place], levels.after[place]
            if d in row.freed:
                found += [(np.where(first, ONE, over), -int(size[d])), (np.where(first, after, NONE), int(size[d]))]
            else:
                found += [
                    (np.where(first, ONE, over), -int(size[d])), (np.where(first, NONE, after), -int(size[d])),
                    (levels.before[place], int(size[d])),
                ]  # fmt: skip
        return found
