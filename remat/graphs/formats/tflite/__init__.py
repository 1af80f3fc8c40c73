"""Reader of TensorFlow Lite models: the inference graph of a subgraph, in the order of the file.

``docs/formats.md`` lists the supported parts of models.
"""

from __future__ import annotations

from functools import partial

from remat.graphs.formats.base import GraphFormat, check_model_options
from remat.graphs.formats.tflite.assembly import Assembly, Bodies
from remat.graphs.formats.tflite.tables import model_tables
from remat.graphs.graph import ComputeGraph
from remat.io.formats import reading


@reading()
def graph_from_tflite(
    data: bytes,
    *,
    subgraph: int | str = 0,
    views: str = "fold",
    control_flow: str = "op",
    in_place: bool = False,
    remarks: list[str] | None = None,
) -> ComputeGraph:
    """Return the graph of a TensorFlow Lite model.

    Raise FormatError if the package ``tflite`` is missing or the file is ill-formed, naming the op or the tensor.

    Sizes are in bytes, costs in multiply-accumulates. An op that runs only once writes the inputs, so that their memory
    can be freed after their last use. Weights and variables are constant memory.

    Parameters
    ----------
    data : bytes
        The file.
    subgraph : int or str
        Position or name of the subgraph; 0 is the main one.
    views : {"fold", "keep"}
        Treat reshapes as names of their input (fold), or as ops that write a tensor (keep).
    control_flow : {"op", "refuse"}
        Treat an op that runs other subgraphs as one op, whose workspace is the largest peak of these, or refuse it.
    in_place : bool
        Let ops write in place of an input, as TensorFlow Lite Micro's reference kernels do under an offline plan.
    remarks : list of str, optional
        Receives omissions and assumptions.
    """
    check_model_options(views, control_flow, in_place)
    notes = [] if remarks is None else remarks
    tables = model_tables(data, subgraph)
    bodies = Bodies(partial(model_tables, data))
    assembly = Assembly(tables, views == "fold", control_flow == "op", notes, in_place, bodies=bodies)
    graph = assembly.graph()
    others = len(tables.subgraphs) - 1 - len(bodies.needs)
    if others and subgraph == 0:
        notes.append(f"{others:,} more subgraphs are not read")
    return graph


FORMAT = GraphFormat(
    name="tflite",
    description="TensorFlow Lite models (read only)",
    recognizes=lambda source: source.data[4:8] == b"TFL3",
    read=lambda source: graph_from_tflite(source.data, remarks=source.remarks, **source.options),
    options=("subgraph", "views", "control_flow", "in_place"),
)
