"""Captured steps, public names and versions of remat.torch."""

import ast
import importlib.metadata
import re
import tomllib
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402

import remat.torch  # noqa: E402
from remat.errors import UntestedTorchWarning  # noqa: E402
from remat.torch import private  # noqa: E402
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


def installed(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make another version of torch, or none, the installed one."""

    def found(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr("remat.torch.versions.version", found)
    monkeypatch.delitem(vars(remat.torch), "Captured", raising=False)


@pytest.mark.parametrize(("version", "kind"), [("2.12.1", "capture.torch-version"), (None, "capture.not-installed")])
def test_older_versions_of_torch_are_refused(version: str | None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(version, monkeypatch)
    with refused(kind):
        remat.torch.Captured  # noqa: B018


def test_newer_versions_of_torch_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested ones pass silently; the extra has the same floor and no bound above."""
    from packaging.requirements import Requirement

    from remat.torch.versions import FIRST, LAST

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in (f"{FIRST}.0+cpu", f"{LAST}.1", f"{FIRST}.0.dev1"):
            installed(version, monkeypatch)
            assert remat.torch.Captured
    installed(f"{LAST.major}.{LAST.minor + 1}.0.dev20261101", monkeypatch)
    with pytest.warns(UntestedTorchWarning, match=f"newer than the versions {FIRST} to {LAST}"):
        assert remat.torch.Captured
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = map(Requirement, project["optional-dependencies"]["torch"])
    assert (extra.name, str(extra.specifier)) == ("torch", f">={FIRST}")


def test_torch_has_the_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are in one module; without the attribute of autograd, a gradient would be held longer, silently."""
    assert all(getattr(private, name) is not None for name in private.PLACES)
    assert hasattr(torch.autograd.Function, "boxed_grads_call")
    monkeypatch.setitem(private.PLACES, "pytree", "torch.utils._trees")
    with refused("capture.torch-private", culprit="torch.utils._trees", hide={torch.__version__: "<version>"}):
        private.pytree  # noqa: B018
    for path in (ROOT / "remat").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"(?m)^\s*(import|from) torch\b", text) and path.name != "private.py":
            used = [name for node in ast.walk(ast.parse(text)) for name in dotted(node)]
            assert not [name for name in used if re.match(r"torch\b.*\._[a-zA-Z]", name)], path


def dotted(node: ast.AST) -> list[str]:
    """Return the names that an import or a use of an attribute refers to."""
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)] if node.attr.startswith("_") else []  # of private ones, also those within others
    origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [origin + each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
