"""Common parts of all file formats: file content, and the formats installed in an entry-point group."""

from __future__ import annotations

import codecs
import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from remat.errors import FormatError, RematError
from remat.io.files import decode_text, parse_json, read_bytes
from remat.io.limits import budgeted
from remat.registry import attempt, load_entry, others, own
from remat.runtime.text import short


class _Collector:
    """Switch of the garbage collector of the process, which is off while any thread reads a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._was_on = False

    def pause(self) -> None:
        """Switch it off, unless another reader already has."""
        with self._lock:
            if not self._readers:
                self._was_on = gc.isenabled()
                gc.disable()
            self._readers += 1

    def resume(self) -> None:
        """Restore its initial state, unless another reader is active."""
        with self._lock:
            self._readers -= 1
            if not self._readers and self._was_on:
                gc.enable()


_COLLECTOR = _Collector()


@contextmanager
def reading() -> Iterator[None]:
    """Read one file within its budget, without garbage collection.

    Readers create no cyclic garbage, and searching for it would dominate the time for a large file.
    """
    _COLLECTOR.pause()
    try:
        with budgeted():
            yield
    finally:
        _COLLECTOR.resume()


@dataclass(frozen=True)
class Source:
    """Content of a file, decoded on demand."""

    name: str
    """Path, for messages."""
    data: bytes
    remarks: list[str] = field(default_factory=list, compare=False, repr=False)
    """Collects warnings about the file."""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Options that the caller gives to the reader."""

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Source:
        """Return the content of a file, without a byte order mark; raise FormatError if it cannot be read."""
        if not isinstance(path, str | os.PathLike):
            raise FormatError(f"a file is named by its path, not by {short(path)}")
        return cls(str(path), read_bytes(path).removeprefix(codecs.BOM_UTF8))

    @property
    def stem(self) -> str:
        """Name of the file without folder and suffix; empty if it is not printable."""
        stem = self.name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
        return stem if stem.isprintable() else ""

    @cached_property
    def text(self) -> str:
        """Content as UTF-8 text; raises FormatError for other bytes."""
        return decode_text(self.data, self.name)

    @property
    def looks_like_json(self) -> bool:
        """True if the content starts like a single JSON object; JSON lines are several."""
        start = len(self.data[:4096]) - len(self.data[:4096].lstrip(b" \t\r\n"))
        end = self.data.find(b"\n", start)
        if not self.data.startswith(b"{", start):
            return False
        is_object = end >= 0 and self.data[max(start, end - 64) : end].rstrip().endswith(b"}")
        return not (is_object and self.data[end : end + 4096].lstrip().startswith(b"{"))

    @cached_property
    def json(self) -> Any:
        """Content as a JSON value; raises FormatError if it is not JSON."""
        return parse_json(self.text, self.name)


class Format(Protocol):
    """Common interface of graph and schedule formats."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def recognizes(self) -> Callable[[Source], bool] | None:
        """Function that returns True for a source in this format."""


F = TypeVar("F", bound=Format)
T = TypeVar("T")


@dataclass(frozen=True)
class Formats(Generic[F]):
    """Registry of the formats of graphs or of schedules; a call yields them one by one."""

    what: str
    """``"graph"`` or ``"schedule"``, for messages and the entry-point group."""
    kind: type[F]
    """Class of the formats."""
    built_in: Mapping[str, str]
    """Formats of this package, as in its entry points; they also work without installed metadata."""
    last: int = 0
    """Number of formats at the end of `built_in` that come after those of other packages."""

    @property
    def group(self) -> str:
        """Entry-point group."""
        return f"remat.{self.what}_formats"

    def __call__(self, faults: list[str] | None = None) -> Iterator[F]:
        """Yield all formats; import a format only when the iteration reaches it.

        Skip a format that cannot be loaded, and append the reason to `faults`.
        """
        for entry in self._entries():
            try:
                found = load_entry(entry, self.group, self.kind)
            except FormatError as error:
                if faults is not None:
                    faults.append(str(error))
                continue
            yield found

    def _entries(self) -> Iterator[EntryPoint]:
        ours = own(self.group, self.built_in)
        yield from ours[: len(ours) - self.last]
        # Reading the metadata of all packages takes milliseconds: do it only if no format of this package applies.
        yield from others(self.group, self.built_in)
        yield from ours[len(ours) - self.last :]

    def read(self, source: Source, read: Callable[[F], T]) -> T:
        """Return the result of `read` for `source` and the first format that recognizes it.

        Raises
        ------
        FormatError
            If no format recognizes the source.
        RematError
            From `read`, with the path; other exceptions of a plug-in become a FormatError.
        """
        found = self.recognized(source)
        try:
            return attempt(lambda: read(found), f"{self.what} format {found.name!r} fails", self.group)
        except RematError as error:
            if str(error).startswith(f"{source.name}: "):  # decoding errors already have the path
                raise
            raise type(error)(f"{source.name}: {error}", error.kind.rpartition(".")[2], error.culprit) from None

    def recognized(self, source: Source) -> F:
        """Return the first format that recognizes `source`; skip formats that raise.

        Raise FormatError if there is none.
        """
        faults: list[str] = []
        asked: list[str] = []
        for each in self(faults):
            test = each.recognizes
            if test is None:
                continue
            asked.append(each.name)
            try:
                if test(source):
                    return each
            except RematError:
                raise
            except Exception as error:
                faults.append(f"format {each.name!r} fails: {type(error).__name__}: {' '.join(str(error).split())}")
        if (own := _own_format(source)) and own != self.what:
            graph = source.json.get("graph") if own == "schedule" else None
            of = f" of {graph[:60]!r}" if isinstance(graph, str) and graph else ""
            raise FormatError(f"{source.name}: a {own}{of}, not a {self.what}", "unknown", source.name)
        broken = "".join(f"; {fault}" for fault in faults)
        known = ", ".join(asked)
        raise FormatError(
            f"{source.name}: not a {self.what} in any known format ({known}){_says_format(source, self.what)}{broken}",
            "unknown",
            source.name,
        )


_CAPTURE = "capture the module with `remat capture MODULE:FACTORY`"
_EXPORT = "export the model it was made from as ONNX or TensorFlow Lite"
#: What to do with files of other tools, by suffix.
_REMEDIES = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors", ".bin"),
                    f"files of PyTorch hold weights or pickled code: {_CAPTURE}"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "pickled objects could run code and are not read; write JSON"),
    **dict.fromkeys((".h5", ".hdf5", ".keras", ".pb"), "export the model as TensorFlow Lite or ONNX (tf2onnx)"),
    **dict.fromkeys((".mlmodel", ".mlpackage"), f"Core ML files are not read; {_EXPORT}"),
    **dict.fromkeys((".engine", ".plan", ".trt"), f"TensorRT engines are not read; {_EXPORT}"),
    **dict.fromkeys((".npy", ".npz"), "arrays have no graph"),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz"), "unpack it first"),
    **dict.fromkeys((".py", ".ipynb"), f"programs are not read; {_CAPTURE}"),
    **dict.fromkeys((".dot", ".gv", ".gml", ".graphml"),
                    "read it with networkx and convert it with ComputeGraph.from_networkx"),
    ".toml": "give a configuration as --config FILE",
}  # fmt: skip


def _says_format(source: Source, what: str) -> str:
    """Return what an unrecognized file is: empty, cut off, in a format that JSON declares, or of another tool."""
    if not source.data.strip():
        return "; the file is empty"
    if what == "graph" and (remedy := _REMEDIES.get(Path(source.name).suffix.lower())):
        return f"; {remedy}"
    if source.data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "; it is UTF-16 text: save it as UTF-8"
    if source.looks_like_json and isinstance(source.json.get("format"), str):
        return f'; its "format" is {source.json["format"][:40]!r}'
    if what == "graph":
        return "; export the model as ONNX or TensorFlow Lite, or write its graph as JSON"
    return "; the simplest one is a list of ops in the order of their computation, one per line"


def _own_format(source: Source) -> str:
    """Return the kind of a file of this project (graph, schedule, certificate, costs), or else ""."""
    name = source.json.get("format") if source.looks_like_json else None
    kind = name.removeprefix("remat-") if isinstance(name, str) and name.startswith("remat-") else ""
    return kind if kind in ("graph", "schedule", "plan", "certificate") else ""
