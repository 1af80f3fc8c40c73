"""Network of the cells that DARTS found, built from a genotype as the published code does."""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.inference import InferenceNetwork
from remat.graphs.zoo.network import Shape

SOURCE = "DARTS (Liu et al. 2019), second-order genotype, network for ImageNet"
IMAGE: Shape = (224, 224, 3)
CHANNELS = 48
LAYERS = 14


#: The two cells: two ops per step, each with the number of the state that it reads. States 0 and 1 are the outputs of
#: the last two cells, state 2 is the sum of the first step, and so on. The output concatenates the sums of all four
#: steps.
NORMAL = "sep3 0, sep3 1; sep3 0, sep3 1; sep3 1, skip 0; skip 0, dil3 2"
REDUCTION = "max3 0, max3 1; skip 2, max3 1; max3 0, skip 2; skip 2, max3 1"


def genotype_network(
    batch: int = 1, image: Shape = IMAGE, classes: int = 1000, *, channels: int = CHANNELS, layers: int = LAYERS,
    fold_concats: bool = False, fold_batch_norms: bool = False,
) -> ComputeGraph:  # fmt: skip
    """Return the ImageNet network of DARTS, without the auxiliary head.

    A separable convolution is eight ops: Relu, DepthwiseConv, Conv, BatchNorm, twice. The multiply-accumulates of
    DARTS are 8 % below the 574 million of the paper; its parameters are exactly those of the published code.

    Parameters
    ----------
    image : (height, width, channels)
    channels : int
        Channels of the first cells; even.
    layers : int
        Number of cells; those after one third and two thirds of them halve the image and double the channels.
    fold_concats, fold_batch_norms : bool
        See :class:`~remat.graphs.zoo.inference.InferenceNetwork`.

    Examples
    --------
    >>> graph = genotype_network()
    >>> graph, graph.base_cost, graph.meta["params"]
    (ComputeGraph('darts-b1', 709 ops, 709 tensors, 809 edges), 529911552, 4718752)
    """
    if type(channels) is not int or channels < 2 or channels % 2 or type(layers) is not int or layers < 1:
        raise GraphError("a network of cells needs an even number of channels and at least one layer", "zoo")
    net = _network("darts", batch, fold_concats, fold_batch_norms)
    x = net.conv("stem0/conv_1", net.input("input", image), channels // 2, kernel=3, stride=2)
    x = net.relu("stem0/relu", net.batch_norm("stem0/bn_1", x))
    before = net.batch_norm("stem0/bn_2", net.conv("stem0/conv_2", x, channels, kernel=3, stride=2))
    last = net.relu_conv_bn("stem1", before, channels, kernel=3, stride=2)
    halved = True
    for layer in range(layers):
        halve = layer in (layers // 3, 2 * layers // 3)
        channels *= 2 if halve else 1
        cell = _Cell(net, f"cell{layer}", channels)
        prepare = cell.factorized_reduce if halved else cell.relu_conv_bn
        states = [prepare("preprocess0", before), cell.relu_conv_bn("preprocess1", last)]
        before, last = last, cell.run(states, REDUCTION if halve else NORMAL, stride=2 if halve else 1)
        halved = halve
    net.dense("classifier", net.global_pool("global_pool", last), classes)
    return net.graph()


def darts_cell(
    batch: int = 1, *, coarse: bool = False, fold_concats: bool = False, fold_batch_norms: bool = False
) -> ComputeGraph:
    """Return the first normal cell of DARTS for ImageNet and its reader, the 1 x 1 convolution of the next cell.

    With `coarse`, each separable or dilated convolution is one op, as for Serenity. For `fold_concats` and
    `fold_batch_norms` see :class:`~remat.graphs.zoo.inference.InferenceNetwork`.

    Examples
    --------
    >>> graph = darts_cell(coarse=True, fold_concats=True)
    >>> graph, graph.reference_peak
    (ComputeGraph('darts-cell-coarse-folded-b1', 13 ops, 13 tensors, 18 edges), 903168)
    """
    net = _network("darts-cell-coarse" if coarse else "darts-cell", batch, fold_concats, fold_batch_norms)
    states = [net.input(f"s{number}", (28, 28, CHANNELS)) for number in (0, 1)]
    last = _Cell(net, "cell", CHANNELS, coarse).run(states, NORMAL)
    if coarse:
        net.conv("next/preprocess1", last, CHANNELS)
    else:
        net.relu_conv_bn("next/preprocess1", last, CHANNELS)
    return net.graph()


def _network(name: str, batch: int, fold_concats: bool, fold_batch_norms: bool) -> InferenceNetwork:
    name += "-folded" if fold_concats else ""
    return InferenceNetwork(
        name, batch, SOURCE, layout="NCHW", fold_concats=fold_concats, fold_batch_norms=fold_batch_norms
    )


@dataclass
class _Cell:
    """Builder of the ops of one cell."""

    net: InferenceNetwork
    name: str
    channels: int
    coarse: bool = False

    def run(self, states: list[str], steps: str, stride: int = 1) -> str:
        """Add all steps to the two inputs `states` and return the output."""
        states = list(states)
        for number, step in enumerate(steps.split(";")):
            ends = []
            for side, op in zip("lr", step.split(","), strict=True):
                kind, index = op.split()
                ends.append(self._op(kind, f"b{number}{side}", states[int(index)], stride if int(index) < 2 else 1))
            states.append(self.net.add(f"{self.name}/b{number}/add", *ends))
        return self.net.concat(f"{self.name}/concat", *states[2:])

    def relu_conv_bn(self, name: str, x: str) -> str:
        return self.net.relu_conv_bn(f"{self.name}/{name}", x, self.channels)

    def factorized_reduce(self, name: str, x: str) -> str:
        """Add two convolutions of stride 2, the second offset by one pixel, each for half of the channels."""
        here, net = f"{self.name}/{name}", self.net
        x = net.relu(f"{here}/relu", x)
        halves = [net.conv(f"{here}/conv_{half}", x, self.channels // 2, stride=2) for half in (1, 2)]
        return net.batch_norm(f"{here}/bn", net.concat(f"{here}/concat", *halves, keep=net.fold_batch_norms))

    def _op(self, kind: str, name: str, x: str, stride: int) -> str:
        here, net = f"{self.name}/{name}", self.net
        match kind:
            case "skip":
                return x if stride == 1 else self.factorized_reduce(name, x)
            case "max3":
                return net.pool(here, x, kernel=3, stride=stride)
        size, repeats = int(kind[3:]), 2 if kind.startswith("sep") else 1
        if self.coarse:
            return net.separable(here, x, kernel=size, repeats=repeats, kind="SepConv" if repeats == 2 else "DilConv")
        for number in range(1, repeats + 1):
            part = f"{here}/{number}" if repeats > 1 else here
            x = net.relu_separable_bn(part, x, self.channels, kernel=size, stride=stride, dilation=3 - repeats)
            stride = 1
        return x
