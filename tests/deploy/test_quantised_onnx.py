"""Quantised ONNX models: shapes of ONNX Runtime's own ops, packed weights, and memory in the runtime."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx_models import constant, model, node, value  # noqa: E402
from onnx_networks import KINDS  # noqa: E402

from remat.deploy import Runtime, Search, deploy, write_model  # noqa: E402
from remat.deploy.onnx_file import OnnxFile  # noqa: E402
from remat.deploy.runs import run_models  # noqa: E402
from remat.deploy.runtimes import RULES  # noqa: E402
from remat.errors import FormatError  # noqa: E402
from remat.graphs.formats.onnx import graph_from_onnx  # noqa: E402

SCALE, ZERO = constant("scale", np.float32(0.5)), constant("zero", np.uint8(3))
X = ["x", "scale", "zero"]


def quantised(kind: str, inputs: list[str], **attributes: Any) -> tuple[tuple[int, ...], int]:
    """Return shape and bytes of the output of a quantised op; ``x`` is (2, 4, 6, 6) and ``w`` (1, 4, 1, 1)."""
    uint8 = TensorProto.UINT8
    op = node(kind, inputs, ["y"], domain="com.microsoft", **attributes)
    given = [value(name, shape, uint8) for name, shape in (("x", (2, 4, 6, 6)), ("a", (3, 5)))]
    weights = [constant(name, np.zeros(shape, np.uint8)) for name, shape in (("w", (1, 4, 1, 1)), ("b", (5, 7)))]
    ends = [onnx.ValueInfoProto(name="y")]
    data = model([op], given, ends, [SCALE, ZERO, *weights], domains=["com.microsoft"])
    graph = graph_from_onnx(data)
    (tensor,) = (each for each in graph.tensors if each.name == "y")
    return tuple(graph.meta["shapes"]["y"]), tensor.size


def test_shapes_of_quantised_ops() -> None:
    last = ["scale", "zero"]
    assert quantised("QLinearAdd", [*X, "w", *last, *last]) == ((2, 4, 6, 6), 288)
    assert quantised("QLinearConcat", [*last, *X, *X], axis=1) == ((2, 8, 6, 6), 576)
    assert quantised("QLinearSigmoid", [*X, *last]) == ((2, 4, 6, 6), 288)
    assert quantised("QLinearGlobalAveragePool", [*X, *last]) == ((2, 4, 1, 1), 8)
    assert quantised("QLinearAveragePool", [*X, *last], kernel_shape=[2, 2], strides=[2, 2]) == ((2, 4, 3, 3), 72)
    assert quantised("QGemm", ["a", *last, "b", *last, "", *last]) == ((3, 7), 21)
    assert quantised("QGemm", ["a", *last, "b", *last]) == ((3, 7), 84)
    assert quantised("DequantizeLinear", X) == ((2, 4, 6, 6), 1152)
    with pytest.raises(FormatError, match="shape of 'y'"):
        quantised("QLinearAveragePool", [*X, *last], kernel_shape=[2, 2], channels_last=1)


@pytest.mark.parametrize(("scales", "attributes"), [((8,), {"axis": 0}), ((8, 2), {"axis": 1, "block_size": 32})])
def test_packed_weights_with_scales_for_channels_and_blocks(
    scales: tuple[int, ...], attributes: dict[str, int]
) -> None:
    """Half a byte for each element of int4, and float32 after dequantisation."""
    packed = helper.make_tensor("w", TensorProto.INT4, (8, 64), np.arange(512) % 8)
    nodes = [
        node("DequantizeLinear", ["w", "scales"], ["floats"], **attributes),
        node("Gemm", ["x", "floats"], ["y"], transB=1),
    ]
    data = model(nodes, [value("x", (1, 64))], ["y"], [packed, constant("scales", np.ones(scales, np.float32))])
    file = OnnxFile(data)
    assert file.graph.constant_memory == 8 * 64 * 4
    found = deploy(file, search=Search(time_limit=5))
    assert found.before == found.after == 8 * 64 * 4 + 8 * 4


@pytest.mark.slow
@pytest.mark.parametrize("form", ["qdq", "qdq per channel", "qoperator", "dynamic"])
def test_quantised_networks_in_onnxruntime(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes in the runtime are the predicted ones, before and after, and outputs are equal."""
    pytest.importorskip(RULES[Runtime.ONNXRUNTIME].module)
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    caplog.set_level(logging.ERROR)
    paths, predicted = [], []
    for kind, network in KINDS.items():
        net = network(7300)
        plain, old, new = (tmp_path / f"{kind}.{part}.onnx" for part in ("plain", "old", "new"))
        plain.write_bytes(net.written())
        if form == "dynamic":
            quantize_dynamic(plain, old)
        else:
            quantize_static(
                plain, old, samples(net.shape_of["x"]), weight_type=QuantType.QInt8,
                quant_format=QuantFormat.QOperator if form == "qoperator" else QuantFormat.QDQ,
                activation_type=QuantType.QUInt8, per_channel=form.endswith("channel"),
            )  # fmt: skip
        found = deploy(OnnxFile(old.read_bytes()), search=Search(time_limit=10))
        write_model(found.file, new, old)
        paths += [old, new]
        predicted += [found.before, found.after]
    assert [each.get("bytes") for each in run_models(Runtime.ONNXRUNTIME, paths, tmp_path)] == predicted
    for k in range(0, len(paths), 2):
        with np.load(tmp_path / f"{k}.npz") as before, np.load(tmp_path / f"{k + 1}.npz") as after:
            assert [before[name].tobytes() for name in before.files] == [after[name].tobytes() for name in after.files]


def samples(shape: tuple[int, ...]) -> Any:
    """Return two batches that calibrate a network."""
    from onnxruntime.quantization import CalibrationDataReader

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        left = [{"x": np.random.default_rng(k).standard_normal(shape).astype(np.float32)} for k in range(2)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    return Samples()
