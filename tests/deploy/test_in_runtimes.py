"""Models in their runtimes: reported bytes are the certified ones, and outputs are equal bit by bit."""

import importlib.util
from pathlib import Path

import pytest
from refusals import refused

pytest.importorskip("tflite")
pytest.importorskip("onnx")

from deploy_models import (
    irregular,
    mean,
    random_model,
    random_schedule,
    random_splits,
    sum_of_three,
    with_branches,
    with_loop,
    with_resource,
)
from test_onnx_files import branches, in_place_models
from test_tflite_files import HEADS, LITERT

from remat.deploy import Runtime, Search, check_models, deploy, deployed, write_model
from remat.deploy.arena import runtime_head
from remat.deploy.litert import LitertPlanner
from remat.deploy.onnx_file import OnnxFile
from remat.deploy.runs import run_models
from remat.deploy.runtimes import RULES
from remat.deploy.scratch import kernel_scratch, litert_temporaries
from remat.deploy.tflite_file import TfliteFile


def skip_without(runtime: Runtime) -> None:
    pytest.importorskip(RULES[runtime].module)


@pytest.mark.slow
def test_tflm_reports_predicted_heads(tmp_path: Path) -> None:
    skip_without(Runtime.TFLM)
    paths = []
    for k, (data, *_) in enumerate(HEADS.values()):
        paths.append(tmp_path / f"{k}.tflite")
        paths[-1].write_bytes(data)
    assert [each.get("bytes") for each in run_models(Runtime.TFLM, paths, tmp_path)] == [h for *_, h in HEADS.values()]


@pytest.mark.slow
def test_litert_reports_predicted_arenas(tmp_path: Path) -> None:
    """Models of known arenas, and random ones with equal and unread tensors; temporary tensors are measured apart."""
    skip_without(Runtime.LITERT)
    models = [HEADS[name][0] for name in LITERT] + [random_model(seed) for seed in range(50, 70)]
    models += [random_splits(seed, 20) for seed in range(8)]
    paths = [tmp_path / f"{k}.tflite" for k in range(len(models))]
    for path, data in zip(paths, models, strict=True):
        path.write_bytes(data)
    files = [TfliteFile(data) for data in models]
    expected = [LitertPlanner(file, litert_temporaries(file)[0]).arena() for file in files]
    assert [each.get("bytes") for each in run_models(Runtime.LITERT, paths, tmp_path)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [Runtime.TFLM, Runtime.LITERT])
@pytest.mark.parametrize("seed", range(200, 206))
def test_deployed_random_models_in_tflite_runtimes(runtime: Runtime, seed: int, tmp_path: Path) -> None:
    """Outputs in place of inputs are equal bit by bit, memory is the certified one, and no model gets worse."""
    skip_without(runtime)
    old, new = tmp_path / "old.tflite", tmp_path / "new.tflite"
    old.write_bytes(random_model(seed, 14))
    found = deploy(TfliteFile(old.read_bytes()), runtime, Search(time_limit=10))
    write_model(found.file, new, old)
    check = check_models(old, new, runtime)
    assert (check.before, check.after) == (found.before, found.after)
    assert found.bound <= found.after <= found.before


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [Runtime.TFLM, Runtime.LITERT])
@pytest.mark.parametrize("data", [with_branches(), with_loop(), with_resource(4)], ids=["if", "while", "call once"])
def test_deployed_models_with_subgraphs(runtime: Runtime, data: bytes, tmp_path: Path) -> None:
    skip_without(runtime)
    old, new = tmp_path / "old.tflite", tmp_path / "new.tflite"
    old.write_bytes(data)
    found = deploy(TfliteFile(data), runtime, Search(time_limit=10))
    write_model(found.file, new, old)
    check = check_models(old, new, runtime)
    assert (check.before, check.after) == (found.before, found.after)


@pytest.mark.slow
def test_measured_kernel_scratch() -> None:
    skip_without(Runtime.TFLM)
    assert kernel_scratch(TfliteFile(sum_of_three()))[0] == {2: 32}
    assert kernel_scratch(TfliteFile(mean()))[0] == {0: 32}
    for file in (TfliteFile(sum_of_three()), TfliteFile(mean())):
        assert kernel_scratch(file)[0] == kernel_scratch(file, measure=False)[0]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [Runtime.TFLM, Runtime.LITERT])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_deployed_networks_in_tflite_runtimes(runtime: Runtime, seed: int, tmp_path: Path) -> None:
    skip_without(runtime)
    old, new = tmp_path / "old.tflite", tmp_path / "new.tflite"
    old.write_bytes(irregular(seed))
    found = deploy(TfliteFile(old.read_bytes()), runtime, Search(time_limit=20))
    write_model(found.file, new, old)
    check = check_models(old, new, runtime)
    assert (check.before, check.after) == (found.before, found.after)
    assert found.proved


@pytest.mark.slow
def test_random_models_and_schedules_in_tflm(tmp_path: Path) -> None:
    """Heads and outputs of 20 models as given, and by random schedules with recomputation."""
    import numpy as np

    skip_without(Runtime.TFLM)
    paths, heads = [], []
    for seed in range(20):
        file = TfliteFile(random_model(seed))
        made = deployed(file, random_schedule(file.graph, seed))
        assert isinstance(made, TfliteFile)
        for k, each in enumerate((file, made)):
            paths.append(tmp_path / f"{seed}.{k}.tflite")
            paths[-1].write_bytes(each.data)
            heads.append(runtime_head(each))
    assert [each.get("bytes") for each in run_models(Runtime.TFLM, paths, tmp_path)] == heads
    for k in range(0, 40, 2):
        with np.load(tmp_path / f"{k}.npz") as old, np.load(tmp_path / f"{k + 1}.npz") as new:
            assert [old[name].tobytes() for name in old.files] == [new[name].tobytes() for name in new.files]


@pytest.mark.slow
def test_onnxruntime_requests_certified_bytes(tmp_path: Path) -> None:
    skip_without(Runtime.ONNXRUNTIME)
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    old.write_bytes(branches())
    found = deploy(OnnxFile(branches()), search=Search(time_limit=20))
    write_model(found.file, new, old)
    check = check_models(old, new, Runtime.ONNXRUNTIME)
    assert (check.before, check.after) == (found.before, found.after) == (790_528, 274_432)


@pytest.mark.slow
def test_onnxruntime_writes_in_place(tmp_path: Path) -> None:
    skip_without(Runtime.ONNXRUNTIME)
    models = in_place_models()
    paths = [tmp_path / f"{k}.onnx" for k in range(len(models))]
    for path, (data, _) in zip(paths, models.values(), strict=True):
        path.write_bytes(data)
    reports = run_models(Runtime.ONNXRUNTIME, paths, tmp_path)
    assert {name: report.get("bytes") for name, report in zip(models, reports, strict=True)} == {
        name: most for name, (_, most) in models.items()
    }


def test_different_outputs_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from remat.deploy import comparison

    def run(runtime: Runtime, models: list[Path], folder: Path, dims: object) -> list[dict[str, object]]:
        for k in range(2):
            np.savez(folder / f"{k}.npz", np.zeros(2), np.full(3, k))
        return [{"bytes": 64}, {"bytes": 32} if models[1].name == "b" else {"error": "no such op"}]

    monkeypatch.setattr(comparison, "run_models", run)
    with refused("verification.other-output", culprit="output 1"):
        check_models("a", "b", Runtime.LITERT)
    with refused("verification.not-run", culprit="no such op"):
        check_models("a", "c", Runtime.LITERT)


def test_missing_runtime_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("remat.unavailable", culprit="tflite-micro"):
        check_models(tmp_path / "a", tmp_path / "b", Runtime.TFLM)
