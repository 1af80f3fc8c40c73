"""`make frameworks`: PyTorch for CPUs where there is one, one line where there is none, failure in CI if it breaks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Not for the make inside: what a `make test` around this hands on makes it say which folder it enters.
OF_MAKE = {"REMAT_CI", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
NOT_FOUND = "ERROR: No matching distribution found for torch==0"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with this Makefile, and an environment whose python only pretends."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / ".ready").touch()
    return tmp_path


def frameworks(checkout: Path, *, there: bool = False, pip: str = "", ci: bool = False) -> tuple[int, str, int]:
    """Exit code and text of `make frameworks`, and how often pip was called so far; pip says `pip` and then fails."""
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(f"""#!/bin/sh
case "$*" in
  *find_spec*) exit {int(not there)} ;;
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


def test_pytorch_is_installed_where_it_is_not_there(checkout: Path) -> None:
    assert frameworks(checkout, there=True, pip="broken", ci=True) == (0, "", 0)
    assert frameworks(checkout, ci=True) == (0, "installing torch==0\n", 1)


@pytest.mark.parametrize("ci", [False, True])
def test_nothing_to_be_had_is_said_in_one_line_and_not_searched_again(checkout: Path, ci: bool) -> None:
    code, text, calls = frameworks(checkout, pip=NOT_FOUND, ci=ci)
    assert (code, calls, len(text.splitlines())) == (0, 1, 2)
    code, text, calls = frameworks(checkout, pip=NOT_FOUND, ci=ci)
    assert (code, calls, len(text.splitlines())) == (0, 1, 1)
    assert "tests will be skipped" in text


def test_a_failed_installation_fails_in_ci_only(checkout: Path) -> None:
    code, text, _ = frameworks(checkout, pip="No space left on device")
    assert code == 0
    assert "tests will be skipped" in text
    code, text, calls = frameworks(checkout, pip="No space left on device", ci=True)
    assert code != 0
    assert "No space left" in text
    assert calls == 2
