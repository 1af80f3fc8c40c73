"""Comparison of the outputs and the memory of two models in their runtime: bit by bit, or up to rounding."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remat.deploy.onnx_file import OnnxFile
from remat.deploy.runs import is_installed, random_values, run_models
from remat.deploy.runtimes import RULES, ModelFile, Runtime
from remat.errors import RematError, VerificationError


@dataclass(frozen=True)
class Check:
    """Bytes that a runtime reported for the original and the new model, whose outputs were bitwise equal."""

    before: int
    after: int
    outputs: int


@dataclass(frozen=True)
class Comparison:
    """Largest difference of outputs, relative to the largest value of each (at least 1), and the runtime used."""

    outputs: int
    difference: float
    by: str

    def __str__(self) -> str:
        count = "1 output agrees" if self.outputs == 1 else f"{self.outputs} outputs agree"
        return f"{count} with the model within {self.difference:.1e} by {self.by}"


def comparing_runtime(file: ModelFile) -> Runtime | None:
    """Return the runtime for comparing models of this format; None for ONNX's reference evaluator.

    Raise RematError if the file is a TensorFlow Lite model and no runtime for it is installed.
    """
    wanted = [runtime for runtime in (Runtime.LITERT, Runtime.TFLM, Runtime.ONNXRUNTIME)
              if isinstance(file, RULES[runtime].file)]  # fmt: skip
    found = next((runtime for runtime in wanted if is_installed(runtime)), None)
    if found is None and not isinstance(file, OnnxFile):
        package = RULES[wanted[0]].package
        raise RematError(f"--check runs the model, and no runtime is installed: pip install {package}", "unavailable",
                         package)  # fmt: skip
    return found


def check_models(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    runtime: Runtime,
    dims: Mapping[str, int] | None = None,
    *,
    exact: bool = True,
) -> Check:
    """Run two models in their runtime and compare their outputs.

    `exact`: bit by bit; otherwise up to rounding, as :func:`compare_outputs` does.

    Raises
    ------
    RematError
        If the runtime is not installed.
    VerificationError
        If a model does not run, or outputs are not equal.
    """
    title = RULES[runtime].title
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        models = [Path(before).resolve(), Path(after).resolve()]
        reports = run_models(runtime, models, Path(folder), dims=dims)
        for model, report in zip((before, after), reports, strict=True):
            if "error" in report:
                raise VerificationError(f"{model}: {title} does not run it: {report['error']}", "not-run", str(model))
        with np.load(Path(folder) / "0.npz") as old, np.load(Path(folder) / "1.npz") as new:
            for k, name in enumerate(old.files):
                first, second = old[name], new[name]
                same = first.dtype == second.dtype and first.tobytes() == second.tobytes()
                if not same and (exact or not difference(first, second) <= tolerance(first.dtype)):
                    raise VerificationError(
                        f"{after}: output {k} is not that of {before} in {title}", "other-output", str(after)
                    )
            return Check(reports[0]["bytes"], reports[1]["bytes"], len(old.files))


def compare_outputs(before: ModelFile, after: ModelFile) -> Comparison:
    """Run two models on the same random inputs and compare outputs; without ONNX Runtime use ONNX's reference.

    Partial sums are added in another order, so an output may differ by the square root of its type's machine epsilon
    (3.5e-4 for float32): half of the digits.

    Raises
    ------
    RematError
        If no runtime for TensorFlow Lite models is installed.
    VerificationError
        If a model does not run, or outputs differ by more than that.
    """
    runtime = comparing_runtime(before)
    if runtime is None and isinstance(before, OnnxFile) and isinstance(after, OnnxFile):
        by, old, new = "ONNX's reference", _by_reference(before), _by_reference(after)
    else:
        assert runtime is not None
        by, (old, new) = RULES[runtime].title, _in_runtime(before, after, runtime)
    largest = 0.0
    for name, first, second in zip(before.outputs, old, new, strict=True):
        apart = difference(first, second)
        if not apart <= tolerance(first.dtype):
            raise VerificationError(
                f"output {name!r} of the new model differs by {apart:.1e} of its largest value", "other-output",
                str(name),
            )  # fmt: skip
        largest = max(largest, apart)
    return Comparison(len(old), largest, by)


def tolerance(dtype: Any) -> float:
    """Return the largest difference by rounding: the square root of the type's machine epsilon, 0 for whole numbers."""
    try:
        return float(np.sqrt(float(np.finfo(dtype).eps)))
    except ValueError:  # whole numbers
        return 0.0


def difference(first: Any, second: Any) -> float:
    """Return the largest difference of two outputs, relative to the largest value of the first (at least 1)."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    a, b = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.max(apart, initial=0.0) / max(1.0, np.max(np.abs(a), initial=0.0)))


def _in_runtime(before: ModelFile, after: ModelFile, runtime: Runtime) -> tuple[list[Any], list[Any]]:
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        models = [Path(folder) / "before", Path(folder) / "after"]
        for path, file in zip(models, (before, after), strict=True):
            path.write_bytes(file.data)
        dims = before.dims if isinstance(before, OnnxFile) else None
        for report in run_models(runtime, models, Path(folder), dims=dims):
            if "error" in report:
                raise VerificationError(f"{RULES[runtime].title} does not run the model: {report['error']}", "not-run")
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
