"""Reading and writing graph files in any registered format."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from remat.errors import FormatError, FormatRemark
from remat.graphs.formats.base import GraphFormat, graph_formats
from remat.graphs.formats.onnx.wire import looks_like_model
from remat.graphs.graph import ComputeGraph
from remat.io.files import exists, is_special, is_standard_stream, read_stream, size_of_file, write_atomic
from remat.io.formats import Source, reading
from remat.io.limits import MAX_BYTES
from remat.io.text import expect, one_line

#: Suffixes of models that ``remat.deploy`` writes back.
MODEL_SUFFIXES = (".onnx", ".tflite")


def read_graph(path: str | os.PathLike[str], **options: Any) -> ComputeGraph:
    """The graph in a file, or in standard input for ``-``; its format is found from its content.

    Parameters
    ----------
    path : path
    **options
        What some formats want to know, such as ``dims={"batch": 8}`` for ONNX models; see ``docs/formats.md``.

    Raises
    ------
    FormatError
        Naming the file, and the place where there is one; or an option that its format does not have.
    GraphError
        Naming the file and the op or tensor, for a well-written file of an ill-formed graph.

    Warns
    -----
    FormatRemark
        Naming the file, for what is not wrong, and yet to be known, such as ops that say no cost.
    """
    source = replace(_source(path), options=options)
    with reading():
        graph = graph_formats.read(source, lambda found: _graph(found, source))
    for remark in source.remarks:
        warnings.warn(one_line(f"{source.name}: {remark}"), FormatRemark, stacklevel=2)
    return graph


def _source(path: str | os.PathLike[str]) -> Source:
    """The content of a file; of one that is too large to be read whole, what its format needs of it."""
    suffix = Path(path).suffix.lower() if isinstance(path, str | os.PathLike) else ""
    if suffix and not is_standard_stream(path) and size_of_file(path) > MAX_BYTES:
        for each in graph_formats():
            if each.abridge is not None and suffix in each.abridged_suffixes:
                try:
                    return Source(str(path), read_stream(path, each.abridge))
                except FormatError as error:
                    raise FormatError(f"{path}: {error}") from None
    return Source.of_file(path)


def _graph(found: GraphFormat, source: Source) -> ComputeGraph:
    """The graph in a source of a format, whose options it checks."""
    if found.read is None:
        raise FormatError(f"graph format {found.name!r} cannot be read")
    foreign = [name for name in source.options if name not in found.options]
    if foreign:
        has = ", ".join(found.options) or "none"
        raise FormatError(f"graph format {found.name!r} has no option {foreign[0]!r} (it has {has})")
    return found.read(source)


def model_suffixes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the suffixes under which a file can be written back as a model: its own format's, where it is a model."""
    try:
        if not Path(path).is_file():  # a pipe can be read once
            return ()
        with Path(path).open("rb") as file:
            begin = file.read(8)
    except (OSError, ValueError):
        return ()
    return (".tflite",) if begin[4:] == b"TFL3" else (".onnx",) if looks_like_model(begin) else ()


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
    raise FormatError(f"{name}: no such file, and no zoo graph of that name either ({', '.join(near)})", "no-graph")


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
    raise FormatError(
        f"{os.fspath(path)}: no graph format has the suffix {suffix!r} (there are {', '.join(known)})", "suffix"
    )
