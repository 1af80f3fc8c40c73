"""Links between a device and its host: copies that run next to computation, and waits for them."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch

from remat.errors import ExecutionError

#: Event of a stream; None: the work has ended.
Event = Any


class Links(Protocol):
    """The two links of a device. Copies of one direction run in the order of their calls."""

    def write(self, source: torch.Tensor, target: torch.Tensor, after: Event = None) -> Event:
        """Begin to copy from device to host after all computation so far; return the event of its end."""

    def read(self, source: torch.Tensor, target: torch.Tensor, after: Event = None) -> Event:
        """Begin to copy from host to device after all computation so far; return the event of its end."""

    def wait(self, event: Event) -> None:
        """Let later computation wait for a copy."""

    def ends(self) -> tuple[Event, ...]:
        """Return events of the ends of all copies so far."""

    def finish(self) -> None:
        """Wait until all copies have ended."""


class Synchronous:
    """Links whose copies end before the call returns: device and host are both the main memory."""

    def write(self, source: torch.Tensor, target: torch.Tensor, after: Event = None) -> Event:
        """Copy."""
        target.copy_(source)

    read = write

    def wait(self, event: Event) -> None:
        """Do nothing."""

    def ends(self) -> tuple[Event, ...]:
        """Return no events."""
        return ()

    def finish(self) -> None:
        """Do nothing."""


class Streams:
    """Links of an accelerator: one stream for each direction, or one for both, and events between them.

    Memory of the device belongs to the stream of the computation, which allocates it before a read and frees it after a
    wait. So the caching allocator needs no marks for other streams.

    Parameters
    ----------
    device : torch.device
    full_duplex : bool
        False: both directions share a stream.
    api : module, optional
        Has ``Stream``, ``stream`` and ``current_stream``; the module of the device by default.
    """

    def __init__(self, device: torch.device, full_duplex: bool = True, api: Any = None) -> None:
        self._api = torch.get_device_module(device) if api is None else api
        self._device = device
        self._out = self._api.Stream(device)
        self._back = self._api.Stream(device) if full_duplex else self._out

    def write(self, source: torch.Tensor, target: torch.Tensor, after: Event = None) -> Event:
        """Begin to copy on the stream to the host, after all computation so far and the event `after`."""
        return self._copy(self._out, source, target, after)

    def read(self, source: torch.Tensor, target: torch.Tensor, after: Event = None) -> Event:
        """Begin to copy on the stream from the host, after all computation so far and the event `after`."""
        return self._copy(self._back, source, target, after)

    def _copy(self, stream: Any, source: torch.Tensor, target: torch.Tensor, after: Event) -> Event:
        stream.wait_event(self._api.current_stream(self._device).record_event())
        if after is not None:
            stream.wait_event(after)
        with self._api.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()

    def wait(self, event: Event) -> None:
        """Let the current stream wait."""
        if event is not None:
            self._api.current_stream(self._device).wait_event(event)

    def ends(self) -> tuple[Event, ...]:
        """Return an event of each stream."""
        return tuple(stream.record_event() for stream in dict.fromkeys((self._out, self._back)))

    def finish(self) -> None:
        """Block this thread until both streams are idle."""
        for stream in dict.fromkeys((self._out, self._back)):
            stream.synchronize()


@cache
def links_of(device: torch.device, full_duplex: bool = True) -> Links:
    """Return the links of a device, the same for all steps of the process.

    Raise ExecutionError if the device has no streams.
    """
    if device.type == "cpu":
        return Synchronous()
    try:
        return Streams(device, full_duplex)
    except (AttributeError, RuntimeError) as error:  # the second by torch.mps from 2.15 on, without such a GPU
        raise ExecutionError(
            f"tensors on device {device} cannot be moved to the host: it has no streams", "no-streams"
        ) from error
