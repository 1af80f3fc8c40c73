"""Exact bytes of live tensors, from a dispatch mode that inspects the storages of all outputs of ops."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from remat.torch.private import TorchDispatchMode, is_traceable_wrapper_subclass, pytree

#: Ops that return a tensor made outside the dispatcher (``torch.tensor([1, 2])``).
FRESH = ("aten::lift_fresh", "aten::lift_fresh_copy")


@dataclass(frozen=True)
class Sample:
    """Live bytes at one op: after it wrote its outputs, before anything is freed.

    Attributes
    ----------
    op : str
        Name of the op, as ``aten.mm.default``.
    live : int
        Bytes of all tracked storages.
    allocated : int
        Bytes of the storages that the op allocated.
    """

    op: str
    live: int
    allocated: int


class StorageTracker(TorchDispatchMode):
    """Count the bytes of storages that ops allocate under this mode, until the last tensor on them is released.

    A storage counts once, however many views it has, from the op that allocates it. Storages older than the mode
    (parameters, inputs, `constants`) never count: a storage first seen as an argument of an op is older. Fake tensors
    count as many bytes as real ones. Allocations inside kernels do not count (:func:`profiled_memory` counts them). Nor
    does compiled code: under a mode Dynamo does not compile.

    Parameters
    ----------
    constants : pytree of tensors or modules
        Storages that never count, even as the output of an op.
    timeline : bool
        If true, record a :class:`Sample` of each op.

    Attributes
    ----------
    live : int
        Bytes live now; after the mode ends, as long as tensors remain referenced.
    peak : int
        Largest number of bytes at any op, with its inputs and all its outputs, read or unread.
    peak_op : str or None
        Name of the op at the peak; None before any op.
    timeline : list of Sample
        Samples of all ops in order; empty unless requested.

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
        """Counted bytes of each known storage, by its address; 0 for older ones."""
        for storage in _storages(constants):
            self._watch(storage, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # its ops on local parts come here in turn
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
        for storage in given:  # ``resize_`` changes their sizes
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
    # a storage may outlive its tracker and must not keep it alive
    if (found := tracker()) is not None:
        found._forget(key)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of all tensors in a tree; of sparse tensors and wrappers, those of their parts."""
    for leaf in pytree.tree_iter(tree):
        if isinstance(leaf, torch.nn.Module):
            yield from _storages([*leaf.parameters(), *leaf.buffers()])
        elif isinstance(leaf, torch.Tensor):
            yield from _of_tensor(leaf)


def _of_tensor(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        parts = [part for name in names if isinstance(part := getattr(tensor, name), torch.Tensor)]
    elif tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
        return
    else:  # opaque: memory of a backend
        return
    for part in parts:
        yield from _of_tensor(part)
