"""Measured costs: valid arguments for ops, each distinct op once, cache, unchanged caller state."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from models import MODELS, step_nodes, traced  # noqa: E402
from refusals import refused  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

from remat.runtime.deadline import Deadline  # noqa: E402
from remat.torch.costs import CostRemark, Measured, cost_model, measured, measured_workspaces  # noqa: E402
from remat.torch.costs.calls import call_of  # noqa: E402
from remat.torch.costs.measured import key_of  # noqa: E402
from remat.torch.costs.samples import real_arguments  # noqa: E402

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure few calls of each op, with a cache folder per test."""
    monkeypatch.setattr(measured, "ENOUGH", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def count_measurements(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[str]:
    done: list[str] = []
    real = measured._time

    def counted(call) -> int:
        if len(done) == stop_after:
            raise KeyboardInterrupt
        done.append(call.name)
        return real(call)

    monkeypatch.setattr(measured, "_time", counted)
    return done


def test_equal_ops_are_measured_once_and_cached(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = count_measurements(monkeypatch)
    nodes = traced(lambda x, y: ((x * y) * y).t() * (x * x).t(), (8, 4), (8, 4))
    calls, steps = [call_of(node) for node in nodes], []
    first = Measured(on_progress=lambda *step: steps.append(step)).costs(nodes)
    # x·y and (x·y)·y are equal; x·x reads one tensor; the last reads other strides
    assert len(done) == 3
    assert [(number, total) for number, total, _ in steps] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert all((cost == 0) == call.free and type(cost) is int for call, cost in zip(calls, first, strict=True))
    assert first[0] == first[1]
    assert cost_model("measured").costs(nodes) == first
    assert len(done) == 3, "cached"
    (file,) = quick.rglob("costs-*.json")
    assert {key.split()[0] for key in json.loads(file.read_text())["values"]} == {"time"}


def test_partial_measurements_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = traced(lambda x: x.exp().log().sin(), (8, 4))
    with refused("measurement.overdue", culprit="exp"):
        Measured(deadline=0).costs(nodes)
    with monkeypatch.context() as patch:
        done = count_measurements(patch, stop_after=2)
        with pytest.raises(KeyboardInterrupt):
            Measured().costs(nodes)
    assert done == ["exp", "log"]
    done = count_measurements(monkeypatch)
    Measured(deadline=Deadline.after(60)).costs(nodes)
    assert done == ["sin"]


def test_caller_state_is_unchanged_and_fake_modes_are_disabled() -> None:
    """Under the fake tensors of a capture, an op would take no time for its data."""
    nodes = traced(lambda x: aten.native_dropout(x, 0.5, True), (64, 64))
    seen = []

    def inspected(call) -> int:
        seen.extend(real_arguments(call)[0])
        return 7

    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode():
        patch.setattr(measured, "_time", inspected)
        assert Measured().costs(nodes)[0] == 7
    assert not isinstance(seen[0], FakeTensor)
    Measured().costs(traced(lambda x: aten.native_dropout(x, 0.25, True), (64, 64)))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()


def gather_and_scatter(x, table, index):
    rows = torch.nn.functional.embedding(index, table)
    chosen = x.gather(1, index) + x[index[0], index[1]].sum()
    added = torch.zeros_like(x).scatter_add(1, index, chosen) + torch.index_select(x, 1, index[0]).sum()
    put = x.clone().index_put((index[0] % x.shape[0],), x[0], accumulate=True)
    return rows, added, put


def losses_and_pools(images, index):
    loss = torch.nn.functional.cross_entropy(images.flatten(2).transpose(1, 2).flatten(0, 1), index.flatten())
    pooled, places = aten.max_pool2d_with_indices(images, [2, 2])
    back = aten.max_pool2d_with_indices_backward(pooled, images, [2, 2], [2, 2], [0, 0], [1, 1], False, places)
    return loss, back, torch.nn.functional.one_hot(index, 5).float() * (index > 1).unsqueeze(-1), index // 2


def with_gradients(images, weight, scale):
    with torch.enable_grad():
        images, weight, scale = (tensor.detach().requires_grad_() for tensor in (images, weight, scale))
        y = torch.nn.functional.conv2d(images, weight, padding=1)
        y = torch.nn.functional.batch_norm(y, None, None, scale, scale, training=True)
        y = torch.nn.functional.layer_norm(y, y.shape[-1:]).softmax(1).log().sqrt()
        return torch.autograd.grad(torch.nn.functional.gelu(y).sum(), (images, weight, scale))


INDEX = torch.zeros(3, 4, dtype=torch.long)
CASES = {
    "indices": (gather_and_scatter, ((3, 6), (1000, 4), INDEX)),
    "losses": (losses_and_pools, ((3, 5, 2, 2), INDEX)),
    "gradients": (with_gradients, ((2, 3, 8, 8), (4, 3, 3, 3), (4,))),
}


@pytest.mark.parametrize("case", CASES)
def test_ops_get_valid_arguments(case: str) -> None:
    function, shapes = CASES[case]
    nodes = traced(function, *shapes)
    assert len(nodes) > 8
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostRemark)
        costs = Measured().costs(nodes)
    assert all((cost == 0) == call_of(node).free for node, cost in zip(nodes, costs, strict=True))


def test_real_tensors_have_the_layout_of_fake_ones() -> None:
    nodes = traced(lambda x, y: x.t() * y.expand(6, 4) + x.t(), (4, 6), (1, 4))
    product = next(node for node in nodes if node.target is aten.mul.Tensor)
    left, right = real_arguments(call_of(product))[0]
    assert (left.shape, left.stride()) == ((6, 4), (1, 6))
    assert (right.shape, right.stride(), right.untyped_storage().nbytes()) == ((6, 4), (0, 1), 16)
    assert 0.1 <= float(left.min()) <= float(left.max()) <= 1
    squared = call_of(traced(lambda x: x * x, (4,))[0])
    first, second = real_arguments(squared)[0]
    assert first is second
    assert key_of("time", squared) != key_of("time", call_of(traced(lambda x, y: x * y, (4,), (4,))[0]))
    rows = traced(aten.embedding, (50, 2), torch.zeros(1000, dtype=torch.long))
    weight, index = real_arguments(call_of(rows[0]))[0]
    assert 25 < int(index.max()) < len(weight) == 50


@pytest.fixture
def own_ops() -> Iterator[object]:
    """An op with a workspace of 4000 bytes, and one that fails alone."""
    with torch.library._scoped_library("remat_measured", "DEF") as library:

        def greedy(x):
            table = torch.empty(1000)
            return x.clone().fill_(len(table))

        def refuses(x):
            raise RuntimeError("needs other ops\nand more")

        for name, function in (("greedy", greedy), ("refuses", refuses)):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, function, "CPU")
            library.impl(name, torch.empty_like, "Meta")
        yield torch.ops.remat_measured


def test_exact_workspaces(own_ops) -> None:
    nodes = traced(lambda x: own_ops.greedy(x.exp()).t().relu(), (8, 4))
    with FakeTensorMode():
        assert measured_workspaces(nodes) == [0, 4000, 0, 0]
    assert measured_workspaces(nodes, deadline=0) == [0, 4000, 0, 0], "cached"
    more = traced(lambda x: own_ops.greedy(x).log(), (8, 5))
    with refused("measurement.overdue"):
        measured_workspaces(more, deadline=0)


def test_failing_op_is_named(own_ops) -> None:
    nodes = traced(lambda x: own_ops.refuses(x).exp(), (8, 4))
    with pytest.warns(CostRemark, match=r"'refuses': remat_measured.refuses.default .* needs other ops$"):
        costs = Measured().costs(nodes)
    assert all(cost > 0 for cost in costs)
    with pytest.warns(CostRemark, match="workspace"):
        assert measured_workspaces(nodes) == [0, 0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_gpu_ops_need_a_gpu() -> None:
    (node,) = traced(torch.relu, (3,))
    with FakeTensorMode() as mode:
        for each in (node, node.args[0]):
            each.meta["val"] = FakeTensor(mode, torch.empty(3, device="meta"), torch.device("cuda"))
    with refused("measurement.no-gpu"):
        Measured().costs([node])
    with refused("measurement.no-gpu", culprit="roofline:A100"):
        cost_model("roofline").costs([node])
    assert cost_model("roofline:A100").costs([node]) == [5000]


@pytest.mark.slow
def test_all_ops_of_training_steps_can_be_measured() -> None:
    for name in MODELS:
        nodes = step_nodes(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CostRemark)
            costs = Measured().costs(nodes)
            workspaces = measured_workspaces(nodes)
        assert all((cost == 0) == call_of(node).free for node, cost in zip(nodes, costs, strict=True))
        assert all(size >= 0 for size in workspaces)


def test_capture_with_measured_costs_and_workspaces(own_ops) -> None:
    from remat.torch import capture

    class Greedy(torch.nn.Module):
        def forward(self, x):
            return own_ops.greedy(x.exp())

    captured = capture(Greedy(), (torch.ones(8, 4),), mode="inference", costs=Measured(), workspaces="measured")
    exp, greedy = captured.graph.ops
    assert (exp.workspace, greedy.workspace, captured.graph.cost_unit) == (0, 4000, "ns")
    assert captured.graph.meta["cost_model"] == "measured"
    assert exp.cost > 0
    assert captured.graph.structural_bound.peak >= 4000
    with refused("capture.workspaces", culprit="guessed"):
        capture(Greedy(), (torch.ones(8, 4),), workspaces="guessed")
    with refused("measurement.unknown-cost-model", culprit="flop"):
        capture(Greedy(), (torch.ones(8, 4),), costs="flop")
