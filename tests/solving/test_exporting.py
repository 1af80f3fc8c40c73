"""Models in files, solved by other programs, and their solutions as schedules."""

import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import highspy
import pytest
from helpers import accepted, few, options
from ortools.sat.python import cp_model_helper
from refusals import refused

from remat import Problem, solve
from remat.formulations.base import Formulation
from remat.formulations.policies import Policies, PoliciesOptions
from remat.graphs.families import in_tree, unit_chain
from remat.problem.regions import regions_of
from remat.registry import load
from remat.solving.exporting import ModelFile, written_settings

#: Names that some format, solver or shell reads otherwise.
HOSTILE = [
    "a b", "a/b", 'a"b', "it's", "-1", "3d", "x" * 300, "x" * 299 + "y", "end st", "π", "R(0,1)", "<= 7", "; |", "$&",
]  # fmt: skip


def hostile(graph):
    """Return a graph with other names of ops and tensors."""
    ops = dict(zip(graph.op_names, HOSTILE, strict=False))
    tensors = dict(zip(graph.tensor_names, reversed(HOSTILE), strict=False))
    return replace(
        graph,
        tensors=[replace(tensor, name=tensors[tensor.name]) for tensor in graph.tensors],
        ops=[
            replace(
                op, name=ops[op.name], inputs=tuple(tensors[t] for t in op.inputs),
                outputs=tuple(tensors[t] for t in op.outputs), cost=3 * op.cost,
            )
            for op in graph.ops
        ],
        inputs=tuple(tensors[t] for t in graph.inputs), outputs=tuple(tensors[t] for t in graph.outputs),
        order=tuple(ops[name] for name in graph.order),
    )  # fmt: skip


CHAIN, TREE = hostile(unit_chain(3)), hostile(in_tree(2))
REGIONS = regions_of(Problem(CHAIN), {"the 'first'": CHAIN.order[:2], "the last": CHAIN.order[2:3]})
#: Formulations that are not registered, with their options.
METHODS = {"policies": (Policies, PoliciesOptions(REGIONS))}
PROBLEMS = {
    "policies": Problem(CHAIN, 4),
    "checkmate": Problem(CHAIN, 4),
    "stages": Problem(CHAIN, 4),
    "retention-intervals": Problem(CHAIN, 4),
    "order-intervals": Problem(TREE, order="free", objective="least-peak", max_computes=1),
    "order-positions": Problem(TREE, order="free", objective="least-peak", max_computes=1),
    "linear-order": Problem(TREE, order="free", objective="least-peak", max_computes=1),
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
    kind, chosen = METHODS.get(method, (method, None))
    file = ModelFile(problem, kind, suffix, chosen)
    file.write(path)
    PROGRAMS[suffix](path, tmp_path / "solution")
    certificate = accepted(problem, file.read(tmp_path / "solution"))
    best = solve(problem, kind, options=options(60, relative_gap=0), method_options=chosen).certificate
    assert problem.objective.rank(certificate)[0] == problem.objective.rank(best)[0]


@pytest.mark.parametrize("method", PROBLEMS)
def test_minizinc_data_turn_the_objective_into_that_of_the_schedule(method, tmp_path):
    problem = PROBLEMS[method]
    kind, chosen = METHODS.get(method, (method, None))
    file = ModelFile(problem, kind, ".mzn", chosen)
    file.write(tmp_path / "m.mzn")
    scale = dict(line.rstrip(";").split(" = ") for line in (tmp_path / "m.dzn").read_text().splitlines()[-2:])
    assert "value_unit * objective + value_offset" in (tmp_path / "m.mzn").read_text()
    if problem.objective.is_memory:
        assert scale == {"value_unit": "1", "value_offset": "0"}
    else:  # recomputations cost 3 each
        assert scale == {"value_unit": "3", "value_offset": str(problem.graph.base_cost)}


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
    kind, chosen = METHODS.get(method, (method, None))
    made = kind(PROBLEMS[method], chosen) if chosen else load("formulations", kind)(PROBLEMS[method])
    assert isinstance(made, Formulation)
    sizes = {block.name: block.index.size for block in made.build().blocks}
    for block, axes in made.labels().items():
        assert {len(axis) for axis in axes.values()} == {sizes[block]}, block


def test_hostile_names_stay_apart_and_are_explained(tmp_path):
    file = ModelFile(PROBLEMS["checkmate"], "checkmate", ".lp")
    file.write(tmp_path / "m.lp")
    told = json.loads((tmp_path / "m.names.json").read_text())["names"]
    last = len(CHAIN.ops) - 1
    runs = [each["op"] for each in told.values() if each["block"] == "R" and each["stage"] == last]
    assert runs == list(CHAIN.order)
    assert all(name.isascii() and len(name) < 255 and not set(name) & set(" \"/\n'<=;|$&") for name in told)


def test_refusals(tmp_path):
    problem = Problem(unit_chain(3), 4)
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
