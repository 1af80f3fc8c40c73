"""Roles of axes in the table of the dimension rule, compared with layers of PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest

from remat.graphs import Op
from remat.graphs.rewriting.axes import FIXED, REDUCED, TABLE, Reading, channel_axis, roles
from remat.graphs.rewriting.kinds import Kind, kind_of

torch = pytest.importorskip("torch")
F = torch.nn.functional

FIRST, CHANNELS_FIRST = {"layout": "NCHW"}, [2, 4, 6, 6]


def weights(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


#: Type, attributes, shapes read, and the layer of PyTorch; at least one for each row of the table.
LAYERS: list[tuple[str, dict[str, Any], list[list[int]], Callable[..., Any]]] = [
    ("Conv", FIRST, [CHANNELS_FIRST], lambda x: F.conv2d(x, weights(8, 4, 3, 3), weights(8), 1, 1)),
    ("Conv", {**FIRST, "groups": 2}, [CHANNELS_FIRST], lambda x: F.conv2d(x, weights(8, 2, 3, 3), groups=2)),
    ("Conv", {**FIRST, "groups": 4}, [CHANNELS_FIRST], lambda x: F.conv2d(x, weights(8, 1, 3, 3), groups=4)),
    ("ReLUConvBN", FIRST, [CHANNELS_FIRST], lambda x: F.conv2d(F.relu(x), weights(8, 4, 1, 1))),
    ("DepthwiseConv", FIRST, [CHANNELS_FIRST], lambda x: F.conv2d(x, weights(4, 1, 3, 3), weights(4), groups=4)),
    ("ConvTranspose", FIRST, [CHANNELS_FIRST], lambda x: F.conv_transpose2d(x, weights(4, 8, 2, 2), weights(8), 2)),
    ("Dense", {}, [[2, 3, 4]], lambda x: F.linear(x, weights(8, 4), weights(8))),
    ("MatMul", {}, [[2, 3, 4], [2, 4, 4]], lambda x, y: x @ y),
    ("MatMul", {"transpose_b": True}, [[3, 4], [5, 4]], lambda x, y: x @ y.T),
    ("ReLU", {}, [CHANNELS_FIRST], F.relu),
    ("Mul", {}, [[2, 3, 4], [2, 3, 4], [4]], lambda x, y, z: x * y * z),
    ("activation", {"activation": "softmax"}, [[2, 4]], lambda x: F.softmax(x, 1)),
    ("BatchNorm", FIRST, [CHANNELS_FIRST], lambda x: F.batch_norm(x, weights(4), weights(4).abs(), weights(4))),
    ("BatchNorm", {**FIRST, "training": True}, [CHANNELS_FIRST],
     lambda x: F.batch_norm(x, None, None, weights(4), training=True)),
    ("LayerNorm", {"axis": 1}, [[2, 3, 4]], lambda x: F.layer_norm(x, [3, 4], weights(3, 4), weights(3, 4))),
    ("GroupNorm", FIRST, [CHANNELS_FIRST], lambda x: F.group_norm(x, 2, weights(4), weights(4))),
    ("InstanceNorm", FIRST, [CHANNELS_FIRST], lambda x: F.instance_norm(x, weight=weights(4), bias=weights(4))),
    ("Softmax", {"axis": -2}, [[2, 3, 4]], lambda x: F.softmax(x, -2)),
    ("MaxPool", FIRST, [CHANNELS_FIRST], lambda x: F.max_pool2d(x, 3, 2, 1)),
    ("avg_pool2d", FIRST, [CHANNELS_FIRST], lambda x: F.avg_pool2d(x, 2)),
    ("GlobalAveragePool", FIRST, [CHANNELS_FIRST], lambda x: x.mean((2, 3))),
    ("GlobalMaxPool", FIRST, [CHANNELS_FIRST], lambda x: F.adaptive_max_pool2d(x, 1)),
    ("zero_padding2d", FIRST, [CHANNELS_FIRST], lambda x: F.pad(x, (1, 5, 2, 4))),
    ("upsample", FIRST, [CHANNELS_FIRST], lambda x: F.interpolate(x, scale_factor=2)),
    ("Slice", FIRST, [CHANNELS_FIRST], lambda x: x[:, :, 1:, :3]),
    ("Slice", {"axis": 1, "start": 2}, [[2, 4, 3]], lambda x: x[:, 2:]),
    ("ReduceSum", {"axes": [1]}, [[2, 4, 3]], lambda x: x.sum(1, keepdim=True)),
    ("ReduceMean", {"axes": [-1]}, [[2, 4, 3]], lambda x: x.mean(-1)),
    ("SepConv", FIRST, [CHANNELS_FIRST],
     lambda x: F.conv2d(F.conv2d(F.relu(x), weights(4, 1, 3, 3), groups=4), weights(4, 4, 1, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attrs", "shapes", "layer"), LAYERS, ids=[kind for kind, *_ in LAYERS])
def test_layers_have_the_roles_of_the_table(kind, attrs, shapes, layer) -> None:
    """With part of an axis set to zero, the other part of the output is unchanged, or the two results add up."""

    def computed(*inputs: Any) -> Any:
        torch.manual_seed(1)  # the same weights
        return layer(*inputs)

    inputs = [weights(*shape) for shape in shapes]
    whole = computed(*inputs)
    for number, x in enumerate(inputs):
        op, axes = Op("y", ("x",), ("y",), type=kind), [tuple(shape) for shape in shapes]
        found = roles(Reading(op, attrs, number, axes, tuple(whole.shape), channel_axis(op, attrs, x.ndim, None)))
        for axis, role in enumerate(found):
            sizes = [1, x.shape[axis] - 1]
            parts = []
            for start, size in ((1, sizes[1]), (0, 1)):
                part = x.clone()
                part.narrow(axis, start, size).zero_()
                parts.append(computed(*inputs[:number], part, *inputs[number + 1 :]))
            if role is REDUCED:
                nothing = computed(*inputs[:number], torch.zeros_like(x), *inputs[number + 1 :])
                assert torch.allclose(parts[0] + parts[1], whole + nothing), axis
                assert all((part != nothing).double().mean() > 0.3 for part in parts), axis
            elif role.output is not None:
                times = whole.shape[role.output] // x.shape[axis]
                for part, start, size in zip(parts, (0, times), sizes, strict=True):
                    slices = [each.narrow(role.output, start, size * times) for each in (part, whole)]
                    assert torch.allclose(*slices), axis


def test_layers_cover_every_row_of_the_table() -> None:
    without = {Kind.SOURCE, Kind.CONCAT, Kind.SPLIT, Kind.FINISH, Kind.OPAQUE}
    assert {kind_of(kind) for kind, *_ in LAYERS} == set(TABLE) - without
    for kind in without:
        op = Op("y", ("x",), ("y",), type=kind.value)
        assert set(TABLE[kind](Reading(op, {}, 0, [(2, 3)], (2, 3), 1))) == {FIXED}
