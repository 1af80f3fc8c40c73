"""Start of rematerialize() from schedules of torch's partitioner."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import models  # noqa: E402
from helpers import judged  # noqa: E402

from remat import Problem, validate  # noqa: E402
from remat.errors import CaptureError, CaptureRemark  # noqa: E402
from remat.schedule import OrderRule  # noqa: E402
from remat.torch import rematerialize  # noqa: E402
from remat.torch.peers import partitioner_schedule  # noqa: E402
from remat.torch.rematerialized import planner, planning  # noqa: E402


@pytest.fixture(scope="module")
def step():
    """A small U-Net whose loss op has a second output, which torch recomputes, and torch's certificate."""
    torch.manual_seed(0)
    module, args = models.unet(levels=2)
    captured = models.captured("unet")[1]
    return module, args, captured, validate(captured.graph, partitioner_schedule(captured, 0.4))


def test_result_at_least_as_good_as_torch(step, monkeypatch) -> None:
    module, args, captured, peer = step
    monkeypatch.setattr(planner, "capture", lambda *_, **__: captured)
    seen = []

    def hurried(problem, *given, stop, warm_start, **options):
        assert stop < 60
        seen.append(judged(problem, warm_start))
        return solve(problem, *given, stop=0.1, warm_start=warm_start, **options)

    solve = planning.solve
    monkeypatch.setattr(planning, "solve", hurried)
    report = rematerialize(module, args, peer.peak, time_limit=60).report
    (first,) = seen
    assert first.accepted
    assert first.recomputations
    assert first.overhead <= peer.overhead
    assert report.certificate.cost <= first.cost
    assert report.predicted_peak <= peer.peak
    assert {"capture", "start", "solve"} == set(report.seconds)
    monkeypatch.setattr(planning, "torch_start", None)  # named methods run without it
    monkeypatch.setattr(planning, "solve", lambda *given, **options: solve(*given, **{**options, "stop": 5}))
    assert "start" not in rematerialize(module, args, peer.peak, method="greedy").report.seconds


def test_result_at_least_as_good_as_own_checkpoints(monkeypatch) -> None:
    class Checkpointed(torch.nn.Sequential):
        def forward(self, x):
            for part in self:
                x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
            return x

    nn, x = torch.nn, torch.randn(256, 64)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh()) for _ in range(2)]
    solve, first = planning.solve, []
    monkeypatch.setattr(
        planning, "solve", lambda *given, **options: first.append(options["warm_start"]) or solve(*given, **options)
    )
    with pytest.warns(CaptureRemark, match="'Checkpointed' checkpoints itself .* 1,050,112 bytes") as remarks:
        model = rematerialize(Checkpointed(*blocks), x, 1_050_112, time_limit=0.1, costs="flops")
    assert [Path(each.filename).name for each in remarks] == [Path(__file__).name]
    start = validate(model.captured.graph, first[0])
    assert start.peak == 1_050_112 < model.report.reference_peak
    assert model.report.certificate.cost <= start.cost


def test_cheapest_of_a_few_partitions_within_the_budget(step, monkeypatch) -> None:
    captured, peak = step[2], step[3].peak
    tried = []

    def counted(captured, knob):
        tried.append(knob)
        return partitioner_schedule(captured, knob)

    monkeypatch.setattr(planning, "partitioner_schedule", counted)
    loose = Problem(captured.graph, captured.graph.reference_peak - 1, OrderRule.FIXED)
    found = validate(captured.graph, planning.torch_start(captured, loose, 0, None), loose.rules)
    assert tried == [0.4, 0.6, 0.8]
    assert found.accepted
    assert found.cost <= step[3].cost
    tight = Problem(captured.graph, captured.graph.reference_peak // 4, OrderRule.FIXED)
    assert planning.torch_start(captured, tight, 0, None) is None
    assert tried[3:] == [0.4, 0.3, 0.2]
    at_peak = Problem(captured.graph, peak, OrderRule.FIXED)
    # no start and no error without time, without a tight budget, or if torch fails
    assert planning.torch_start(captured, at_peak, 3.1, 10) is None
    assert planning.torch_start(captured, Problem(captured.graph, "100%", OrderRule.FIXED), 0, None) is None
    assert planning.torch_start(captured, Problem(captured.graph), 0, None) is None
    assert len(tried) == 6

    def broken(captured, knob):
        raise CaptureError("no luck")

    monkeypatch.setattr(planning, "partitioner_schedule", broken)
    assert planning.torch_start(captured, at_peak, 0, None) is None
