"""Training graphs op by op: counts of the HiRemate paper, FLOPs in closed form, and what backward ops read."""

import time
from math import prod

import pytest

from remat.errors import GraphError
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.zoo import TRAINING_STEPS, gpt
from remat.graphs.zoo.autograd import FLAG, FLOPS_PER_BYTE, Output, Tape
from remat.graphs.zoo.derivatives import RULES
from remat.schedule.schedule import Schedule
from remat.schedule.validate import validate

#: Forward ops and all ops, and of these those of Table 3(a) of HiRemate (None: not in it).
COUNTS = {
    "gpt": (187, 375, None),
    "gpt-medium": (367, 735, (367, 734)),
    "gpt-large": (547, 1095, None),
    "gpt-largest": (1447, 2895, (1447, 2894)),
}


def test_every_step_is_counted():
    assert set(COUNTS) == set(TRAINING_STEPS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_phases_modules_shapes_and_what_is_read(name):
    graph = TRAINING_STEPS[name]()
    phases = [op.phase for op in graph.ops]
    forward = phases.count("forward")
    assert (forward, len(phases)) == COUNTS[name][:2]
    if published := COUNTS[name][2]:
        assert abs(forward / published[0] - 1) < 0.1
        assert abs(len(phases) / published[1] - 1) < 0.1
    assert phases == ["forward"] * forward + ["loss"] + ["backward"] * (len(phases) - forward - 1)
    assert graph.cost_unit == "flop"

    modules, shapes = graph.meta["modules"], graph.meta["shapes"]
    assert list(modules) == [op.name for op in graph.ops] == list(graph.order)
    assert list(shapes) == [tensor.name for tensor in graph.tensors]
    for tensor in graph.tensors:
        assert tensor.size in {prod(shapes[tensor.name]) * itemsize for itemsize in (1, 4, 8)}
    ops = {op.name: op for op in graph.ops}
    made = {tensor for op in graph.ops if op.phase == "forward" for tensor in op.outputs}
    for op in graph.ops:
        mine = ops.get(op.name.removeprefix("grad_"))
        if op.phase == "backward" and mine is not None and mine.phase == "forward":
            assert {tensor for tensor in op.inputs if tensor in made} <= {*mine.inputs, *mine.outputs}
            assert modules[op.name] == modules[mine.name]
            assert len(op.inputs) > len({*op.inputs} & made)  # a gradient
            assert {tuple(shapes[t]) for t in op.outputs} <= {tuple(shapes[t]) for t in mine.inputs}
    assert {op.name for op in graph.ops if op.phase == "backward"} >= {
        f"grad_{op.name}" for op in graph.ops if op.type in {"linear", "matmul", "conv", "softmax"}
    }
    assert sum(graph.meta["overhead"].values()) == graph.constant_memory
    assert all(op.cost >= flops for op, flops in zip(graph.ops, graph.meta["flops"], strict=True))
    certificate = validate(graph, Schedule.reference(graph))
    assert certificate.accepted
    assert certificate.peak == graph.reference_peak


def phase_flops(graph):
    """FLOPs of matrix products and convolutions by phase."""
    total = {"forward": 0, "loss": 0, "backward": 0}
    for op, flops in zip(graph.ops, graph.meta["flops"], strict=True):
        total[op.phase] += flops
    return total


@pytest.mark.parametrize("sizes", [{}, {"layers": 3, "width": 96, "heads": 4, "sequence": 40, "vocabulary": 77}])
def test_gpt_in_closed_form(sizes):
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


def test_gpt2_has_the_parameters_that_are_published():
    published, untied_head, positions = 124_439_808, 50257 * 768, 512 * 768  # the published one has 1024 positions
    assert gpt().meta["params"] == published + untied_head - positions


def test_gpt_is_affine_in_the_batch():
    family = AffineGraph.of(gpt)
    assert family.at(7).digest == gpt(7).digest


@pytest.mark.parametrize("accumulation", ["sums", "buffers"])
def test_gradients_of_several_readers_are_added_up(accumulation):
    """x is read by three ops, one of them a sum; y by one."""
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


def test_what_needs_no_gradient_has_no_backward_op():
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


@pytest.mark.parametrize(
    "sizes,message",
    [
        ({"layers": 0}, "gpt: layers must be a whole number from 1, not 0"),
        ({"batch": 2.0}, "gpt: batch must be a whole number from 1, not 2.0"),
        ({"heads": 5}, "gpt: the width, 768, is no multiple of the number of heads, 5"),
        ({"accumulation": "both"}, "gpt: the accumulation of gradients is sums or buffers, not 'both'"),
    ],
)
def test_refused_sizes(sizes, message):
    with pytest.raises(GraphError, match=message):
        gpt(**sizes)


def test_refused_ops():
    tape = Tape("t", 1)
    with pytest.raises(GraphError, match="no rule for the backward pass of 'magic'"):
        tape.apply("magic", "x", [], [])
    (x,) = tape.apply("linear", "x", [], [Output("", (4,))], params=1)
    with pytest.raises(GraphError, match="the loss is mse_loss or nll_loss, not 'l1'"):
        tape.build("l1", x)
    tape.apply("linear", "x", [], [Output("", (4,))], params=1)
    with pytest.raises(GraphError, match="two ops are named 'x'"):
        tape.build("mse_loss", x)


def test_rules_name_outputs_that_exist():
    assert all(position < 3 for rule in RULES.values() for position in rule.outputs)


@pytest.mark.slow
def test_a_hundred_thousand_ops_in_seconds():
    began = time.process_time()
    graph = gpt(layers=3340, width=256, heads=4, sequence=128)
    assert len(graph.ops) == 30 * 3340 + 15
    assert time.process_time() - began < 30
