"""Published schedules of other projects: recorded verdicts, peaks, costs and first failing steps."""

import json
from functools import cache

import numpy as np
import pytest

from remat.graphs.io import read_graph
from remat.schedule import Rule, Rules, Verdict, read_schedule, simulate, validate, write_schedule

pytestmark = pytest.mark.shared


graph_of = cache(read_graph)


@pytest.fixture
def expected(shared):
    entries = json.loads((shared / "data/schedules/EXPECTED.json").read_text())["schedules"]
    folder = shared / "data/schedules"
    assert {p.stem for p in folder.glob("*.json")} == {*entries, "EXPECTED"}
    return {name: (graph_of(shared / f"data/graphs/{e['graph']}.json"), folder, e) for name, e in entries.items()}


def assert_as_recorded(graph, schedule, entry):
    certificate = validate(graph, schedule, max_violations=1000)
    assert certificate.computes == entry["computes"]
    if entry["valid"]:
        assert certificate.accepted, certificate
        assert (certificate.peak, certificate.cost, certificate.base_cost) == (
            entry["peak"], entry["cost"], entry["base_cost"]
        )  # fmt: skip
        assert certificate.recomputations == entry["recomputes"]
        assert certificate.overhead == pytest.approx(entry["overhead_percent"], abs=5e-5)  # recorded with 4 decimals
        assert certificate.pruned_peak <= certificate.peak
        judged = validate(graph, schedule, Rules(budget=entry["budget"]))
        assert judged.verdict is (Verdict.VALID if entry["within_budget"] else Verdict.OVER_BUDGET)
        assert validate(graph, schedule, Rules(budget=entry["peak"])).accepted
        assert not validate(graph, schedule, Rules(budget=entry["peak"] - 1)).accepted
    else:
        assert certificate.verdict is Verdict.INVALID
        first = certificate.first
        assert (first.step, first.op, first.tensor) == (entry["step"], entry["op"], entry["tensor"])
        assert (first.rule, entry["reason"]) == (Rule.INPUT_NOT_LIVE, "reads a value that is not live")
        faults = entry["faults_in_all"]
        rules = [v.rule for v in certificate.violations]
        reads = rules.count(Rule.INPUT_NOT_LIVE) + rules.count(Rule.INPUT_INCOMPLETE)
        assert reads == faults.get("reads of deleted data", 0) + faults.get("reads of incomplete gradients", 0)


def test_originals_give_equal_schedules(expected):
    for name, (graph, folder, entry) in expected.items():
        original = read_schedule(folder / f"original/{name}.json", graph)
        assert original == read_schedule(folder / f"{name}.json")
        assert_as_recorded(graph, original, entry)


def test_matrices_of_checkmate(expected):
    """Checkmate's memory U is never below the simulated one, and its maximum is the peak."""
    seen = 0
    for name, (graph, folder, entry) in expected.items():
        path = folder / f"original/{name}.npz"
        if not path.exists():
            continue
        seen += 1
        schedule = read_schedule(path, graph)
        assert_as_recorded(graph, schedule, entry)
        done = simulate(graph, schedule)
        with np.load(path, allow_pickle=False) as archive:
            computed, memory = archive["R"].astype(bool), archive["U"]
        assert memory.max() == done.peak
        assert (done.memory[done.is_compute] <= memory[computed]).all()
        assert (graph.arrays.order[np.nonzero(computed)[1]] == done.ops[done.is_compute]).all()
    assert seen == 5


def memory(graph, schedule):
    done = simulate(graph, schedule)
    return done.memory[done.is_compute]


def test_round_trips_of_published_schedules(expected, tmp_path):
    """Checkmate's files keep a stage for each op."""
    path, kinds = tmp_path / "again", set()
    for name, (graph, folder, entry) in expected.items():
        if not entry["valid"]:
            continue
        original = json.loads((folder / f"original/{name}.json").read_text())
        kind = "checkmate" if original["producer"] == "Checkmate" else "rockmate"
        schedule = read_schedule(folder / f"{name}.json", graph)
        write_schedule(schedule, path, kind, graph)
        again = read_schedule(path, graph)
        assert again.computes() == schedule.computes()
        assert (memory(graph, again) == memory(graph, schedule)).all(), name
        written = json.loads(path.read_text())
        if kind == "checkmate":
            assert written["R"] == original["R"], name
            assert len(written["S"]) == len(graph.ops)
        else:
            assert written["loss_index"] is not None
        kinds.add(kind)
    assert kinds == {"checkmate", "rockmate"}
