"""Reader of ONNX models: the inference (or training) graph with bytes and FLOPs.

``docs/formats.md`` lists the supported parts of models. Files are not trusted: the reader opens no other file, loads
no weights, and bounds all work for a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from remat.errors import FormatError
from remat.graphs.formats.base import GraphFormat, check_model_options
from remat.graphs.formats.onnx.stream import looks_like_model, without_weights
from remat.graphs.graph import MAX_NAME_LENGTH, ComputeGraph
from remat.io.formats import reading
from remat.io.limits import draw
from remat.runtime.text import clipped, one_line, printable, short

if TYPE_CHECKING:
    from remat.graphs.formats.onnx.assembly import Assembly
    from remat.graphs.formats.onnx.network import Network

#: Models of up to this many bytes skip the estimate of the library's memory, which for them is at most 300 MB.
UNCHECKED = 4_000_000


@reading()
def graph_from_onnx(
    data: bytes,
    *,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    views: str = "fold",
    control_flow: str = "op",
    in_place: bool = False,
    remarks: list[str] | None = None,
) -> ComputeGraph:
    """Return the graph of a serialised ONNX model.

    Sizes are in bytes, costs in FLOPs; parameters and other constants are constant memory.

    Parameters
    ----------
    data : bytes
        A ``ModelProto``; its weights are not read.
    dims : mapping of str to int, optional
        Sizes of open dimensions of the model, by name (``batch``) or by tensor and axis (``x[0]``).
    values : mapping of str to array_like, optional
        Contents of inputs, such as axes and sizes that decide shapes; these inputs become constants.
    views : {"fold", "keep"}
        Treat reshapes and other views as names of their input (fold), or as ops that write a tensor (keep).
    control_flow : {"op", "refuse"}
        Treat an op with graphs of its own (``If``, ``Loop``, ``Scan``) as one op, whose workspace is the peak of these
        graphs, or refuse it.
    in_place : bool
        Let activations write in place of their input, as kernels of ONNX Runtime's CPU provider do.
    remarks : list of str, optional
        Receives omissions and assumptions.

    Raises
    ------
    FormatError
        If the package ``onnx`` is missing, the data is not a model, or sizes are unknown; naming the node or tensor.
    GraphError
        If the model has a cycle.
    """
    check_model_options(views, control_flow, in_place)
    fold = views == "fold"
    return read_model(
        data, dims=dims, values=values, fold_views=fold, control_flow=control_flow, in_place=in_place, remarks=remarks
    ).graph


@dataclass(frozen=True, eq=False)
class ModelReading:
    """Model and its graph."""

    model: Any
    """The ``onnx.ModelProto``, with its functions expanded."""
    network: Network
    """Nodes with types and shapes, one for each node of `model`."""
    assembly: Assembly
    """Mapping from the network to the graph."""
    graph: ComputeGraph


def read_model(
    data: bytes,
    *,
    dims: Mapping[str, int] | None,
    values: Mapping[str, Any] | None = None,
    fold_views: bool,
    control_flow: str,
    in_place: bool,
    remarks: list[str] | None,
) -> ModelReading:
    """Read a model; parameters and errors are those of :func:`graph_from_onnx`."""
    try:
        import onnx
    except ImportError:
        raise FormatError("reading ONNX models needs the package onnx: pip install 'remat[onnx]'", "package") from None
    from remat.graphs.formats.onnx.assembly import Assembly
    from remat.graphs.formats.onnx.functions import expanded
    from remat.graphs.formats.onnx.given_values import GivenValues
    from remat.graphs.formats.onnx.shape_inference import Inference
    from remat.graphs.formats.onnx.values import Dimensions

    notes = [] if remarks is None else remarks
    if len(data) > UNCHECKED:
        without_weights(BytesIO(data))  # charges the budget for the library's messages before it allocates them
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:
        raise FormatError(f"no ONNX model: {clipped(one_line(str(error)), 200)}") from None
    if not model.HasField("graph"):
        raise FormatError("no ONNX model: it has no graph")
    _check_text(model, "model")
    try:
        whole = expanded(model)
        network = Inference(whole, Dimensions(dims or {}), GivenValues(values or {}), control_flow).run()
        assembly = Assembly(network, fold_views=fold_views, in_place=in_place, remarks=notes)
        source = " ".join(("ONNX", *filter(None, (model.producer_name, model.producer_version))))
        graph = assembly.graph(*(printable(text)[:MAX_NAME_LENGTH] for text in (model.graph.name, source)))
    except (UnicodeError, RecursionError, OverflowError) as error:  # for example, invalid text in a name
        raise FormatError(f"no ONNX model: {clipped(one_line(str(error)), 200)}") from None
    if model.training_info:
        notes.append("its training_info is not read: gradients that are ops of the graph are, others are not")
    return ModelReading(whole, network, assembly, graph)


def _check_text(message: Any, where: str) -> None:
    """Refuse names that are not text: the library returns bytes for them, which other code does not expect."""
    draw()
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        path = f"{where}.{field.name}"
        for each in [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value:
            if isinstance(each, bytes):
                raise FormatError(f"no ONNX model: {path} is not UTF-8 text: {short(each)}")
            if not isinstance(each, str):
                _check_text(each, path)


FORMAT = GraphFormat(
    name="onnx",
    description="ONNX models (read only)",
    recognizes=lambda source: looks_like_model(source.data),
    read=lambda source: graph_from_onnx(source.data, remarks=source.remarks, **source.options),
    options=("dims", "values", "views", "control_flow", "in_place"),
    abridge=without_weights,
    abridged_suffixes=(".onnx",),
)
