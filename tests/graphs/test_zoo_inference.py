"""Inference graphs of the zoo: counts, peaks and multiply-accumulates as published or as in the data files."""

from functools import cache
from random import Random
from statistics import mean

import networkx as nx
import pytest
from oracles import least_order_peak
from refusals import refused

from remat.graphs import read_graph
from remat.graphs.io import load_graph
from remat.graphs.rewriting.kinds import Kind, kind_of
from remat.graphs.zoo import (
    INFERENCE,
    ZOO,
    InferenceNetwork,
    cell_network,
    darts_cell,
    genotype_network,
    randwire,
    swiftnet_cell,
    watts_strogatz,
)

# ops, edges, parameters, multiply-accumulates, reference peak, structural bound
TABLE = {
    "swiftnet-a": (29, 44, 36_176, 27_847_680, 351_232, 250_880),
    "swiftnet-a-folded": (21, 36, 36_176, 27_847_680, 275_968, 163_072),
    "swiftnet-b": (24, 35, 70_928, 13_735_680, 147_392, 112_896),
    "swiftnet-b-folded": (19, 30, 70_928, 13_735_680, 119_168, 72_128),
    "swiftnet-c": (25, 34, 106_188, 5_139_904, 53_900, 50_176),
    "swiftnet-c-folded": (22, 31, 106_188, 5_139_904, 35_084, 28_812),
    "swiftnet-cells": (78, 115, 213_292, 46_723_264, 351_232, 250_880),
    "swiftnet-cells-folded": (62, 99, 213_292, 46_723_264, 275_968, 163_072),
    "swiftnet": (86, 123, 216_518, 56_156_504, 351_232, 301_056),
    "swiftnet-folded": (69, 106, 216_518, 56_156_504, 275_968, 200_704),
    "darts-cell-coarse": (14, 19, 40_368, 30_820_608, 1_204_224, 1_204_224),
    "darts-cell-coarse-folded": (13, 18, 40_368, 30_820_608, 903_168, 752_640),
    "darts-cell": (54, 59, 40_464, 30_820_608, 1_204_224, 1_204_224),
    "darts-cell-folded": (53, 58, 40_464, 30_820_608, 1_204_224, 1_204_224),
    "darts": (709, 809, 4_718_752, 529_911_552, 2_408_448, 2_408_448),
    "darts-folded": (692, 828, 4_718_752, 529_911_552, 2_408_448, 2_408_448),
    "nasnet-a-mobile": (912, 1067, 5_289_978, 563_638_816, 4_511_660, 3_182_720),
    "nasnet-a-mobile-folded": (892, 1109, 5_289_978, 563_638_816, 4_511_660, 3_182_720),
    "nasnet-a-large": (1242, 1457, 88_753_150, 23_783_414_658, 31_600_032, 21_035_904),
    "nasnet-a-large-folded": (1216, 1523, 88_753_150, 23_783_414_658, 31_600_032, 21_035_904),
    "amoebanet-a-mobile": (852, 987, 5_086_930, 554_687_204, 4_146_992, 3_182_720),
    "amoebanet-a-mobile-folded": (832, 1013, 5_086_930, 554_687_204, 4_146_992, 3_182_720),
    "amoebanet-a": (1140, 1323, 86_718_797, 23_133_663_507, 20_197_060, 13_108_300),
    "amoebanet-a-folded": (1114, 1361, 86_718_797, 23_133_663_507, 20_197_060, 13_108_300),
    "randwire-small": (454, 573, 5_640_454, 583_829_240, 4_892_160, 3_913_728),
    "randwire-small-coarse": (110, 229, 5_640_454, 583_829_240, 4_158_336, 3_913_728),
    "randwire-regular": (525, 669, 32_822_332, 4_035_189_712, 15_040_256, 6_836_480),
    "randwire-regular-coarse": (124, 268, 32_822_332, 4_035_189_712, 15_040_256, 6_836_480),
    "randwire-cifar10": (302, 379, 1_221_747, 119_960_576, 1_597_440, 655_360),
    "randwire-cifar10-coarse": (74, 151, 1_221_747, 119_960_576, 1_357_824, 655_360),
    "randwire-cifar100": (451, 570, 4_461_151, 160_156_544, 1_597_440, 638_976),
    "randwire-cifar100-coarse": (107, 226, 4_461_151, 160_156_544, 1_357_824, 638_976),
}


@cache
def built(name):
    return INFERENCE[name]()


SUMS_AND_CONCATS = ("Add", "WeightedAdd", "Average", "Concat", "SepConv")


@pytest.mark.parametrize("name", INFERENCE)
def test_statistics_of_each_network(name):
    graph = built(name)
    found = (len(graph.ops), graph.num_edges, graph.meta["params"], graph.base_cost, graph.reference_peak,
        graph.structural_bound.peak)  # fmt: skip
    assert found == TABLE[name]
    assert graph.name.removesuffix("-b1").removesuffix("-s0") == name
    assert [op.name for op in graph.ops] == list(graph.order)
    opaque = {op.type for op in graph.ops if kind_of(op.type) is Kind.OPAQUE}
    assert opaque <= {"WeightedAdd"}, "opaque ops cannot be rewritten"
    assert graph.constant_memory == graph.meta["overhead"]["param_bytes"]
    assert graph.cost_unit == "mac"


@pytest.mark.parametrize("name", INFERENCE)
def test_shapes_and_attributes_agree_with_sizes(name):
    """Rewriting relies on it: sizes follow from shapes, concatenations add up, weights fit the inputs."""
    graph = built(name)
    shapes, attrs = graph.meta["shapes"], graph.meta["attrs"]
    axis = {"NHWC": 3, "NCHW": 1}[graph.meta["layout"]]
    element = {"uint8": 1, "float32": 4}[graph.meta["dtype"]]
    assert set(shapes) == {tensor.name for tensor in graph.tensors}
    for tensor in graph.tensors:
        batch, *image = shapes[tensor.name]
        assert batch == 1
        assert tensor.size == element * image[0] * image[1] * image[2]
    assert set(attrs) <= {op.name for op in graph.ops}
    for op in graph.ops:
        mine = attrs.get(op.name, {})
        channels = [shapes[x][axis] for x in op.inputs]
        out = shapes[op.outputs[0]][axis]
        assert mine.get("concat_inputs", False) == (len(op.inputs) > 1 and op.type not in SUMS_AND_CONCATS)
        if mine.get("concat_inputs"):
            assert mine["concat_axis"] == axis
        match op.type:
            case "Concat":
                assert (mine["axis"], out) == (axis, sum(channels))
            case "Conv":
                assert (mine["weight_shape"][0], mine["weight_shape"][3]) == (out, sum(channels))
                assert mine["weight_shape"][1:3] == mine["kernel"]
            case "DepthwiseConv":
                assert mine["weight_shape"] == [1, *mine["kernel"], out]
                assert out == sum(channels)
            case "Add" | "WeightedAdd" | "Average":
                assert set(channels) == {out}
            case "Dense":
                assert mine["weight_shape"][0] == out


@pytest.mark.shared
@pytest.mark.parametrize("cell", ["a", "b", "c"])
def test_folded_cells_of_swiftnet_equal_the_data_files(cell, shared):
    """Ops, order, types, shapes and attributes agree."""
    built = swiftnet_cell(cell=cell, fold_concats=True)
    extracted = read_graph(shared / "data" / "graphs" / f"swiftnet_hpd_cell_{cell}.json")
    assert built.arrays.size.tolist() == extracted.arrays.size.tolist()
    assert [sorted(x) for x in built.arrays.op_inputs.lists()] == [
        sorted(x) for x in extracted.arrays.op_inputs.lists()
    ]
    assert [op.type for op in built.ops] == [op.type for op in extracted.ops]
    for what in ("shapes", "attrs"):
        ours, theirs = (
            [graph.meta[what].get(op.name) for op in graph.ops] for graph in (built, extracted)
        )  # fmt: skip
        assert ours == theirs, what


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("swiftnet-a", 275_968), ("swiftnet-b", 122_304), pytest.param("swiftnet-c", 53_900, marks=pytest.mark.slow),
        ("swiftnet-a-folded", 200_704), ("swiftnet-b-folded", 81_536), ("swiftnet-c-folded", 32_536),
        ("swiftnet-folded", 200_704),
    ],
)  # fmt: skip
def test_least_peaks(name, peak):
    assert least_order_peak(built(name)) == peak


@pytest.mark.shared
def test_coarse_cell_of_darts_equals_the_data_file(shared):
    """Except for the last op, the convolution of the next cell."""
    built = darts_cell(coarse=True, fold_concats=True)
    extracted = read_graph(shared / "data" / "graphs" / "darts_v2_imagenet_cell0_coarse.json")
    assert built.ops[-1].inputs == ("cell/b0/add", "cell/b1/add", "cell/b2/add", "cell/b3/add")
    assert built.arrays.size.tolist() == [*extracted.arrays.size.tolist(), 150_528]
    ours, theirs = (graph.arrays.op_inputs.lists() for graph in (built, extracted))
    assert [sorted(x) for x in ours[:-1]] == [sorted(x) for x in theirs]
    assert [op.type for op in built.ops[:-1]] == [op.type for op in extracted.ops]
    assert list(built.meta["shapes"].values())[:-1] == list(extracted.meta["shapes"].values())
    assert [x for x in built.meta["attrs"].values() if x == {"inplace_ok": True}] == [*extracted.meta["attrs"].values()]


def test_versions_of_darts():
    graph, lean = genotype_network(), genotype_network(fold_batch_norms=True)
    assert "BatchNorm" not in {op.type for op in lean.ops}
    assert lean.base_cost == graph.base_cost
    cell = darts_cell(fold_concats=True, fold_batch_norms=True)
    assert len(cell.ops) - 2 == 39  # without the ops that read the cell
    fine, coarse = darts_cell(), darts_cell(coarse=True)
    assert fine.meta["params"] - coarse.meta["params"] == 2 * 48  # the normalisation of the next cell
    assert fine.base_cost == coarse.base_cost
    assert [op for op, about in fine.meta["attrs"].items() if about.get("dilation") == [2, 2]] == ["cell/b3r/dw"]


#: Published multiply-adds and parameters. DARTS includes normalisations (without them others count 523 to 545 million);
#: SwiftNet includes 2.2 % that are no products with weights, of which it has at most 249,730.
PUBLISHED = {
    "nasnet-a-mobile": (564e6, 5.3e6), "nasnet-a-large": (23.8e9, 88.9e6), "amoebanet-a-mobile": (555e6, 5.1e6),
    "amoebanet-a": (23.1e9, 86.7e6), "darts": (574e6, 4.7e6), "swiftnet": (57.40e6, 249_730),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_costs_and_parameters(name):
    graph, (macs, params) = built(name), PUBLISHED[name]
    assert graph.base_cost == pytest.approx(macs, rel={"darts": 0.08, "swiftnet": 0.025}.get(name, 0.0015))
    assert graph.meta["params"] == pytest.approx(params, rel={"darts": 0.005, "swiftnet": 0.14}.get(name, 0.003))


@pytest.mark.parametrize(
    ("regime", "channels", "macs", "params"),
    [
        ("small", 78, 583e6, 5.6e6), ("regular", 109, 4.0e9, 31.9e6), ("regular", 154, 7.9e9, 61.5e6),
        ("cifar10", 78, 111e6, 1.2e6), ("cifar100", 78, 160e6, 4.7e6),
    ],
)  # fmt: skip
def test_published_costs_of_randomly_wired_networks(regime, channels, macs, params):
    """Xie et al.: 583 ± 6 million in the small regime. Table 1 of Serenity: those for CIFAR."""
    graph = randwire(regime=regime, channels=channels)
    assert graph.base_cost == pytest.approx(macs, rel=0.09 if regime == "cifar10" else 0.01)
    assert graph.meta["params"] == pytest.approx(params, rel=0.06)
    coarse = randwire(regime=regime, channels=channels, coarse=True)
    assert (coarse.base_cost, coarse.meta["params"]) == (graph.base_cost, graph.meta["params"])


def test_random_rewiring():
    """Without rewiring the edges are the ring; with 0.75 a quarter of its 64 edges and a few more remain."""
    ring = {(min(v, w), max(v, w)) for v in range(32) for w in ((v + 1) % 32, (v + 2) % 32)}
    assert set(watts_strogatz(32, 4, 0.0, Random(0))) == ring
    stayed = []
    for seed in range(40):
        edges = watts_strogatz(32, 4, 0.75, Random(seed))
        assert len(set(edges)) == 64
        assert all(0 <= v < w < 32 for v, w in edges)
        assert min(sum(v in edge for edge in edges) for v in range(32)) >= 2  # half of its edges keep their end
        stayed.append(len(ring & set(edges)))
    theirs = [
        sum((min(e), max(e)) in ring for e in nx.connected_watts_strogatz_graph(32, 4, 0.75, seed=seed).edges())
        for seed in range(40)
    ]
    assert mean(stayed) == pytest.approx(mean(theirs), abs=2)  # both have a standard deviation of 3.5
    assert mean(stayed) < 24
    assert watts_strogatz(32, 4, 0.75, Random(1)) != watts_strogatz(32, 4, 0.75, Random(2))
    one, again, other = randwire(seed=1), randwire(seed=1), randwire(seed=2)
    assert one == again
    assert one.digest != other.digest


def test_stages_of_a_randomly_wired_network():
    graph = randwire(seed=3, nodes=8, coarse=True)
    shapes = graph.meta["shapes"]
    assert shapes["conv2/bn"] == [1, 56, 56, 78]
    for stage, size, channels in ((3, 28, 78), (4, 14, 156), (5, 7, 312)):
        nodes = [op for op in graph.ops if op.name.startswith(f"conv{stage}/node")]
        assert len(nodes) == 8
        assert sum(len(op.inputs) for op in nodes if f"conv{stage}/" in op.inputs[0]) == 16  # 8 * 4 / 2
        assert {tuple(shapes[op.name]) for op in nodes} == {(1, size, size, channels)}


def test_inputs_of_the_cell_after_a_reduction():
    """NASNet-A large counts cells without the reduction, the mobile network with it."""
    for name, read in (("nasnet-a-large", "cell_4/concat"), ("nasnet-a-mobile", "cell_3/concat")):
        graph = built(name)
        first = "cell_6" if name == "nasnet-a-large" else "cell_4"
        assert graph.ops[graph.op_index[f"{first}/prev/relu"]].inputs == (read,)
        assert graph.ops[graph.op_index[f"{first}/begin/relu"]].inputs == ("reduction_cell_0/concat",)


def test_shapes_and_costs_of_ops():
    net = InferenceNetwork("n", 3, "test", dtype="uint8", layout="NCHW", fold_concats=True)
    x = net.input("x", (9, 7, 3))
    net.conv("a", x, 8, kernel=3, stride=2, bias=True)
    assert net.shape_of("a") == (5, 4, 8)
    net.conv("b", x, 2, kernel=(3, 1), stride=(2, 2), valid=True)
    assert net.shape_of("b") == (4, 4, 2)
    net.pool("p", "b", kernel=2, stride=2)
    net.concat("c", "a", net.depthwise("d", "a", kernel=5, dilation=2))
    net.batch_norm("bn", "c")
    graph = net.graph()
    assert graph.name == "n-b3"
    assert graph.ops[graph.op_index["bn"]].inputs == ("a", "d")
    assert graph.meta["shapes"]["a"] == [3, 8, 5, 4]
    assert [op.cost for op in graph.ops] == [0, 3 * 27 * 160, 3 * 9 * 32, 0, 3 * 25 * 160, 0]
    assert graph.meta["params"] == 27 * 8 + 8 + 9 * 2 + 25 * 8 + 2 * 16
    assert graph.constant_memory == 27 * 8 + 9 * 2 + 25 * 8 + 4 * (8 + 4 * 16)
    assert graph.outputs == ("p", "bn")
    with refused("graph.shapes"):
        net.add("s", "a", "b")
    with refused("graph.shapes"):
        net.concat("e", "a", "b")
    with refused("graph.name-taken", culprit="a"):
        net.relu("a", x)
    with refused("zoo.image"):
        net.conv("f", x, 1, kernel=9, valid=True)
    net.add("i", "c", net.conv("h", x, 16, stride=2))
    graph = net.graph()
    assert "c" not in graph.op_index
    assert graph.ops[graph.op_index["i"]].inputs == ("a", "d", "h")


def test_invalid_options():
    for make in (
        lambda: randwire(regime="x"),
        lambda: randwire(neighbours=3),
        lambda: randwire(neighbours=0.75, rewiring=4),
        lambda: randwire(rewiring=4),
        lambda: randwire(channels=0),
        lambda: swiftnet_cell(0),
        lambda: swiftnet_cell(cell="d"),
        lambda: cell_network(network="x"),
        lambda: cell_network(filters=3),
        lambda: cell_network(image=(8, 8, 3), stem_filters="4"),
        lambda: genotype_network(channels=7),
        lambda: ZOO["swiftnet"](1, (0, 3, 3)),
    ):
        with refused("zoo.inference"):
            make()
    with refused("format.no-graph"):
        load_graph("swiftnet-d")
