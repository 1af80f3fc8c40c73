"""Bounds in a child process: values, faults, memory limit and deadline."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from remat import Problem, layered
from remat.backends.highs import Highs
from remat.bounds import bounds, bounds_in_turn
from remat.cli import main
from remat.errors import RematError
from remat.graphs.families import unit_chain
from remat.runtime.processes import children


def comparable(found):
    return [(bound.kind, bound.value, str(bound.scope), bound.measure, bound.infeasible) for bound in found]


def test_isolated_bounds_have_the_same_values(monkeypatch):
    problem = Problem(unit_chain(8), 4)
    here = bounds(problem, threads=1, relaxations=["checkmate"])

    def refused(*_, **__):
        raise AssertionError("a solver in this process")

    monkeypatch.setattr(Highs, "relax", refused)
    monkeypatch.setattr(Highs, "solve", refused)
    there = bounds(problem, threads=1, relaxations=["checkmate"], isolate=True)
    assert comparable(there) == comparable(here)
    assert there[-1].versions == here[-1].versions
    assert {name: len(values) for name, values in there[-2].duals.items()} == {
        name: len(values) for name, values in here[-2].duals.items()
    }


def test_closing_the_iterator_ends_the_child():
    turns = bounds_in_turn(Problem(layered(60, seed=1), "70%"), 60, threads=1, isolate=True)
    assert next(turns).kind == "the structural bound"
    (child,) = multiprocessing.active_children()
    turns.close()
    child.join(5)
    assert not child.is_alive()


def test_errors_of_the_child_are_raised():
    with pytest.raises(RematError, match="no formulation 'chekmate'"):
        bounds(Problem(unit_chain(8), 4), relaxations=["chekmate"], isolate=True)


def test_bounds_survive_a_killed_child():
    turns = bounds_in_turn(Problem(layered(300, seed=1), "60%"), 60, threads=1, isolate=True)
    found = [next(turns)]
    (child,) = multiprocessing.active_children()
    os.kill(child.pid, signal.SIGKILL)
    found += list(turns)
    assert found[-1].note == "the process of the bounds ended with exit code -9"
    assert found[-1].value == found[-1].base_cost


@pytest.mark.skipif(not children.possible(), reason="no limits of memory here")
def test_memory_limit_of_the_child():
    # the imports alone need more
    found = bounds(Problem(layered(60, seed=1), "70%"), 60, threads=1, isolate=True, memory_limit=20 * 2**20)
    assert "the process of the bounds" in found[-1].note


def test_child_ends_at_the_deadline():
    bounds(Problem(unit_chain(8), 4), threads=1, relaxations=[], isolate=True)  # starts the server, which takes seconds
    problem = Problem(layered(800, seed=1), "50%")
    began = time.monotonic()
    found = bounds(problem, 0.5, threads=1, isolate=True)
    assert time.monotonic() - began < 3  # twice GRACE, and a margin for a busy machine
    assert found[0].kind == "the structural bound"


def test_bounds_command_with_isolation(capsys, tmp_path):
    from remat.graphs.io import write_graph

    write_graph(unit_chain(8), tmp_path / "chain.json")
    words = ["bounds", str(tmp_path / "chain.json"), "-b", "4", "--isolate", "--memory-limit", "3GiB"]
    before = threading.active_count()
    assert main(words) == 0
    assert "stage bound" in capsys.readouterr().out
    assert threading.active_count() == before
