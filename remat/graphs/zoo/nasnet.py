"""NASNet-A and AmoebaNet-A for ImageNet, built as their authors' code does."""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.inference import InferenceNetwork
from remat.graphs.zoo.network import Shape

#: Cells that halve the image before the first normal cell.
STEM_CELLS = 2
LARGE: Shape = (331, 331, 3)
MOBILE: Shape = (224, 224, 3)


@dataclass(frozen=True)
class Cell:
    """Cell of five sums."""

    steps: str
    """Two ops per sum, each with the number of the state that it reads: 0 is the output of the last cell, 1 that of the
    one before, both after a 1 x 1 convolution; 2 is the first sum, and so on.
    """
    outputs: tuple[int, ...]
    """States that the output concatenates."""


@dataclass(frozen=True)
class CellNetwork:
    """Composition of a network from its cells."""

    source: str
    """Publication of the network."""
    normal: Cell
    reduction: Cell
    skips_reduction: bool = False
    """True if the normal cell after a reduction reads the output of two cells before it, not counting the reduction."""


NASNET_NORMAL = Cell("sep5 0, sep3 1; sep5 1, sep3 1; avg 0, none 1; avg 1, avg 1; sep3 0, none 0", (1, 2, 3, 4, 5, 6))
NASNET_REDUCTION = Cell("sep5 0, sep7 1; max 0, sep7 1; avg 0, sep5 1; none 3, avg 2; sep3 2, max 0", (3, 4, 5, 6))
NASNET_SOURCE = "NASNet-A (Zoph et al. 2018), as in the authors' code for TensorFlow slim"
AMOEBANET = CellNetwork(
    "AmoebaNet-A (Real et al. 2019), as in the authors' code for TPUs",
    Cell("avg 0, max 0; sep3 1, none 1; none 0, avg 1; sep3 0, sep5 2; avg 5, sep3 0", (1, 3, 4, 6)),
    Cell("sep3 1, avg 0; max 0, sep7 2; max 1, max 0; sep3 4, conv17 0; avg 1, sep7 0", (2, 3, 4, 5, 6)),
)
NETWORKS = {
    "nasnet-a-large": CellNetwork(NASNET_SOURCE, NASNET_NORMAL, NASNET_REDUCTION, skips_reduction=True),
    "nasnet-a-mobile": CellNetwork(NASNET_SOURCE, NASNET_NORMAL, NASNET_REDUCTION),
    "amoebanet-a": AMOEBANET,
    "amoebanet-a-mobile": AMOEBANET,
}


def cell_network(
    batch: int = 1, image: Shape = LARGE, classes: int = 1000, *, network: str = "nasnet-a-large", cells: int = 18,
    filters: int = 168, stem_filters: int = 96, fold_concats: bool = False, fold_batch_norms: bool = False,
) -> ComputeGraph:  # fmt: skip
    """Return NASNet-A or AmoebaNet-A for ImageNet, without the auxiliary head.

    A separable convolution is eight ops: Relu, DepthwiseConv, Conv, BatchNorm, twice. Multiply-accumulates and
    parameters match the published ones to three digits.

    Parameters
    ----------
    image : (height, width, channels)
    network : str
        ``"nasnet-a-large"``, ``"nasnet-a-mobile"`` (they differ in the input of the cell after a reduction),
        ``"amoebanet-a"`` or ``"amoebanet-a-mobile"`` (the same cells).
    cells : int
        Number of normal cells; reductions come after a third and two thirds of them.
    filters : int
        Channels of a state in the first normal cells.
    stem_filters : int
        Channels of the first convolution.
    fold_concats, fold_batch_norms : bool
        See :class:`~remat.graphs.zoo.inference.InferenceNetwork`.

    Examples
    --------
    >>> graph = cell_network(image=(224, 224, 3), network="nasnet-a-mobile", cells=12, filters=44, stem_filters=32)
    >>> graph, graph.base_cost, graph.meta["params"]
    (ComputeGraph('nasnet-a-mobile-b1', 912 ops, 912 tensors, 1067 edges), 563638816, 5289978)
    """
    if network not in NETWORKS:
        raise GraphError(f"there is no network of cells {network!r}; there are {', '.join(NETWORKS)}", "zoo")
    for what, number in (("cells", cells), ("filters", filters), ("stem filters", stem_filters)):
        if type(number) is not int or number < 4:
            raise GraphError(f"{network} needs a whole number of {what} from 4, not {number!r}", "zoo")
    chosen = NETWORKS[network]
    net = InferenceNetwork(
        f"{network}-folded" if fold_concats else network, batch, chosen.source,
        fold_concats=fold_concats, fold_batch_norms=fold_batch_norms,
    )  # fmt: skip
    x = net.conv("conv0", net.input("input", image), stem_filters, kernel=3, stride=2, valid=True)
    outputs: list[str | None] = [None, net.batch_norm("conv0_bn", x)]

    def add(name: str, cell: Cell, channels: int, before: str | None, stride: int) -> None:
        last = outputs[-1]
        assert last is not None
        outputs.append(_Builder(net, name, channels, stride).run(cell, last, before))

    for number in range(STEM_CELLS):
        add(f"cell_stem_{number}", chosen.reduction, filters * 2**number // 2**STEM_CELLS, outputs[-2], 2)
    for number in range(cells):
        before = outputs[-2]
        if number in (cells // 3, 2 * cells // 3):
            filters *= 2
            add(f"reduction_cell_{number * 3 // cells - 1}", chosen.reduction, filters, before, 2)
        add(f"cell_{number}", chosen.normal, filters, before if chosen.skips_reduction else outputs[-2], 1)
    last = outputs[-1]
    assert last is not None
    x = net.global_pool("final/pool", net.relu("final/relu", last))
    net.elementwise("Softmax", "final/softmax", net.dense("final/logits", x, classes))
    return net.graph()


@dataclass
class _Builder:
    """Builder of the ops of one cell."""

    net: InferenceNetwork
    name: str
    channels: int
    stride: int

    def run(self, cell: Cell, last: str, before: str | None) -> str:
        """Add the whole cell and return its output."""
        earlier = self._fit(last, before)
        states = [self.net.relu_conv_bn(f"{self.name}/begin", last, self.channels), earlier]
        for number, step in enumerate(cell.steps.split(";")):
            ends = []
            for side, op in zip(("left", "right"), step.split(","), strict=True):
                kind, index = op.split()
                stride = self.stride if int(index) < 2 else 1
                ends.append(self._op(kind, f"comb_{number}/{side}", states[int(index)], stride))
            states.append(self.net.add(f"{self.name}/comb_{number}/add", *ends))
        shape = self.net.shape_of(states[-1])
        parts = [
            states[index] if self.net.shape_of(states[index]) == shape
            else self._factorized_reduction(f"reduction_{index}", states[index], shape[:2])
            for index in cell.outputs
        ]  # fmt: skip
        return self.net.concat(f"{self.name}/concat", *parts)

    def _fit(self, last: str, before: str | None) -> str:
        """Return the output `before` fitted to the shape of `last`."""
        if before is None:
            return last
        size = self.net.shape_of(last)[:2]
        if self.net.shape_of(before)[:2] != size:
            return self._factorized_reduction("prev", self.net.relu(f"{self.name}/prev/relu", before), size)
        if self.net.shape_of(before)[2] != self.channels:
            return self.net.relu_conv_bn(f"{self.name}/prev", before, self.channels)
        return before

    def _factorized_reduction(self, name: str, x: str, size: tuple[int, int]) -> str:
        """Join channels from even and from odd pixels, half each; for equal sizes, add a 1 x 1 convolution instead."""
        here, net = f"{self.name}/{name}", self.net
        if net.shape_of(x)[:2] == size:
            return net.batch_norm(f"{here}/bn", net.conv(f"{here}/conv", x, self.channels))
        first = net.pool(f"{here}/path1/pool", x, kind="AvgPool", kernel=1, stride=2)
        first = net.conv(f"{here}/path1/conv", first, self.channels // 2)
        second = net.pool(f"{here}/path2/pool", net.shift(f"{here}/path2", x), kind="AvgPool", kernel=1, stride=2)
        second = net.conv(f"{here}/path2/conv", second, self.channels - self.channels // 2)
        return net.batch_norm(f"{here}/bn", net.concat(f"{here}/concat", first, second, keep=net.fold_batch_norms))

    def _op(self, kind: str, name: str, x: str, stride: int) -> str:
        here, net = f"{self.name}/{name}", self.net
        fits = net.shape_of(x)[2] == self.channels
        match kind:
            case "none":
                return x if stride == 1 and fits else net.relu_conv_bn(here, x, self.channels, stride=stride)
            case "max" | "avg":
                x = net.pool(f"{here}/pool", x, kind=f"{kind.title()}Pool", kernel=3, stride=stride)
                return x if fits else net.batch_norm(f"{here}/bn", net.conv(f"{here}/conv", x, self.channels))
            case "conv17":  # a bottleneck around 1 x 7 and 7 x 1
                narrow = self.channels // 4
                x = net.relu_conv_bn(f"{here}/pre", x, narrow)
                x = net.relu_conv_bn(f"{here}/1x7", x, narrow, kernel=(1, 7), stride=(1, stride))
                x = net.relu_conv_bn(f"{here}/7x1", x, narrow, kernel=(7, 1), stride=(stride, 1))
                return net.relu_conv_bn(f"{here}/post", x, self.channels)
        for number in (1, 2):
            x = net.relu_separable_bn(f"{here}/{number}", x, self.channels, kernel=int(kind[3:]), stride=stride)
            stride = 1
        return x
