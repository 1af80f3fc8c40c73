"""Training graphs op by op: counts of the HiRemate paper, FLOPs in closed form, inputs of backward ops."""

from math import prod

import pytest
from helpers import at_most
from refusals import refused

from remat.errors import GraphError
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.generators import generate
from remat.graphs.zoo import (
    TRAINING_STEPS,
    bert,
    convnext,
    decoder,
    fno,
    gpt,
    mlp_mixer,
    resnet_ops,
    transformer,
    u_fno,
    unet_ops,
    uno,
    vit,
    whisper,
)  # fmt: skip
from remat.graphs.zoo.autograd import FLAG, FLOAT, FLOPS_PER_BYTE, INDEX, Output, Tape
from remat.schedule.schedule import Schedule
from remat.schedule.validate import validate

#: Forward ops, all ops, all ops with buffers for sums of gradients, and forward and all ops of Table 3(a) of HiRemate
#: (None: not in it). Then the published parameters (None: the network has other layers around it, or they are not
#: published).
COUNTS = {
    "gpt": (187, 375, 375, None, None),
    "gpt-medium": (367, 735, 735, (367, 734), None),
    "gpt-large": (547, 1095, 1095, None, None),
    "gpt-largest": (1447, 2895, 2895, (1447, 2894), None),
    "transformer": (218, 441, 436, (224, 417), 44_140_544),
    "transformer-36": (1298, 2631, 2596, (1334, 2457), None),
    "mlp-mixer": (125, 252, 252, (125, 250), 59_880_472),
    "unet-ops": (50, 106, 102, (50, 101), None),
    "resnet50-ops": (110, 238, 222, None, 25_557_032),
    "resnet101-ops": (212, 459, 426, (211, 423), 44_549_160),
    "resnet152-ops": (314, 680, 630, None, 60_192_808),
    "regnet-32": (174, 373, 350, (173, 347), 107_811_560),
    "fno-1d": (45, 90, 86, (42, 82), None),
    "fno-3d": (62, 133, 117, (64, 121), None),
    "u-fno": (121, 269, 233, (118, 221), None),
    "uno": (125, 267, 236, (129, 229), None),
    # Published parameters, plus a head that the original shares with its table of tokens, less fixed positions.
    "llama": (260, 570, 522, None, 1_235_814_400 + 128_256 * 2048),
    "gemma": (472, 1024, 946, None, 2_614_341_888 + 256_000 * 2304),
    "qwen": (508, 1102, 1018, None, 596_049_920 + 151_936 * 1024),
    "qwen-moe": (280, 610, 562, None, None),
    "mamba": (340, 706, 682, None, 129_135_360 + 50_280 * 768),
    "bert": (179, 383, 359, None, 109_514_298 - 30_522 + 30_522 * 768),
    "t5": (464, 1001, 930, None, 222_903_552 - 2 * 12 * 32 + 2 * 32_128 * 768),
    "whisper": (197, 430, 395, None, 72_593_920 - 1500 * 512 + 51_865 * 512),
    "vit": (139, 280, 280, None, 86_567_656),
    "convnext": (138, 278, 278, None, 28_589_128),
    "dit": (489, 1007, 979, None, 675_129_632 - 256 * 1152),
    "sd3": (894, 1837, 1789, None, 2_028_328_000),
    "diffusion-unet": (641, 1365, 1270, None, 859_520_964),
}
#: Millions of multiply-adds of a forward pass for one sample, as published or as torchvision and timm list them.
PUBLISHED_MACS = {
    "resnet50-ops": 4_089, "resnet101-ops": 7_801, "resnet152-ops": 11_514, "regnet-32": 31_736, "mlp-mixer": 12_610,
}  # fmt: skip


def test_counts_cover_every_training_step():
    assert set(COUNTS) == set(TRAINING_STEPS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_phases_modules_shapes_and_inputs(name):
    graph = TRAINING_STEPS[name]()
    phases = [op.phase for op in graph.ops]
    forward = phases.count("forward")
    *counts, published, params = COUNTS[name]
    assert [forward, len(phases), len(TRAINING_STEPS[name](accumulation="buffers").ops)] == counts
    if published:
        assert abs(counts[0] / published[0] - 1) < 0.075
        assert abs(counts[2] / published[1] - 1) < 0.06
    if params:
        assert graph.meta["params"] == params
    if name in PUBLISHED_MACS:
        macs = phase_flops(graph)["forward"] / 2 / graph.meta["batch"]
        assert macs == pytest.approx(1e6 * PUBLISHED_MACS[name], rel=0.002)
    assert phases == ["forward"] * forward + ["loss"] + ["backward"] * (len(phases) - forward - 1)
    assert graph.cost_unit == "flop"

    modules, shapes = graph.meta["modules"], graph.meta["shapes"]
    assert list(modules) == [op.name for op in graph.ops] == list(graph.order)
    assert list(shapes) == [tensor.name for tensor in graph.tensors]
    for tensor in graph.tensors:
        assert tensor.size in {prod(shapes[tensor.name]) * itemsize for itemsize in (FLAG, FLOAT, INDEX)}
    ops = {op.name: op for op in graph.ops}
    made = {tensor for op in graph.ops if op.phase == "forward" for tensor in op.outputs}
    for op in graph.ops:
        mine = ops.get(op.name.removeprefix("grad_"))
        if op.phase == "backward" and mine is not None and mine.phase == "forward":
            assert {tensor for tensor in op.inputs if tensor in made} <= {*mine.inputs, *mine.outputs}
            assert modules[op.name] == modules[mine.name]
            assert len(op.inputs) > len({*op.inputs} & made)  # a gradient
            assert {prod(shapes[t]) for t in op.outputs} <= {prod(shapes[t]) for t in mine.inputs}
    assert {op.name for op in graph.ops if op.phase == "backward"} >= {
        f"grad_{op.name}" for op in graph.ops if op.type in {"linear", "matmul", "conv", "softmax", "attention"}
    }
    assert sum(graph.meta["overhead"].values()) == graph.constant_memory
    assert all(op.cost >= flops for op, flops in zip(graph.ops, graph.meta["flops"], strict=True))
    certificate = validate(graph, Schedule.reference(graph))
    assert certificate.accepted
    assert certificate.peak == graph.reference_peak


def phase_flops(graph):
    """Return FLOPs of matrix products and convolutions by phase."""
    total = {"forward": 0, "loss": 0, "backward": 0}
    for op, flops in zip(graph.ops, graph.meta["flops"], strict=True):
        total[op.phase] += flops
    return total


@pytest.mark.parametrize("sizes", [{}, {"layers": 3, "width": 96, "heads": 4, "sequence": 40, "vocabulary": 77}])
def test_flops_and_sizes_of_gpt_in_closed_form(sizes):
    graph = gpt(3, **sizes)
    n, d, s, v = (graph.meta[key] for key in ("layers", "width", "sequence", "vocabulary"))
    forward = n * (24 * 3 * s * d * d + 4 * 3 * s * s * d) + 2 * 3 * s * d * v
    assert phase_flops(graph) == {"forward": forward, "loss": 0, "backward": 2 * forward}
    assert graph.meta["params"] == n * (12 * d * d + 13 * d) + 2 * d + 2 * v * d + s * d
    size = {tensor.name: tensor.size for tensor in graph.tensors}
    scores = 3 * graph.meta["heads"] * s * s
    attention = "layers.1.attn."
    assert size[attention + "softmax"] == 4 * scores
    assert size[attention + "dropout.mask"] == scores
    assert size["layers.1.ln1.mean"] == 4 * 3 * s
    softmax = graph.ops[graph.op_index["grad_" + attention + "softmax"]]
    assert softmax.inputs == ("grad_" + attention + "dropout", attention + "softmax")
    assert softmax.cost == FLOPS_PER_BYTE * 3 * 4 * scores
    assert graph.ops[graph.op_index["grad_layers.1.mlp.gelu"]].inputs[1] == "layers.1.mlp.up"


def test_published_parameters_of_gpt2():
    published, untied_head, positions = 124_439_808, 50257 * 768, 512 * 768  # the published one has 1024 positions
    assert gpt().meta["params"] == published + untied_head - positions


@pytest.mark.parametrize(
    "name",
    ["gpt", "transformer", "mlp-mixer", "qwen-moe", "mamba", "dit", "resnet50-ops", "regnet-32", "fno-3d", "uno"],
)
def test_costs_are_affine_in_the_batch(name):
    """Parameters have a separate cost, so that costs stay affine where a roofline changes sides."""
    family = AffineGraph.of(TRAINING_STEPS[name])
    assert family.at(64).digest == TRAINING_STEPS[name](64).digest


@pytest.mark.parametrize("accumulation", ["sums", "buffers"])
def test_gradients_of_several_readers_are_added_up(accumulation):
    """Three ops read x, one of them a sum; one op reads y."""
    tape = Tape("t", 1, accumulation=accumulation)
    shape = [Output("", (2, 3))]
    (x,) = tape.apply("linear", "x", [tape.source((2, 3))], shape, params=12)
    (a,) = tape.apply("gelu", "a", [x], shape)
    (b,) = tape.apply("relu", "b", [x], shape)
    (y,) = tape.apply("multiply", "y", [a, b], shape)
    (z,) = tape.apply("add", "z", [x, y], shape)
    graph = tape.build("mse_loss", z)
    backward = {op.name: (op.inputs, op.outputs) for op in graph.ops if op.phase == "backward"}
    head = {
        "grad_loss": (("loss", "z"), ("grad_loss",)),
        "grad_y": (("grad_loss", "a", "b"), ("grad_y.0", "grad_y.1")),
    }
    if accumulation == "sums":
        assert backward == {
            **head,
            "grad_b": (("grad_y.1", "b"), ("grad_b",)),
            "sum_x": (("grad_loss", "grad_b"), ("sum_x",)),
            "grad_a": (("grad_y.0", "x"), ("grad_a",)),
            "sum_x.2": (("sum_x", "grad_a"), ("sum_x.2",)),
            "grad_x": (("sum_x.2",), ()),
        }
    else:
        assert backward == {
            **head,
            "grad_z": (("grad_loss",), ("grad_of_x",)),
            "grad_b": (("grad_y.1", "b"), ("grad_of_x",)),
            "grad_a": (("grad_y.0", "x"), ("grad_of_x",)),
            "grad_x": (("grad_of_x",), ()),
        }
    assert validate(graph, Schedule.reference(graph)).accepted


def test_ops_without_gradient_have_no_backward_op():
    tape = Tape("t", 1)
    x = tape.source((4,))
    (mask,) = tape.apply("scale_mask", "mask", [x], [Output("", (4,), FLAG)])
    (w,) = tape.apply("linear", "w", [x], [Output("", (4,))], params=20, flops=32)
    (dead,) = tape.apply("gelu", "dead", [w], [Output("", (4,))])
    assert dead.differentiable and not mask.differentiable
    (y,) = tape.apply("multiply", "y", [w, mask], [Output("", (4,))])
    graph = tape.build("mse_loss", y)
    backward = {op.name: op.outputs for op in graph.ops if op.phase == "backward"}
    assert backward == {"grad_loss": ("grad_loss",), "grad_y": ("grad_y",), "grad_w": ()}
    assert graph.meta["flops"][graph.op_index["grad_w"]] == 32  # of the parameters, not of the input
    assert graph.constant_memory == 16 + 2 * 4 * 20


def test_invalid_ops():
    tape = Tape("t", 1)
    with refused("graph.no-backward", culprit="magic"):
        tape.apply("magic", "x", [], [])
    (x,) = tape.apply("linear", "x", [], [Output("", (4,))], params=1)
    with refused("graph.loss", culprit="l1"):
        tape.build("l1", x)
    tape.apply("linear", "x", [], [Output("", (4,))], params=1)
    with refused("graph.name-taken", culprit="x"):
        tape.build("mse_loss", x)


def test_decoders_read_the_output_of_the_encoder():
    graph = transformer(1, layers=5, sequence=4)
    readers = [op.name for op in graph.ops if "encoder.norm" in op.inputs and op.phase == "forward"]
    assert readers == [f"decoder.{layer}.cross_attn.kv" for layer in range(5)]
    assert [op.name for op in graph.ops if op.name.startswith("sum_encoder.norm")] == [
        f"sum_encoder.norm{suffix}" for suffix in ("", ".2", ".3", ".4")
    ]
    attention = graph.ops[graph.op_index["grad_decoder.0.self_attn.attention"]]
    name = "decoder.0.self_attn."
    assert attention.inputs[1:] == (
        *(f"{name}split.{part}" for part in "qkv"), f"{name}attention", f"{name}attention.logsumexp",
    )  # fmt: skip


def test_statistics_of_batch_norm_are_outputs_and_sums_are_fused():
    graph = resnet_ops(1, (32, 32, 3))
    kept = {name for name in graph.outputs if name != "loss"}
    norms = [op for op in graph.ops if op.phase == "forward" and op.type.startswith("batch_norm")]
    assert len(norms) == 53
    assert kept == {f"{op.name}.running_{what}" for op in norms for what in ("mean", "var")}
    last = graph.ops[graph.op_index["layer1.1.bn3"]]
    assert (last.type, last.inputs) == ("batch_norm_add_relu", ("layer1.1.conv3", "layer1.0.bn3"))
    back = graph.ops[graph.op_index["grad_layer1.1.bn3"]]
    assert back.inputs[1:] == ("layer1.1.conv3", "layer1.1.bn3", "layer1.1.bn3.mean", "layer1.1.bn3.rstd")
    assert len(back.outputs) == 2


@pytest.mark.shared
def test_flops_and_peaks_of_captured_steps(shared):
    from remat.graphs import read_graph

    captured = read_graph(shared / "data" / "graphs" / "resnet50_train.json")
    graph = resnet_ops(32)
    assert sum(graph.meta["flops"]) == captured.meta["total_flops"]
    assert graph.reference_peak == pytest.approx(captured.reference_peak, rel=0.02)
    captured = read_graph(shared / "data" / "graphs" / "unet_train.json")
    assert sum(unet_ops(4, classes=21).meta["flops"]) == captured.meta["total_flops"]


def test_invalid_networks():
    for make, options in (
        (gpt, {"layers": 0}), (gpt, {"batch": 2.0}), (gpt, {"heads": 5}), (gpt, {"accumulation": "both"}),
        (resnet_ops, {"depth": 18}), (unet_ops, {"image": (40, 32, 3)}), (unet_ops, {"image": (32, 32)}),
        (mlp_mixer, {"image": (40, 32, 3)}), (transformer, {"heads": 3}), (u_fno, {"sides": (8, 8, 7)}),
        (uno, {"side": 20}), (fno, {"sides": (0,)}), (vit, {"image": (32, 32)}), (convnext, {"classes": 0}),
        (bert, {"heads": 5}), (whisper, {"heads": 3}), (decoder, {"groups": 5}),
    ):  # fmt: skip
        with refused("graph.zoo"):
            make(**options)


@pytest.mark.slow
def test_graph_of_a_hundred_thousand_ops():
    with at_most(30):
        assert len(gpt(layers=3340, width=256, heads=4, sequence=128).ops) == 30 * 3340 + 15


def test_times_of_a_device() -> None:
    """Times follow from FLOPs or bytes, and a launch; a device has no effect on memory."""
    plain = gpt(layers=1, sequence=512, width=768, batch=8)
    timed = generate("gpt", {"layers": 1, "sequence": 512, "width": 768, "batch": 8, "device": "A100"})
    flops = dict(zip(plain.op_names, plain.meta["flops"], strict=True))
    costs = {op.name: op.cost for op in timed.ops}
    size = {tensor.name: tensor.size for tensor in timed.tensors}
    assert timed.cost_unit == "ns" and timed.reference_peak == plain.reference_peak
    assert costs["layers.0.mlp.up"] == round(flops["layers.0.mlp.up"] / 156e3)  # 156 TFLOP/s
    gelu = size["layers.0.mlp.up"] + size["layers.0.mlp.gelu"]
    assert costs["layers.0.mlp.gelu"] == round(gelu / 2039)  # 2039 GB/s
    small = generate("gpt", {"layers": 1, "sequence": 8, "width": 12, "device": "A100"})
    assert min(op.cost for op in small.ops) == 5000
    with refused("graph.device", GraphError, culprit="A10"):
        generate("gpt", {"device": "A10"})
    with refused("graph.no-flops", GraphError, culprit="unit-chain-2"):
        generate("unit-chain", {"n": 2, "device": "A100"})
