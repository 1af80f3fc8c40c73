"""Outputs of a model and of the model that was made of it by rewriting, compared up to rounding."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remat.deploy.onnx_file import OnnxFile
from remat.deploy.runs import is_installed, random_values, run_models
from remat.deploy.runtimes import RULES, Runtime
from remat.errors import VerificationError


@dataclass(frozen=True)
class Comparison:
    """Largest difference of outputs, relative to the largest value of each (at least 1), and what computed them."""

    outputs: int
    difference: float
    by: str

    def __str__(self) -> str:
        count = "1 output agrees" if self.outputs == 1 else f"{self.outputs} outputs agree"
        return f"{count} with the model within {self.difference:.1e} by {self.by}"


def compare_outputs(before: OnnxFile, after: OnnxFile) -> Comparison:
    """Run two models on the same random inputs: in ONNX Runtime, or by ONNX's reference where it is not installed.

    Partial sums are added in another order, so an output may differ by the square root of its type's machine epsilon
    (3.5e-4 for float32): half of the digits.

    Raises
    ------
    VerificationError
        If a model does not run, or an output differs by more.
    """
    is_ort = is_installed(Runtime.ONNXRUNTIME)
    by = RULES[Runtime.ONNXRUNTIME].title if is_ort else "ONNX's reference"
    old, new = _in_runtime(before, after) if is_ort else (_by_reference(before), _by_reference(after))
    largest = 0.0
    for name, first, second in zip(before.outputs, old, new, strict=True):
        difference = _difference(first, second)
        if not difference <= _tolerance(first.dtype):
            raise VerificationError(
                f"output {name!r} of the new model differs by {difference:.1e} of its largest value", "other-output",
                str(name),
            )  # fmt: skip
        largest = max(largest, difference)
    return Comparison(len(old), largest, by)


def _tolerance(dtype: Any) -> float:
    try:
        return float(np.sqrt(float(np.finfo(dtype).eps)))
    except ValueError:  # whole numbers
        return 0.0


def _difference(first: Any, second: Any) -> float:
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    a, b = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.max(apart, initial=0.0) / max(1.0, np.max(np.abs(a), initial=0.0)))


def _in_runtime(before: OnnxFile, after: OnnxFile) -> tuple[list[Any], list[Any]]:
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        models = [Path(folder) / "before.onnx", Path(folder) / "after.onnx"]
        for path, file in zip(models, (before, after), strict=True):
            path.write_bytes(file.data)
        for report in run_models(Runtime.ONNXRUNTIME, models, Path(folder), dims=before.dims):
            if "error" in report:
                raise VerificationError(f"ONNX Runtime does not run the model: {report['error']}", "not-run")
        with np.load(Path(folder) / "0.npz") as old, np.load(Path(folder) / "1.npz") as new:
            return [old[name] for name in old.files], [new[name] for name in new.files]


def _by_reference(file: OnnxFile) -> list[Any]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    network, kinds = file.reading.network, onnx.TensorProto.DataType
    given = {}
    for k, name in enumerate(network.inputs):
        value = network.values[name]
        given[name] = random_values(value.shape, onnx.helper.tensor_dtype_to_np_dtype(kinds.Value(value.dtype)), k)
    try:
        model = ReferenceEvaluator(onnx.ModelProto.FromString(file.data))
        with np.errstate(all="ignore"):
            return [np.asarray(each) for each in model.run(None, given)]
    except Exception as error:
        raise VerificationError(f"ONNX's reference does not run the model: {error}", "not-run") from None
