"""Streams of an accelerator that does not exist: they run at once on the CPU, and record time and order of all work.

They check what CUDA leaves unchecked: two accesses to the same bytes, one of them a write, must be ordered by events.
The release of a storage counts as a write by the computation, whose stream reuses it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Clock = tuple[int, ...]
#: Calls that read and write no bytes.
UNTOUCHED = {"aten::set_", "aten::empty", "aten::empty_strided", "aten::detach", "aten::_unsafe_view"}


@dataclass(eq=False)
class FakeStream:
    api: "Streams"
    number: int
    time: int = 0
    clock: list[int] = field(default_factory=lambda: [0] * 8)

    def record_event(self) -> tuple[int, Clock]:
        return self.time, tuple(self.clock)

    def wait_event(self, event: tuple[int, Clock]) -> None:
        time, clock = event
        self.time = max(self.time, time)
        self.clock = [max(pair) for pair in zip(self.clock, clock, strict=True)]

    def synchronize(self) -> None:
        self.api.finished.append(self.number)


@dataclass
class Access:
    begin: int
    end: int
    writes: bool
    stream: int
    clock: Clock
    what: str


class Streams(TorchDispatchMode):
    """Stands in for ``torch.cuda``; under it, as a dispatch mode, all calls of torch are recorded.

    `duration` has the time of a copy of a number of bytes on a stream.
    """

    def __init__(self, duration: Callable[[int, int], int] = lambda number, size: 0) -> None:
        super().__init__()
        self.duration = duration
        self.all: list[FakeStream] = []
        self.compute = self.Stream(None)
        self.current = self.compute
        self.finished: list[int] = []
        self.accesses: list[Access] = []
        self.races: list[tuple[Access, Access]] = []
        self._watched: set[int] = set()

    def Stream(self, device: Any) -> FakeStream:
        self.all.append(FakeStream(self, len(self.all)))
        return self.all[-1]

    def current_stream(self, device: Any) -> FakeStream:
        return self.current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in UNTOUCHED or func.is_view:
            return result
        stream = self.current
        if stream is not self.compute:
            stream.time += self.duration(stream.number, args[0].numel())
        stream.clock[stream.number] += 1
        changed = {id(args[0])} if func._schema.is_mutable else set()
        given = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        for each in given:
            self._touch(each, id(each) in changed, name)
        for each in pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._touch(each, True, name)
        return result

    def _touch(self, tensor: torch.Tensor, writes: bool, name: str) -> None:
        begin = tensor.data_ptr()
        storage = tensor.untyped_storage()
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        length = (sum((n - 1) * stride for n, stride in strides) + 1) * tensor.element_size() if tensor.numel() else 0
        self._access(begin, begin + length, writes, name)
        if storage._cdata not in self._watched:
            self._watched.add(storage._cdata)
            place = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
            weakref.finalize(storage, self._released, storage._cdata, *place).atexit = False

    def _released(self, key: int, begin: int, end: int) -> None:
        self._watched.discard(key)
        self.compute.clock[0] += 1
        before, self.current = self.current, self.compute
        self._access(begin, end, True, "release")
        self.current = before
        self.accesses = [each for each in self.accesses if each.end <= begin or each.begin >= end]

    def _access(self, begin: int, end: int, writes: bool, what: str) -> None:
        stream = self.current
        mine = Access(begin, end, writes, stream.number, tuple(stream.clock), what)
        for other in self.accesses:
            overlap = other.begin < end and begin < other.end and (writes or other.writes)
            if overlap and stream.clock[other.stream] < other.clock[other.stream]:
                self.races.append((other, mine))
        self.accesses.append(mine)
