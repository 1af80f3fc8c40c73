"""Code motion: move every free to the earliest possible step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from remat.graphs import ComputeGraph
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions, simulate_valid, with_frees


def with_early_frees(graph: ComputeGraph, schedule: Schedule, *, keep: Iterable[str] = frozenset()) -> Schedule:
    """Return the same computes with each free right after the last step that reads or writes its tensor.

    No free is added: a tensor that an explicit schedule never frees stays live. Implied frees are written out; they are
    already as early as possible. No step needs more memory than before.

    Source: P. Jain et al., "Checkmate", MLSys 2020, section 4.9 ("moving deallocations earlier in the plan when
    possible").

    Parameters
    ----------
    keep : iterable of str
        Tensors that must be live at the end besides the graph's outputs, if frees are implied.

    Raises
    ------
    ScheduleError
        Naming the first violation, if the schedule does not run on `graph`; or if it moves tensors to a host: an
        earlier free would wait for the transfer.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2), b.op("c", inputs=["b"], size=1)]
    >>> s = Schedule.from_steps([("compute", "a"), ("compute", "b"), ("compute", "c"), ("free", "a")])
    >>> [" ".join(step) for step in with_early_frees(b.build(), s).steps()]
    ['compute a', 'compute b', 'free a', 'compute c']
    """
    written = running(graph, schedule.in_one_memory("a schedule with the earliest frees"), keep=keep)
    arrays, targets = graph.arrays, graph_positions(graph, written)
    last_touch = np.full(len(graph.tensors), -1, dtype=np.int64)
    after = np.arange(len(written))  # the step at or after which each step is placed
    for step, (kind, target) in enumerate(zip(written.kinds.tolist(), targets.tolist(), strict=True)):
        if kind == StepKind.COMPUTE:
            last_touch[arrays.op_inputs[target]] = step
            last_touch[arrays.op_outputs[target]] = step
        else:
            after[step] = last_touch[target]
    freed = written.kinds == StepKind.FREE
    order = np.lexsort((np.where(freed, targets, 0), freed, after))
    kinds, targets = written.kinds[order], targets[order]
    return Schedule.for_graph(graph, kinds, targets, source=schedule.source, meta=schedule.meta)


def running(graph: ComputeGraph, schedule: Schedule, *, keep: Iterable[str] = frozenset()) -> Schedule:
    """Write out the implied frees and discards of a schedule.

    Raise ScheduleError with the first violation if it does not run on `graph`.
    """
    keep = tuple(keep) if not isinstance(keep, str) else keep
    simulate_valid(graph, schedule, keep=keep)
    return with_frees(graph, schedule, keep=keep)
