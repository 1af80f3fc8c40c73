"""Readers and writers of graph files in any registered format."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.errors import FormatError, FormatRemark, GraphError
from remat.graphs.formats.base import GraphFormat, graph_formats
from remat.graphs.formats.onnx.stream import looks_like_model
from remat.graphs.graph import ComputeGraph
from remat.io.files import PATTERN, exists, is_special, is_standard_stream, read_stream, size_of_file, write_atomic
from remat.io.formats import Source, reading
from remat.io.limits import MAX_BYTES
from remat.runtime.text import either, expect, one_line, short

if TYPE_CHECKING:
    import networkx as nx

    #: What :func:`as_graph` takes.
    GraphLike = ComputeGraph | str | os.PathLike[str] | nx.DiGraph[Any]

#: Suffixes of models that ``remat.deploy`` writes back.
MODEL_SUFFIXES = (".onnx", ".tflite")

_values: ContextVar[Mapping[str, Any] | None] = ContextVar("values", default=None)


@contextmanager
def model_values(values: Mapping[str, Any]) -> Iterator[None]:
    """Give contents of inputs to every ONNX model that is read within the ``with`` block; other graphs are refused."""
    token = _values.set(values or None)
    try:
        yield
    finally:
        _values.reset(token)


def given_values() -> Mapping[str, Any]:
    """Return the contents of inputs of :func:`model_values`."""
    return _values.get() or {}


def read_graph(path: str | os.PathLike[str], **options: Any) -> ComputeGraph:
    """Read a graph from a file, or from standard input for ``-``; the content determines the format.

    Parameters
    ----------
    path : path
    **options
        Options of some formats, such as ``dims={"batch": 8}`` for ONNX models; see ``docs/formats.md``.

    Raises
    ------
    FormatError
        Naming the file, and the position if known; or naming an option that the format lacks.
    GraphError
        Naming the file and the op or tensor, for a well-formed file with an ill-formed graph.

    Warns
    -----
    FormatRemark
        Naming the file, for notable facts that are not errors, such as ops without a cost.
    """
    return read_with_format(path, **options)[0]


def read_with_format(path: str | os.PathLike[str], **options: Any) -> tuple[ComputeGraph, str]:
    """Apply :func:`read_graph`; return the graph and the name of its format."""
    given = _values.get()
    source = replace(_source(path), options=options if given is None else {"values": given, **options})
    with reading():
        graph = graph_formats.read(source, lambda found: (_graph(found, source), found.name))
    for remark in source.remarks:
        warnings.warn(one_line(f"{source.name}: {remark}"), FormatRemark, stacklevel=3)
    return graph


def load_with_format(name: str | os.PathLike[str]) -> tuple[ComputeGraph, str]:
    """Apply :func:`load_graph`; return the graph and the name of its format, ``zoo`` for a zoo graph."""
    return read_with_format(name) if is_standard_stream(name) or exists(name) else (load_graph(name), "zoo")


def _source(path: str | os.PathLike[str]) -> Source:
    """Return the content of a file, or only what its format needs if the file is too large to read whole."""
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
    """Check the options and read the graph from a source in the format `found`."""
    if found.read is None:
        raise FormatError(f"graph format {found.name!r} cannot be read")
    foreign = [name for name in source.options if name not in found.options]
    if foreign:
        has = ", ".join(found.options) or "none"
        for_models = "; it is for ONNX models" if foreign[0] in ("dims", "values") else ""
        raise FormatError(f"graph format {found.name!r} has no option {foreign[0]!r} (it has {has}){for_models}")
    return found.read(source)


def model_suffixes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the suffixes with which a model file can be written back; none if the file is not a model."""
    try:
        if not Path(path).is_file():  # a pipe can only be read once
            return ()
        with Path(path).open("rb") as file:
            begin = file.read(8)
    except (OSError, ValueError):
        return ()
    if begin.startswith(b"PK\x03\x04"):  # an exported PyTorch program
        return (".pte",)
    return (".tflite",) if begin[4:] == b"TFL3" else (".onnx",) if looks_like_model(begin) else ()


def load_graph(name: str | os.PathLike[str]) -> ComputeGraph:
    """Read the graph in file `name`; without such a file, return the zoo graph of that name.

    Raises
    ------
    FormatError, GraphError
        If neither exists, or the file does not contain a well-formed graph.

    Examples
    --------
    >>> load_graph("vgg16").name
    'vgg16-b256'
    """
    if is_standard_stream(name) or exists(name):
        return read_graph(name)
    from remat.graphs.zoo import VARIANTS, ZOO

    if str(name) in ZOO:
        if given_values():
            raise FormatError(f"{name}: values are for inputs of ONNX models, not for graphs of the zoo", "values")
        return ZOO[str(name)]()
    raise FormatError(_not_found(str(name), [known for known in ZOO if not known.endswith(VARIANTS)]), "no-graph")


def _not_found(name: str, zoo: Sequence[str]) -> str:
    """Return the message for a graph that is neither a file nor in the zoo, with similar names."""
    if not name:
        return "the name of the graph is empty"
    if "://" in name:
        return f"{name}: addresses are not read; download the file first"
    if "*" in name:
        return f"{name}: no such file{PATTERN}"
    path = Path(name)
    if not path.suffix and path.name == name:
        word = name.lower()
        near = [known for known in zoo if word.startswith(known) or known.startswith(word)]
        near += [known for known in get_close_matches(word, zoo) if known not in near]
        hint = f"did you mean {either(near[:3])}?" if near else "`remat zoo` lists them"
        return f"{name}: no such file, and no zoo graph of that name either; {hint}"
    if path.stem in zoo:
        return f"{name}: no such file; write {path.stem} for the graph of the zoo"
    files = islice(path.parent.iterdir(), 1000) if path.parent.is_dir() else ()
    stems = {each.stem: each for each in files if each.suffix == path.suffix}
    similar = get_close_matches(path.stem, stems, n=1)
    return f"{name}: no such file" + (f"; did you mean {stems[similar[0]]}?" if similar else "")


def as_graph(graph: GraphLike) -> ComputeGraph:
    """Return a graph as it is, or from networkx, a file, or the zoo (:func:`load_graph`).

    Raises
    ------
    RematError
        As :func:`load_graph` and :meth:`ComputeGraph.from_networkx`; GraphError for an object of another type.

    Examples
    --------
    >>> import networkx as nx
    >>> chain = nx.DiGraph([("a", "b")])
    >>> nx.set_node_attributes(chain, {node: {"size": 4, "cost": 1} for node in chain})
    >>> len(as_graph(chain).ops), as_graph("vgg16").name
    (2, 'vgg16-b256')
    """
    if isinstance(graph, ComputeGraph):
        return graph
    if isinstance(graph, str | os.PathLike):
        return load_graph(graph)
    if hasattr(graph, "is_directed"):  # networkx is imported only if its graphs are used
        return ComputeGraph.from_networkx(graph)
    raise GraphError(
        f"a graph must be a ComputeGraph, a networkx graph, a file or the name of a zoo graph, not {short(graph)}",
        "not-a-graph",
    )


def write_graph(graph: ComputeGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph atomically, in the format that the suffix of `path` selects.

    Standard output (``-``), pipes and devices without a suffix get remat's own graph format.

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
