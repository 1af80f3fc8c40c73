"""Store of measurements on this machine, in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from functools import cache
from pathlib import Path

import torch

from remat._version import __version__
from remat.errors import FormatError
from remat.io.files import read_json, write_atomic
from remat.runtime.compiled.places import user_cache


@cache
def processor() -> str:
    """Return the name of the CPU, as the system reports it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_name(kind: str) -> str:
    """Return a key of what measurements depend on: PyTorch's version, the device, and for a CPU the thread count."""
    if kind == "cpu":
        return f"torch {torch.__version__}, {processor()}, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {torch.cuda.get_device_name()}"


class Store(dict[str, int]):
    """Measured numbers by name, in one file per machine (:func:`machine_name`); in memory if no file can be written.

    A damaged or foreign file is ignored, and its content measured again. Several processes may write: each adds its
    measurements to the file's, and replaces the file as a whole.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
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
