"""Reading and writing graph files in any registered format."""

from __future__ import annotations

import os
import warnings
from difflib import get_close_matches
from pathlib import Path

from remat.errors import FormatError, FormatRemark, GraphError
from remat.graphs.formats.base import GROUP, graph_formats
from remat.graphs.graph import ComputeGraph
from remat.io.files import exists, is_special, is_standard_stream, write_atomic
from remat.io.formats import Source, reading, recognized
from remat.io.text import expect, one_line
from remat.registry import attempt


def read_graph(path: str | os.PathLike[str]) -> ComputeGraph:
    """The graph in a file, or in standard input for ``-``; its format is found from its content.

    Raises
    ------
    FormatError
        Naming the file, and the place where there is one.
    GraphError
        Naming the file and the op or tensor, for a well-written file of an ill-formed graph.

    Warns
    -----
    FormatRemark
        Naming the file, for what is not wrong, and yet to be known, such as ops that say no cost.
    """
    source = Source.of_file(path)
    with reading():
        graph = _read(source)
    for remark in source.remarks:
        warnings.warn(one_line(f"{source.name}: {remark}"), FormatRemark, stacklevel=2)
    return graph


def _read(source: Source) -> ComputeGraph:
    """The graph in a source."""
    faults: list[str] = []
    found, known = recognized(graph_formats(faults), source, faults)
    if found is None:
        broken = "".join(f"; {fault}" for fault in faults)
        raise FormatError(f"{source.name}: not a graph in any known format ({', '.join(known)}){_hint(source)}{broken}")
    read = found.read
    if read is None:
        raise FormatError(f"{source.name}: graph format {found.name!r} cannot be read")
    try:
        return attempt(lambda: read(source), f"graph format {found.name!r} fails", GROUP)
    except (FormatError, GraphError) as error:
        raise type(error)(f"{source.name}: {error}") from None


def load_graph(name: str | os.PathLike[str]) -> ComputeGraph:
    """The graph in the file `name`, or the graph of the model zoo of that name where there is no such file.

    Raises
    ------
    FormatError, GraphError
        If there is neither, or the file is no well-formed graph.

    Examples
    --------
    >>> load_graph("vgg16").name
    'vgg16-b256'
    """
    if is_standard_stream(name) or exists(name):
        return read_graph(name)
    from remat.graphs.zoo import VARIANTS, ZOO

    if str(name) in ZOO:
        return ZOO[str(name)]()
    near = get_close_matches(str(name), ZOO) or sorted(known for known in ZOO if not known.endswith(VARIANTS))
    raise FormatError(f"{name}: no such file, and no zoo graph of that name either ({', '.join(near)})")


def write_graph(graph: ComputeGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph, whole or not at all, in the format that the suffix of `path` names.

    Standard output (``-``), pipes and devices without a suffix get the graph file of this project.

    Raises
    ------
    FormatError
        If no format has this suffix, or the file cannot be written.
    """
    expect(graph, ComputeGraph, "graph", FormatError)
    suffix = Path(path).suffix.lower() or (".json" if is_special(path) else "")
    known: list[str] = []
    for graph_format in graph_formats():
        if graph_format.write is None:
            continue
        if suffix in graph_format.suffixes:
            return write_atomic(path, graph_format.write(graph))
        known.extend(graph_format.suffixes)
    raise FormatError(f"{os.fspath(path)}: no graph format has the suffix {suffix!r} (there are {', '.join(known)})")


def _hint(source: Source) -> str:
    """What an unrecognised JSON file says of itself."""
    if source.looks_like_json and isinstance(source.json, dict) and isinstance(source.json.get("format"), str):
        return f'; its "format" is {source.json["format"][:40]!r}'
    return ""
