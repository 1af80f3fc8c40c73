"""Path cuts of the stage relaxation: what runs in a window needs each of its ancestors in memory or in the window."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from remat.backends.highs import Highs
from remat.backends.highs.relaxation import Relaxation
from remat.bounds.stage_relaxation import StageRelaxation
from remat.modeling import Linear, Model
from remat.modeling.rows import NONE, rows_from
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import OverdueError
from remat.runtime.solve_options import SolveOptions

#: Least violation of a cut; most cuts of a round, the most violated ones.
LEAST_VIOLATION, MOST_CUTS = 0.01, 2_000
#: Share of the time for cuts. Rounds end when the last few closed less than a part of the gap to the cost sought.
SHARE, ROUNDS, LEAST_PROGRESS = 0.5, 3, 0.03
#: Most windows: beyond it, only those between neighbouring events and those to the end.
MOST_WINDOWS = 250
#: Where a path starts, in place of an op: at a tensor to keep, or at one that is live, or on the device, at the end of
#: the window.
KEPT, LIVE_AT_END, HERE_AT_END = -2, -3, -4


@dataclass(frozen=True)
class Cut:
    """Row ``sum of coefficients * columns >= lower``."""

    columns: tuple[int, ...]
    coefficients: tuple[int, ...]
    lower: int


@dataclass(frozen=True)
class _There:
    """Parts of tensors in a solution, from 0 to 1; arrays of shape (windows, tensors).

    Attributes
    ----------
    at_end : list of (int, float64 array, float64 array)
        Where a path starts, the part of each tensor at the end of the window, and what of it needs no compute.
    given : float64 array
        What of each tensor needs no compute for its readers: live at the start, or, if less, there or read since.
    fetched : bool array
        Marks tensors for which it is the latter.
    """

    at_end: list[tuple[int, Float, Float]]
    given: Float
    fetched: Bool


@dataclass(eq=False)
class PathCuts:
    r"""Path cuts of a built stage relaxation.

    A *window* is the time from event :math:`a` to a later event :math:`b`, or to the end; :math:`A(o)` is the sum of
    ``again[j, o]`` over its stages. A *path* :math:`o_0, t_1, o_1, \dots, t_r, o_r` goes backwards: :math:`o_{i-1}`
    reads :math:`t_i`, which :math:`o_i` writes, and the first computes of :math:`o_1, \dots, o_r` are not after event
    :math:`a`. None of its tensors is an input or output of that event's op. Every schedule satisfies

    .. math:: A(o_r) + \sum_{i=1}^{r} \mathrm{live}[a, t_i] \ge \sigma,

    where :math:`\sigma` is

    * 1 if the first compute of :math:`o_0` is in the window, or if :math:`t_1` is kept and the window lasts to the end;
    * :math:`\mathrm{again}[j, o_0]` for a stage :math:`j` of the window if the first compute of :math:`o_0` is earlier;
    * :math:`\mathrm{live}[b, t_1]` if :math:`t_1` has a single writer.

    *Proof.* If :math:`o_{i-1}` runs in the window, :math:`t_i` is live at event :math:`a`, or :math:`o_i` runs in the
    window. So by induction a tensor of the path is live at :math:`a`, or :math:`o_r` runs in the window. A tensor that
    is live at :math:`b` is live at :math:`a`, or its writer runs in between. ∎

    With a host (:mod:`remat.bounds.transfer_relaxation`), ``live`` includes tensors on the host. Each
    :math:`\mathrm{live}[a, t_i]` may then be replaced by ``here[a, t_i]`` and the sum of ``read[j, t_i]`` over the
    window; :math:`\sigma` may also be ``here[b, t_1]``, but if it is ``live[b, t_1]``, :math:`t_1` is not replaced.
    *Proof.* An op of the window reads a tensor that was computed in the window, or whose parts on the device at
    :math:`a` and those read since are the whole. What is on the device at :math:`b` was there at :math:`a`, has been
    read since, or its writer runs in between. ∎

    The rows of the relaxation are the cuts with :math:`r = 1` and one stage. With longer ones, more events raise the
    linear relaxation instead of lowering it. :meth:`separate` is exact: for each window, the largest :math:`\sigma`
    minus the live tensors over all paths to each op follows in one pass from the last op to the first.

    Attributes
    ----------
    cuts : list of Cut
        Those found so far.
    """

    relaxation: StageRelaxation
    cuts: list[Cut] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        relaxation = self.relaxation
        arrays = self._arrays = relaxation.problem.graph.arrays
        num_events = len(relaxation.events)
        pairs = [(a, b) for a in range(num_events) for b in range(a + 1, num_events + 1)]
        if len(pairs) > MOST_WINDOWS:
            pairs = [(a, b) for a, b in pairs if b in (a + 1, num_events)]
        self._since, self._until = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        ends = np.array([*relaxation.events, len(arrays.cost)])
        position = arrays.position[:, None]
        self._old: Bool = position <= ends[self._since]  # (ops, windows)
        self._first: Bool = ~self._old & (position <= ends[self._until])
        self._again: Int = np.array([stage.again for stage in relaxation.stages])
        self._live: Int = np.array([stage.live for stage in relaxation.stages[:-1]])
        self._here: Int = np.array([stage.here for stage in relaxation.stages[:-1]])
        self._read: Int = np.array([stage.read for stage in relaxation.stages])
        self._always: Bool = np.array([arrays.is_input | relaxation.at(event) for event in relaxation.events])

    def separate(self, values: Float) -> list[Cut]:
        """Return new cuts that a solution of the linear relaxation violates, and add them to :attr:`cuts`."""
        if not len(values):
            return []
        again = np.where(self._again >= 0, values[self._again], 0.0)
        there = self._there(values)
        most = [again[a + 1 : b + 1].argmax(axis=0) + a + 1 for a, b in zip(self._since, self._until, strict=True)]
        stage = np.array(most)  # (windows, ops): where an op runs again most
        asked = np.where(self._first, 1.0, np.where(self._old, np.take_along_axis(again, stage, axis=0).T, 0.0))
        tensor, reader = self._extend(asked, there)
        excess = asked - self._sums(again).T
        place = np.argwhere(self._old & (tensor != NONE) & (excess > LEAST_VIOLATION))
        place = place[np.argsort(-excess[place[:, 0], place[:, 1]], kind="stable")[:MOST_CUTS]]
        known = set(self.cuts)
        paths = ((self._path(op, window, tensor, reader), window) for op, window in place.tolist())
        found = dict.fromkeys(self._cut(path, window, stage[window], there.fetched[window]) for path, window in paths)
        new = [cut for cut in found if cut not in known]
        self.cuts += new
        return new

    def _sums(self, by_stage: Float) -> Float:
        """Return the sums of values, shape (stages, ·), over the stages of each window."""
        total = np.vstack([np.zeros(by_stage.shape[1]), by_stage.cumsum(axis=0)])
        return total[self._until + 1] - total[self._since + 1]

    def _until_end(self, part: Float) -> Float:
        """Return the parts of tensors at the end of each window; 0 for windows that last to the end."""
        return np.vstack([part, np.zeros(part.shape[1])])[self._until]

    def _there(self, values: Float) -> _There:
        """Return the parts of tensors at the ends of windows, and what of them needs no compute in a window."""
        live = np.where(self._live >= 0, values[self._live], self._always)
        at_end, at_start = self._until_end(live), live[self._since]
        if np.array_equal(self._here, self._live):
            return _There([(LIVE_AT_END, at_end, at_start)], at_start, np.zeros(at_start.shape, dtype=np.bool_))
        here = np.where(self._here >= 0, values[self._here], self._always)
        arrived = here[self._since] + self._sums(np.where(self._read >= 0, values[self._read], 0.0))
        given = np.minimum(at_start, arrived)
        ends = [(LIVE_AT_END, at_end, at_start), (HERE_AT_END, self._until_end(here), given)]
        return _There(ends, given, arrived < at_start - 1e-9)

    def _extend(self, asked: Float, there: _There) -> tuple[Int, Int]:
        """Raise `asked`, shape (ops, windows), to the most that a path ending at each op asks of it.

        Return, in that shape, the last tensor of such a path and the op that reads it; −1 for the path of an op alone.
        """
        arrays, given = self._arrays, there.given
        outputs, readers = arrays.op_outputs.shared_lists(), arrays.consumers.shared_lists()
        kept, single = self.relaxation.problem.kept, arrays.producers.counts == 1
        tensor, reader = np.full(asked.shape, NONE), np.full(asked.shape, NONE)
        to_end = (self._until == len(self._live)).astype(np.float64)
        for op in arrays.order[::-1].tolist():
            for t in outputs[op]:
                sources = [(each, asked[each], given) for each in readers[t]]
                if kept[t]:
                    sources.append((KEPT, to_end, given))
                if single[t]:
                    sources += [(end, part[:, t], before) for end, part, before in there.at_end]
                for source, sigma, before in sources:
                    more = sigma - before[:, t]
                    better = self._old[op] & (more > asked[op] + 1e-9)
                    asked[op, better] = more[better]
                    tensor[op, better], reader[op, better] = t, source
        return tensor, reader

    def _path(self, op: int, window: int, tensor: Int, reader: Int) -> list[int]:
        """Return the path that ends at an op, backwards: op, tensor, op and so on, to where it starts."""
        path = [op]
        while path[-1] >= 0 and (t := int(tensor[path[-1], window])) != NONE:
            path += [t, int(reader[path[-1], window])]
        return path

    def _cut(self, path: list[int], window: int, stage: Int, fetched: Bool) -> Cut:
        """Return the cut of a path."""
        since, until = int(self._since[window]), int(self._until[window])
        op, start, tensors = path[0], path[-1], path[1::2]
        columns = self._again[since + 1 : until + 1, op].tolist()
        for t in tensors:
            if fetched[t] and not (start == LIVE_AT_END and t == tensors[-1]):
                columns += [self._here[since, t], *self._read[since + 1 : until + 1, t].tolist()]
            else:
                columns.append(self._live[since, t])
        columns = [int(column) for column in columns if column != NONE]
        sigma = NONE  # the column of sigma, if it is not 1
        if start >= 0 and not self._first[start, window]:
            sigma = int(self._again[stage[start], start])
        elif start in (LIVE_AT_END, HERE_AT_END) and not self._always[until, tensors[-1]]:
            sigma = int((self._live if start == LIVE_AT_END else self._here)[until, tensors[-1]])
        if sigma == NONE:
            return Cut(tuple(columns), (1,) * len(columns), 1)
        return Cut((*columns, sigma), (*[1] * len(columns), -1), 0)


def rows_of(cuts: list[Cut]) -> Linear:
    """Return cuts as rows of a model."""
    row = np.repeat(np.arange(len(cuts)), [len(cut.columns) for cut in cuts])
    columns = np.array([column for cut in cuts for column in cut.columns], dtype=np.int64)
    coefficients = np.array([value for cut in cuts for value in cut.coefficients], dtype=np.float64)
    lower = [cut.lower for cut in cuts]
    return rows_from("path cuts", (row, columns, coefficients), num_rows=len(cuts), lower=lower)


@dataclass(frozen=True)
class Tightened:
    """A model with path cuts, its linear relaxation, and the same model with those cuts only that have a dual."""

    full: Model
    linear: Relaxation
    lean: Model


def tightened(relaxation: StageRelaxation, model: Model, call: SolveOptions, enough: float | None = None) -> Tightened:
    """Add path cuts to a built relaxation until its linear relaxation violates none.

    It stops earlier after :data:`SHARE` of the time, when rounds bring little, or at a bound of `enough`.

    Raises
    ------
    OverdueError
        If the deadline passes before HiGHS has the first model.
    """
    cuts = PathCuts(relaxation)
    full, linear = model, Highs().relax(model, call)
    rounds = replace(call, deadline=call.deadline.share(SHARE))
    bounds = [linear.bound or 0.0]
    while linear.values is not None and not _enough(bounds, enough) and (new := cuts.separate(linear.values)):
        more = full.copy(model.name)
        more.add(rows_of(new))
        try:
            found = Highs().relax(more, rounds, start=linear)
        except OverdueError:
            break
        if found.bound is None or found.bound < bounds[-1] - 1e-6 * (1 + bounds[-1]):
            break  # it was stopped at the deadline
        full, linear = more, found
        bounds.append(found.bound)
    binding = np.flatnonzero(linear.duals.get("path cuts", np.zeros(0)))
    lean = model.copy(model.name)
    if len(binding):
        lean.add(rows_of([cuts.cuts[k] for k in binding.tolist()]))
    return Tightened(full, linear, lean)


def _enough(bounds: list[float], enough: float | None) -> bool:
    """Return True if the last bound is high enough, or the last rounds closed little of the gap, if that is known."""
    if enough is not None and bounds[-1] >= enough:
        return True
    if len(bounds) <= ROUNDS:
        return False
    rest = (bounds[-1] if enough is None else enough) - bounds[-ROUNDS - 1]
    return bounds[-1] - bounds[-ROUNDS - 1] < LEAST_PROGRESS * rest
