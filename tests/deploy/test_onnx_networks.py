"""Generated networks in ONNX Runtime: equal outputs, predicted bytes, and no model needs more than before."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import FORMS, KINDS

from remat.deploy import Runtime, Search, deploy, write_model
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.runs import run_models
from remat.deploy.runtimes import RULES

BATCH = {"batch": 3}


def runtime_order(file: OnnxFile) -> list[int]:
    return [file.reading.assembly.position_of[name] for name in file.runtime_order.computes()]


@pytest.mark.parametrize(
    "form",
    [form if form in {"functions", "condition"} else pytest.param(form, marks=pytest.mark.slow) for form in FORMS],
)
def test_nodes_of_functions_run_after_others(form: str) -> None:
    """As ONNX Runtime numbers them; other networks run in the order of the file."""
    data = FORMS[form](KINDS["random"](7002))
    file = OnnxFile(data if isinstance(data, bytes) else data[0], BATCH if form == "open batch" else {})
    order = runtime_order(file)
    assert (order == sorted(order)) == (form != "functions")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_networks_in_onnxruntime(form: str, tmp_path: Path) -> None:
    """Six forms of eight networks."""
    pytest.importorskip(RULES[Runtime.ONNXRUNTIME].module)
    dims, paths, predicted = BATCH if form == "open batch" else {}, [], []
    for kind, network in KINDS.items():
        for seed in (7100, 7101):
            folder = tmp_path / f"{kind}{seed}"
            folder.mkdir()
            data = FORMS[form](network(seed))
            if isinstance(data, tuple):
                data, weights = data
                (folder / "weights.bin").write_bytes(weights)
            paths += [folder / "old.onnx", folder / "new.onnx"]
            found = deploy(OnnxFile(data, dims), search=Search(time_limit=10))
            paths[-2].write_bytes(data)
            write_model(found.file, paths[-1], paths[-2])
            assert found.bound <= found.after <= found.before
            predicted += [found.before, found.after]
    assert [each.get("bytes") for each in run_models(Runtime.ONNXRUNTIME, paths, tmp_path, dims=dims)] == predicted
    for k in range(0, len(paths), 2):
        with np.load(tmp_path / f"{k}.npz") as old, np.load(tmp_path / f"{k + 1}.npz") as new:
            assert [old[name].tobytes() for name in old.files] == [new[name].tobytes() for name in new.files]


@pytest.mark.slow
def test_float16_networks_need_casts_in_onnxruntime(tmp_path: Path) -> None:
    """Kernels for CPUs compute most ops in float32; optimise first, then predictions hold for float16, too."""
    ort = pytest.importorskip(RULES[Runtime.ONNXRUNTIME].module)
    paths, predicted = [], []
    for kind, network in KINDS.items():
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(tmp_path / f"{kind}.onnx")
        ort.InferenceSession(network(7200, np.float16).written(), options, ["CPUExecutionProvider"])
        found = deploy(OnnxFile((tmp_path / f"{kind}.onnx").read_bytes()), search=Search(time_limit=10))
        paths += [tmp_path / f"{kind}.onnx", tmp_path / f"{kind}.new.onnx"]
        write_model(found.file, paths[-1], paths[-2])
        predicted += [found.before, found.after]
    assert [each.get("bytes") for each in run_models(Runtime.ONNXRUNTIME, paths, tmp_path)] == predicted
