"""Measurements on this machine: isolated from the caller, timed, and stored in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from remat._version import __version__
from remat.errors import FormatError
from remat.io.files import read_json, write_atomic
from remat.runtime.compiled.places import user_cache
from remat.runtime.resources import processor_name
from remat.torch.private import disable_current_modes


@contextmanager
def alone(kind: str) -> Iterator[None]:
    """Run ops on real tensors and record nothing; restore the random generators when the block ends.

    A capture runs under fake tensors, under which an op takes only the time to compute its shape.

    `kind`: ``"cpu"`` or ``"cuda"``.
    """
    devices = [torch.cuda.current_device()] if kind == "cuda" else []
    with disable_current_modes(), torch.autocast(kind, enabled=False), torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        yield


#: Calls before the timed ones: they select kernels and fill caches.
WARM_UP = 2


def times(
    call: Callable[[], object], kind: str, seconds: float, *, fewest: int = 1, most: int = 1_000_000
) -> list[float]:
    """Return the nanoseconds of calls, each timed alone.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
    seconds : float
        Limit for all timed calls together, after which no further call starts.
    fewest, most : int
        Least and largest number of timed calls.
    """
    clock = _gpu_clock if kind == "cuda" else _cpu_clock
    for _ in range(WARM_UP):
        call()
    taken: list[float] = []
    total = 0.0
    while len(taken) < fewest or (total < seconds * 1e9 and len(taken) < most):
        taken.append(clock(call))
        total += taken[-1]
    return taken


def _cpu_clock(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    out = call()
    taken = time.perf_counter_ns() - begin
    del out  # deallocation is not part of the op's time
    return taken


def _gpu_clock(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6


def machine_name(kind: str) -> str:
    """Return a key of what measurements depend on: PyTorch's version, the device, and for a CPU the thread count."""
    if kind == "cpu":
        return f"torch {torch.__version__}, {processor_name()}, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {torch.cuda.get_device_name()}"


class Store(dict[str, int]):
    """Measured numbers by name, in one file per machine (:func:`machine_name`); in memory if no file can be written.

    A damaged or foreign file is ignored, and its content measured again. Several processes may write: each adds its
    measurements to the file's, and replaces the file as a whole.

    `kind`: ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, kind: str) -> None:
        self.machine, folder = machine_name(kind), user_cache()
        digest = hashlib.sha256(self.machine.encode()).hexdigest()[:16]
        self.path = None if folder is None else folder / "remat" / "torch" / f"costs-{digest}.json"
        super().__init__(self._read())

    def save(self) -> None:
        """Write new measurements; skip a folder that is not writable."""
        known = self._read()
        if self.path is None or known.items() >= self.items():
            return
        content = {"machine": self.machine, "remat": __version__, "values": dict(sorted({**known, **self}.items()))}
        with contextlib.suppress(OSError, FormatError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps(content, indent=0) + "\n")

    def _read(self) -> dict[str, int]:
        try:
            content = read_json(self.path) if self.path is not None and self.path.is_file() else {}
        except (OSError, FormatError):
            return {}
        values = content.get("values") if isinstance(content, dict) else None
        if not isinstance(values, dict) or content.get("machine") != self.machine:
            return {}
        return {key: value for key, value in values.items() if type(value) is int and value >= 0}
