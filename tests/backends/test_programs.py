"""Configurations can neither run programs of their folder nor let solvers write files."""

import os
from pathlib import Path

import pytest
from refusals import refused

from remat.backends.minizinc import MiniZinc, driver
from remat.backends.programs import check_solver_options, check_trusted, find_program
from remat.backends.pyomo import Pyomo
from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph

EVIL = ("evil.sh", "ipopt", "glpsol", "cbc", "minizinc", "gams", "cplex")


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Make a current folder that is also on PATH, with programs that write a file; require that none runs."""
    mark = tmp_path / "mark"
    folder = tmp_path / "here"
    folder.mkdir()
    for name in EVIL:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        program.chmod(0o755)
    write_graph(unit_chain(6), folder / "g.json")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", os.pathsep.join([".", "", str(folder), os.environ["PATH"]]))
    driver._solvers.cache_clear()
    driver.version.cache_clear()
    yield folder
    assert not mark.exists(), mark.read_text()


@pytest.mark.parametrize("name", [*EVIL, "asl", "py", "_mock_cbc", "cbc:evil.sh"])
def test_programs_of_the_current_folder_never_run(hostile, name):
    found = find_program(name)
    assert found is None or hostile not in Path(found).absolute().parents
    Pyomo(name).ready()
    MiniZinc().ready()
    if name != "cbc":
        assert not Pyomo(name).ready().ready


@pytest.mark.parametrize("backend", ["pyomo:evil.sh", "pyomo:./evil.sh", "pyomo:ipopt", "minizinc:./x.msc"])
def test_configuration_cannot_name_a_program(hostile, backend, capsys):
    (hostile / "run.toml").write_text(
        f'[problem]\ngraph = "g.json"\nbudget = "70%"\n[solve]\nmethod = "checkmate"\nbackend = "{backend}"\n'
    )
    assert main(["solve", "--config", "run.toml", "--quiet", "--time-limit", "20"]) == 2
    assert "evil" in (error := capsys.readouterr().err) or backend.partition(":")[2] in error
    assert ("only the command line may" in error) == ("/" in backend)


def test_path_of_a_solver_program_is_accepted(tmp_path):
    """Only programs of known solvers are accepted."""
    assert "is no program of a solver" in Pyomo(str(tmp_path / "cbc")).ready().reason
    if (real := find_program("cbc")) is None:
        cbcbox = pytest.importorskip("cbcbox")
        real = str(cbcbox.cbc_bin_path())
    assert Pyomo(real).ready().ready
    assert Pyomo(real).chosen()[0] == "cbc"


REFUSED = [
    ("highs", "solution_file", "x"), ("highs", "log_file", "x"), ("highs", "write_model_file", "x"),
    ("highs", "write_model_to_file", True), ("pyomo:gurobi", "LogFile", "x"), ("pyomo:gurobi", "ResultFile", "x"),
    ("pyomo:gurobi", "SolFiles", "x"), ("pyomo:gurobi", "Record", 1), ("pyomo:cbc", "solution", "x"),
    ("pyomo:cbc", "solu", "x"), ("pyomo:cbc", "saveModel", "x"), ("pyomo:cbc", "maxNodes", "1 -solu x\n"),
    ("pyomo:cbc", "threads\nwrite x", 1), ("pyomo:cplex", "logfile", "x"), ("pyomo:glpk", "wlp", "x"),
    ("pyomo:glpk", "output", "x"), ("pyomo:scip", "visual/vbcfilename", "x"), ("minizinc:highs", "writeModel", "x"),
    ("minizinc:cplex", "cplex-dll", "x"), ("minizinc:gecode", "anything", "../x"), ("cp-sat", "name", "/etc/x"),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "name", "value"), REFUSED)
def test_options_that_name_files_are_refused(backend, name, value):
    with refused("backend.option-names-file"):
        check_solver_options(backend, {name: value}, "run.toml: ")


def test_options_without_files_are_accepted():
    for backend, options in {
        "highs": {"mip_heuristic_effort": 0.1, "output_flag": True, "presolve": "off", "solver": "ipm",
                  "log_to_console": 1, "write_model_to_file": False},
        "cp-sat": {"linearization_level": 2, "ignore_subsolvers": ["core"], "log_search_progress": True},
        "pyomo:cbc": {"maxNodes": 100, "cuts": "off", "preprocess": "sos", "log": 3},
        "pyomo:gurobi": {"MIPFocus": 1, "LogToConsole": 0, "OutputFlag": 0},
        "minizinc:gecode": {"restart": "luby", "decay": 0.9},
    }.items():  # fmt: skip
        check_solver_options(backend, options, "")
    for backend in ("cp-sat", "pyomo:cbc", "minizinc:com.google.ortools.sat", "pyomo"):
        check_trusted(backend, "")


def test_flag_allows_options_that_name_files(hostile, capsys):
    (hostile / "run.toml").write_text(
        '[problem]\ngraph = "g.json"\nbudget = "70%"\n[solve]\nmethod = "checkmate"\nbackend = "highs"\n'
        '[backends.highs]\nlog_file = "highs.log"\n'
    )
    line = ["solve", "--config", "run.toml", "--quiet", "--time-limit", "20"]
    assert main(line) == 2
    assert "run.toml: option 'log_file' of backend 'highs' may name a file" in capsys.readouterr().err
    assert not (hostile / "highs.log").exists()
    assert main([*line, "--allow-solver-files"]) == 0
