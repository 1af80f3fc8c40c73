"""MiniZinc backend with a stand-in for the driver: streams, failures, limits."""

import json
import os
import time

import numpy as np
import pytest
from helpers import wait_for_end
from refusals import refused

from remat.backends.base import AvailabilityState
from remat.backends.minizinc import MiniZinc, driver
from remat.modeling import Model
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a shell script")

SOLVERS = [
    {"id": "org.test.one", "name": "One", "version": "1", "tags": ["cp", "int"], "stdFlags": ["-i", "-r"],
     "executable": "/one", "extraFlags": [["--deep", "", "int", "1"], ["--loud", "", "bool", "false"]]},
    {"id": "org.test.window", "name": "Window", "version": "1", "isGUIApplication": True, "executable": "/two"},
    {"id": "org.minizinc.mip.scip", "name": "SCIP", "version": "", "tags": ["mip", "api"],
     "requiredFlags": ["--scip-dll"]},
]  # fmt: skip


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Return a function that makes a program `minizinc` of shell lines; it writes its arguments to a file."""

    def make(body, version="2.6.4", solvers=SOLVERS):
        (tmp_path / "solvers.json").write_text(json.dumps(solvers))
        program = tmp_path / "minizinc"
        program.write_text(f"""#!/bin/sh
case "$1" in
  --version) echo "MiniZinc to FlatZinc converter, version {version}"; exit 0;;
  --solvers-json) cat "{tmp_path}/solvers.json"; exit 0;;
esac
echo "$@" > "{tmp_path}/arguments"
{body}
""")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        driver.version.cache_clear()
        driver._solvers.cache_clear()
        return tmp_path

    yield make
    driver.version.cache_clear()
    driver._solvers.cache_clear()


def model():
    made = Model("two")
    x = made.integers("x", 2, 0, 9)
    made.minimize(x.index, [6, 10], 100)
    return made


def solve(seconds=30, **other):
    return MiniZinc("one").solve(model(), SolveOptions(deadline=Deadline.after(seconds), **other))


def solution(first, second):
    output = {"boolean": [], "integer": [first, second], "real": []}
    return f"echo '{json.dumps({'type': 'solution', 'output': {'json': output}})}'"


def status(word):
    return f"""echo '{{"type": "status", "status": "{word}"}}'"""


def bound(value):
    return f"""echo '{{"type": "statistics", "statistics": {{"objectiveBound": {value}}}}}'"""


def test_only_usable_solvers_are_variants(stand_in):
    stand_in("")
    assert MiniZinc.variants() == ("one",)
    assert "it has one" in MiniZinc("scip").ready().reason
    assert MiniZinc("org.test.one").ready().ready


def test_old_program_and_unreadable_list_of_solvers(stand_in):
    stand_in("", version="2.5.5")
    state = MiniZinc.availability()
    assert (state.state, state.reason) == (AvailabilityState.WRONG_VERSION, "minizinc 2.5.5 is older than 2.6")
    stand_in("", solvers={"id": 3})
    assert "cannot be read" in MiniZinc("one").ready().reason


def test_stream_of_solutions_and_bounds(stand_in):
    """Bounds are in units of the text, 3 x + 5 y; the objective of the model is 100 + 6 x + 10 y."""
    lines = ["echo '% a comment'", bound("1e400"), bound(-5), solution(4, 0), bound(3), solution(9, 9), solution(0, 2)]
    folder = stand_in("\n".join([*lines, bound(2), status("OPTIMAL_SOLUTION")]))
    bounds = []
    raw = MiniZinc("one").solve(model(), SolveOptions(seed=5, threads=2), on_bound=lambda _, new: bounds.append(new))
    assert bounds == [90, 106]
    assert [(found.objective, found.bound) for found in raw.incumbents] == [(124, 90), (120, 106)]
    assert (raw.status, raw.stop, raw.objective, raw.bound) == (Status.OPTIMAL, StopReason.FINISHED, 120, 120)
    assert raw.values.tolist() == [0, 2]
    arguments = (folder / "arguments").read_text().split()
    assert "--intermediate-solutions" in arguments
    assert arguments[arguments.index("--random-seed") + 1] == "5"
    assert not {"--parallel", "--time-limit"} & set(arguments)


def test_solver_options_become_flags(stand_in):
    folder = stand_in(status("UNSATISFIABLE"))
    raw = solve(solver={"deep": 3, "--loud": True})
    assert (raw.status, raw.bound, raw.objective) == (Status.INFEASIBLE, None, None)
    assert "--fzn-flag --deep --fzn-flag 3 --fzn-flag --loud" in (folder / "arguments").read_text()
    with refused("backend.no-option", culprit="dep; rm"):
        solve(solver={"dep; rm": 3})


def test_relative_gap_stops_the_solver(stand_in):
    stand_in("\n".join([bound(5), solution(0, 1), "sleep 60"]))
    began = time.monotonic()
    raw = solve(relative_gap=0.01)
    assert (raw.status, raw.stop, raw.objective, raw.bound) == (Status.OPTIMAL, StopReason.FINISHED, 110, 110) or (
        raw.status, raw.stop, raw.objective, raw.bound) == (Status.FEASIBLE, StopReason.GAP, 110, 110)  # fmt: skip
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'first line' >&2\necho 'Error: out of ideas' >&2\nexit 3", "failed: Error: out of ideas"),
        ("""printf '%s' '{"type": "error", "what": "type error", "message": "two\\nlines"}'\nexit 1""",
         "failed: type error: two lines"),
        ("kill -9 $$", "failed: minizinc was ended by signal 9"),
        (status("ERROR") + "\nexit 1", "ended before it was done (exit code 1): it may have been killed"),
        (status("UNSAT_OR_UNBOUNDED"), "says that the objective is unbounded"),
        ("echo '{\"type\": \"solu'", "ended before it was done (exit code 0)"),
    ],
)  # fmt: skip
def test_failures_keep_the_incumbent(stand_in, body, message):
    stand_in(solution(1, 1) + "\n" + body)
    raw = solve()
    assert (raw.status, raw.stop, raw.objective, raw.bound) == (Status.ERROR, StopReason.OTHER, 116, None)
    assert message in raw.message
    assert raw.message.startswith("MiniZinc's solver 'one' ")
    assert "\n" not in raw.message


def test_infeasible_despite_a_hint_is_an_error(stand_in):
    stand_in(status("UNSATISFIABLE"))
    raw = MiniZinc("one").solve(model(), SolveOptions(), np.array([1.0, 1.0]))
    assert raw.status is Status.ERROR
    assert raw.objective == 116
    assert "finds no solution, but there is one" in raw.message


@pytest.mark.parametrize("output", ["{}", '{"json": {"integer": [1]}}', '{"json": {"boolean": [], "integer": "x"}}'])
def test_unreadable_solution_is_an_error(stand_in, output):
    stand_in(f"""echo '{{"type": "solution", "output": {output}}}'""")
    with refused("backend.unreadable-solution"):
        solve()


def test_processes_that_ignore_sigterm_are_killed(stand_in):
    """Driver and solver both ignore SIGTERM, and the solver keeps the pipe open."""
    folder = stand_in("")
    stand_in(f"""trap '' TERM INT
{solution(1, 1)}
sh -c "trap '' TERM INT; echo \\$\\$ > '{folder}/child'; while :; do sleep 1; done" &
while :; do sleep 1; done""")
    began = time.monotonic()
    raw = solve(1.0)
    assert time.monotonic() - began < 2.0
    assert (raw.status, raw.stop, raw.objective) == (Status.FEASIBLE, StopReason.DEADLINE, 116)
    wait_for_end([int((folder / "child").read_text())], 0.5)


def test_memory_limit_covers_driver_and_solver(stand_in):
    """The backend needs no child process for the limit, so it may use the text of a formulation."""
    assert MiniZinc.own_process
    stand_in(f"""{solution(1, 1)}
python3 -c "x = bytearray(150 * 2**20); import time; time.sleep(30)" &
python3 -c "x = bytearray(150 * 2**20); import time; time.sleep(30)"
""")
    began = time.monotonic()
    raw = solve(memory_limit=250 * 2**20)
    assert time.monotonic() - began < 15
    assert (raw.status, raw.stop, raw.objective) == (Status.FEASIBLE, StopReason.OTHER, 116)
    assert raw.message == "MiniZinc's solver 'one' was ended: it needs more memory than its limit of 250 MiB"
