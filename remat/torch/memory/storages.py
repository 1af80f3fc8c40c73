"""The exact bytes of live tensors: a dispatch mode that looks at the storages of all that ops write."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter

#: Ops that hand on a tensor which was made past the dispatcher (``torch.tensor([1, 2])``).
FRESH = ("aten::lift_fresh", "aten::lift_fresh_copy")


@dataclass(frozen=True)
class Sample:
    """What was live at one op: after it wrote its outputs, before anything is freed.

    Attributes
    ----------
    op : str
        Name of the op, as ``aten.mm.default``.
    live : int
        Bytes of all tracked storages.
    allocated : int
        Bytes of the storages that the op made.
    """

    op: str
    live: int
    allocated: int


class StorageTracker(TorchDispatchMode):
    """Count the bytes of storages that ops make while this mode is on, until the last tensor on them dies.

    A storage counts once, whatever views there are of it, from the op that makes it. Storages that were there before
    (parameters, inputs, what is named in `constants`) never count: a storage that is first seen as an argument of an op
    is older than the mode. Under fake tensors it counts what real ones would take. What kernels allocate inside is not
    seen (:func:`profiled_memory` sees it), and compiled code is not either: Dynamo leaves frames alone under a mode.

    Parameters
    ----------
    constants : pytree of tensors or modules
        Storages that do not count even if an op is given them as its output.
    timeline : bool
        Whether to keep a :class:`Sample` of each op.

    Attributes
    ----------
    live : int
        Bytes that are live now; after the mode too, as long as somebody holds tensors.
    peak : int
        Most bytes at any op: with its inputs and all its outputs, also those that nobody reads.
    peak_op : str or None
        Name of the op at the peak; None before any op.
    timeline : list of Sample
        Of all ops in order; empty if not asked for.

    Examples
    --------
    >>> import torch
    >>> with track_storages() as tracker:
    ...     x = torch.ones(1000)
    ...     y = (x * 2)[:10].relu()
    >>> tracker.peak, tracker.peak_op, tracker.live
    (8040, 'aten.relu.default', 4040)
    """

    def __init__(self, *, constants: Any = (), timeline: bool = False) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.peak_op: str | None = None
        self.timeline: list[Sample] = []
        self._keep_timeline = timeline
        self._bytes: dict[int, int] = {}
        """Counted bytes of each known storage, by its address; 0 for those that are older."""
        for storage in _storages(constants):
            self._watch(storage, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = list(_storages((args, kwargs)))
        fresh = func._schema.name in FRESH
        for storage in given:
            if storage._cdata not in self._bytes and not fresh:
                self._watch(storage, 0)
        result = func(*args, **(kwargs or {}))
        before = self.live
        for storage in _storages(result):
            if storage._cdata not in self._bytes:
                self._watch(storage, storage.nbytes())
        for storage in given:  # ``resize_`` changes what is there
            self._look_again(storage)
        if self.live > self.peak or self.peak_op is None:
            self.peak, self.peak_op = self.live, str(func)
        if self._keep_timeline:
            self.timeline.append(Sample(str(func), self.live, self.live - before))
        return result

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key in self._bytes:
            return
        self._bytes[key] = size
        self.live += size
        weakref.finalize(storage, _forget, weakref.ref(self), key).atexit = False

    def _look_again(self, storage: torch.UntypedStorage) -> None:
        known = self._bytes.get(storage._cdata, 0)
        if known and (size := storage.nbytes()) != known:
            self.live += size - known
            self._bytes[storage._cdata] = size

    def _forget(self, key: int) -> None:
        self.live -= self._bytes.pop(key, 0)


def track_storages(*, constants: Any = (), timeline: bool = False) -> StorageTracker:
    """Track the bytes of live tensors in a ``with`` block; see :class:`StorageTracker`."""
    return StorageTracker(constants=constants, timeline=timeline)


def _forget(tracker: weakref.ref[StorageTracker], key: int) -> None:
    # a storage may outlive its tracker, which it must not keep alive
    if (found := tracker()) is not None:
        found._forget(key)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Of all tensors in a tree; of sparse ones and wrappers, those of their parts."""
    for leaf in tree_iter(tree):
        if isinstance(leaf, torch.nn.Module):
            yield from _storages([*leaf.parameters(), *leaf.buffers()])
        elif isinstance(leaf, torch.Tensor):
            yield from _of_tensor(leaf)


def _of_tensor(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
    elif tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
        return
    else:  # opaque: a backend's own memory
        return
    for part in parts:
        yield from _of_tensor(part)
