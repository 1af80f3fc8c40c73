"""The distinct ops of a graph, each measured once and remembered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from remat.deadline import Deadline, OverdueError
from remat.errors import MeasurementError, RematError
from remat.torch.costs.alone import alone
from remat.torch.costs.base import CostRemark
from remat.torch.costs.calls import Call, strides
from remat.torch.costs.roofline import device_kind
from remat.torch.costs.store import Store

#: Called with the number of distinct ops done, that of all, and the name of the next one (empty at the end).
Progress = Callable[[int, int, str], None]


class Distinct:
    """Calls of which equal ones are measured once, and those that were measured before not at all.

    Parameters
    ----------
    what : str
        What is measured, the beginning of a key.
    calls : sequence of Call
    deadline : Deadline, float or None
    on_progress : callable or None
    folder : Path or None
        See :class:`remat.torch.costs.store.Store`.

    Attributes
    ----------
    kind : str
        ``"cpu"``, or ``"cuda"`` if any tensor is there.
    store : Store
        What is known.
    pending : dict of str to Call
        One call for each key that is not.
    """

    def __init__(
        self,
        what: str,
        calls: Sequence[Call],
        deadline: Deadline | float | None,
        on_progress: Progress | None,
        folder: Path | None,
    ) -> None:
        self.what = what
        self.kind = max((device_kind(call) for call in calls), default="cpu")
        if self.kind == "cuda" and not torch.cuda.is_available():
            raise MeasurementError("ops on a GPU cannot be measured here: PyTorch finds none on this machine", "no-gpu")
        self.store = Store(self.kind, folder)
        self._keys = [None if call.free else key_of(what, call) for call in calls]
        keyed = zip(self._keys, calls, strict=True)
        self.pending = {key: call for key, call in keyed if key is not None and key not in self.store}
        self._deadline = Deadline.of(deadline)
        self._on_progress = on_progress

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """What is measured in this block is kept, whatever ends it; random numbers of the caller stay as they are."""
        try:
            with alone(self.kind):
                yield
        finally:
            self.store.save()

    def measure(self, function: Callable[[Call], int]) -> None:
        """Measure all that is pending, one by one."""
        with self.measuring():
            for key, call in self.each():
                if (found := self.attempt(call, function)) is not None:
                    self.store[key] = found

    def each(self) -> Iterator[tuple[str, Call]]:
        """What is still to be measured, with a look at the clock before each.

        Raises
        ------
        MeasurementError
            If there is no time left.
        """
        total = len(self.pending)
        for done, (key, call) in enumerate(self.pending.items()):
            try:
                self._deadline.check()
            except OverdueError as error:
                raise MeasurementError(
                    f"{error}: {total - done} of {total} distinct ops are not measured ({self.what}), the first one "
                    f"{call.name!r}; those that are have been kept, and the next call goes on from there",
                    "overdue",
                ) from None
            self._report(done, total, call.name)
            yield key, call
        self._report(total, total, "")

    def attempt(self, call: Call, measure: Callable[[Call], int]) -> int | None:
        """Measure a call; None, with a remark, if it cannot run."""
        try:
            return measure(call)
        except RematError:
            raise
        except Exception as error:  # whatever a kernel refuses
            reason = str(error).partition("\n")[0]
            remark = f"node {call.name!r}: {call.target} cannot be measured ({self.what}): {reason}"
            warnings.warn(CostRemark(remark), stacklevel=5)
            return None

    def found(self) -> list[int | None]:
        """Return what was measured of each call, or of one equal to it; None if it could not run, 0 if it is free."""
        return [0 if key is None else self.store.get(key) for key in self._keys]

    def _report(self, done: int, total: int, name: str) -> None:
        if self._on_progress is not None:
            self._on_progress(done, total, name)


def key_of(what: str, call: Call) -> str:
    """Text that is the same for calls that do the same work: op, shapes, strides, types, devices, other arguments."""
    numbers: dict[int, int] = {}

    def text(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        number = numbers.setdefault(id(leaf), len(numbers))  # x * x reads less than x * y
        kind = str(leaf.dtype).removeprefix("torch.")
        return f"{number}:{kind}{list(leaf.shape)}{list(strides(leaf))}{leaf.device.type}"

    return f"{what} {call.target} {tree_map(text, call.args)!r} {tree_map(text, dict(call.kwargs))!r}"
