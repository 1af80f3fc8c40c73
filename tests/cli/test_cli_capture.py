"""``remat capture``: graph file of a PyTorch module that a function makes."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from refusals import check_text
from shell import facts, ok

from remat import read_graph

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.rest = nn.Linear(width, width)

    def forward(self, x, scale=1):
        y = self.linear(x).relu() * scale
        return {"loss": y.sum(), "y": y}

def step():
    assert torch.ones(1).__class__.__name__ == "FakeTensor"
    return Net(100_000), (torch.ones(8, 100_000),), {"scale": 2}

def fails():
    raise ValueError("in two\\nlines")

def wrong():
    return Net(4)

number = 3
"""
#: Names in that source that cannot be captured.
WRONG = ("nothing", "number", "fails", "wrong")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "net_of_test_cli_capture"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.slow
def test_capture_writes_a_graph_and_prints_facts(module: str) -> None:
    """Fake tensors: weights of 80 GB take no memory."""
    found = facts(f"capture {module}:step --costs flops --loss loss -o step.json")
    graph = read_graph("step.json")
    assert found["digest"] == graph.digest
    assert found["route"] == "joint"
    assert graph.constant_memory == 4 * (2 * (100_000 * 100_000 + 100_000) + 8 * 100_000)
    assert graph.meta["modules"]["addmm"] == "linear"
    assert {op.phase for op in graph.ops} == {"forward", "loss", "backward"}


def test_capture_of_a_forward_pass_from_a_file_elsewhere(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / module).with_suffix(".py").rename(file := tmp_path / "net_elsewhere.py")
    (other := tmp_path / "other").mkdir()
    monkeypatch.chdir(other)
    shown = ok(f"capture {file}:step --costs flops --mode inference").out
    assert "route                 make_fx" in shown
    assert "not recomputable      0" in shown


@pytest.mark.parametrize("factory", ["net", "nowhere_at_all:step", *(f"{{}}:{name}" for name in WRONG)])
def test_invalid_factories(factory: str, module: str) -> None:
    ran = ok("capture", factory.format(module), code=2)
    assert ran.err.startswith("remat: error: ") and ran.err[:-1].isprintable()
    check_text("shell.capture", f"{factory} -> {ran.err[:-1]}", {module: "{}"})


@pytest.mark.slow
def test_fit_says_what_a_step_needs(module: str) -> None:
    ran = ok(f"fit {module}.py:step --loss loss --memory 1TiB --optimizer sgd -t 5 --json --no-sizes")
    found = json.loads(ran.out)
    weights = 4 * 2 * (100_000 * 100_000 + 100_000)
    assert (found["parameters"], found["gradients"], found["state"]) == (weights, weights // 2, 0)
    assert found["verdict"] == "as it is" and found["workspace"] is None
    ok(f"fit {module}:step --loss loss --memory 100GB --optimizer sgd -t 5 --no-sizes", code=1)


@pytest.mark.parametrize(
    "words", ["net --memory 1GiB", "{}:nothing", "{}:step --memory 50%", "{}:step --optimizer adamm -t 1"]
)
def test_invalid_estimates(words: str, module: str) -> None:
    ran = ok(f"fit {words.format(module)} --loss loss", code=2)
    assert ran.err.startswith("remat: error: ") and ran.err[:-1].isprintable()
    check_text("shell.capture", f"fit {words} -> {ran.err[:-1]}", {module: "{}"})
