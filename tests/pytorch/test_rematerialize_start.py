"""rematerialize() starts its search also from what torch's partitioner would do."""

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
from remat.torch.rematerialized import entry, planning  # noqa: E402


@pytest.fixture(scope="module")
def step():
    """A small U-Net: its loss has a second output, so that torch computes it again; at the peak of torch."""
    torch.manual_seed(0)
    module, args = models.unet(levels=2)
    captured = models.captured("unet")[1]
    return module, args, captured, validate(captured.graph, partitioner_schedule(captured, 0.4))


def test_the_result_is_never_worse_than_torch(step, monkeypatch) -> None:
    module, args, captured, peer = step
    monkeypatch.setattr(entry, "capture", lambda *_, **__: captured)
    seen = []

    def hurried(problem, *given, stop, warm_start, **options):
        assert stop < 60
        seen.append(judged(problem, warm_start))
        return solve(problem, *given, stop=0.1, warm_start=warm_start, **options)

    solve = planning.solve
    monkeypatch.setattr(planning, "solve", hurried)
    report = rematerialize(module, args, peer.peak, time_limit=60).report
    (begun,) = seen
    assert begun.accepted
    assert begun.recomputations
    assert begun.overhead <= peer.overhead
    assert report.certificate.cost <= begun.cost
    assert report.predicted_peak <= peer.peak
    assert {"capture", "start", "solve"} == set(report.seconds)
    monkeypatch.setattr(planning, "torch_start", None)  # a method that is named does what it does
    monkeypatch.setattr(planning, "solve", lambda *given, **options: solve(*given, **{**options, "stop": 5}))
    assert "start" not in rematerialize(module, args, peer.peak, method="greedy").report.seconds


def test_a_module_that_checkpoints_itself_is_never_worse_than_its_checkpoints(monkeypatch) -> None:
    class Checkpointed(torch.nn.Sequential):
        def forward(self, x):
            for part in self:
                x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
            return x

    nn, x = torch.nn, torch.randn(256, 64)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh()) for _ in range(4)]
    solve, begun = planning.solve, []
    monkeypatch.setattr(
        planning, "solve", lambda *given, **options: begun.append(options["warm_start"]) or solve(*given, **options)
    )
    with pytest.warns(CaptureRemark, match="'Checkpointed' checkpoints itself .* 1,314,816 bytes") as told:
        model = rematerialize(Checkpointed(*blocks), x, 1_314_816, time_limit=0.1, costs="flops")
    assert [Path(each.filename).name for each in told] == [Path(__file__).name]
    start = validate(model.captured.graph, begun[0])
    assert start.peak == 1_314_816 < model.report.reference_peak
    assert model.report.certificate.cost <= start.cost


def test_the_cheapest_of_a_few_within_the_budget(step, monkeypatch) -> None:
    captured, peak = step[2], step[3].peak
    asked = []

    def counted(captured, knob):
        asked.append(knob)
        return partitioner_schedule(captured, knob)

    monkeypatch.setattr(planning, "partitioner_schedule", counted)
    roomy = Problem(captured.graph, captured.graph.reference_peak - 1, OrderRule.FIXED)
    found = validate(captured.graph, planning.torch_start(captured, roomy, 0, None), roomy.rules)
    assert asked == [0.4, 0.6, 0.8]
    assert found.accepted
    assert found.cost <= step[3].cost
    tight = Problem(captured.graph, captured.graph.reference_peak // 4, OrderRule.FIXED)
    assert planning.torch_start(captured, tight, 0, None) is None
    assert asked[3:] == [0.4, 0.3, 0.2]
    at_peak = Problem(captured.graph, peak, OrderRule.FIXED)
    # no time, nothing to do, or a torch that fails: no start, and no error
    assert planning.torch_start(captured, at_peak, 3.1, 10) is None
    assert planning.torch_start(captured, Problem(captured.graph, "100%", OrderRule.FIXED), 0, None) is None
    assert planning.torch_start(captured, Problem(captured.graph), 0, None) is None
    assert len(asked) == 6

    def broken(captured, knob):
        raise CaptureError("no luck")

    monkeypatch.setattr(planning, "partitioner_schedule", broken)
    assert planning.torch_start(captured, at_peak, 0, None) is None
