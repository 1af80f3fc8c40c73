"""Example plug-in: installed, found by its entry points, and checked by the conformance kit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shell import shell

PLUGIN = Path(__file__).resolve().parent.parent / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return the source, and an environment for child processes that has the plug-in."""
    source = shutil.copytree(
        PLUGIN, tmp_path_factory.mktemp("source") / "plugin"
    )  # keeps build files out of the checkout
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)], check=True)
    return source, {**os.environ, "PYTHONPATH": str(target)}


def test_shell_uses_the_plug_in(installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(installed[1]["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)
    printed = ""
    for line in (
        "backends",
        "generate layered -n 12 --seed 1 -o graph.json",
        "solve graph.json --budget 90% --method live-sets --backend scipy-milp --time-limit 60 -o schedule.json",
        "validate graph.json schedule.json --budget 90% --order fixed",
    ):
        ran = shell(*line.split())
        assert ran.code == 0, ran
        printed += ran.out
    assert re.search(r"^ +scipy-milp ", printed, re.MULTILINE)
    assert re.search(r"^ +live-sets ", printed, re.MULTILINE)
    assert re.search(r"^method +live-sets by scipy-milp", printed, re.MULTILINE)
    assert re.search(r"^verdict +valid$", printed, re.MULTILINE)


def test_formulation_is_one_small_file():
    assert len((PLUGIN / "remat_example_plugin" / "live_sets.py").read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.slow
def test_plug_in_passes_the_conformance_kit(installed):
    source, environment = installed
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(source / "tests")]
    run = subprocess.run(tests, cwd=source.parent, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    report = run.stdout
    assert " passed" in report
