"""What a captured step is made of, and the models that the tests of remat.torch share."""

import importlib.metadata
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402

import remat.torch  # noqa: E402
from remat.graphs import GraphBuilder  # noqa: E402
from remat.torch.captured import BEGIN_BACKWARD, Captured, Input, ResultValue  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent


def square() -> Captured:
    """``y = x * x; return y.view(...)``, by hand, forward only."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.mul.Tensor, (x, x), name="mul")
    view = graph.call_function(torch.ops.aten.view.default, (y, [4]))
    graph.output((view,))
    builder = GraphBuilder("square", constant_memory=16)
    builder.op(y.name, size=16, phase="forward")
    builder.output(y.name)
    return Captured(
        graph=builder.build(),
        module=torch.fx.GraphModule(torch.nn.Module(), graph),
        nodes=(y,),
        homes={x: (None,), y: (y.name,), view: (y.name,)},
        inputs=(Input(x, "input", "0", 16),),
        results=(ResultValue(view, "output", "0"),),
        route="make_fx",
        mode="inference",
    )


def test_ops_and_nodes_find_each_other() -> None:
    captured = square()
    (y,), view = captured.nodes, captured.results[0].node
    assert captured.node_of("mul") is y
    assert captured.writer("mul") is y
    assert captured.op_of(y) == "mul"
    assert captured.op_of(view) is None
    assert captured.inputs_of("input") == captured.inputs
    assert captured.results_of("gradient") == ()
    for wrong in (captured.node_of, captured.writer):
        with refused("capture.name", culprit="elsewhere"):
            wrong("elsewhere")


@pytest.mark.parametrize(
    "change", [{"nodes": ()}, {"nodes": (None,)}, {"inputs": ()}, {"homes": {None: ("z",)}}], ids=str
)
def test_parts_that_do_not_fit_are_refused(change: dict) -> None:
    with refused("capture.parts"):
        replace(square(), **change)


def test_kinds_are_known() -> None:
    assert BEGIN_BACKWARD == "begin_backward"
    with refused("capture.kind", culprit="weight"):
        Input(None, "weight", "w", 4)
    with refused("capture.kind", culprit="loss"):
        ResultValue(None, "loss", "l")


def test_public_names_are_there_and_others_are_not() -> None:
    assert {name: getattr(remat.torch, name) for name in remat.torch.__all__}
    assert set(remat.torch.__all__) <= set(dir(remat.torch))
    with pytest.raises(AttributeError, match="'nothing'"):
        remat.torch.nothing  # noqa: B018


@pytest.mark.parametrize(("installed", "kind"), [("2.12.1", "capture.torch-version"), (None, "capture.not-installed")])
def test_other_versions_of_torch_are_refused(installed: str | None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("remat.torch.versions.version", version)
    monkeypatch.delitem(vars(remat.torch), "Captured", raising=False)
    with refused(kind):
        remat.torch.Captured  # noqa: B018


def test_the_tested_versions_are_those_of_the_extra() -> None:
    from packaging.requirements import Requirement

    from remat.torch.versions import TESTED

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = map(Requirement, project["optional-dependencies"]["torch"])
    assert (extra.name, extra.specifier) == ("torch", TESTED)
