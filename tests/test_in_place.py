"""Outputs in place of inputs: data, semantics, bounds, searches and methods, against brute force."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from remat import GraphBuilder, Problem, Schedule, SolveOptions, order, solve, validate
from remat.allocation.entry import allocate
from remat.allocation.problem import AllocationProblem
from remat.backends.highs import Highs
from remat.bounds import cut_bound, structural_bound
from remat.bounds.selection import applies, bounds
from remat.errors import ProblemError
from remat.formulations.checkmate import Checkmate
from remat.formulations.stages import Stages
from remat.graphs import ComputeGraph, Op, Tensor
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.formats.dot import graph_to_dot
from remat.graphs.formats.remat_json import graph_from_document, graph_to_text
from remat.graphs.rewriting import rewrite_graph
from remat.modeling import violations
from remat.ordering.best_first import Aim, explore
from remat.ordering.instance import OrderInstance
from remat.problem.scope import covers, own_scope
from remat.schedule.addresses import AddressRule, check_addresses
from remat.schedule.buffers import schedule_buffers
from remat.schedule.traces.timeline import Timeline
from remat.testing.exhaustive import least_peak, optimum
from remat.testing.graphs import random_budget, random_graph


def relu_network(*, late: bool = False) -> ComputeGraph:
    """Return two in-place ops of ten bytes each; with `late` the input of the second is read again."""
    b = GraphBuilder("relus")
    b.op("x", size=10, cost=1)
    b.op("y", inputs=["x"], size=10, cost=1, in_place=[("y", "x")])
    b.op("z", inputs=["y"], size=10, cost=1, in_place=[("z", "y")])
    b.op("end", inputs=["z", "y"] if late else ["z"], size=1, cost=1)
    return b.build()


@pytest.mark.parametrize(
    ("kind", "pairs", "sizes"),
    [
        ("tensor-lists", [("y", "q")], {}),
        ("tensor-lists", [("x", "x")], {}),
        ("in-place-pair", [("y", "x")], {"y": 3}),
        ("in-place-pair", [("s", "x")], {}),
        ("in-place-pair", [("y", "x", "x")], {}),
        ("in-place-pair", "yx", {}),
        ("in-place-pair", [("y", "x")] * 65, {}),
    ],
)
def test_wrong_pairs_are_refused(kind, pairs, sizes):
    size = {"x": 4, "y": 4, "s": 4} | sizes
    ops = [Op("a", (), ("x",)), Op("b", ("x",), ("y", "s"), in_place=pairs), Op("c", (), ("s",))]
    with refused(f"graph.{kind}", culprit="b"):
        ComputeGraph("g", [Tensor(*each) for each in size.items()], ops)


def test_files_and_digests_change_only_with_pairs():
    graph = relu_network()
    assert graph.in_place and not graph.plain.in_place and graph.plain.plain is graph.plain
    assert "in_place" not in graph_to_text(graph.plain)
    assert graph.digest != graph.plain.digest
    assert (
        graph_from_document(json.loads(graph_to_text(graph)))
        == graph
        == ComputeGraph.from_networkx(graph.to_networkx())
    )
    assert graph_to_dot(graph).count("dashed") == 2
    assert AffineGraph.scaled(graph, 1, ["y", "end"], constant_costs=True).at(2).ops[1].in_place == ()
    assert not rewrite_graph(graph).rewrites


def test_bytes_count_once_if_the_input_dies():
    graph = relu_network()
    assert validate(graph, Schedule.reference(graph)).peak == graph.reference_peak == 11
    held = relu_network(late=True)
    certificate = validate(held, Schedule.reference(held))
    assert (certificate.peak, certificate.in_place, certificate.in_place_at_peak) == (21, 1, 0)
    assert held.reference_peak == 21
    assert "1 outputs" in str(certificate)
    assert certificate.as_dict()["in_place"] == 1
    assert "in_place" not in validate(graph.plain, Schedule.reference(graph.plain)).as_dict()
    computes = [("compute", name) for name in ("x", "y", "z", "end")]
    late = Schedule.from_steps([*computes[:3], ("free", "x"), *computes[3:], ("free", "y")])  # freed too late to share
    assert (validate(graph, late).peak, validate(graph, late).pruned_peak) == (30, 11)
    soon = Schedule.from_steps([*computes[:2], ("free", "x"), *computes[2:3], ("free", "y"), ("compute", "end")])
    assert validate(graph, soon).in_place == 2
    kept = graph.with_outputs(["y"])
    assert kept.reference_peak == validate(kept, Schedule.reference(kept)).peak == 21


def test_live_output_keeps_its_bytes():
    b = GraphBuilder("two outputs")
    b.op("x", size=4)
    b.op("f", inputs=["x"], outputs={"y": 4, "z": 1}, in_place=[("y", "x")])
    b.op("g", inputs=["z"], size=1)
    b.op("h", inputs=["y", "z", "g"], size=1)
    steps = [("compute", name) for name in ("x", "f", "g", "x", "f", "h")]
    frees = [*steps[:2], ("free", "x"), steps[2], ("free", "z"), *steps[3:5], ("free", "x"), steps[5]]
    memory = Problem(b.build()).simulate(Schedule.from_steps(frees)).memory
    assert memory.tolist() == [4, 5, 5, 6, 5, 9, 10, 6, 7]  # y keeps its bytes: x and y, g, and z sum to ten


def test_each_input_is_overwritten_once_to_save_most_bytes():
    b = GraphBuilder("sum")
    b.op("x", size=4)
    b.op("y", size=4)
    b.op(
        "f",
        inputs=["x", "y"],
        outputs={"s": 4, "t": 4, "u": 4},
        in_place=[("s", "x"), ("t", "x"), ("t", "y"), ("u", "y")],
    )
    b.op("g", inputs=["s", "t"], outputs={"v": 4, "w": 4}, in_place=[("v", "s"), ("v", "t"), ("w", "s")])
    graph = b.build()
    assert Problem(graph).simulate(Schedule.reference(graph)).memory.tolist() == [4, 8, 12, 8]
    assert structural_bound(Problem(graph)).value == 12


def test_last_reader_depends_on_the_order():
    b = GraphBuilder("two readers")
    b.op("x", size=8)
    b.op("r", inputs=["x"], size=8, in_place=[("r", "x")])
    b.op("s", inputs=["x"], size=1)
    b.op("end", inputs=["r", "s"], size=1)
    problem = Problem(b.build(), order="free", max_computes=1, objective="least-peak")
    instance = OrderInstance.of(problem)
    assert not instance.exact
    assert (instance.peak_of([0, 1, 2, 3]), OrderInstance.of(problem, least=False).peak_of([0, 2, 1, 3])) == (17, 17)
    found = solve(problem, "kahn", None, stop=10)
    assert (found.peak, problem.graph.reference_peak) == (17, 17)
    assert solve(problem, "auto", None, stop=10).peak == least_peak(problem, own_scope(problem)).peak == 10


def test_formulations_without_in_place_ops_are_refused():
    with refused("problem.in-place", culprit="stages"):
        Stages(Problem(relu_network(), 11))
    assert Stages(Problem(relu_network(), 31).plain)


#: Methods compared with brute force.
METHODS = ("auto", "greedy", "annealing", "drops", "hierarchical", "checkmate", "stages", "retention-intervals")
ORDERS = (
    "valley-order",
    "best-first-order",
    "beam-order",
    "serenity",
    "order-portfolio",
    "kahn",
    "order-intervals",
    "order-positions",
)


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(10, 300, 10))])
def test_methods_agree_with_brute_force(first):
    seen = 0
    for seed in range(first, first + 10):
        graph = random_graph(seed, buffers=seed % 3 == 0, in_place=True)
        if graph.in_place:
            check_orders(Problem(graph, order="free", max_computes=1, objective="least-peak"), seed)
            rule, limit = ("fixed", "free")[seed % 2], (None, 2)[seed // 2 % 2]
            check_problem(Problem(graph, random_budget(graph, seed), rule, limit), seed)
            seen += 1
    assert seen > 5


def check_orders(problem: Problem, seed: int) -> None:
    """Compare order searches and bounds with the least peak."""
    best = least_peak(problem, own_scope(problem))
    assert validate(problem.graph, best.schedule).peak == best.peak
    assert explore(problem, Aim.PEAK, limit=10**9).bound == best.peak
    assert cut_bound(problem).value <= best.peak
    for method in (ORDERS[seed % len(ORDERS)], "auto"):
        found = solve(problem, method, stop=5, options=SolveOptions(threads=1))
        assert found.bound <= best.peak <= found.peak == validate(problem.graph, found.schedule).peak
        assert not found.proved or found.peak == best.peak


def check_problem(problem: Problem, seed: int) -> None:
    """Compare bounds, exhaustive search and a method with the optimum."""
    scope = own_scope(problem)
    best, least = optimum(problem, scope), least_peak(replace(problem, budget=None), scope).peak
    assert best is None or problem.validate(best.schedule).cost == best.cost
    assert explore(problem, Aim.PEAK, limit=10**9).bound == least
    for bound in bounds(problem, 2.0):
        if applies(bound, problem):
            assert not bound.infeasible or best is None, bound
            assert best is None or bound.value <= (best.peak if bound.measure == "peak" else best.cost), bound
    method = METHODS[seed % len(METHODS)]
    for objective, goal in (("least-cost", best and best.cost), ("least-peak", least)):
        asked = replace(problem, objective=objective, budget=problem.budget if objective == "least-cost" else None)
        try:
            found = solve(asked, method, "highs", stop=3, options=SolveOptions(threads=1))
        except ProblemError:  # the formulation lacks free orders or least peak
            continue
        value = found.peak if objective == "least-peak" else found.cost
        assert found.schedule is None or (value >= goal and asked.validate(found.schedule).accepted)
        if covers(found.scope, asked):
            assert goal is None or found.bound <= goal
            assert found.status != "optimal" or value == goal
            assert found.status != "infeasible" or goal is None


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(50, 300, 50))])
def test_addresses_share_bytes_only_in_place(first):
    shared = proved = 0
    for seed in range(first, first + 50):
        graph = random_graph(seed, buffers=seed % 3 == 0, in_place=True)
        schedule = Schedule.reference(graph)
        buffers = schedule_buffers(graph, schedule, workspaces=False)
        found = allocate(AllocationProblem(buffers, alignment=seed % 2 + 1), time_limit=5)
        assert check_addresses(found.addresses, buffers).accepted
        held = Problem(graph).simulate(schedule)
        spare = np.array([op.workspace for op in graph.ops])[held.ops]
        assert buffers.peak() == (held.memory - spare).max()
        shared += len(buffers.after)
        proved += found.price == buffers.peak()
        offset = dict(zip(buffers.names, found.addresses.offset.tolist(), strict=True))
        offset = {name: at for name, at in offset.items() if f"{name}#2" not in offset}  # one instance each
        for step in range(len(schedule)):
            pairs = {(int(o), int(s)) for k, o, s in held.in_place.T if k == step}
            live = [t for t in held.intervals.live_at(step).tolist() if graph.tensors[t].name in offset]
            for one, two in itertools.permutations(live, 2):
                begins = [offset[graph.tensors[t].name] for t in (one, two)]
                ends = [begin + graph.tensors[t].size for begin, t in zip(begins, (one, two), strict=True)]
                apart = ends[0] <= begins[1] or ends[1] <= begins[0]
                assert apart or (begins[0] == begins[1] and ({(one, two), (two, one)} & pairs))
        if buffers.after:
            later, _ = buffers.after[0]
            moved = found.addresses.offset.copy()
            moved[later] += found.addresses.arena
            wrong = replace(found.addresses, offset=moved)
            assert AddressRule.OTHER_PLACE in {each.rule for each in check_addresses(wrong, buffers).violations}
        assert Timeline.of(graph, schedule).held()
        assert np.array_equal(sum(Timeline.of(graph, schedule).held().values()), held.memory)
    assert shared > 10 and proved > 10  # enough cases


def mobilenet_v2() -> ComputeGraph:
    """MobileNet V2 at 224 x 224 as in ExecuTorch: batch norms, ReLU6 and additions write in place."""
    b = GraphBuilder("mobilenet-v2")
    b.op("x", size=4 * 3 * 224 * 224)
    last, side, width = "x", 112, 3

    def conv(name: str, source: str, channels: int, side: int, *, relu: bool = True) -> str:
        size = 4 * channels * side * side
        b.op(name, inputs=[source], size=size)
        for suffix in ("/norm", "/relu6") if relu else ("/norm",):
            b.op(name + suffix, inputs=[name], size=size, in_place=[(name + suffix, name)])
            name += suffix
        return name

    last, width = conv("stem", last, 32, side), 32
    for number, (expansion, channels, repeats, stride) in enumerate(
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    ):
        for repeat in range(repeats):
            name, source = f"block{number}.{repeat}", last
            if expansion > 1:
                last = conv(f"{name}/expand", last, expansion * width, side)
            side //= stride if repeat == 0 else 1
            last = conv(f"{name}/depthwise", last, expansion * width, side)
            last = conv(f"{name}/project", last, channels, side, relu=False)
            if repeat:
                pairs = [(f"{name}/add", last), (f"{name}/add", source)]
                last = b.op(f"{name}/add", inputs=[last, source], size=4 * channels * side * side, in_place=pairs)
            width = channels
    b.op("pool", inputs=[conv("head", last, 1280, 7)], size=4 * 1280)
    b.output(b.op("classifier", inputs=["pool"], size=4000))
    return b.build()


def test_least_peak_of_mobilenet_with_in_place_ops():
    graph = mobilenet_v2()
    found = order(graph, stop=20)
    assert (found.peak, found.proved) == (6_021_120, True)  # measured in ExecuTorch with shared storages
    assert order(graph.plain, stop=20).peak == 9_633_792  # without
    answer = allocate(AllocationProblem(schedule_buffers(graph, found.schedule), alignment=16), time_limit=20)
    assert (answer.price, answer.proved) == (6_021_120, True)
    assert found.certificate.in_place > 90


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(20, 300, 20))])
def test_checkmate_states_in_place_ops(first):
    counted = 0
    for seed in range(first, first + 20):
        graph = random_graph(seed, buffers=seed % 3 == 0, in_place=True)
        problem = Problem(graph, random_budget(graph, seed))
        formulation = Checkmate(problem)
        model, best = formulation.build(), optimum(problem, formulation.scope())
        found = Highs().solve(model, SolveOptions(threads=1))
        assert (None if found.objective is None else round(found.objective)) == (best and best.cost)
        if best is not None:
            certificate = problem.validate(formulation.decode(found.values))
            assert certificate.accepted and certificate.cost == best.cost
            assert violations(model, formulation.encode(best.schedule)) == []
            counted += certificate.in_place > 0
    assert counted > 2
