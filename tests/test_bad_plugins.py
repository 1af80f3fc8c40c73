"""Broken plug-ins: listed with their faults, without effect on others."""

import json

import pytest
from shell import shell

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

class RequiresArguments(Raises):
    def __init__(self, key, secret):
        pass
    @classmethod
    def availability(cls):
        return "fine"

class RequiresOptions(Heuristic):
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
demands = bad_kinds:RequiresArguments
exits = bad_exit:Solver
[remat.heuristics]
hungry = bad_kinds:RequiresOptions
exits = bad_exit:Heuristic
[remat.formulations]
exits = bad_exit:Formulation
[remat.graph_formats]
a-exits = bad_exit:FORMAT
a-odd = bad_kinds:Raises
"""
COMMANDS = [
    "backends --json",
    "generate unit-chain -n 1 -o g.json",
    "generate unit-chain -n 6 -o h.json",
    "validate g.json plain.txt",
    "config --schema",
    "show odd.json",
    "solve h.json --budget 70% -m exits",
    "solve h.json --budget 70% -m hungry",
    "solve h.json --budget 70% -m checkmate --backend demands",
    "solve h.json --budget 70% -m checkmate --backend raises",
    "solve g.json --budget 100% --time-limit 5",
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run all commands with the plug-ins installed; return their output and exit codes."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    about = folder / "bad-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    (folder / "plain.txt").write_text("f0\nloss\ng0\n")
    (folder / "odd.json").write_text("[1]")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        return [shell(*line.split()) for line in COMMANDS]


def test_plug_ins_are_listed_with_their_faults(ran):
    facts = json.loads(ran[0].out)
    state = {name: about["reason"] for name, about in facts["backends"].items() if about["state"] == "broken"}
    assert set(state) == {"raises", "demands", "exits"}
    assert "OSError: no such library" in state["raises"]
    assert "SystemExit: no licence" in state["exits"]
    assert facts["heuristics"]["hungry"]["about"].startswith(
        "broken: heuristic 'hungry' (bad_kinds:RequiresOptions) cannot be"
    )
    assert "SystemExit: no licence" in facts["formulations"]["exits"]["about"]
    assert "SystemExit: no licence" in facts["formats"]["a-exits (graphs)"]["about"]
    assert "is not a GraphFormat" in facts["formats"]["a-odd (graphs)"]["about"]
    assert facts["formats"]["dot (graphs)"]["about"]


def test_other_commands_work_and_errors_name_the_plug_in(ran):
    assert [each.code for each in ran] == [0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 0], ran
    odd, exits, hungry, demands, raises = (each.err for each in ran if each.code)
    assert "odd.json" in odd and "a-odd" in odd
    assert "heuristic 'exits' (bad_exit:Heuristic) cannot be loaded: SystemExit" in exits
    assert "heuristic 'hungry' cannot be made: TypeError" in hungry
    assert "backend 'demands' (bad_kinds:RequiresArguments) cannot be made: TypeError" in demands
    assert "'raises'" in raises and "OSError: no such library" in raises
    assert all(error.count("\n") == 1 for error in (odd, exits, hungry, demands, raises))
