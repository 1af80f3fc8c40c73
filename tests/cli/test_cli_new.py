"""``remat new``: packages with a part of one's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shell import ok

from remat.cli.new import Kind, files

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", list(Kind))
def test_files_have_the_name(kind: Kind) -> None:
    written = files(kind, "my-own")
    assert set(written) == {"pyproject.toml", "README.md", f"remat_my_own/{kind}.py", "remat_my_own/__init__.py",
                            "docs/my-own.md", "tests/test_kit.py", "tests/test_page.py"}  # fmt: skip
    for path, text in written.items():
        assert "my-own" in text, path
        assert not {"LiveInSlots", "live-in-slots", "RandomOrders", "ScipyMilp", "EDGE_LIST"} & set(text.split()), path
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize("kind", [Kind.FORMULATION, Kind.HEURISTIC, Kind.FORMAT])
def test_pages_show_the_templates(kind: Kind) -> None:
    template = (ROOT / f"remat/cli/templates/{kind}.txt").read_text(encoding="utf-8")
    assert template in (ROOT / f"docs/extend/{kind}.md").read_text(encoding="utf-8")


def test_backend_is_that_of_the_example() -> None:
    template = (ROOT / "remat/cli/templates/backend.txt").read_text(encoding="utf-8")
    assert template == (ROOT / "examples/plugin/remat_example_plugin/scipy_milp.py").read_text(encoding="utf-8")


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ok("new heuristic quick-one")
    assert Path("remat-quick-one/remat_quick_one/heuristic.py").exists()
    assert "exists" in ok("new heuristic quick-one", code=2).err
    assert "small letters" in ok("new heuristic Quick_One", code=2).err
    assert "another formulation" in ok("new formulation checkmate", code=2).err


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(Kind))
def test_package_passes_the_kit(kind: Kind, tmp_path: Path) -> None:
    ok(f"new {kind} my-own -o {tmp_path / 'package'}")
    source, target = tmp_path / "package", tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)], check=True)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=source, env={**os.environ, "PYTHONPATH": str(target)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
