"""Plug-ins that do everything wrong: listed with their faults, and in nobody's way."""

import json
import os
import subprocess
import sys

import pytest

MODULES = {
    "bad_exit": "import sys\nsys.exit('no licence')\n",
    "bad_kinds": """
from remat.backends.base import Backend
from remat.graphs import GraphFormat
from remat.heuristics import Heuristic

class Raises(Backend):
    name = "raises"
    native = frozenset()
    @classmethod
    def availability(cls):
        raise OSError("no such library")
    def solve(self, *arguments):
        pass

class Demands(Raises):
    def __init__(self, key, secret):
        pass
    @classmethod
    def availability(cls):
        return "fine"

class Hungry(Heuristic):
    name = "hungry"
    def __init__(self, must, have):
        pass
    def run(self, problem, run):
        pass
""",
}
ENTRIES = """
[remat.backends]
raises = bad_kinds:Raises
demands = bad_kinds:Demands
exits = bad_exit:Solver
[remat.heuristics]
hungry = bad_kinds:Hungry
exits = bad_exit:Heuristic
[remat.formulations]
exits = bad_exit:Formulation
[remat.graph_formats]
a-exits = bad_exit:FORMAT
a-odd = bad_kinds:Raises
"""
SHELL = """
import sys
from remat.cli import main
for line in sys.stdin:
    print(f"# {main(line.split())}", flush=True)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What command lines print and their exit codes, in one process that sees the plug-ins."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    about = folder / "bad-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    (folder / "plain.txt").write_text("f0\nloss\ng0\n")
    (folder / "odd.json").write_text("[1]")
    lines = [
        "backends --json",
        "generate unit-chain -n 1 -o g.json",
        "generate unit-chain -n 6 -o h.json",
        "validate g.json plain.txt",
        "config --schema",
        "show odd.json",
        "solve h.json --budget 70% -f exits",
        "solve h.json --budget 70% -f hungry",
        "solve h.json --budget 70% -f checkmate --backend demands",
        "solve h.json --budget 70% -f checkmate --backend raises",
        "solve g.json --budget 100% --time-limit 5",
    ]
    return subprocess.run(
        [sys.executable, "-c", SHELL], input="\n".join(lines), capture_output=True, text=True, cwd=folder, check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


def test_each_is_listed_with_its_fault(printed):
    facts = json.loads(printed.stdout.partition("# ")[0])
    state = {name: about["reason"] for name, about in facts["backends"].items() if about["state"] == "broken"}
    assert set(state) == {"raises", "demands", "exits"}
    assert "OSError: no such library" in state["raises"]
    assert "SystemExit: no licence" in state["exits"]
    assert facts["heuristics"]["hungry"]["about"].startswith("broken: heuristic 'hungry' (bad_kinds:Hungry) cannot be")
    assert "SystemExit: no licence" in facts["formulations"]["exits"]["about"]
    assert "SystemExit: no licence" in facts["formats"]["a-exits (graphs)"]["about"]
    assert "is not a GraphFormat" in facts["formats"]["a-odd (graphs)"]["about"]
    assert facts["formats"]["dot (graphs)"]["about"]


def test_nothing_else_breaks_and_names_give_clear_errors(printed):
    codes = [int(line[2:]) for line in printed.stdout.splitlines() if line.startswith("# ") and line[2:].isdigit()]
    assert codes == [0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 0], printed.stdout[-2000:] + printed.stderr
    assert "Traceback" not in printed.stderr
    errors = printed.stderr.splitlines()
    assert "odd.json" in errors[0] and "a-odd" in errors[0]
    assert "heuristic 'exits' (bad_exit:Heuristic) cannot be loaded: SystemExit" in errors[1]
    assert "heuristic 'hungry' cannot be made: TypeError" in errors[2]
    assert "backend 'demands' (bad_kinds:Demands) cannot be made: TypeError" in errors[3]
    assert "'raises'" in errors[4] and "OSError: no such library" in errors[4]
