"""Execution plans: carried out by an interpreter that knows registers only, and back to schedules."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_oracle import as_schedule, random_graph, random_valid_steps, writers

from remat.errors import FormatError, RematError, ScheduleError
from remat.graphs import ComputeGraph, GraphBuilder, Op, Tensor
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.schedule import Schedule, read_schedule, simulate, validate, with_frees, write_schedule
from remat.schedule.early_frees import with_early_frees
from remat.schedule.formats.plan_files import plan_from_document, plan_from_text, plan_to_json, plan_to_text
from remat.schedule.plan import Allocate, Compute, Deallocate, ExecutionPlan

randoms = st.randoms(use_true_random=False)
calm = settings(max_examples=40)


def run(plan, graph):
    """Carry out a plan; bytes held at each compute. A register is a cell; a cell knows who has written into it."""
    ops = {op.name: op for op in graph.ops}
    cells, sizes, held = {}, {}, []
    for given_ in plan.inputs:
        cells[given_.register], sizes[given_.register] = (given_.tensor, set()), given_.size
    for statement in plan.statements:
        match statement:
            case Allocate(register, tensor, size):
                assert register not in cells
                cells[register], sizes[register] = (tensor, set()), size
            case Deallocate(register):
                del cells[register], sizes[register]
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
    """Two outputs, a buffer with two contributions, an input, workspace; a first part that is computed again."""
    graph = ComputeGraph(
        "mixed", [Tensor("x", 8), Tensor("a", 4), Tensor("b", 2), Tensor("sum", 16), Tensor("y", 1)],
        [Op("split", ("x",), ("a", "b"), 3), Op("one", ("a",), ("sum",), 1, 5), Op("two", ("b",), ("sum",), 1),
         Op("last", ("sum", "a"), ("y",), 1)],
        ["x"], ["y"], ["split", "one", "two", "last"],
    )  # fmt: skip
    steps = ["compute split", "compute one", "free a", "compute two", "compute split", "free b", "compute last",
             "free sum", "free a"]  # fmt: skip
    return graph, Schedule.from_steps([step.split() for step in steps], source="by hand")


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


def test_a_plan_by_hand():
    graph, schedule = example()
    plan = ExecutionPlan.of_schedule(graph, schedule)
    text = TEXT.format(graph.digest).replace('compute "last"', '%2 = allocate "y" 1\ncompute "last"')
    assert plan_to_text(plan) == text
    assert plan.num_registers == 4
    assert run(plan, graph) == [14, 35, 26, 30, 29]
    assert plan.schedule(graph) == schedule


@calm
@given(randoms)
def test_round_trips(random):
    """Registers do what the schedule says, in its memory; both files come back; so does the schedule."""
    graph = random_graph(random)
    schedule = as_schedule(random, graph, random_valid_steps(random, graph, frees=random.random() < 0.6))
    plan = ExecutionPlan.of_schedule(graph, schedule)
    done = simulate(graph, schedule)
    assert run(plan, graph) == done.memory[done.is_compute].tolist()
    for again in (plan_from_document(json.loads(plan_to_json(plan))), plan_from_text(plan_to_text(plan))):
        assert again == plan
        assert plan_to_json(again) == plan_to_json(plan)
    back = plan.schedule(graph)
    assert ExecutionPlan.of_schedule(graph, back) == plan
    before, after = validate(graph, schedule), validate(graph, back)
    assert (before.verdict, before.peak, before.cost) == (after.verdict, after.peak, after.cost)


@calm
@given(randoms)
def test_early_frees(random):
    """The same computes and frees, in no more memory at any compute, and nothing can be moved further."""
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


def test_implied_frees_are_early():
    graph = unit_chain(4)
    schedule = Schedule.reference(graph)
    early = with_early_frees(graph, schedule)
    assert early == with_early_frees(graph, with_frees(graph, schedule))
    assert simulate(graph, early).peak == simulate(graph, schedule).peak
    assert run(ExecutionPlan.of_schedule(graph, early), graph) == run(ExecutionPlan.of_schedule(graph, schedule), graph)


def test_a_real_graph():
    """REVOLVE-like recomputation on a chain; as many registers as there are tensors at once."""
    graph = unit_chain(4)
    steps = ["f0", "f1", "f2", "f3", "loss", "g3", "f0", "f1", "g2", "g1", "f0", "g0"]
    schedule = Schedule.of_computes(graph, [graph.op_index[name] for name in steps])
    plan = ExecutionPlan.of_schedule(graph, schedule)
    assert plan.num_registers == max(run(plan, graph)) == simulate(graph, schedule).peak


def test_what_does_not_run_has_no_plan():
    graph = unit_chain(2)
    for function in (with_early_frees, ExecutionPlan.of_schedule):
        with pytest.raises(ScheduleError, match=r"is not valid: .*'f1' reads tensor 'f0', which was never produced"):
            function(graph, Schedule.from_steps([("compute", "f1")]))


FAULTS = {
    ("%3 = allocate", "%1 = allocate"): r"statement 3 .*: register %1 is in use, it holds tensor 'a'",
    ('%3 = allocate "sum" 16', '%3 = allocate "sum" 15'): r"statement 3 .*: 15 bytes for tensor 'sum', which has 16",
    ('allocate "sum"', 'allocate "som"'): r"statement 3 .*: graph 'mixed' has no tensor 'som'",
    ('%3 = allocate "sum"', '%4 = allocate "sum" 16\n%3 = allocate "sum"'):
        r"statement 4 .*: tensor 'sum' is in register %4 already",
    ('compute "two"', 'compute "too"'): r"statement 6 .*: graph 'mixed' has no op 'too'",
    ('(%2) -> (%3)', '(%1) -> (%3)'):
        r"statement 6 .*reads tensor 'b' in register %1, which is free since statement 5 \(deallocation of %1\)",
    ('(%2) -> (%3)', '(%3) -> (%3)'): r"statement 6 .*reads tensor 'b' in register %3, which holds tensor 'sum'",
    ('(%2) -> (%3)', '(%2) -> (%9)'): r"statement 6 .*writes tensor 'sum' in register %9, which was never allocated",
    ('(%2) -> (%3)', '(%2) -> (%3, %2)'): r"statement 6 .*writes 2 registers, but the op writes 1 tensors",
    ('deallocate %3', 'deallocate %3\ndeallocate %3'): r"statement 13 .*register %3, which is free since statement 12",
    ('%0 = input "x" 8', ''): r"inputs: tensor 'x' is a graph input without a register",
    ('%0 = input "x" 8', '%0 = input "x" 8\n%9 = input "a" 4'): r"inputs: tensor 'a' is no graph input",
    ('compute "one"', '%7 = allocate "y" 1\ncompute "one"'): r"statement 4 .*is written into register %7 before",
    ('compute "two"', 'nonsense\ncompute "two"'): r"line 12 is no header, .*: 'nonsense'",
    ('%2) -> (%3)', '%2) -> %3'): r"line 12 is no header",
    ('"two"', '"two\\x"'): r"line 12: .* is not a JSON string",
    ('source "by hand"', 'graph "again"'): r"line 4: graph stands twice",
    ("remat-plan 1", "remat-plan 2"): r"the first line must be 'remat-plan 1'",
    ('%3 = allocate "sum" 16', '%3 = allocate "sum" ' + 31 * "9"): r"line 9 is no header",
}  # fmt: skip


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change[1][:40])
def test_faults_are_one_line_with_the_place(change, tmp_path):
    graph, schedule = example()
    plan = plan_to_text(ExecutionPlan.of_schedule(graph, schedule))
    assert change[0] in plan
    path = tmp_path / "plan.txt"
    path.write_text(plan.replace(*change, 1), encoding="utf-8")
    with pytest.raises(FormatError, match=FAULTS[change]) as caught:
        read_schedule(path, graph)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_register_that_is_read_before_it_is_written():
    b = GraphBuilder("g")
    b.op("a", size=1)
    b.op("c", inputs=["a"], size=1)
    plan = ExecutionPlan((), (Allocate(0, "a", 1), Allocate(1, "c", 1), Compute("c", (0,), (1,))))
    with pytest.raises(FormatError, match=r"statement 2 .*reads register %0, which nothing has been written into"):
        plan.schedule(b.build())


def test_a_plan_for_another_graph_or_without_deallocations():
    graph, schedule = example()
    plan = ExecutionPlan.of_schedule(graph, schedule)
    with pytest.raises(FormatError, match="for another graph than 'unit-chain-2'"):
        plan.schedule(unit_chain(2))
    kept = ExecutionPlan(plan.inputs, tuple(s for s in plan.statements[:3]), graph_digest=graph.digest)
    with pytest.raises(FormatError, match="the plan deallocates nothing"):
        kept.schedule(graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2; this program reads version 1"),
        ({"more": 1}, "unknown key 'more'"),
        ({"statements": {}}, "statements must be a list, not an object"),
        ({"statements": None}, "statements must be a list, not None"),
        ({"statements": [["allocate", 0, "a"]]}, r"statements\[0\] is no allocate, compute or deallocate"),
        ({"statements": [["allocate", True, "a", 1]]}, r"statements\[0\] is no allocate"),
        ({"statements": [["deallocate", -1]]}, r"statements\[0\] is no allocate"),
        ({"statements": [["compute", "a", [0], [1.5]]]}, r"statements\[0\] is no allocate"),
        ({"statements": ["compute"]}, r"statements\[0\] must be a list, not 'compute'"),
        ({"inputs": [3]}, r"inputs\[0\] must be a list, not 3"),
        ({"inputs": [[0, "x"]]}, r"inputs\[0\] is no allocate"),
        ({"graph": 3}, "graph must be a string, not 3"),
    ],
)
def test_other_documents(change, message, tmp_path):
    graph, schedule = example()
    document = json.loads(plan_to_json(ExecutionPlan.of_schedule(graph, schedule))) | change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FormatError, match=message):
        read_schedule(path, graph)


@pytest.mark.parametrize("name", ["remat-json", "plan", "plan-text"])
def test_files_in_every_format_that_has_frees(name, tmp_path):
    graph, schedule = example()
    write_schedule(schedule, tmp_path / "out", name, graph)
    assert read_schedule(tmp_path / "out", graph) == schedule


def test_formats_that_cannot_say_it(tmp_path):
    schedule = example()[1]
    out = tmp_path / "out"
    write_schedule(schedule.without_frees(), out, "plain-list")
    assert read_schedule(out).computes() == schedule.computes()
    for name, message in (
        ("plain-list", "cannot say where tensors are freed"),
        ("plan", "together with the graph"),
        ("checkmate", "no schedule format that can be written is called 'checkmate' .*plan"),
    ):
        with pytest.raises(FormatError, match=message):
            write_schedule(schedule, out, name)  # fmt: skip


def test_the_shell(tmp_path, capsys):
    from remat.cli import main

    graph, schedule = example()
    paths = {name: str(tmp_path / name) for name in ("g.json", "s.json", "p.txt", "q.json", "l.json")}
    write_graph(graph, paths["g.json"])
    write_schedule(schedule, paths["s.json"])

    def convert(*words):
        return main(["convert", *words, "--graph", paths["g.json"]])

    assert convert(paths["s.json"], paths["p.txt"], "--to", "plan-text", "--frees", "early") == 0
    assert read_schedule(paths["p.txt"], graph) == with_early_frees(graph, schedule)
    assert convert(paths["p.txt"], paths["q.json"], "--to", "plan", "--frees", "given") == 0
    assert main(["validate", paths["g.json"], paths["q.json"]]) == 0
    assert convert(paths["q.json"], paths["l.json"], "--to", "plain-list", "--frees", "implied") == 0
    assert read_schedule(paths["l.json"]).computes() == schedule.computes()
    capsys.readouterr()
    assert convert(paths["s.json"], paths["l.json"], "--to", "plans") == 2
    assert main(["convert", paths["g.json"], paths["l.json"], "--to", "plan"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "'plans'" in first and "need --graph" in second


def test_damaged_files(tmp_path):
    graph, schedule = example()
    plan = ExecutionPlan.of_schedule(graph, schedule)
    for text in (plan_to_json(plan), plan_to_text(plan)):
        for end in range(0, len(text) - 2, 5):
            path = tmp_path / "cut"
            path.write_text(text[:end], encoding="utf-8")
            try:
                found = read_schedule(path, graph)
            except RematError as error:
                assert "\n" not in str(error)
            else:
                assert not text.startswith("{")
                assert found != schedule
