"""Models in files, solved by other programs, and their solutions as schedules."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import highspy
import pytest
from helpers import accepted, few, options
from ortools.sat.python import cp_model_helper
from refusals import refused

from remat import GraphBuilder, Problem, solve
from remat.formulations.base import Formulation
from remat.graphs.families import in_tree, unit_chain
from remat.registry import load
from remat.solving.exporting import ModelFile, written_settings

PROBLEMS = {
    "checkmate": Problem(unit_chain(3), 4),
    "stages": Problem(unit_chain(3), 4),
    "retention-intervals": Problem(unit_chain(3), 4),
    "order-intervals": Problem(in_tree(2), order="free", objective="least-peak", max_computes=1),
    "order-positions": Problem(in_tree(2), order="free", objective="least-peak", max_computes=1),
    "linear-order": Problem(in_tree(2), order="free", objective="least-peak", max_computes=1),
}


def highs(model, solution):
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(model)) == highspy.HighsStatus.kOk
    solver.run()
    solver.writeSolution(str(solution), 0)


def cbc(model, solution):
    program = shutil.which("cbc", path=Path(sys.executable).parent) or shutil.which("cbc")
    if program is None:
        pytest.skip("no cbc")
    subprocess.run([program, model, "-solve", "-solution", solution], check=True, stdout=subprocess.DEVNULL)


def cp_sat(model, solution):
    proto = cp_model_helper.CpModelProto()
    assert proto.parse_text_format(model.read_text())
    solution.write_text(str(cp_model_helper.SolveWrapper().solve(proto)))


def minizinc(model, solution):
    command = ["minizinc", "--solver", "gecode", "-f", "--output-mode", "json", model, model.with_suffix(".dzn")]
    solution.write_text(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


PROGRAMS = {".lp": highs, ".mps": cbc, ".pbtxt": cp_sat, ".mzn": minizinc}


@pytest.mark.parametrize(("method", "suffix"), few(itertools.product(PROBLEMS, PROGRAMS), 7))
def test_solution_of_another_program_becomes_an_optimal_schedule(method, suffix, tmp_path):
    if suffix == ".mzn" and shutil.which("minizinc") is None:
        pytest.skip("no minizinc")
    problem, path = PROBLEMS[method], tmp_path / f"m{suffix}"
    file = ModelFile(problem, method, suffix)
    file.write(path)
    PROGRAMS[suffix](path, tmp_path / "solution")
    certificate = accepted(problem, file.read(tmp_path / "solution"))
    best = solve(problem, method, options=options(60, relative_gap=0)).certificate
    assert problem.objective.rank(certificate)[0] == problem.objective.rank(best)[0]


def test_binary_file_is_the_text_file(tmp_path):
    from ortools.sat import cp_model_pb2

    for name in ("m.pb", "m.pbtxt"):
        ModelFile(PROBLEMS["stages"], "stages", Path(name).suffix).write(tmp_path / name)
    binary = cp_model_pb2.CpModelProto.FromString((tmp_path / "m.pb").read_bytes())
    text = cp_model_helper.CpModelProto()
    assert text.parse_text_format((tmp_path / "m.pbtxt").read_text())
    assert [each.name for each in binary.variables] == [each.name for each in text.variables]
    assert len(binary.constraints) == len(text.constraints) > 0


@pytest.mark.parametrize("method", PROBLEMS)
def test_every_block_has_a_label_per_variable(method):
    made = load("formulations", method)(PROBLEMS[method])
    assert isinstance(made, Formulation)
    sizes = {block.name: block.index.size for block in made.build().blocks}
    for block, axes in made.labels().items():
        assert {len(axis) for axis in axes.values()} == {sizes[block]}, block


def test_hostile_names_stay_apart_and_are_explained(tmp_path):
    names = ["a b", "a/b", 'a"b', "x" * 300, "x" * 299 + "y", "end st", "π"]
    b = GraphBuilder("hostile")
    for before, name in zip([None, *names], names, strict=False):
        b.op(name, inputs=[] if before is None else [before], size=3)
    file = ModelFile(Problem(b.build()), "checkmate", ".lp")
    file.write(tmp_path / "m.lp")
    highs(tmp_path / "m.lp", tmp_path / "m.sol")
    accepted(file.problem, file.read(tmp_path / "m.sol"))
    told = json.loads((tmp_path / "m.names.json").read_text())["names"]
    runs = [each["op"] for each in told.values() if each["block"] == "R" and each["stage"] == len(names) - 1]
    assert runs == names
    assert all(name.isascii() and len(name) < 255 and not set(name) & set(' "/\n') for name in told)


def test_refusals(tmp_path):
    problem = PROBLEMS["stages"]
    with refused("problem.no-model", culprit="greedy"):
        ModelFile(problem, "greedy", ".lp")
    with refused("format.suffix", culprit=".txt"):
        ModelFile(problem, "stages", ".txt")
    for suffix, text in ((".lp", "R(99,nothing) 1\n"), (".mzn", "=====UNKNOWN====="), (".pbtxt", "solution: 1\n")):
        path = tmp_path / "solution"
        path.write_text(text)
        with refused("format.solution", culprit=str(path)):
            ModelFile(problem, "stages", suffix).read(path)
    path.write_text('{"R": "yes"}\n----------\n')
    with refused("format.solution", culprit=str(path)):
        ModelFile(problem, "stages", ".mzn").read(path)
    path.write_text("R(6,op1) many\n")
    with refused("format.solution", culprit=str(path)):
        ModelFile(problem, "checkmate", ".lp").read(path)
    names = tmp_path / "model.names.json"
    for text in ("[]", '{"settings": {}}', '{"format": "remat-model-names", "settings": 1}'):
        names.write_text(text)
        with refused("format.names", culprit=str(names)):
            written_settings(tmp_path / "model.lp")
