"""Options of the hierarchical programme, and its tables: nodes and their choices, data, reads and makes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.formulations.composites.composite import Composite, CompositeProblem
from remat.formulations.composites.runs import Run
from remat.formulations.staging import RunNodes, useful_runs
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options
from remat.runtime.deadline import Deadline

#: Larger than any amount of bytes; sums of two stay exact in int64.
NEVER = 2**62


@dataclass(frozen=True)
class HIlpOptions(Options):
    """Options of :class:`remat.formulations.h_ilp.HIlp`."""

    composites: tuple[Composite, ...] = ()
    """Composites; every other op is a node."""
    corrections: bool = True
    """True: interfaces count only while they are live inside a composite. False, as below the top level in the paper:
    they count throughout the node, with fewer rows and schedules that hold less than the model claims."""
    ahead: bool = True
    """True: a phase may recompute nodes that only later phases need. False: the model is smaller, and its optimum,
    among fewer schedules, is mostly the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "composites", tuple(self.composites))
        super().__post_init__()


@dataclass(frozen=True, eq=False)
class NodeRow:
    """Memory row of a node, for all its choices.

    Its value is the memory of all data that are live before or after the node, plus `memory` of the choice. Data in
    `freed` that are freed with the node are subtracted, and data in `hidden` that the node makes.
    """

    memory: Int
    """Bytes; for a choice without such a row, the value that its own rows imply. Shape (choices of the node,)."""
    freed: Int
    """Numbers of data that are not live in this row if they are freed with the node."""
    hidden: Int
    """Numbers of data that are not live in this row if the node makes them."""


class Tables:
    """Nodes, choices (a node with one of its runs) and data (tensors), by number.

    `clock` is checked between the memory rows of two nodes.

    Attributes
    ----------
    T : int
        Number of nodes, and of phases: phase t ends with the first compute of node t.
    runs : list of Run
        Runs of all choices, node by node.
    node, cost, saved : int64 arrays, shape (choices,)
        Node; cost in units; bytes of the phantom.
    first, num : int64 arrays, shape (nodes,)
        First choice of each node, and number of its choices.
    tensor, size : int64 arrays, shape (data,)
        Tensor of the flat graph, and its bytes.
    kept : bool array, shape (data,)
    read_node, read_data, read_count : int64 arrays, shape (reads,)
        Pairs of a node and a datum that at least one of its choices reads, by datum, then node; number of choices.
    read_first : int64 array
        First of each read's choices in `read_choice`.
    read_choice : int64 array
        Choices that read.
    make_node, make_data : int64 arrays, shape (makes,)
        Pairs of a node and a datum to which it contributes, by datum, then node.
    makers, first_make : int64 arrays, shape (data,)
        Number of nodes that contribute, and the first of them among the makes.
    layer_forward, layer_backward : int64 arrays, shape (layers,)
        Nodes.
    phantom_layer, phantom_forward, phantom_backward : int64 arrays, shape (phantoms,)
        Options with a backward part: layer, choice of the forward node, choice of the backward node.
    """

    def __init__(self, whole: CompositeProblem, corrections: bool, clock: Deadline) -> None:
        self.whole, self.corrections, self.clock = whole, corrections, clock
        arrays = whole.arrays
        self.T = len(whole.nodes)
        by_node = [whole.runs(k) for k in clock.each(range(self.T))]
        self.runs: list[Run] = [run for runs in by_node for run in runs]
        self.num = np.array([len(runs) for runs in by_node], dtype=np.int64)
        self.first = np.cumsum(self.num) - self.num
        self.node = np.repeat(np.arange(self.T, dtype=np.int64), self.num)
        self.cost = np.array([run.cost for run in self.runs], dtype=np.int64)
        self.saved = np.array([run.saved for run in self.runs], dtype=np.int64)
        self.tensor = whole.data
        self.size = arrays.size[self.tensor]
        self.kept = whole.problem.kept[self.tensor]
        self.number = np.full(len(arrays.size), -1, dtype=np.int64)
        self.number[self.tensor] = np.arange(len(self.tensor))
        counts = np.array([len(run.tensor) for run in self.runs], dtype=np.int64)
        choice = np.repeat(np.arange(len(self.runs), dtype=np.int64), counts)
        data = self.number[np.concatenate([run.tensor for run in self.runs])]
        needs = np.concatenate([run.needs for run in self.runs])
        makes = np.concatenate([run.makes for run in self.runs])
        self._reads(choice[needs], data[needs])
        pairs = np.unique(data[makes] * self.T + self.node[choice[makes]])
        self.make_data, self.make_node = pairs // self.T, pairs % self.T
        self.makers = np.bincount(self.make_data, minlength=len(self.tensor))
        self.first_make = np.cumsum(self.makers) - self.makers
        self._layers()

    def _reads(self, choice: Int, data: Int) -> None:
        by = np.lexsort((choice, data))
        choice, data = choice[by], data[by]
        key = data * self.T + self.node[choice]
        begins = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
        self.read_choice, self.read_first = choice, begins
        self.read_data, self.read_node = data[begins], self.node[choice[begins]]
        self.read_count = np.diff(np.append(begins, len(key)))

    def _layers(self) -> None:
        layers = np.array(self.whole.layers, dtype=np.int64).reshape(-1, 2)
        self.layer_forward, self.layer_backward = layers[:, 0], layers[:, 1]
        found = []
        for layer, (ahead, back) in enumerate(layers.tolist()):
            place = {self.runs[c].option: c for c in range(self.first[ahead], self.first[ahead] + self.num[ahead])}
            for c in range(self.first[back], self.first[back] + self.num[back]):
                found.append((layer, place[self.runs[c].option], c))
        table = np.array(found, dtype=np.int64).reshape(-1, 3)
        self.phantom_layer, self.phantom_forward, self.phantom_backward = table.T.copy()

    @cached_property
    def read_of(self) -> dict[tuple[int, int], int]:
        """Number of each read, by node and datum."""
        return {key: i for i, key in enumerate(zip(self.read_node.tolist(), self.read_data.tolist(), strict=True))}

    @cached_property
    def make_of(self) -> dict[tuple[int, int], int]:
        """Number of each make, by node and datum."""
        return {key: i for i, key in enumerate(zip(self.make_node.tolist(), self.make_data.tolist(), strict=True))}

    @cached_property
    def hard(self) -> Bool:
        """Mask of the reads by every choice of the node; shape (reads,)."""
        return self.read_count == self.num[self.read_node]

    @cached_property
    def maker(self) -> Int:
        """First node that makes each datum; shape (data,)."""
        return self.make_node[self.first_make]

    @cached_property
    def last_maker(self) -> Int:
        """Last node that makes each datum; shape (data,)."""
        return self.make_node[self.first_make + self.makers - 1]

    @cached_property
    def single(self) -> Bool:
        """Mask of the nodes with a single output and no phantom; shape (nodes,)."""
        made = np.bincount(self.make_node, minlength=self.T)
        phantoms = np.zeros(self.T, dtype=np.bool_)
        phantoms[self.node[self.saved > 0]] = True
        phantoms[self.layer_forward] = True
        return (made == 1) & ~phantoms

    @cached_property
    def base(self) -> int:
        """Lower bound on the cost: each node once, with its cheapest choice."""
        return int(self.cheapest.sum())

    @cached_property
    def cheapest(self) -> Int:
        """Least cost of each node."""
        return np.minimum.reduceat(self.cost, self.first)

    @cached_property
    def once(self) -> Bool:
        """Mask of the nodes that the limits of computes allow to run only once."""
        return self.whole.most_runs == 1

    @cached_property
    def rows(self) -> list[list[NodeRow]]:
        """Memory rows of each node."""
        return [self._rows_of(k) for k in self.clock.each(range(self.T), 1)]

    def _rows_of(self, k: int) -> list[NodeRow]:
        runs = self.runs[self.first[k] : self.first[k] + self.num[k]]
        if not self.corrections or all(len(run.ops) == 1 for run in runs):
            worst = np.array([run.peak - run.saved for run in runs], dtype=np.int64)
            nothing = np.zeros(0, dtype=np.int64)
            return [NodeRow(worst, nothing, nothing)]
        given = [(o, row) for o, run in enumerate(runs) for row in run.rows]
        data = np.unique(np.concatenate([self.number[run.tensor] for run in runs]))
        size, owner = self.size[data], np.array([o for o, _ in given])
        freed, hidden = (np.zeros((len(given), len(data)), dtype=np.bool_) for _ in range(2))
        memory = np.array([row.memory - runs[o].saved for o, row in given], dtype=np.int64)
        for i, (_, row) in enumerate(given):
            freed[i, np.searchsorted(data, self.number[row.freed])] = True
            hidden[i, np.searchsorted(data, self.number[row.not_made])] = True
        _, distinct = np.unique(np.hstack([freed, hidden]), axis=0, return_index=True)
        # row i implies a row with corrections j and its own memory, less the corrections of i that j lacks
        less = (freed * size) @ (~freed[distinct]).T + (hidden * size) @ (~hidden[distinct]).T
        implied = memory[:, None] - less
        table = np.full((len(runs), len(distinct)), -NEVER, dtype=np.int64)
        np.maximum.at(table, owner, implied)
        rows: list[tuple[Bool, Bool, Int]] = []
        for place in np.lexsort((freed[distinct].sum(axis=1) + hidden[distinct].sum(axis=1), -table.max(axis=0))):
            f, h, worst = freed[distinct[place]], hidden[distinct[place]], table[:, place]
            if not any((g <= f).all() and (i <= h).all() and (w >= worst).all() for g, i, w in rows):
                rows.append((f, h, worst))
        return [NodeRow(w, data[f], data[h]) for f, h, w in rows]

    @cached_property
    def unit(self) -> int:
        """Bytes per unit: the greatest common divisor of all sizes."""
        memory = [row.memory for rows in self.rows for row in rows]
        return int(np.gcd.reduce(np.concatenate([self.size, self.saved, *memory]))) or 1

    @cached_property
    def held(self) -> int:
        """Bytes that are always held: graph inputs, and constant memory if the problem counts it."""
        return self.whole.arrays.input_bytes + self.whole.problem.constant_bytes

    @cached_property
    def most(self) -> int:
        """Units of all data, phantoms and the largest run together."""
        return (int(self.size.sum() + self.saved.sum()) + max(run.peak for run in self.runs)) // self.unit

    @cached_property
    def capacity(self) -> int:
        """Units left by the budget, rounded down; without one, enough for everything at once."""
        budget = self.whole.problem.budget_bytes
        if budget is None:
            return self.most
        return min(self.most, (budget - self.held) // self.unit)

    def may_run(self, most_extra: int | None, phases: Int, clock: Deadline, *, ahead: bool = True) -> Bool:
        """Mark possible runs: entry [t, k] is node k in ``phases[t]``, its first run or a useful one.

        A useful run of node k in phase t has a reader whose first run is in that phase or later, or a reader with a
        useful run in that phase. It costs at least the cheapest such path of readers. Without `ahead`, the path must
        end at the node that runs for the first time in that phase.
        """
        readers: list[list[int]] = [[] for _ in range(self.T)]
        final = np.zeros(self.T, dtype=np.bool_)
        readers_of: list[list[int]] = [[] for _ in self.tensor]
        for d, u in zip(self.read_data.tolist(), self.read_node.tolist(), strict=True):
            readers_of[d].append(u)
        for d, k in zip(self.make_data.tolist(), self.make_node.tolist(), strict=True):
            readers[k] += [u for u in readers_of[d] if u > k]
            final[k] |= self.kept[d]
        for first, back in zip(self.layer_forward.tolist(), self.layer_backward.tolist(), strict=True):
            readers[first].append(back)
        nodes = RunNodes(readers, self.cheapest, ~self.once, final)
        may = useful_runs(nodes, phases, most_extra=most_extra, ahead=ahead, clock=clock)
        return may.T | (np.arange(self.T) == phases[:, None])
