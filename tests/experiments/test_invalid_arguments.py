"""Invalid arguments of comparisons, frontiers and largest batches are refused before the first run."""

from dataclasses import replace

import pytest
from refusals import refused

from remat import Problem, frontier, max_batch
from remat.backends.highs import Highs
from remat.experiments.compare import compare
from remat.experiments.contestant import Contestant
from remat.formulations.checkmate import Checkmate
from remat.graphs.batch_scaling import Affine, AffineGraph
from remat.graphs.families import path, unit_chain
from remat.heuristics.greedy import Greedy
from remat.runtime.deadline import Deadline
from remat.runtime.processes.workers import WorkerPool

CHAIN = Problem(unit_chain(4))
FAMILY = AffineGraph.scaled(unit_chain(4), 1)
ANY = "experiments.question"


@pytest.mark.parametrize(
    ("kind", "call", "arguments", "options"),
    [
        (ANY, compare, (CHAIN, ["much"], ["greedy"]), {}),
        (ANY, compare, (CHAIN, [5], ["chekmate/highs"]), {}),
        (ANY, compare, (CHAIN, [5], ["checkmate/hihgs"]), {}),
        (ANY, compare, (CHAIN, [5], ["checkmate/highs:x"]), {}),
        (ANY, compare, (CHAIN, [5], ["checkmate/"]), {}),
        ("problem.needs-no-backend", compare, (CHAIN, [5], ["greedy/highs"]), {}),
        (ANY, compare, (CHAIN, [5], ["greedy", "greedy"]), {}),
        (ANY, compare, (CHAIN, [5, "5"], ["greedy"]), {}),
        (ANY, compare, (CHAIN, [], ["greedy"]), {}),
        (ANY, compare, (CHAIN, [5], []), {}),
        (ANY, compare, (CHAIN, [5], "greedy"), {}),
        (ANY, compare, (CHAIN, [5], [int]), {}),
        (ANY, compare, (CHAIN, [5], ["greedy"]), {"stop": 0}),
        (ANY, compare, (CHAIN, [5], ["greedy"]), {"options": {"threads": 1}}),
        (ANY, compare, (CHAIN, [5], ["greedy"]), {"stop": Deadline.after(5)}),
        (ANY, frontier, (CHAIN, [None], ["greedy"]), {}),
        (ANY, frontier, (CHAIN, ["67%", 4], ["greedy"]), {}),
        (ANY, frontier, (CHAIN, [4], ["gredy"]), {}),
        (ANY, frontier, (CHAIN, ["lots"], ["greedy"]), {}),
        (ANY, frontier, (CHAIN, [4], ["greedy"]), {"stop": -1}),
        ("problem.number-of-budgets", frontier, (CHAIN, 0, ["greedy"]), {}),
        ("problem.frontier-of-peaks", frontier, (replace(CHAIN, objective="least-peak"), [5], ["greedy"]), {}),
        (ANY, max_batch, (FAMILY, "80%", "greedy"), {}),
        (ANY, max_batch, (FAMILY, 0.5, "greedy"), {}),
        (ANY, max_batch, (FAMILY, "16 apples", "greedy"), {}),
        (ANY, max_batch, (replace(FAMILY, sizes=(Affine(1, 0),) * 9), 9, "greedy"), {}),
        (ANY, max_batch, (replace(FAMILY, costs=(Affine(1, 0),) * 8 + (Affine(1, 1),)), 9, "greedy"), {}),
        (ANY, max_batch, (AffineGraph.scaled(path(3), 1), 9, "greedy"), {}),
        ("problem.needs-no-backend", Contestant.of, (Greedy, Highs), {}),
        ("backend.unknown-name", Contestant.of, (Checkmate, "hihgs"), {}),
        (ANY, WorkerPool, (0,), {}),
    ],
)
def test_invalid_arguments(tmp_path, kind, call, arguments, options):
    runs = []
    reports = {compare: {"on_run": runs.append}, max_batch: {"on_probe": runs.append}}
    reports[frontier] = {"on_cell": runs.append}
    with refused(kind):
        call(*arguments, **reports.get(call, {}), **options)
    assert runs == list(tmp_path.iterdir()) == []
