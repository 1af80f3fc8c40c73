"""Checks of the kit fail on broken heuristics and formats."""

import json
import time
from dataclasses import dataclass, replace
from itertools import count

import pytest

from remat.errors import FormatError, ProblemError
from remat.graphs.formats.base import GraphFormat
from remat.graphs.formats.remat_json import FORMAT as GRAPH_JSON
from remat.heuristics.greedy import Greedy
from remat.problem.scope import EVERY_SCHEDULE
from remat.schedule import Schedule
from remat.schedule.formats.remat_json import FORMAT as SCHEDULE_JSON
from remat.testing import FORMAT_CHECKS, HEURISTIC_CHECKS, ConformanceError, Effort

METHODS = {check.__name__: check for check in HEURISTIC_CHECKS}
FORMATS = {check.__name__: check for check in FORMAT_CHECKS}
FEW = Effort(most_ops=4, cases=2, deadline=0.2, grace=0.15)


@dataclass
class MutableOptions:
    speed: int = 3


def unfinished(self, problem, run):
    """Omit an op."""
    return Schedule.of_computes(problem.graph, problem.graph.arrays.order[:-1])


def wrong_bound(self, problem, run):
    self.bound, self.scope = 10**9, EVERY_SCHEDULE
    return Greedy.run(self, problem, run)


def loses_report(self, problem, run):
    """Report a schedule and return none."""
    run.report(Schedule.reference(problem.graph))


def alternating(self, problem, run, calls=count()):  # noqa: B008  (counts calls)
    """Return no schedule on every second call."""
    found = Schedule.reference(problem.graph)
    return None if next(calls) % 2 else found


def changes_problem(self, problem, run):
    problem.kept[:] = ~problem.kept
    return Greedy.run(self, problem, run)


def loses_start(self, problem, run):
    """Return no schedule if there is a start."""
    return Schedule.reference(problem.graph) if run.start is None else None


def late(self, problem, run):
    time.sleep(2 * FEW.grace + (0 if run.deadline.seconds == 0 else FEW.deadline))


def ignores_stop(self, problem, run):
    """Continue after the report."""
    run.report(Schedule.reference(problem.graph))
    time.sleep(2 * FEW.grace)
    return Schedule.reference(problem.graph)


def refusing(self, problem, run):
    raise ProblemError("today\nno")


BROKEN = [
    ({"name": ""}, "says_what_it_is"),
    ({"options_type": MutableOptions}, "says_what_it_is"),
    ({"options_type": MutableOptions}, "refuses_options"),
    ({"__init__": lambda self, options=None: None}, "refuses_options"),
    ({"run": unfinished}, "plain_graphs"),
    ({"run": wrong_bound}, "plain_graphs_in_any_order"),
    ({"run": loses_report}, "full_graphs"),
    ({"run": refusing}, "plain_graphs"),
    ({"run": lambda self, problem, run: None}, "finds_a_schedule"),
    ({"run": alternating}, "gives_the_same_again"),
    ({"run": changes_problem}, "leaves_the_problem_alone"),
    ({"run": loses_start}, "is_no_worse_than_its_start"),
    ({"run": late}, "ends_in_time"),
    ({"run": ignores_stop}, "stops_when_asked"),
]


@pytest.mark.parametrize(("fault", "check"), BROKEN)
def test_broken_heuristics_fail(fault, check):
    with pytest.raises(ConformanceError):
        METHODS[check](type("Broken", (Greedy,), fault), FEW)


def test_every_check_has_a_failing_example():
    twins = {name for name in METHODS if name.removesuffix("_in_any_order") in METHODS or name == "orders_alone"}
    assert {check for _, check in BROKEN} | twins >= set(METHODS)
    assert {check for _, _, check in FORMAT_FAULTS} == set(FORMATS)


def lossy(graph):
    """Write all sizes as 1."""
    document = json.loads(GRAPH_JSON.write(graph))
    document["tensors"] = [{**tensor, "size": 1} for tensor in document["tensors"]]
    return json.dumps(document) + "\n"


def dated(graph, count=[0]):  # noqa: B006  (counts calls)
    count[0] += 1
    document = json.loads(GRAPH_JSON.write(graph))
    return json.dumps({**document, "meta": {"written": count[0]}}) + "\n"


def accepts_damage(source):
    return GRAPH_JSON.read(replace(source, data=json.dumps(json.loads(source.data)).encode()))


def long_error(source):
    try:
        return GRAPH_JSON.read(source)
    except FormatError as error:
        raise FormatError(f"oh\n{error}") from None


FORMAT_FAULTS = [
    (GRAPH_JSON, {"description": ""}, "says_what_it_is"),
    (GRAPH_JSON, {"suffixes": ("JSON",)}, "says_what_it_is"),
    (GRAPH_JSON, {"recognizes": None}, "says_what_it_is"),
    (GRAPH_JSON, {"write": lossy}, "comes_back"),
    (GRAPH_JSON, {"write": dated}, "comes_back"),
    (GRAPH_JSON, {"recognizes": lambda source: False}, "comes_back"),
    (SCHEDULE_JSON, {"read": lambda source, graph: Schedule.reference(graph)}, "comes_back"),
    (GRAPH_JSON, {"write": dated}, "writes_the_same_bytes"),
    (GRAPH_JSON, {"write": lambda graph: GRAPH_JSON.write(graph).rstrip()}, "writes_the_same_bytes"),
    (GRAPH_JSON, {"read": accepts_damage, "recognizes": lambda source: True}, "refuses_damage"),
    (GRAPH_JSON, {"read": long_error}, "refuses_damage"),
    (GRAPH_JSON, {"name": "mine", "recognizes": lambda source: source.looks_like_json}, "recognises_only_its_own"),
    (SCHEDULE_JSON, {"name": "mine", "recognizes": lambda source: True}, "recognises_only_its_own"),
]


@pytest.mark.parametrize(("whole", "fault", "check"), FORMAT_FAULTS)
def test_broken_formats_fail(whole, fault, check):
    with pytest.raises(ConformanceError):
        FORMATS[check](replace(whole, **fault), FEW)


def test_write_only_format():
    def write(graph):
        return graph.name + "\n"

    only = GraphFormat("name-only", "the name and nothing else", (".name",), write=write)
    FORMATS["says_what_it_is"](only, FEW)
    FORMATS["writes_the_same_bytes"](only, FEW)
