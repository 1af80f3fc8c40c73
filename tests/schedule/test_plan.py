"""Execution plans: run by an interpreter of registers, and converted back to schedules."""

import json
from dataclasses import replace

import pytest
from helpers import steps
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from schedule_oracle import as_schedule, random_graph, random_valid_steps, writers
from shell import shell

from remat.errors import FormatError
from remat.graphs import ComputeGraph, Op, Tensor
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.schedule import Machine, Rules, Schedule, read_schedule, simulate, validate, write_schedule
from remat.schedule.early_frees import with_early_frees
from remat.schedule.formats.plan_files import plan_from_document, plan_to_json, plan_to_text
from remat.schedule.plan import Allocate, Compute, Deallocate, Discard, ExecutionPlan, Fetch, Offload

randoms = st.randoms(use_true_random=False)
examples = settings(max_examples=40)


def run(plan, graph):
    """Execute a plan; return the bytes held at each compute and fetch. Cells and slots record their writers."""
    ops = {op.name: op for op in graph.ops}
    cells, sizes, slots, held = {}, {}, {}, []
    for given_ in plan.inputs:
        cells[given_.register], sizes[given_.register] = (given_.tensor, set()), given_.size
    for statement in plan.statements:
        match statement:
            case Allocate(register, tensor, size):
                assert register not in cells
                cells[register], sizes[register] = (tensor, set()), size
            case Deallocate(register):
                del cells[register], sizes[register]
            case Offload(slot, register):
                assert slot not in slots
                assert cells[register][1] == writers(graph, cells[register][0])
                slots[slot] = cells[register][0]
            case Fetch(slot, register):
                assert cells[register] == (slots[slot], set())
                cells[register] = slots[slot], set(writers(graph, slots[slot]))
                held.append(sum(sizes.values()))
            case Discard(slot):
                del slots[slot]
            case Compute(name, reads, writes):
                op = ops[name]
                for tensor, register in zip(op.inputs, reads, strict=True):
                    assert cells[register] == (tensor, writers(graph, tensor))
                held.append(sum(sizes.values()) + op.workspace)
                for tensor, register in zip(op.outputs, writes, strict=True):
                    assert cells[register][0] == tensor
                    cells[register][1].add(name)
    left = dict(cells.values())
    assert all(left[name] == writers(graph, name) for name in graph.outputs)
    return held


def example():
    """Return a graph with two outputs, an input, a workspace and a buffer, and a schedule that repeats the first op."""
    graph = ComputeGraph(
        "mixed", [Tensor("x", 8), Tensor("a", 4), Tensor("b", 2), Tensor("sum", 16), Tensor("y", 1)],
        [Op("split", ("x",), ("a", "b"), 3), Op("one", ("a",), ("sum",), 1, 5), Op("two", ("b",), ("sum",), 1),
         Op("last", ("sum", "a"), ("y",), 1)],
        ["x"], ["y"], ["split", "one", "two", "last"],
    )  # fmt: skip
    return graph, steps("split one -a two split -b last -sum -a", source="by hand")


TEXT = """\
remat-plan 1
graph "mixed"
graph_digest "{}"
source "by hand"
%0 = input "x" 8
%1 = allocate "a" 4
%2 = allocate "b" 2
compute "split" (%0) -> (%1, %2)
%3 = allocate "sum" 16
compute "one" (%1) -> (%3)
deallocate %1
compute "two" (%2) -> (%3)
%1 = allocate "a" 4
compute "split" (%0) -> (%1, %2)
deallocate %2
compute "last" (%3, %1) -> (%2)
deallocate %3
deallocate %1
"""


def test_plan_by_hand():
    graph, schedule = example()
    plan = ExecutionPlan.of_schedule(graph, schedule)
    text = TEXT.format(graph.digest).replace('compute "last"', '%2 = allocate "y" 1\ncompute "last"')
    assert plan_to_text(plan) == text
    assert run(plan, graph) == [14, 35, 26, 30, 29]
    assert plan.schedule(graph) == schedule


@examples
@given(randoms)
def test_round_trips(random):
    """Registers and slots follow the schedule within its memory; file and schedule round-trip."""
    graph, moves = replace(random_graph(random), cost_unit="us"), random.random() < 0.5
    steps = random_valid_steps(random, graph, frees=random.random() < 0.6, moves=moves)
    schedule = as_schedule(random, graph, steps)
    plan = ExecutionPlan.of_schedule(graph, schedule)
    done = simulate(graph, schedule)
    assert run(plan, graph) == done.memory[done.allocates].tolist()
    again = plan_from_document(json.loads(plan_to_json(plan)))
    assert again == plan
    assert plan_to_json(again) == plan_to_json(plan)
    back = plan.schedule(graph)
    assert ExecutionPlan.of_schedule(graph, back) == plan
    rules = Rules(machine=Machine(2 * 10**6, 10**6, full_duplex=random.random() < 0.5))
    before, after = validate(graph, schedule, rules), validate(graph, back, rules)
    for figure in ("verdict", "peak", "cost", "time"):
        assert getattr(before, figure) == getattr(after, figure)
    assert before.transfers.host_peak == after.transfers.host_peak


@examples
@given(randoms)
def test_early_frees(random):
    """The same computes and frees, no more memory at any compute, and no free can move earlier."""
    graph = random_graph(random)
    schedule = as_schedule(random, graph, random_valid_steps(random, graph, frees=True))
    early = with_early_frees(graph, schedule)
    assert early.computes() == schedule.computes()
    before, after = simulate(graph, schedule), simulate(graph, early)
    assert after.violations == ()
    assert (after.memory[after.is_compute] <= before.memory[before.is_compute]).all()
    if schedule.has_frees:
        assert sorted(early.steps()) == sorted(schedule.steps())
    assert with_early_frees(graph, early) == early
    ops = {op.name: op for op in graph.ops}
    touched = set()
    for word, name in early.steps():
        if word == "compute":
            touched = {*ops[name].inputs, *ops[name].outputs}
        else:
            assert name in touched


#: Text of the plan, replacement, and kind of the error.
FAULTS = [
    ('["allocate", 3, "sum", 16]', '["allocate", 1, "sum", 16]', "format.plan-register"),
    ('["allocate", 3, "sum", 16]', '["allocate", 3, "sum", 15]', "format.plan-statement"),
    ('["allocate", 3, "sum", 16]', '["allocate", 3, "som", 16]', "schedule.not-valid"),
    ('["allocate", 3, "sum", 16]', '["allocate", 4, "sum", 16],\n["allocate", 3, "sum", 16]', "format.plan-statement"),
    ('["compute", "two", [2], [3]]', '["compute", "too", [2], [3]]', "schedule.not-valid"),
    (
        '["compute", "two", [2], [3]]',
        '["compute", "two", [1], [3]]',
        "format.plan-statement",
    ),  # read after its deallocation
    ('["compute", "two", [2], [3]]', '["compute", "two", [3], [3]]', "format.plan-statement"),
    ('["compute", "two", [2], [3]]', '["compute", "two", [2], [9]]', "format.plan-statement"),
    ('["compute", "two", [2], [3]]', '["compute", "two", [2], [3, 2]]', "format.plan-statement"),
    ('["deallocate", 3]', '["deallocate", 3],\n["deallocate", 3]', "format.plan-register"),
    ('[0, "x", 8]', "", "format.plan-statement"),
    ('[0, "x", 8]', '[0, "x", 8],\n[9, "a", 4]', "format.plan-statement"),  # no graph input
    ('["compute", "one", [1], [3]]', '["allocate", 7, "y", 1],\n["compute", "one", [1], [3]]', "format.plan-statement"),
    ('"graph_digest": "', '"graph_digest": "0', "format.plan-graph"),
]


@pytest.mark.parametrize(("text", "other", "kind"), FAULTS)
def test_errors_name_the_place(text, other, kind, tmp_path):
    graph, schedule = example()
    plan = plan_to_json(ExecutionPlan.of_schedule(graph, schedule))
    assert text in plan
    path = tmp_path / "plan.json"
    path.write_text(plan.replace(text, other, 1), encoding="utf-8")
    with refused(kind):
        read_schedule(path, graph)


def moving():
    """Return a chain whose first activation leaves the device, and the schedule."""
    graph = unit_chain(2)
    return graph, steps("f0 f1 >f0 -f0 loss g1 -loss -f1 <f0 g0")


def test_plan_with_a_host():
    graph, schedule = moving()
    plan = ExecutionPlan.of_schedule(graph, schedule)
    moved = [str(statement) for statement in plan.statements if isinstance(statement, Offload | Fetch | Discard)]
    assert moved == ["@0 = offload %0", "fetch @0 -> %0", "discard @0"]
    assert plan_to_text(plan).startswith("remat-plan 2\n")
    assert simulate(graph, plan.schedule(graph)).host.peak == 1


#: The same for a plan with a host.
MOVING_FAULTS = [
    ('["offload", 0, 0]', '["offload", 0, 7]', "format.plan-register"),
    ('["offload", 0, 0]', '["offload", 0, 0],\n["offload", 0, 1]', "format.plan-register"),
    ('["fetch", 0, 0]', '["fetch", 3, 0]', "format.plan-register"),
    ('["fetch", 0, 0]', '["fetch", 0, 2]', "format.plan-register"),
    ('["discard", 0]', '["discard", 1]', "format.plan-register"),
    ('["discard", 0]', '["deallocate", 0]', "format.plan-statement"),
    ('"version": 2', '"version": 1', "format.version"),
]


@pytest.mark.parametrize(("text", "other", "kind"), MOVING_FAULTS)
def test_errors_of_transfers_name_the_place(text, other, kind):
    graph, schedule = moving()
    plan = plan_to_json(ExecutionPlan.of_schedule(graph, schedule))
    assert text in plan
    with refused(kind):
        plan_from_document(json.loads(plan.replace(text, other, 1))).schedule(graph)


def test_plan_without_deallocations():
    graph = unit_chain(1)
    plan = ExecutionPlan.of_schedule(graph, Schedule.reference(graph))
    kept = replace(plan, statements=tuple(s for s in plan.statements if not isinstance(s, Deallocate)))
    with refused("format.plan-statement"):
        kept.schedule(graph)


def test_renumbered_registers():
    graph, schedule = example()
    plan = ExecutionPlan.of_schedule(graph, schedule)
    document = json.loads(plan_to_json(plan))
    numbers = {0: 7, 1: 0, 2: 4, 3: 1}
    document["inputs"] = [[numbers[register], *rest] for register, *rest in document["inputs"]]
    for statement in document["statements"]:
        match statement:
            case ["compute", _, reads, writes]:
                statement[2:] = [[numbers[k] for k in reads], [numbers[k] for k in writes]]
            case [_, register, *_]:
                statement[1] = numbers[register]
    other = plan_from_document(document)
    assert other != plan
    assert other.schedule(graph) == plan.schedule(graph)


#: Refused values by key.
OTHERS = {
    "version": [3], "more": [1], "graph": [3], "inputs": [[3], [[0, "x"]]],
    "statements": [{}, None, ["compute"], *([statement] for statement in (
        ["allocate", 0, "a"], ["allocate", True, "a", 1], ["deallocate", -1], ["compute", "a", [0], [1.5]],
    ))],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in OTHERS.items() for value in values])
def test_wrong_documents(key, value, tmp_path):
    graph, schedule = example()
    document = json.loads(plan_to_json(ExecutionPlan.of_schedule(graph, schedule))) | {key: value}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with refused("schedule-file.plan", FormatError, culprit=str(path)):
        read_schedule(path, graph)


def test_formats_and_their_limits(tmp_path):
    graph, schedule = example()
    out = tmp_path / "out"
    for name in ("remat-json", "plan"):
        write_schedule(schedule, out, name, graph)
        assert read_schedule(out, graph) == schedule
    write_schedule(schedule.without_frees(), out, "plain-list")
    assert read_schedule(out).computes() == schedule.computes()
    write_schedule(schedule, out, "plan-text", graph)
    with pytest.raises(FormatError, match="not a schedule in any known format"):
        read_schedule(out, graph)
    for name, kind in (
        ("plain-list", "format.frees"),
        ("plan", "format.needs-graph"),
        ("rotor", "format.no-writer"),
    ):
        with refused(kind):
            write_schedule(schedule, out, name)


def test_frees_option_of_convert(tmp_path):
    graph, schedule = example()
    early, given_, implied = (tmp_path / name for name in ("early.json", "given.json", "implied.json"))
    write_graph(graph, tmp_path / "g.json")
    write_schedule(schedule, tmp_path / "s.json")
    for source, target, to, frees in (
        (tmp_path / "s.json", early, "plan", "early"),
        (early, given_, "plan", "given"),
        (given_, implied, "plain-list", "implied"),
    ):
        assert shell("convert", source, target, "--graph", tmp_path / "g.json", "--to", to, "--frees", frees).code == 0
    assert read_schedule(early, graph) == read_schedule(given_, graph) == with_early_frees(graph, schedule)
    assert read_schedule(implied).computes() == schedule.computes()
