"""`make frameworks`: installs PyTorch for CPUs if available, otherwise prints a line; errors fail only in CI."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Variables hidden from the inner make: with those of `make test` it prints the folders it enters.
OF_MAKE = {"REMAT_CI", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
NOT_FOUND = "ERROR: No matching distribution found for torch==0"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with this Makefile and an environment with a fake python."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / ".ready").touch()
    return tmp_path


def frameworks(checkout: Path, *, installed: bool = False, pip: str = "", ci: bool = False) -> tuple[int, str, int]:
    """Run `make frameworks` with a pip that fails with text `pip`; return exit code, output and number of pip calls."""
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(f"""#!/bin/sh
case "$*" in
  *find_spec*) exit {int(not installed)} ;;
  *"pip install"*) echo call >> calls; echo "{pip}"; exit {int(bool(pip))} ;;
esac
""")
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    run = subprocess.run(
        ["make", "frameworks", "TORCH=torch==0"], cwd=checkout, capture_output=True, text=True, check=False,
        env=environment | ({"REMAT_CI": "1"} if ci else {}),
    )  # fmt: skip
    calls = checkout / "calls"
    return run.returncode, run.stdout + run.stderr, calls.read_text().count("call") if calls.exists() else 0


def test_pytorch_is_installed_if_missing(checkout: Path) -> None:
    assert frameworks(checkout, installed=True, pip="broken", ci=True) == (0, "", 0)
    assert frameworks(checkout, ci=True) == (0, "installing torch==0\n", 1)


@pytest.mark.parametrize("ci", [False, True])
def test_missing_distribution_is_reported_once(checkout: Path, ci: bool) -> None:
    code, text, calls = frameworks(checkout, pip=NOT_FOUND, ci=ci)
    assert (code, calls, len(text.splitlines())) == (0, 1, 2)
    code, text, calls = frameworks(checkout, pip=NOT_FOUND, ci=ci)
    assert (code, calls, len(text.splitlines())) == (0, 1, 1)
    assert "tests will be skipped" in text


def test_failed_installation_fails_in_ci_only(checkout: Path) -> None:
    code, text, _ = frameworks(checkout, pip="No space left on device")
    assert code == 0
    assert "tests will be skipped" in text
    code, text, calls = frameworks(checkout, pip="No space left on device", ci=True)
    assert code != 0
    assert "No space left" in text
    assert calls == 2
