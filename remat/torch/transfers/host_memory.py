"""Memory of the host for copies of tensors: arenas of one size, pinned for an accelerator and reused by later steps."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable

import torch

from remat.errors import ExecutionError
from remat.torch.transfers.links import Event, Links, links_of


class Arena:
    """Host memory of one step; unpinned and returned to the system with the last reference to it.

    `pin`: registers an address range for copies by the device, and returns a function that undoes it.
    """

    def __init__(self, size: int, pin: Callable[[int, int], Callable[[], object]] | None) -> None:
        # torch's own pinned memory is rounded up to a power of two and never returned
        self.bytes = torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)
        self.ready: tuple[Event, ...] = ()
        """Ends of the copies of its last step."""
        if pin is not None:
            weakref.finalize(self, pin(self.bytes.data_ptr(), size)).atexit = False


class HostMemory:
    """Pool of arenas for the steps of one program. Two steps that overlap in time have two arenas.

    Parameters
    ----------
    size : int
        Bytes of an arena.
    device : torch.device
        Device whose tensors are copied.
    full_duplex : bool
        False: copies in both directions share one link.
    """

    def __init__(self, size: int, device: torch.device, full_duplex: bool = True) -> None:
        self.size, self.device = size, device
        self._full_duplex = full_duplex
        self._free: list[Arena] = []
        self._lock = threading.RLock()  # garbage collection may end another step within the lock
        self.steps = 0
        """Steps that hold an arena now."""
        self.peak = 0
        """Largest number of bytes that the copies of one step have held."""

    @property
    def pooled(self) -> int:
        """Bytes of free arenas, kept for later steps."""
        return self.size * len(self._free)

    @property
    def links(self) -> Links:
        """Links of the device."""
        return links_of(self.device, self._full_duplex)

    def space(self) -> HostSpace:
        """Return memory for one step: a free arena, or a new one."""
        links = self.links
        with self._lock:
            arena = self._free.pop() if self._free else Arena(self.size, pinning(self.device))
            self.steps += 1
        return HostSpace(self, links, arena)

    def clear(self) -> None:
        """Return all free arenas to the system."""
        self.links.finish()
        with self._lock:
            self._free.clear()

    def _end(self, arena: Arena | None, peak: int) -> None:
        """Count a step that has ended; keep its arena for a later one."""
        with self._lock:
            self.steps -= 1
            self.peak = max(self.peak, peak)
            if arena is not None:
                arena.ready = self.links.ends()
                self._free.append(arena)


class HostSpace:
    """Host memory of one step. It returns its arena to the pool with the last reference, which its copies hold."""

    def __init__(self, memory: HostMemory, links: Links, arena: Arena) -> None:
        self.links = links
        self.held = 0
        """Bytes of all copies now."""
        self.peak = 0
        """Largest number of bytes so far."""
        self._memory = memory
        self._arena: Arena | None = arena
        for event in arena.ready:
            self.links.wait(event)

    def take(self, offset: int, size: int) -> torch.Tensor:
        """Return the bytes at an offset."""
        if self._arena is None:
            raise ExecutionError("the host memory of this step was released after an error; run its forward pass again")
        self.held += size
        self.peak = max(self.peak, self.held)
        return self._arena.bytes[offset : offset + size]

    def give_back(self, size: int) -> None:
        """Count bytes that no copy needs any more."""
        self.held -= size

    def abandon(self) -> None:
        """After an error: wait for all copies, and return all host memory of the program's idle steps and this one."""
        if self._arena is not None:
            self._arena = None
            self._memory.clear()

    def __del__(self) -> None:
        self._memory._end(self._arena, self.peak)


def pinning(device: torch.device) -> Callable[[int, int], Callable[[], object]] | None:
    """Return the function that pins memory for copies by a device; None if they need none."""
    return pin_for_cuda if device.type == "cuda" else None


def pin_for_cuda(address: int, size: int) -> Callable[[], object]:
    """Register host memory with CUDA; return the function that undoes it.

    Raise ExecutionError if the system refuses.
    """
    runtime = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(address, size, 0))
    if code:
        raise ExecutionError(
            f"CUDA cannot pin {size:,} bytes of host memory (error {code}): give a smaller offload, or raise the limit "
            "of locked memory (ulimit -l)",
            "not-pinned",
        )
    return lambda: runtime.cudaHostUnregister(address)
