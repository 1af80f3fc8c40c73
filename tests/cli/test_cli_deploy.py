"""``remat deploy``, and models as outputs of ``order``, ``solve`` and ``allocate``."""

from pathlib import Path

import numpy as np
import pytest
from refusals import check_text
from shell import facts, ok

pytest.importorskip("tflite")
pytest.importorskip("onnx")

from deploy_models import two_pools, with_view
from onnx_models import model, node, value

from remat.deploy.arena import check_plan, runtime_head
from remat.deploy.tflite_file import TfliteFile
from remat.graphs.io import read_graph
from remat.schedule import Schedule, write_schedule


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with ``m.tflite`` and ``m.onnx``, whose orders compute the wide ops first."""
    monkeypatch.chdir(tmp_path)
    Path("m.tflite").write_bytes(two_pools())
    nodes = [node("Sin", ["x"], [f"a{k}"], name=f"a{k}") for k in range(2)]
    nodes += [node("GlobalMaxPool", [f"a{k}"], [f"p{k}"], name=f"p{k}") for k in range(2)]
    nodes.append(node("Add", ["p0", "p1"], ["y"], name="y"))
    Path("m.onnx").write_bytes(model(nodes, [value("x", (1, 2, 8, 8))], ["y"]))
    return tmp_path


def test_deploy_tflite_and_onnx(models: Path) -> None:
    found = facts("deploy m.tflite -o n.tflite --time-limit 20 -q")
    assert [found[key] for key in ("runtime", "before", "after", "bound", "proved")] == ["tflm", 6144, 4224, 4224, True]
    assert runtime_head(TfliteFile(Path("n.tflite").read_bytes())) == 4224
    shown = ok("deploy m.onnx -o n.onnx --time-limit 20 -q").out
    assert "proved least" in shown
    assert "execution_order=PRIORITY_BASED" in shown
    assert "could not be improved" in ok("deploy n.onnx -o o.onnx --time-limit 20 -q").out
    assert Path("o.onnx").read_bytes() == Path("n.onnx").read_bytes()
    check_text("shell.deploy-suffix", ok("deploy m.onnx -o n.tflite", code=2).err)
    check_text("shell.deploy-runtime", ok("deploy m.onnx -o o.onnx --runtime tflm", code=2).err)


def test_order_and_solve_write_models(models: Path) -> None:
    ok("order m.tflite -o n.tflite --time-limit 20 -q")
    made = TfliteFile(Path("n.tflite").read_bytes())
    assert (made.graph.reference_peak, runtime_head(made)) == (4224, 4224)
    ok("order m.onnx -o n.onnx --time-limit 20 -q")
    assert read_graph("n.onnx").reference_peak < read_graph("m.onnx").reference_peak
    steps = (
        "inputs",
        "RELU_0",
        "MAX_POOL_2D_2",
        "RELU_1",
        "MAX_POOL_2D_3",
        "RELU_0",
        "MAX_POOL_2D_2",
        "CONCATENATION_4",
    )
    write_schedule(Schedule.from_steps([("compute", name) for name in steps]), "s.json")
    ok("solve m.tflite -b 100% --order free --warm-start s.json -o o.tflite --time-limit 5 -q")
    assert runtime_head(TfliteFile(Path("o.tflite").read_bytes())) <= 6144
    for name in ("x.onnx", "x.tflite"):
        check_text("shell.model-suffix", ok(f"order vgg16 -o {name}", code=2).err)
    check_text("shell.model-suffix", ok("rewrite m.tflite -o x.onnx", code=2).err)
    check_text("shell.model-suffix", ok("solve m.onnx -b 100% -o x.tflite", code=2).err)


def test_plan_has_an_offset_for_each_tensor(models: Path) -> None:
    """Views have the offset of their base."""
    Path("v.tflite").write_bytes(with_view())
    ok("allocate v.tflite -o plan.bin --time-limit 5 -q")
    words = np.fromfile("plan.bin", dtype="<i4").tolist()
    assert words[:3] == [1, 1, 4]
    check_plan(TfliteFile(with_view()).with_plan(words[3:]), 512)
    ok("allocate v.tflite --check plan.bin -q")
    ok("convert v.tflite v.json")
    ok("allocate v.json -o again.bin --time-limit 5 -q")
    assert Path("again.bin").read_bytes() == Path("plan.bin").read_bytes()
    check_text("shell.no-tflite-file", ok("allocate vgg16 -o plan.bin", code=2).err)
