"""Measured time of each op."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import torch

from remat.runtime.deadline import Deadline
from remat.torch.costs.base import CostModel
from remat.torch.costs.calls import Call, call_of
from remat.torch.costs.distinct import Progress, measure_distinct
from remat.torch.costs.roofline import Roofline, device_kind
from remat.torch.costs.samples import real_arguments
from remat.torch.costs.timing import times

#: Timed calls: the least number, then seconds in total for more of them, and the largest number.
FEWEST, ENOUGH, MOST = 5, 0.02, 100


class Measured(CostModel):
    """Median time of each op on this machine, in ns.

    Each op runs alone on random tensors of its shapes, strides and types, first untimed, then timed. Equal ops (op,
    shapes, strides, types, other arguments) run once. Results are stored in the user's cache folder, for each version
    of PyTorch, device and number of threads. Memory: the tensors of one op.

    An op that cannot run alone costs its time by this machine's roofline, with a :class:`CostRemark` that names it.

    Parameters
    ----------
    deadline : Deadline, float or None
        Seconds for all ops of one call of :meth:`costs`.
    on_progress : callable, optional
        ``on_progress(done, total, name)``: distinct ops measured, ops to measure, the name of the next.

    Raises
    ------
    MeasurementError
        By :meth:`costs`, if time runs out before all ops are measured. Finished measurements are kept, and the next
        call continues from there. The same holds after Ctrl-C.

    Examples
    --------
    >>> import torch
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> graph = make_fx(lambda x: (x @ x).relu(), tracing_mode="fake")(torch.ones(64, 64)).graph
    >>> nodes = [node for node in graph.nodes if node.op == "call_function"]
    >>> [cost > 0 for cost in Measured(deadline=60).costs(nodes)]
    [True, True]
    """

    name = "measured"
    unit = "ns"

    def __init__(self, *, deadline: Deadline | float | None = None, on_progress: Progress | None = None) -> None:
        self._deadline, self._on_progress = deadline, on_progress

    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        calls = [call_of(node) for node in nodes]
        found = measure_distinct(
            "time",
            calls,
            lambda call: partial(int, _time(call)),
            deadline=self._deadline,
            on_progress=self._on_progress,
        )
        roofline = Roofline()
        return [
            roofline.nanoseconds(call) if known is None else known for call, known in zip(calls, found, strict=True)
        ]


def _time(call: Call) -> int:
    """Return the median time of a call in nanoseconds."""
    args, kwargs = real_arguments(call)
    taken = times(lambda: call.target(*args, **kwargs), device_kind(call), ENOUGH, fewest=FEWEST, most=MOST)
    return max(1, round(statistics.median(taken)))
