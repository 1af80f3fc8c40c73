"""Measured time and workspace of each op, with a store of results."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from remat.errors import MeasurementError, RematError
from remat.runtime.callers import outer_level
from remat.runtime.deadline import Deadline, OverdueError
from remat.torch.costs.base import CostModel, CostRemark
from remat.torch.costs.calls import Call, call_of, strides
from remat.torch.costs.measuring import Store, alone, times
from remat.torch.costs.roofline import Roofline, device_kind
from remat.torch.costs.samples import real_arguments
from remat.torch.memory.measure import allocator_events, measure_peak, within
from remat.torch.private import pytree

#: Called with the number of distinct ops done, the number of all, and the name of the next one (empty at the end).
Progress = Callable[[int, int, str], None]


def measure_distinct(
    what: str,
    calls: Sequence[Call],
    measure: Callable[[Call], Callable[[], int]],
    *,
    session: AbstractContextManager[object] | None = None,
    deadline: Deadline | float | None = None,
    on_progress: Progress | None = None,
) -> list[int | None]:
    """Measure calls: equal ones once, and those with stored results not at all.

    The caller's random numbers are unaffected. The result has a number per call: None, with a remark, if it cannot run;
    0 if it is free, or a collective, for which other processes would have to wait.

    Raise MeasurementError if no time is left; finished measurements are kept, also after any other error. Also raise
    it if there is no GPU for ops that need one.

    Parameters
    ----------
    what : str
        Quantity, the beginning of a key.
    measure : callable
        Measures one call on real tensors; returns a function that returns the number after the session ends.
    session : context manager, optional
        Open during measurements.
    deadline : Deadline, float or None
        Checked before each op.
    """
    kind = max((device_kind(call) for call in calls), default="cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise MeasurementError("ops on a GPU cannot be measured here: PyTorch finds none on this machine", "no-gpu")
    store, clock = Store(kind), Deadline.of(deadline)
    keys = [None if call.free or call.communicates else key_of(what, call) for call in calls]
    pending = {key: call for key, call in zip(keys, calls, strict=True) if key is not None and key not in store}
    total, measured = len(pending), dict[str, Callable[[], int]]()
    try:
        with alone(kind), session if pending and session else nullcontext():
            for done, (key, call) in enumerate(pending.items()):
                try:
                    clock.check()
                except OverdueError as error:
                    raise MeasurementError(
                        f"{error}: {total - done} of {total} distinct ops are not measured ({what}), the first one "
                        f"{call.name!r}; the measured ones are kept, and the next call continues from there",
                        "overdue",
                    ) from None
                if on_progress is not None:
                    on_progress(done, total, call.name)
                if (found := _attempt(what, call, measure)) is not None:
                    measured[key] = found
        if on_progress is not None:
            on_progress(total, total, "")
    finally:
        store.update({key: number() for key, number in measured.items()})
        store.save()
    return [0 if key is None else store.get(key) for key in keys]


def _attempt(what: str, call: Call, measure: Callable[[Call], Callable[[], int]]) -> Callable[[], int] | None:
    """Measure a call; None, with a remark, if it cannot run."""
    try:
        return measure(call)
    except RematError:
        raise
    except Exception as error:  # kernels raise many types
        reason = str(error).partition("\n")[0]
        remark = f"node {call.name!r}: {call.target} cannot be measured ({what}): {reason}"
        warnings.warn(CostRemark(remark), stacklevel=outer_level())
        return None


def key_of(what: str, call: Call) -> str:
    """Return equal text for calls that do the same work: op, shapes, strides, types, devices, other arguments."""
    numbers: dict[int, int] = {}

    def text(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        number = numbers.setdefault(id(leaf), len(numbers))  # x * x reads less than x * y
        kind = str(leaf.dtype).removeprefix("torch.")
        return f"{number}:{kind}{list(leaf.shape)}{list(strides(leaf))}{leaf.device.type}"

    return f"{what} {call.target} {pytree.tree_map(text, call.args)!r} {pytree.tree_map(text, dict(call.kwargs))!r}"


#: Timed calls: the least number, then seconds in total for more of them, and the largest number.
FEWEST, ENOUGH, MOST = 5, 0.02, 100


class Measured(CostModel):
    """Median time of each op on this machine, in ns.

    Each op runs alone on random tensors of its shapes, strides and types, first untimed, then timed. Equal ops (op,
    shapes, strides, types, other arguments) run once. Results are stored in the user's cache folder, for each version
    of PyTorch, device and number of threads. Memory: the tensors of one op.

    An op that cannot run alone costs its time by this machine's roofline, with a :class:`CostRemark` that names it. So
    does a collective, without a remark.

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
            roofline.nanoseconds(call) if known is None or call.communicates else known
            for call, known in zip(calls, found, strict=True)
        ]


def _time(call: Call) -> int:
    """Return the median time of a call in nanoseconds."""
    args, kwargs = real_arguments(call)
    taken = times(lambda: call.target(*args, **kwargs), device_kind(call), ENOUGH, fewest=FEWEST, most=MOST)
    return max(1, round(statistics.median(taken)))


def measured_workspaces(
    nodes: Sequence[torch.fx.Node], *, deadline: Deadline | float | None = None, on_progress: Progress | None = None
) -> list[int]:
    """Return the workspace of each op's kernel in bytes: the allocator's peak while it runs, less its outputs.

    As in :class:`Measured`, each distinct op is measured once, alone, on this machine, after a first run. An op
    that cannot run alone counts 0, with a remark. Memory that a library allocates without PyTorch's allocator does not
    count.

    Parameters
    ----------
    nodes : sequence of torch.fx.Node
        As for :meth:`CostModel.costs`.
    deadline, on_progress
        See :class:`Measured`.

    Raises
    ------
    MeasurementError
        If time runs out before all ops are measured.
    """
    return call_workspaces([call_of(node) for node in nodes], deadline=deadline, on_progress=on_progress)


def call_workspaces(
    calls: Sequence[Call], *, deadline: Deadline | float | None = None, on_progress: Progress | None = None
) -> list[int]:
    """Return the workspace of each call in bytes; see :func:`measured_workspaces`."""
    events = list[dict[str, Any]]()
    on_gpu = any(device_kind(call) == "cuda" for call in calls)
    found = measure_distinct(
        "workspace", calls, _on_gpu if on_gpu else partial(_on_cpu, events),
        session=None if on_gpu else allocator_events(events), deadline=deadline, on_progress=on_progress,
    )  # fmt: skip
    return [known or 0 for known in found]


def _on_cpu(events: list[dict[str, Any]], call: Call) -> Callable[[], int]:
    """Run an op twice, the second time within an annotation; its inputs are allocated outside."""
    label = f"remat workspace {uuid4()}"
    args, kwargs = real_arguments(call)
    call.target(*args, **kwargs)
    with torch.profiler.record_function(label):
        out = call.target(*args, **kwargs)
    del out

    def number() -> int:
        record = within(events, label)
        return (record.peak or 0) - (record.live or 0)

    return number


def _on_gpu(call: Call) -> Callable[[], int]:
    args, kwargs = real_arguments(call)
    call.target(*args, **kwargs)
    use = measure_peak(lambda: call.target(*args, **kwargs), by="cuda")
    return partial(max, 0, use.peak - use.live)
