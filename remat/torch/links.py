"""Rates of the links between a GPU and its host, measured."""

from __future__ import annotations

import torch

from remat.errors import MeasurementError
from remat.schedule.machine import MEASURED, Machine
from remat.torch.costs.measuring import alone, times

#: Bytes of a large transfer, and of one that takes the latency alone.
LARGE, SMALL = 2**28, 8
#: Most timed transfers of each kind, and seconds for them.
REPEATED, SECONDS = 20, 0.5
#: Time of both directions at once, relative to the longer one, above which they share a link.
SHARED = 1.5


def measured_machine() -> Machine:
    """Return the machine of the current GPU and its host, whose memory is unlimited.

    The rates are those of transfers of 256 MiB from and to pinned memory, the latency that of 8 bytes; each is the
    least time of many. The links are full duplex if both directions at once take less than 1.5 times the longer one.

    Raises
    ------
    MeasurementError
        If PyTorch finds no GPU.
    """
    if not torch.cuda.is_available():
        raise MeasurementError("links cannot be measured here: PyTorch finds no GPU on this machine", "no-gpu")
    with alone("cuda"):
        large, small = (_Pair(size) for size in (LARGE, SMALL))
        write, read = (min(times(call, "cuda", SECONDS, fewest=3, most=REPEATED)) for call in (large.write, large.read))
        both = min(times(large.both, "cuda", SECONDS, fewest=3, most=REPEATED))
        latency = min(min(times(call, "cuda", SECONDS, fewest=3, most=REPEATED)) for call in (small.write, small.read))
    return machine_of(LARGE, write=write, read=read, both=both, latency=latency)


def machine_here(given: Machine | str) -> Machine:
    """Return a machine, also of a text where ``measured`` in the place of a preset stands for this GPU and its host.

    Raises
    ------
    ProblemError
        If it cannot be read.
    MeasurementError
        If it is to be measured, and there is no GPU.
    """
    first, _, rest = given.partition(",") if isinstance(given, str) else ("", "", "")
    if first.strip() != MEASURED:
        return Machine.of(given)
    return Machine.parse(",".join(filter(None, [measured_machine().settings, rest])))


def machine_of(size: int, *, write: float, read: float, both: float, latency: float) -> Machine:
    """Return the machine on which transfers of `size` bytes take these nanoseconds.

    Examples
    --------
    >>> print(machine_of(10**6, write=51_000, read=41_000, both=90_000, latency=1_000))
    20 GB/s to the host, 25 GB/s back, unlimited host memory, latency 1,000 ns, half duplex
    """
    write_rate, read_rate = (round(size * 1e9 / max(time - latency, 1.0)) for time in (write, read))
    return Machine(write_rate, read_rate, latency=round(latency), full_duplex=both < SHARED * max(write, read))


class _Pair:
    """Buffers on the GPU and in pinned memory of the host, for transfers of one size."""

    def __init__(self, size: int) -> None:
        self.device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def write(self) -> None:
        self.host[0].copy_(self.device[0], non_blocking=True)

    def read(self) -> None:
        self.device[1].copy_(self.host[1], non_blocking=True)

    def both(self) -> None:
        """Transfer in both directions; the current stream waits for them."""
        current = torch.cuda.current_stream()
        for stream, transfer in zip(self.streams, (self.write, self.read), strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                transfer()
        for stream in self.streams:
            current.wait_stream(stream)
