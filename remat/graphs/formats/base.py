"""Graph formats, the registry of all installed ones, and valid names for the graphs of foreign files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from remat.errors import FormatError
from remat.graphs.graph import MAX_NAME_LENGTH, ComputeGraph
from remat.io.formats import Formats, Source
from remat.io.limits import draw
from remat.runtime.text import printable, short

#: The formats of this package, as in its entry points: they also work without installed metadata.
BUILT_IN = {
    "remat-json": "remat.graphs.formats.remat_json:FORMAT",
    "node-link": "remat.graphs.formats.node_link:FORMAT",
    "onnx": "remat.graphs.formats.onnx:FORMAT",
    "tflite": "remat.graphs.formats.tflite:FORMAT",
    "dot": "remat.graphs.formats.dot:FORMAT",
    "hlo": "remat.graphs.formats.hlo:FORMAT",
    "dtr": "remat.graphs.formats.dtr:FORMAT",
}


@dataclass(frozen=True)
class GraphFormat:
    """File format of graphs; third parties register theirs in the entry-point group ``remat.graph_formats``."""

    name: str
    description: str
    suffixes: tuple[str, ...] = ()
    """File suffixes that select the format for writing, with the dot, in lower case."""
    recognizes: Callable[[Source], bool] | None = None
    """Returns True if the content of a :class:`Source` is in this format; None: the format is never read."""
    read: Callable[[Source], ComputeGraph] | None = None
    """Returns the graph of a recognised source; raises FormatError or GraphError that name the place, not the file."""
    write: Callable[[ComputeGraph], str] | None = None
    """Returns the text of a graph."""
    options: tuple[str, ...] = ()
    """Reading options that callers may pass; the reader finds them in ``source.options``."""
    abridge: Callable[[BinaryIO], bytes] | None = None
    """Returns the part that the reader needs, from the stream of a file with one of `abridged_suffixes` that is too
    large to read whole."""
    abridged_suffixes: tuple[str, ...] = ()


#: All graph formats, those of this package first.
graph_formats = Formats("graph", GraphFormat, BUILT_IN)


def check_model_options(views: str, control_flow: str, in_place: object) -> None:
    """Refuse option values that the readers of deployed models do not support."""
    for option, word, choices in (("views", views, ("fold", "keep")), ("control_flow", control_flow, ("op", "refuse"))):
        if word not in choices:
            raise FormatError(f"{option} must be one of {', '.join(choices)}, not {short(word)}", "option")
    if not isinstance(in_place, bool):
        raise FormatError(f"in_place must be true or false, not {short(in_place)}", "option")


class UniqueNames:
    """Generator of valid graph names: printable, of limited length, unique.

    Examples
    --------
    >>> names = UniqueNames()
    >>> [names.name(wanted) for wanted in ("a", "a", "", "a")]
    ['a', 'a#2', 'unnamed', 'a#3']
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def name(self, wanted: str) -> str:
        """Return `wanted`, or the nearest free valid name."""
        draw(4 * min(len(wanted), MAX_NAME_LENGTH))
        base = printable(wanted)[: MAX_NAME_LENGTH - 20] or "unnamed"
        result = base
        while result in self._taken:
            self._next[base] = self._next.get(base, 1) + 1
            result = f"{base}#{self._next[base]}"
        self._taken.add(result)
        return result
