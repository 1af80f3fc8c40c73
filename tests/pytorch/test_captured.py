"""Captured steps, public names and versions of remat.torch."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402

import remat.torch  # noqa: E402
from remat.torch.capture import capture  # noqa: E402
from remat.torch.captured import Captured  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent


class Square(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).view(4)


@pytest.fixture(scope="module")
def square() -> Captured:
    return capture(Square(), (torch.ones(2, 2),), mode="inference", name="square")


def test_ops_and_nodes_map_to_each_other(square: Captured) -> None:
    (y,), view = square.nodes, square.results[0].node
    assert square.node_of("mul") is y
    assert (square.op_of(y), square.op_of(view)) == ("mul", None)
    assert square.inputs_of("input") == square.inputs
    assert square.results_of("gradient") == ()
    with refused("capture.name", culprit="elsewhere"):
        square.node_of("elsewhere")


def test_public_names() -> None:
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


def test_tested_versions_equal_the_extra() -> None:
    from packaging.requirements import Requirement

    from remat.torch.versions import TESTED

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = map(Requirement, project["optional-dependencies"]["torch"])
    assert (extra.name, extra.specifier) == ("torch", TESTED)
