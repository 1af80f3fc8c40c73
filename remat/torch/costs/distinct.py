"""Measurement of the distinct ops of a graph, each once, with a store of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map

from remat.errors import MeasurementError, RematError
from remat.runtime.deadline import Deadline, OverdueError
from remat.torch.costs.alone import alone
from remat.torch.costs.base import CostRemark
from remat.torch.costs.calls import Call, strides
from remat.torch.costs.roofline import device_kind
from remat.torch.costs.store import Store

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

    The caller's random numbers are unaffected.

    Parameters
    ----------
    what : str
        Quantity, the beginning of a key.
    calls : sequence of Call
    measure : callable
        Measures one call on real tensors; returns a function that returns the number after the session ends.
    session : context manager, optional
        Open during measurements.
    deadline : Deadline, float or None
        Checked before each op.
    on_progress : callable or None

    Returns
    -------
    list of int or None
        A number per call: None, with a remark, if it cannot run; 0 if it is free.

    Raises
    ------
    MeasurementError
        If no time is left; finished measurements are kept, also after any other error. If there is no GPU for ops that
        need one.
    """
    kind = max((device_kind(call) for call in calls), default="cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise MeasurementError("ops on a GPU cannot be measured here: PyTorch finds none on this machine", "no-gpu")
    store, clock = Store(kind), Deadline.of(deadline)
    keys = [None if call.free else key_of(what, call) for call in calls]
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
        warnings.warn(CostRemark(remark), stacklevel=5)
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

    return f"{what} {call.target} {tree_map(text, call.args)!r} {tree_map(text, dict(call.kwargs))!r}"
