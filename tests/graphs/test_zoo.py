import pytest
from refusals import refused

from remat.graphs.zoo import INFERENCE, TRAINING, TRAINING_STEPS, ZOO, Network, training_graph

# layers, ops, edges, parameters, peak, sum of sizes, structural bound, base cost, ops of cost 0, constant memory
TABLE = {
    "vgg16": (22, 45, 87, 138_357_544, 15_825_108_992, 30_949_721_088, 13_153_337_344, 11_881_162_997_760, 13,
        1_261_001_024),
    "vgg19": (25, 51, 99, 143_667_240, 17_058_234_368, 33_621_492_736, 13_153_337_344, 15_077_423_972_352, 13,
        1_303_478_592),
    "fcn8": (36, 73, 149, 134_456_985, 13_484_795_520, 24_428_793_216, 8_287_944_704, 10_275_337_746_048, 25,
        1_172_780_232),
    "unet": (35, 71, 148, 12_332_755, 20_959_461_376, 38_647_103_616, 8_287_944_704, 9_063_759_863_808, 25,
        195_786_392),
    "segnet": (38, 77, 151, 3_707_411, 19_943_884_288, 38_704_778_368, 8_287_944_704, 2_700_269_445_120, 27,
        126_783_640),
    "resnet50": (176, 353, 751, 25_636_712, 38_059_356_160, 75_713_913_856, 3_699_376_128, 3_010_899_738_624, 9,
        359_234_368),
    "mobilenet": (92, 185, 367, 4_253_864, 34_701_056_000, 69_015_943_168, 6_635_651_072, 912_314_560_512, 19,
        342_312_256),
}  # fmt: skip


def test_zoo_is_complete():
    assert set(TRAINING) == set(TABLE)
    assert dict(ZOO) == {**TRAINING, **TRAINING_STEPS, **INFERENCE}


@pytest.mark.parametrize("name", TABLE)
def test_published_numbers(name):
    graph = ZOO[name]()
    found = (
        sum(op.phase == "forward" for op in graph.ops), len(graph.ops), graph.num_edges, graph.meta["params"],
        graph.reference_peak, sum(t.size for t in graph.tensors), graph.structural_bound.peak, graph.base_cost,
        sum(op.cost == 0 for op in graph.ops), graph.constant_memory,
    )  # fmt: skip
    assert found == TABLE[name]
    assert graph.cost_unit == "mac"
    assert sum(graph.meta["overhead"].values()) == graph.constant_memory
    assert [op.name for op in graph.ops] == list(graph.order)
    assert sum(op.phase == "loss" for op in graph.ops) == 1
    assert graph.ops[-1].name == "grad_" + graph.ops[0].name


@pytest.mark.shared
@pytest.mark.parametrize("name", ["vgg16", "vgg19", "fcn8", "unet", "resnet50"])
def test_graphs_equal_the_extracted_ones(name, shared):
    from remat.graphs import read_graph

    built = ZOO[name]()
    extracted = read_graph(shared / "data" / "graphs" / f"checkmate_{name}_static.json")
    for array in ("size", "cost", "order"):
        assert getattr(built.arrays, array).tolist() == getattr(extracted.arrays, array).tolist()
    for rows in ("op_inputs", "op_outputs"):
        assert getattr(built.arrays, rows).lists() == getattr(extracted.arrays, rows).lists()
    assert [o.phase for o in built.ops] == [o.phase for o in extracted.ops]
    assert built.constant_memory == extracted.constant_memory


@pytest.mark.parametrize("name", TRAINING)
def test_batch_scales_bytes_and_costs_but_not_parameters(name):
    one, three = ZOO[name](batch=1), ZOO[name](batch=3)
    assert (3 * one.arrays.size).tolist() == three.arrays.size.tolist()
    assert (3 * one.arrays.cost).tolist() == three.arrays.cost.tolist()
    assert one.meta["params"] == three.meta["params"]
    assert three.constant_memory - one.constant_memory == 2 * one.meta["overhead"]["input_bytes"]


def test_other_image_size_and_classes():
    graph = ZOO["unet"](batch=1, image=(32, 48, 1), classes=5)
    assert graph.tensors[graph.tensor_index["reshape"]].size == 4 * 16 * 24 * 5  # half the resolution
    assert graph.meta["image"] == [32, 48, 1]


def test_images_that_do_not_fit_are_refused():
    for name, image in (
        ("unet", (36, 32, 3)), ("fcn8", (16, 16, 3)), ("vgg16", (0, 16, 3)), ("vgg16", (16.0, 16, 3)),
        ("vgg16", (16, 16)),
    ):  # fmt: skip
        with refused("zoo.image"):
            ZOO[name](image=image)


def test_shapes_and_costs_of_layers():
    net = Network("n", 2, (9, 7, 3))
    net.conv(8, 3, stride=2)
    assert net.shape_of("conv2d") == (5, 4, 8)
    net.conv(8, 3, stride=2, same=False, bias=False, name="c")
    assert net.shape_of("c") == (2, 1, 8)
    net.conv_transpose(4, 4, 2)
    assert net.shape_of("conv2d_transpose") == (6, 4, 4)
    assert net.layers["conv2d_transpose"].macs == 8 * 6 * 4 * 4
    net.depthwise(3)
    assert net.layers["depthwise_conv2d"].macs == 9 * 6 * 4 * 4
    assert net.params == (27 + 1) * 8 + 72 * 8 + 16 * 8 * 4 + 9 * 4
    with refused("graph.shapes", culprit="conv2d"):
        net.add("conv2d", "c")
    with refused("graph.zoo"):
        net.crop(7, 1)
    with refused("graph.zoo"):
        net.reshape(1, 1, 1)
    with refused("graph.name-taken", culprit="c"):
        net.dropout(name="c")


def test_inputs_of_backward_ops():
    net = Network("n", 1, (4, 4, 1))
    first = net.conv(2, 3, name="a")
    net.conv(2, 3, name="b")
    net.add(first, "b", name="c")
    graph = training_graph(net)
    assert {op.name: op.inputs for op in graph.ops} == {
        "a": (),
        "b": ("a",),
        "c": ("a", "b"),
        "loss": ("c",),
        "grad_c": ("c", "loss"),
        "grad_b": ("b", "c", "grad_c"),
        "grad_a": ("a", "c", "grad_c", "b", "grad_b"),
    }
    assert graph.ops[graph.op_index["grad_c"]].cost == 2 * 2 * 32
    assert graph.tensors[graph.tensor_index["loss"]].size == 4


def test_networks_that_cannot_be_trained():
    net = Network("n", 1, (4, 4, 1))
    with refused("graph.no-ops"):
        training_graph(net)
    for name in ("loss", "grad_b"):
        clash = Network("n", 1, (4, 4, 1))
        clash.conv(2, 3, name=name)
        clash.conv(2, 3, name="b")
        with refused("graph.name-taken"):
            training_graph(clash)
