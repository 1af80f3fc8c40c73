"""Formulas for the scratch of reference kernels, compared with the heads that TensorFlow Lite Micro reports."""

import struct
from pathlib import Path

import pytest

pytest.importorskip("tflite")
pytest.importorskip("flatbuffers")

from deploy_models import FLOAT, INT32
from flatbuffers import flexbuffers
from tflite_models import OPS, G, O, T, model, tflite

from remat.deploy import Runtime
from remat.deploy.arena import runtime_head
from remat.deploy.runs import run_models
from remat.deploy.runtimes import RULES
from remat.deploy.scratch import reference_scratch
from remat.deploy.tflite_file import TfliteFile

INT8, INT16, INT64 = tflite.TensorType.INT8, tflite.TensorType.INT16, tflite.TensorType.INT64
#: Scale of activations.
SCALE = (0.05,)


def one_op(op: O, *named: T, inputs: tuple[int, ...] = (0,)) -> bytes:
    return model(G(list(named), [op], inputs, op.outputs))


def mirror_pad(kind: int) -> bytes:
    pads = T("pads", (4, 2), INT32, struct.pack("<8i", 0, 0, 1, 1, 1, 1, 0, 0))
    op = O(OPS.MIRROR_PAD, (0, 1), (2,), options=("MirrorPadOptions", {"Mode": 0}))
    return one_op(op, T("x", (1, 4, 4, 3), kind, scales=SCALE), pads, T("y", (1, 6, 6, 3), kind, scales=SCALE))


def transpose_conv(kind: int, bias: int | None = None) -> bytes:
    shape = T("shape", (4,), INT32, struct.pack("<4i", 1, 8, 8, 2))
    weights = T("w", (2, 3, 3, 3), FLOAT, 216) if kind == FLOAT else T("w", (2, 3, 3, 3), INT8, 54, scales=(0.01, 0.02))
    named = [T("x", (1, 4, 4, 3), kind, scales=SCALE), shape, weights, T("y", (1, 8, 8, 2), kind, scales=SCALE)]
    reads: tuple[int, ...] = (1, 2, 0)
    if bias is not None:
        named.append(T("b", (2,), bias, 4 if bias == INT16 else 16, scales=(0.0005, 0.001)))
        reads = (1, 2, 0, 4)
    sizes = ("TransposeConvOptions", {"Padding": 0, "StrideW": 2, "StrideH": 2})
    return one_op(O(OPS.TRANSPOSE_CONV, reads, (3,), options=sizes), *named)


def svdf(kind: int, times: int, batch: int = 1) -> bytes:
    width = {FLOAT: 4, INT8: 1, INT16: 2}
    named = [
        T("x", (batch, 8), kind, scales=SCALE), T("f", (12, 8), kind, 96 * width[kind], scales=SCALE),
        T("t", (12, 3), times, 36 * width[times], scales=SCALE),
        T("b", (6,), FLOAT if kind == FLOAT else INT32, 24, scales=(0.0025,)),
        T("s", (batch, 36), times, variable=True, scales=SCALE), T("y", (batch, 6), kind, scales=SCALE),
    ]  # fmt: skip
    return one_op(O(OPS.SVDF, (0, 1, 2, 3, 4), (5,), options=("SVDFOptions", {"Rank": 2})), *named)


def lstm(kind: int, batch: int, cells: int = 20) -> bytes:
    """Return an LSTM of 5 steps with 8 features, without peepholes, projection and normalisation."""
    scales, cell = (SCALE, (2.0**-11,)) if kind != FLOAT else ((), ())
    weight, width = (FLOAT, 4) if kind == FLOAT else (INT8, 1)
    bias, bytes_ = {FLOAT: (FLOAT, 4), INT8: (INT32, 4), INT16: (INT64, 8)}[kind]
    named = [T("x", (batch, 5, 8), kind, scales=scales)]
    for size in (*[8] * 4, *[cells] * 4):
        named.append(T(f"w{len(named)}", (cells, size), weight, cells * size * width, scales=scales))
    named += [T(f"b{k}", (cells,), bias, cells * bytes_, scales=scales) for k in range(4)]
    named.append(T("h", (batch, cells), kind, variable=True, scales=scales))
    named.append(T("c", (batch, cells), FLOAT if kind == FLOAT else INT16, variable=True, scales=cell))
    named.append(T("y", (batch, 5, cells), kind, scales=scales))
    reads = (*range(9), *[-1] * 3, *range(9, 13), -1, -1, 13, 14, *[-1] * 4)
    options = ("UnidirectionalSequenceLSTMOptions", {"FusedActivationFunction": 4})
    return one_op(O(OPS.UNIDIRECTIONAL_SEQUENCE_LSTM, reads, (15,), options=options), *named)


def detection(boxes: int, regular: bool) -> bytes:
    about = {"max_detections": 10, "max_classes_per_detection": 1, "detections_per_class": 100, "num_classes": 3}
    about |= {"use_regular_nms": regular, "nms_score_threshold": 0.1, "nms_iou_threshold": 0.5}
    about |= {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}
    shapes = ((1, boxes, 4), (1, boxes, 4), (boxes, 4), (1, 10, 4), (1, 10), (1, 10), (1,))
    named = [T(f"t{k}", shape, FLOAT, 16 * boxes if k == 2 else 0) for k, shape in enumerate(shapes)]
    options = bytes(flexbuffers.Dumps(about))
    op = O(OPS.CUSTOM, (0, 1, 2), (3, 4, 5, 6), custom="TFLite_Detection_PostProcess", custom_options=options)
    return one_op(op, *named, inputs=(0, 1))


def reduction(name: str, kind: int) -> bytes:
    axes = T("axes", (2,), INT32, struct.pack("<2i", 1, 2))
    op = O(getattr(OPS, name), (0, 1), (2,), options=("ReducerOptions", {}))
    return one_op(op, T("x", (1, 4, 4, 3), kind, scales=SCALE), axes, T("y", (1, 3), kind, scales=SCALE))


def sum_of(count: int, kind: int) -> bytes:
    reads = tuple(range(count))
    named = [T(f"t{k}", (1, 16), kind, scales=SCALE) for k in range(count + 1)]
    return one_op(O(OPS.ADD_N, reads, (count,), options=("AddNOptions", {})), *named, inputs=reads)


@pytest.mark.slow
def test_formulas_equal_measured_scratch(tmp_path: Path) -> None:
    pytest.importorskip(RULES[Runtime.TFLM].module)
    models = {f"pad {kind}": mirror_pad(kind) for kind in (FLOAT, INT8)}
    models |= {f"transpose {kind}": transpose_conv(kind) for kind in (FLOAT, INT8, INT16)}
    models |= {f"transpose, bias {bias}": transpose_conv(INT16, bias) for bias in (INT16, INT64)}
    models |= {f"svdf {each}": svdf(*each) for each in ((FLOAT, FLOAT, 2), (INT8, INT16), (INT8, INT8))}
    models |= {f"lstm {kind}, {batch}": lstm(kind, batch) for kind in (FLOAT, INT8, INT16) for batch in (1, 3)}
    models |= {f"detection {n}, {regular}": detection(n, regular) for n in (6, 64) for regular in (False, True)}
    models |= {
        f"{name} {kind}": reduction(name, kind)
        for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")
        for kind in (FLOAT, INT8, INT16)
    }
    models |= {f"sum {count}, {kind}": sum_of(count, kind) for count in (2, 3, 5) for kind in (FLOAT, INT8)}
    paths, expected = [], {}
    for name, data in models.items():
        file = TfliteFile(data)
        expected[name] = runtime_head(file, {0: reference_scratch(file, 0)})
        paths.append(tmp_path / f"{len(paths)}.tflite")
        paths[-1].write_bytes(data)
    reports = run_models(Runtime.TFLM, paths, tmp_path, invoke=False)
    assert {name: report.get("bytes") for name, report in zip(models, reports, strict=True)} == expected
