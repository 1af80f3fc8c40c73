"""SwiftNet for human presence detection, 8 bits: the three cells and the whole network."""

from __future__ import annotations

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.inference import InferenceNetwork
from remat.graphs.zoo.network import Shape

SOURCE = "SwiftNet HPD (Zhang et al. 2019), as submitted to the Visual Wake Words challenge 2019"
IMAGE: Shape = (224, 224, 3)

#: Channels within each cell and after it.
_WIDTHS = {"a": (32, 48), "b": (48, 80), "c": (64, 76)}
#: Inputs of the separate cells.
_INPUTS: dict[str, Shape] = {"a": (28, 28, 32), "b": (14, 14, 48), "c": (7, 7, 80)}
#: The ops of each cell in the order of the file: kind, name, inputs (x: the input of the cell). ``id`` and
#: ``project`` widen to the channels after the cell, ``out`` is their sum.
_CELLS = {
    "a": """
        conv 14 x; concat 0 x 14; conv 17 14; conv 18 x; concat 5 x 18; conv 19 14; conv 20 c0; concat 1 19 20;
        concat 3 x 18 19 20; conv 21 c1; concat 2 14 21; concat 4 20 21; conv 23 c2; conv 24 c3; concat 6 17 20 23 24;
        dw 25 20; pw 25; dw 26 23; pw 26; dw 27 c4; pw 27; dw 28 c5; pw 28; conv 29 c6; concat 7 25 26 27 28 29;
        id id x; project project c7; out out id project
    """,
    "b": """
        conv 43 x; conv 48 x; conv 49 x; conv 50 x; id id x; dw 45 43; dw 47 43; pw 45; concat 0 43 45; concat 3 43 45;
        conv 51 c0; dw 59 c3; pw 47; concat 1 47 48; conv 52 c1; conv 57 48; concat 2 x 43 45 49; conv 54 c2;
        conv 55 54; pw 59; concat 4 50 51 52 55 57 59; project project c4; out out id project
    """,
    "c": """
        conv 67 x; id id x; dw 71 67; conv 75 67; dw 81 67; conv 83 67; dw 87 67; dw 89 67; pw 71; concat 0 x 71;
        concat 1 67 71; conv 80 c0; dw 85 c1; dw 82 75; dw 84 75; pw 81; pw 82; pw 84; pw 85; pw 87; pw 89;
        concat 2 80 81 82 83 84 85 87 89; project project c2; out out id project
    """,
}


def swiftnet_cell(batch: int = 1, *, cell: str = "a", fold_concats: bool = False) -> ComputeGraph:
    """Return one cell of SwiftNet HPD with its input as an op.

    `cell` is ``"a"``, ``"b"`` or ``"c"``; for `fold_concats` see :class:`~remat.graphs.zoo.inference.InferenceNetwork`.

    Examples
    --------
    >>> swiftnet_cell(), swiftnet_cell(fold_concats=True)  # doctest: +NORMALIZE_WHITESPACE
    (ComputeGraph('swiftnet-a-b1', 29 ops, 29 tensors, 44 edges),
     ComputeGraph('swiftnet-a-folded-b1', 21 ops, 21 tensors, 36 edges))
    """
    if cell not in _CELLS:
        raise GraphError(f"SwiftNet has no cell {cell!r}; there are a, b, c", "zoo")
    net = _network(f"swiftnet-{cell}", batch, fold_concats)
    _cell(net, cell, net.input("input", _INPUTS[cell]))
    return net.graph()


def swiftnet_cells(batch: int = 1, *, fold_concats: bool = False) -> ComputeGraph:
    """Return the three cells of SwiftNet HPD in a row with pooling in between, Serenity's network of 62 nodes.

    Examples
    --------
    >>> swiftnet_cells(fold_concats=True)
    ComputeGraph('swiftnet-cells-folded-b1', 62 ops, 62 tensors, 99 edges)
    """
    net = _network("swiftnet-cells", batch, fold_concats)
    _cells(net, net.input("input", _INPUTS["a"]))
    return net.graph()


def swiftnet(batch: int = 1, image: Shape = IMAGE, classes: int = 2, *, fold_concats: bool = False) -> ComputeGraph:
    """Return all of SwiftNet HPD: 56 million multiply-accumulates (published: 57.4), 217 thousand parameters.

    Examples
    --------
    >>> swiftnet(), swiftnet().reference_peak
    (ComputeGraph('swiftnet-b1', 86 ops, 86 tensors, 123 edges), 351232)
    """
    net = _network("swiftnet", batch, fold_concats)
    x = net.elementwise("Split", "split", net.input("input", image))
    x = net.conv("conv_pre1", x, 16, kernel=7, stride=4, bias=True)
    x = net.depthwise("conv_pre2/depthwise", x, kernel=3, bias=True)
    x = net.conv("conv_pre2/pointwise", x, 32, bias=True)
    x = _cells(net, net.pool("pool_1", x, kernel=2, stride=2))
    x = net.global_pool("pool_4", x)
    net.elementwise("Softmax", "softmax", net.dense("logits", x, classes))
    return net.graph()


def _network(name: str, batch: int, fold_concats: bool) -> InferenceNetwork:
    name = f"{name}-folded" if fold_concats else name
    return InferenceNetwork(name, batch, SOURCE, dtype="uint8", fold_concats=fold_concats)


def _cells(net: InferenceNetwork, x: str) -> str:
    x = _cell(net, "a", x)
    x = _cell(net, "b", net.pool("pool_2", x, kernel=2, stride=2))
    return _cell(net, "c", net.pool("pool_3", x, kernel=2, stride=2))


def _cell(net: InferenceNetwork, cell: str, x: str) -> str:
    """Add the ops of a cell that reads `x` and return its output."""
    inside, behind = _WIDTHS[cell]
    known = {"x": x}
    for row in _CELLS[cell].replace("\n", " ").strip().split(";"):
        kind, name, *sources = row.split()
        read = [known[source] for source in sources]
        here = f"cell_{cell}"
        match kind:
            case "conv":
                known[name] = net.conv(f"{here}/conv_{name}", read[0], inside, bias=True)
            case "dw":
                known[name] = net.depthwise(f"{here}/conv_{name}/depthwise", read[0], kernel=3, bias=True)
            case "pw":
                known[name] = net.conv(f"{here}/conv_{name}/pointwise", known[name], inside, bias=True)
            case "concat":
                known[f"c{name}"] = net.concat(f"{here}/concat_{name}", *read)
            case "out":
                known[name] = net.add(f"{here}/output", *read)
            case _:  # the summed projections share one bias
                known[name] = net.conv(f"{here}/{name}", read[0], behind, bias=kind == "project")
    return known["out"]
