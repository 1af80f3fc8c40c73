"""What a graph format is, and the registry of all that are installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from remat.errors import FormatError
from remat.graphs.graph import ComputeGraph
from remat.io.formats import Formats, Source
from remat.io.text import short

#: The formats of this package, as in its entry points: they work without installed metadata, too.
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
    """A file format of graphs; third parties register theirs in the entry-point group ``remat.graph_formats``.

    Attributes
    ----------
    name, description : str
    suffixes : tuple of str
        File suffixes that writing goes by, with the dot, in lower case.
    recognizes : callable, optional
        Whether a :class:`Source` is in this format, to be told by its content; None: the format is never read.
    read : callable, optional
        The graph of a recognised source; raises FormatError or GraphError that name the place, not the file.
    write : callable, optional
        The text of a graph.
    options : tuple of str
        What a caller may say of how a file is to be read; the reader finds it in ``source.options``.
    abridge : callable, optional
        What the reader needs of a file that is too large to be read whole and has one of `abridged_suffixes`, from its
        stream.
    abridged_suffixes : tuple of str
    """

    name: str
    description: str
    suffixes: tuple[str, ...] = ()
    recognizes: Callable[[Source], bool] | None = None
    read: Callable[[Source], ComputeGraph] | None = None
    write: Callable[[ComputeGraph], str] | None = None
    options: tuple[str, ...] = ()
    abridge: Callable[[BinaryIO], bytes] | None = None
    abridged_suffixes: tuple[str, ...] = ()


#: All graph formats, those of this package first.
graph_formats = Formats("graph", GraphFormat, BUILT_IN)


def check_model_options(views: str, control_flow: str, in_place: object) -> None:
    """Refuse values that the readers of deployed models do not know.

    Raises
    ------
    FormatError
    """
    for option, word, choices in (("views", views, ("fold", "keep")), ("control_flow", control_flow, ("refuse", "op"))):
        if word not in choices:
            raise FormatError(f"{option} must be one of {', '.join(choices)}, not {short(word)}", "option")
    if not isinstance(in_place, bool):
        raise FormatError(f"in_place must be true or false, not {short(in_place)}", "option")
