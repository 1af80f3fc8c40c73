"""solve() with a solver in a child process."""

import os
import signal
from pathlib import Path

import pytest
from refusals import refused

from remat import Problem, solve
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.runtime.processes.process_trees import family
from remat.runtime.sizes import memory_bytes
from remat.runtime.solve_options import SolveOptions, Status, StopReason


@pytest.mark.parametrize("backend", ["cp-sat", "highs"])
def test_isolated_solvers_give_equal_answers(backend):
    result = solve(Problem(unit_chain(6), 4), "checkmate", backend, options=SolveOptions(isolate=True, threads=1))
    assert (result.status, result.objective, result.bound) == (Status.OPTIMAL, 18, 18)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="finds the child through /proc")
def test_killed_solver_leaves_the_incumbent():
    options = SolveOptions(isolate=True, threads=1)
    solve(Problem(unit_chain(6), 4), "checkmate", "cp-sat", options=options)  # starts the server, which must survive
    before = set(family(os.getpid()))
    costs = []

    def kill_after_an_improvement(progress):
        if progress.phase == "solve" and progress.objective is not None:
            costs.append(progress.objective)
            if len(set(costs)) > 1:
                for pid in set(family(os.getpid())) - before:
                    os.kill(pid, signal.SIGKILL)

    graph = layered(60, 0.35, 2)
    result = solve(
        Problem(graph, "80%"),
        "retention-intervals",
        "cp-sat",
        stop=60,
        on_progress=kill_after_an_improvement,
        options=options,
    )
    assert (result.status, result.stop) == (Status.FEASIBLE, StopReason.OTHER)
    assert result.objective == min(costs)
    assert result.certificate.accepted
    assert "was killed by signal SIGKILL" in result.message


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_message_names_the_memory_limit():
    options = SolveOptions(threads=1, memory_limit="160MiB")
    result = solve(Problem(layered(120, 0.27, 446), "70%"), "checkmate", "cp-sat", stop=60, options=options)
    assert "needs more memory than its limit of 160 MiB" in result.message


def test_memory_sizes():
    assert memory_bytes("1.5GiB") == 3 * 2**29
    for wrong in (0, -1, "80%", "much", 0.5, True):
        with refused("problem.bad-memory"):
            memory_bytes(wrong)
