"""POFO: exhaustive search on chains, Rotor without a host, and training steps with all features."""

from dataclasses import replace

import pytest
from generators import training_graph
from helpers import RUN, accepted, few, judged, some_slow
from refusals import refused

from remat import Problem
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.pofo import Pofo
from remat.heuristics.rotor import Rotor, RotorOptions
from remat.schedule import Verdict
from remat.testing.exhaustive_transfers import least_time

MACHINES = ("rate=1MB/s", "rate=1MB/s,latency=1us", "rate=1MB/s,duplex=half", "rate=unlimited")


def chain(n):
    return replace(unit_chain(n), cost_unit="us")


@pytest.mark.parametrize(("budget", "machine"), few([(b, m) for b in (3, 4) for m in MACHINES], 3))
def test_least_time_of_short_chains(budget, machine):
    problem = Problem(chain(3), budget, machine=machine)
    assert accepted(problem, Pofo().run(problem, RUN)).time == least_time(problem.graph, budget, problem.machine).time


def test_moving_saves_what_rotor_recomputes():
    problem = Problem(chain(10), 5, machine="rate=1MB/s")
    alone = Rotor(RotorOptions(polish=False)).run(problem.one_memory, RUN)
    assert accepted(problem, Pofo().run(problem, RUN)).time == problem.graph.base_cost < accepted(problem, alone).time
    without = replace(problem, machine="rate=0GB/s")
    schedule = Pofo().run(without, RUN)
    assert accepted(without, schedule).time <= accepted(without, alone).time
    assert not schedule.has_transfers


@pytest.mark.parametrize("seed", some_slow(range(60), 3))
def test_schedules_of_training_steps_are_valid_and_reports_improve(seed):
    graph = replace(training_graph(seed, 10, full=True), cost_unit="us")
    for machine in ("rate=1MB/s,host=20", "rate=500kB/s,duplex=half"):
        problem = Problem(graph, "60%", machine=machine)
        reported = []
        schedule = Pofo().run(problem, replace(RUN, on_schedule=reported.append))
        assert judged(problem, schedule).verdict is not Verdict.INVALID
        times = [accepted(problem, each).time for each in reported]
        assert times == sorted(set(times), reverse=True)


def test_graphs_without_a_backward_pass_are_refused():
    with refused("problem.no-training-graph"):
        Pofo().run(Problem(layered(12, seed=1), "80%"), RUN)
