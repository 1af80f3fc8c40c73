"""Largest batches: closed forms, exhaustive search, published values, failures and interruption."""

from dataclasses import replace

import pytest
from helpers import ONE
from oracles import revolve

import remat.experiments.max_batch as module
from remat import Problem, max_batch, solve, validate
from remat.errors import BackendError
from remat.experiments import runs
from remat.experiments.contestant import Contestant
from remat.experiments.max_batch_result import BatchVerdict, plot_batches
from remat.experiments.runs import Run
from remat.graphs import GraphBuilder
from remat.graphs.batch_scaling import Affine, AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO, vgg16
from remat.heuristics.checkpointing.base import CheckpointingOptions, SweepOptions
from remat.io.figures import write_figure
from remat.problem.scope import Scope
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import OrderRule, Rules
from remat.testing import optimum


@pytest.fixture
def no_start(monkeypatch):
    """Run the method without the start heuristic."""
    monkeypatch.setattr(module, "START", "")


def chain(n, constant=0):
    family = AffineGraph.scaled(unit_chain(n), 1)
    return replace(family, constant_memory=Affine(constant, 0))


def expected(n, memory):
    """Return the largest batch of the chain by its closed form, and if the next is too expensive, not infeasible."""
    batch = 0
    while (slots := memory // (batch + 1)) >= 3 and n + 1 + revolve(n + 1, slots - 2) <= 2 * n + 1 + n:
        batch += 1
    return batch, slots >= 3


@pytest.mark.parametrize(
    ("n", "memory", "start"),
    [(4, 2, True), (4, 17, False),
     *(pytest.param(n, memory, start, marks=pytest.mark.slow)
       for n, memory in ((4, 3), (4, 17), (5, 40), (6, 100), (7, 64), (8, 150)) for start in (True, False))],
)  # fmt: skip
def test_largest_batch_of_a_chain_is_its_closed_form(n, memory, start, monkeypatch):
    if not start:
        monkeypatch.setattr(module, "START", "")
    batch, too_expensive = expected(n, memory)
    answer = max_batch(chain(n), memory, "checkmate/highs", stop=60, options=ONE)
    assert (answer.batch, answer.upper, answer.proved) == (batch, batch, True)
    assert answer.reason.batch == batch + 1
    assert answer.reason.verdict is (BatchVerdict.TOO_EXPENSIVE if too_expensive else BatchVerdict.INFEASIBLE)
    assert answer.plain == memory // (n + 2)
    if batch:
        assert answer.certificate.accepted
        assert answer.certificate.cost <= batch * (3 * n + 1)
        assert answer.graph.digest == chain(n).at(batch).digest
        checked = validate(answer.graph, answer.schedule, Problem(answer.graph, memory).rules)
        assert (checked.accepted, checked.cost) == (True, answer.certificate.cost)
    else:
        assert answer.graph is answer.schedule is answer.certificate is None


def uneven_training_step():
    """Forward and backward passes of uneven sizes, and a gradient of parameters that does not scale with the batch."""
    b = GraphBuilder("uneven-b1", constant_memory=7)
    b.op("x", size=3, cost=4, phase="forward")
    b.op("y", inputs=["x"], size=5, cost=1, workspace=2, phase="forward")
    b.op("z", inputs=["x", "y"], size=2, cost=2, phase="forward")
    b.op("gz", inputs=["z", "y"], size=4, cost=3, phase="backward")
    b.op("gw", inputs=["gz", "x"], size=6, cost=2, phase="backward")
    b.op("gx", inputs=["gz", "x"], size=3, cost=2, phase="backward")
    b.output("gw", "gx")
    return AffineGraph.scaled(b.build(), 1, ["gw"])


@pytest.mark.parametrize("memory", [30, pytest.param(67, marks=pytest.mark.slow)])
def test_largest_batch_agrees_with_exhaustive_search(memory, no_start):
    family = uneven_training_step()
    scope = Scope(OrderRule.FIXED, staged=True)
    batch = 0
    while True:
        graph = replace(family.at(batch + 1), constant_memory=0)
        best = optimum(Problem(graph, memory - 7), scope)
        if best is None or best.cost > (14 + 7) * (batch + 1):
            break
        batch += 1
    answer = max_batch(family, memory, "checkmate/highs", stop=60, options=ONE)
    assert (answer.batch, answer.proved) == (batch, True)
    free = max_batch(family, memory, "checkmate/highs", stop=60, count_constant_memory=False, options=ONE)
    assert free.batch == max_batch(family, memory + 7, "checkmate/highs", stop=60, options=ONE).batch


def test_largest_batch_of_vgg16():
    """Reference peak and structural bound at batch 256 are published; the structural bound is reached."""
    answer = max_batch(AffineGraph.of(vgg16), "16GB", "greedy", options=ONE)
    room, image = 16 * 10**9 - 8 * 138_357_544, 4 * 224 * 224 * 3
    assert answer.plain == room // (15_825_108_992 // 256 + image)
    assert answer.batch == room // (13_153_337_344 // 256 + image) == answer.upper
    assert answer.reason.verdict is BatchVerdict.INFEASIBLE
    assert answer.reason.complete
    assert "no schedule exists" in answer.claim


def test_heuristic_probes_each_batch_once_and_proves_nothing(no_start):
    for memory in (17, 64):
        answer = max_batch(chain(6), memory, "greedy", options=ONE)
        assert answer.plain <= answer.batch <= expected(6, memory)[0] <= answer.upper
        tried = [probe.batch for probe in answer.probes]
        assert len(tried) == len(set(tried))
        exact = [probe.batch for probe in answer.probes if probe.verdict is BatchVerdict.INFEASIBLE]
        assert answer.upper == min(exact) - 1
        assert not answer.proved
        assert answer.reason.verdict is BatchVerdict.NOT_FOUND
        assert "proves nothing" in answer.claim
        assert f"{answer.upper:,} is the largest not ruled out" in answer.claim


def test_missing_schedule_is_no_proof(faulty, no_start, monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["remat.solving.method"], "START_HEURISTICS", {})
    answer = max_batch(chain(6), 100, "checkmate/faulty:silent", options=ONE)
    assert (answer.batch, answer.plain, answer.upper) == (12, 12, 33)
    assert answer.reason.verdict is BatchVerdict.NOT_FOUND
    assert "found none in time" in answer.claim
    failed = max_batch(chain(6), 100, "checkmate/faulty:crash", options=ONE)
    assert (failed.batch, failed.upper) == (12, 33)
    assert failed.reason.verdict is BatchVerdict.FAILED
    assert "ZeroDivisionError" in failed.claim
    stopped = max_batch(chain(6), 100, "checkmate/faulty:stopped", options=ONE)
    assert stopped.interrupted
    assert (stopped.batch, stopped.upper, stopped.reason) == (12, 33, None)
    assert "interrupted" in stopped.claim
    assert stopped.row()["reason"] is None


def test_ctrl_c_keeps_the_largest_batch():
    def on_probe(probe):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(probe)

    seen = []
    answer = max_batch(chain(6), 100, "greedy", on_probe=on_probe, options=ONE)
    assert answer.interrupted
    assert answer.batch >= max(probe.batch for probe in seen if probe.verdict is BatchVerdict.FITS) > answer.plain
    assert answer.certificate.accepted


@pytest.mark.slow
def test_false_proof_is_detected(no_start, monkeypatch):
    """The method denies a batch size, and then returns a schedule of a smaller batch that fits at that size."""
    genuine = runs.run_method

    def denying(method, problem, limits, on_progress=None, warm_start=None):
        run = genuine(method, problem, limits, on_progress, warm_start)
        if problem.graph.meta["batch"] != first:
            return run
        return Run(method, problem, replace(run.result, schedule=None, certificate=None, status=Status.INFEASIBLE))

    first = (7 + 21) // 2  # midpoint of the largest batch without recomputation and the structural limit
    monkeypatch.setattr(runs, "run_method", denying)
    truth = expected(6, 60)[0]
    assert truth >= first, "the denial is right"
    with pytest.raises(BackendError, match=rf"proved that batch size {first} does not fit .* is good up to {truth}"):
        max_batch(chain(6), 60, "checkmate/highs", options=ONE)


def test_plot_of_batches(tmp_path):
    methods = (Contestant("greedy", label="ours"), "chen-sqrt")
    answers = [max_batch(chain(n), 20, method, options=ONE) for n in (4, 6) for method in methods]
    axes = plot_batches(answers)
    assert answers[0].row()["method"] == "ours"
    assert all(probe.as_dict()["verdict"] == str(probe.verdict) for probe in answers[0].probes)
    heights = [bar.get_height() for bar in axes.patches if bar.get_facecolor()[3] and bar.get_y() == 0]
    assert sorted(heights) == pytest.approx(
        sorted([1.0, 1.0, *(answer.batch / answer.plain for answer in answers)]), abs=1e-9
    )
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["unit-chain-4", "unit-chain-6"]
    words = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert words[:3] == ["no recomputation", "ours", "chen-sqrt"]
    without_bar = max_batch(chain(4), 5, "greedy", options=ONE)  # no batch fits without recomputation
    write_figure(tmp_path / "small.svg", lambda: plot_batches([without_bar]))
    assert "batch size" in (tmp_path / "small.svg").read_text(encoding="utf-8")


def test_dead_retention_counts_in_the_whole_search():
    """Regression: the reach of a schedule with explicit frees was computed as if it freed at last use."""
    choice = Contestant("chen-sqrt", options=CheckpointingOptions(dead_retention=True))
    dead = max_batch(chain(16), 100, choice, options=ONE)
    ideal = max_batch(chain(16), 100, "chen-sqrt", options=ONE)
    assert dead.plain < dead.batch < ideal.batch
    assert dead.schedule.has_frees
    assert dead.certificate.accepted
    larger = chain(16).at(dead.batch + 1)
    above = replace(dead.schedule, graph=larger.name, graph_digest=larger.digest)
    assert not validate(larger, above, Rules(budget=100, count_constant_memory=True)).accepted


#: Figure 6 of Checkmate for 16 GB: checkpoint all, AP √n and linearized greedy. The paper has 51 for the last of FCN8,
#: and 116 and 199 for the last two of ResNet50, since its program orders ops differently (docs/batch.md).
FIGURE_6 = {
    "unet": {"ap-all": 16, "ap-sqrt": 18, "linearized-greedy": 35},
    "fcn8": {"checkpoint-all": 29, "ap-sqrt": 51, "linearized-greedy": 49},
    "segnet": {"checkpoint-all": 21, "ap-sqrt": 33, "linearized-greedy": 43},
    "vgg19": {"checkpoint-all": 167, "ap-sqrt": 197, "linearized-greedy": 266},
    "resnet50": {"checkpoint-all": 98, "ap-sqrt": 129, "linearized-greedy": 245},
    "mobilenet": {"checkpoint-all": 215, "ap-sqrt": 452, "linearized-greedy": 640},
}


@pytest.mark.parametrize(
    "name", [name if name == "vgg19" else pytest.param(name, marks=pytest.mark.slow) for name in FIGURE_6]
)
def test_baselines_of_figure_6(name):
    """Methods run alone with dead retention; the published program subtracts parameters and gradients twice."""
    memory = 16 * 10**9 - 4 * ZOO[name]().meta["overhead"]["param_bytes"]
    call = SolveOptions(threads=1, start="alone")
    for method, batch in FIGURE_6[name].items():
        options = (SweepOptions if "greedy" in method else CheckpointingOptions)(dead_retention=True)
        answer = max_batch(
            AffineGraph.of(ZOO[name]), memory, Contestant(method, options=options), count_constant_memory=False,
            options=call,
        )  # fmt: skip
        assert (answer.batch, answer.source) == (batch, method)
        assert answer.schedule.has_frees


def test_start_alone_excludes_the_reference_order():
    """In solve() and max_batch(), also where the reference order fits."""
    problem = Problem(unit_chain(8), "100%")
    for start, expected in (("auto", "the reference order"), ("alone", "checkpoint-last")):
        result = solve(problem, "checkpoint-last", options=SolveOptions(threads=1, start=start))
        assert result.source == expected
    assert result.objective == (8 * 8 + 5 * 8 + 2) // 2
    exact = solve(problem, "checkmate", "highs", options=SolveOptions(threads=1, start="alone"))
    assert (exact.objective, exact.source) == (17, "checkmate by highs")
    assert solve(problem, options=SolveOptions(threads=1, start="alone")).objective == 17
    poor = max_batch(chain(6), 100, "checkpoint-last", options=SolveOptions(threads=1, start="alone"))
    assert (poor.batch, poor.plain) == (0, 12)  # it costs more than an extra forward pass at any batch size
