"""Rematerialized modules: training equal to the original's, within the budget."""

import copy
import functools
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import models  # noqa: E402
from eager import assert_equal, record, train  # noqa: E402
from generators import dropping  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

from remat import Schedule  # noqa: E402
from remat.errors import ProblemError, VerificationError  # noqa: E402
from remat.torch import capture, rematerialize  # noqa: E402
from remat.torch.execute.split import split  # noqa: E402
from remat.torch.rematerialized import planner  # noqa: E402
from remat.torch.rematerialized.verify import Expected, verify  # noqa: E402

QUICK = {"method": "greedy", "time_limit": 10.0}
slow = pytest.mark.slow


def wild_schedule(graph, share: float, seed: int) -> Schedule:
    """Return a schedule with many recomputations that keeps all outputs."""
    return dropping(graph, seed, share, keep=graph.outputs)


def test_schedule_with_another_order_of_random_ops_is_refused() -> None:
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return (nn.functional.dropout(x @ self.weight) + nn.functional.dropout(x * 2)).sum()

    captured = capture(Two(), (torch.randn(4, 4),))
    _, second = captured.random_ops
    order = list(captured.graph.op_names)
    reads = captured.graph.ops[captured.graph.op_index[second]].inputs
    behind = [op.name for op in captured.graph.ops if set(op.outputs) & set(reads)] + [second]
    order = behind + [name for name in order if name not in behind]
    with refused("schedule.random-order", culprit=second):
        split(captured, Schedule.from_steps([("compute", name) for name in order]))


@slow
@pytest.mark.parametrize("kind", models.MODELS)
def test_training_is_bitwise_equal_to_eager(kind: str) -> None:
    """Three steps with dropout and statistics."""
    torch.manual_seed(1)
    original, args = models.MODELS[kind]()
    model = rematerialize(copy.deepcopy(original), args, "75%", verify=True, **QUICK)
    assert model.report.predicted_peak <= 0.75 * model.report.reference_peak
    assert model.report.recomputations > 0
    assert_equal(*(train(each, each, args, optimizer=torch.optim.Adam, count=3) for each in (model, original)))
    found = model.report.verification
    assert found.bitwise and found.measured_peak <= 1.01 * model.report.predicted_peak + 4096
    assert "bitwise equal" in str(model.report)


def data(rows: int = 32):
    return torch.randn(rows, 8), torch.randn(rows, 8)


@pytest.fixture(scope="module")
def pair():
    """The original and its rematerialization at 70 % of the peak; tests restore both."""
    torch.manual_seed(0)
    module = models.Net()
    x, target = data()
    reported = []
    model = rematerialize(module, (x, target), "70%", verify=True, on_progress=reported.append, **QUICK)
    assert reported
    return module, model


@pytest.fixture
def state(pair):
    module, model = pair
    before = copy.deepcopy(module.state_dict())
    module.zero_grad()
    yield module, model
    model.train()
    module.load_state_dict(before)


def test_report_before_the_first_step(pair) -> None:
    module, model = pair
    text = str(model.report)
    for word in (
        "predicted",
        "without recomputation",
        "scope",
        "certificate  valid",
        "bitwise equal",
        "not counted",
        "GB/s",
    ):
        assert word in text, text
    assert model.report.recomputations > 0 and model.report.certificate.accepted
    assert "predicted" in repr(model) or "Net" in repr(model)
    assert module.first.weight.grad is None  # verification leaves no gradients


def test_tensors_saved_for_the_backward_pass(pair) -> None:
    """New statistics are not saved: batch norm's backward pass receives but does not read them."""
    captured = pair[1].captured
    changed = {each.node.name for each in captured.results_of("mutation")}
    assert len(changed) == 3
    saved = {each.name for each in split(captured, Schedule.reference(captured.graph)).saved}
    assert saved and not saved & changed
    parts = split(captured, wild_schedule(captured.graph, 0.3, seed=1))
    assert any(node.name.endswith("_recompute_2") for node in parts.backward.graph.nodes)
    states = {each.name for each in parts.saved if each.kind == "state"}
    assert states and all(name.endswith("_state") for name in states)
    assert set(captured.random_ops) & set(parts.recomputed)
    # parameters cross unchanged and take no memory
    assert any(each.kind == "input" and each.size == 0 for each in parts.saved)


def test_interface_of_the_original(state) -> None:
    """Shared parameters and names; evaluation and no_grad use the original; repeated calls; accumulation."""
    module, model = state
    x, target = data()
    assert list(model.state_dict()) == list(module.state_dict())
    assert {id(p) for p in model.parameters()} == {id(p) for p in module.parameters()}
    assert [name for name, _ in model.named_modules()] == [name for name, _ in module.named_modules()]
    start, results = copy.deepcopy(module.state_dict()), []
    for each in (module, model):
        module.load_state_dict(start)
        module.zero_grad()
        torch.manual_seed(4)
        with torch.no_grad():
            each(x, target)
        for scale in (1.0, 0.5):  # accumulated gradients of scaled losses
            (each(x, target)["loss"] * scale).backward()
        out = each(x, target=target)
        (out["loss"] + out["y"].sum()).backward()
        results.append(record(module))
    assert_equal(*results)
    model.eval()
    assert not module.training and not module.dropout.training
    assert torch.equal(model(x)["y"], module(x)["y"])  # also with arguments unlike the sample
    model.load_state_dict(start)


def test_setting_training_reaches_the_original(state) -> None:
    """Lightning sets it so after validation."""
    module, model = state
    modes = {name: part.training for name, part in model.named_modules()}
    model.eval()
    for name, part in model.named_modules():
        part.training = modes[name]
    assert module.training and model.training
    model(*data())["loss"].backward()


def test_retain_graph_works_and_double_backward_is_refused(state) -> None:
    module, model = state
    loss = model(*data())["loss"]
    loss.backward(retain_graph=True)
    once = record(module)
    module.zero_grad()
    loss.backward()
    assert_equal(record(module), once)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with refused("execution.double-backward"):
        torch.autograd.grad(model(*data())["loss"], module.first.weight, create_graph=True)


def test_calls_unlike_the_sample_are_refused(state) -> None:
    module, model = state
    x, target = data()
    for culprit, args, kwargs in (
        ("x", (x[:5], target), {}),
        ("x", (x.double(), target), {}),
        ("target", (x, 3), {}),
        ("x", (x.clone().requires_grad_(), target), {}),
    ):
        with refused("execution.unlike-sample", culprit=f"argument {culprit!r}"):
            model(*args, **kwargs)
    with refused("execution.not-callable", culprit="nonsense"):
        model(x, target, nonsense=2.0)
    model(x, target, scale=1.0)  # the default value
    with refused("execution.other-autocast"), torch.autocast("cpu"):
        model(x, target)
    module.norm.eval()
    with refused("execution.other-mode", culprit="norm"):
        model(x, target)


@pytest.mark.slow
def test_deep_copies_have_their_own_parameters_and_pickling_is_refused(state, tmp_path) -> None:
    module, model = state
    other = copy.deepcopy(model)
    assert other.original is not module and other.first.weight is other.second.weight
    assert other.first.weight is not module.first.weight
    args = data()
    other(*args)["loss"].backward()
    assert module.first.weight.grad is None and other.original.first.weight.grad is not None
    with refused("execution.pickled"):
        torch.save(model, tmp_path / "model.pt")


def test_sequences_stay_sequences_and_shallow_copies_share() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(4, 8)
    model = rematerialize(module, x, "100%", costs="flops")
    assert len(model) == 3 and model[0] is module[0] and list(model) == list(module) and len(model[:2]) == 2
    other = copy.copy(model)
    assert other.original is module and other.report is model.report and type(other) is type(model)
    other(x).sum().backward()
    assert module[0].weight.grad is not None
    with pytest.raises(TypeError, match="has no len"):
        len(rematerialize(module[0], x, "100%", costs="flops"))


def test_modules_that_cannot_be_captured_or_verified(tmp_path) -> None:
    class Reentrant(nn.Linear):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)

    x = torch.randn(2, 8)
    with refused("verification.no-gradient", culprit="eager"), pytest.warns(UserWarning, match="requires_grad"):
        rematerialize(Reentrant(8, 8), x, "100%", verify=True, costs="flops")
    with pytest.raises(ProblemError, match="outputs and gradients together need"):
        rematerialize(nn.Linear(8, 8), x, 100, costs="flops")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        sharded = torch.distributed.fsdp.fully_shard(nn.Linear(8, 8), mesh=mesh)
        with refused("capture.sharded", culprit="weight"):
            rematerialize(sharded, x, "100%", costs="flops")
    finally:
        torch.distributed.destroy_process_group()


class Interpolated(nn.Linear):
    """Ops that traces of PyTorch replace by many."""

    def forward(self, x):
        line = super().forward(x)
        image, target = line[:, None], torch.ones_like(line, dtype=torch.int64)
        resized = functools.partial(nn.functional.interpolate, scale_factor=2)
        parts = [resized(line, mode=mode) for mode in ("nearest", "nearest-exact", "linear")]
        parts += [resized(image, mode=mode) for mode in ("nearest", "bilinear", "bicubic")]
        parts += [resized(image[:, None], mode="trilinear"), line.hardshrink(), nn.functional.softshrink(line)]
        parts += [nn.functional.multi_margin_loss(line[0], target[0, :, 0])]
        parts += [nn.functional.multilabel_margin_loss(line[0], target[0])]
        return sum(each.square().sum() for each in parts)


def test_ops_of_one_kernel_remain_whole() -> None:
    """Regression: a bilinear interpolation became 50 ops, with four times its memory and other roundings."""
    x = torch.randn(2, 4, 8)
    model = rematerialize(Interpolated(8, 8), x, "100%", verify=True, costs="flops")
    assert model.report.verification.bitwise
    for captured in (model.captured, capture(Interpolated(8, 8), (x,), route="make_fx")):
        kinds = Counter(op.type for op in captured.graph.ops)
        assert not [kind for kind in kinds if "index" in kind]
        assert kinds["aten.upsample_bilinear2d.default"] == kinds["aten.upsample_bilinear2d_backward.default"] == 1


def test_other_shapes_keep_the_budget_in_bytes() -> None:
    module = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(16, 16), nn.Tanh())))
    model = rematerialize(module, torch.randn(64, 16), "95%", other_shapes="capture", costs="flops", **QUICK)
    budget = model.report.budget
    for rows in (66, 16):
        model(torch.randn(rows, 16)).sum().backward()
    longer, shorter = (plan.report for plan in model._plans[1:])
    assert longer.budget == shorter.budget == budget and longer.predicted_peak <= budget < longer.reference_peak
    assert longer.result.source == "the warm start"
    assert shorter.recomputations == 0 and shorter.reference_peak <= budget
    with pytest.raises(ProblemError, match=f"budget {budget:,} bytes"):
        model(torch.randn(640, 16))


def test_given_schedule(state, tmp_path, monkeypatch) -> None:
    module, model = state
    model.save_schedule(tmp_path / "schedule.json")
    x, target = data()
    # costs do not matter for a given schedule
    again = rematerialize(module, (x, target), schedule=tmp_path / "schedule.json", costs="flops")
    assert again.schedule == model.schedule and again.report.result is None
    assert again.report.predicted_peak == model.report.predicted_peak
    monkeypatch.setattr(planner, "capture", lambda *_, **__: model.captured)
    with refused("schedule.step-over-budget", hide={f"{model.report.predicted_peak:,}": "<peak>"}):
        rematerialize(module, (x, target), 100, schedule=model.schedule)


def test_wrong_arguments_are_refused(state, monkeypatch) -> None:
    module, model = state
    sample = data()
    for kind, given, options in (
        ("problem.step-budget", (module, sample), {}),
        ("problem.step-sample", (module, None, "70%"), {"verify": True}),
        ("execution.no-module", (model, sample, "70%"), {}),
        ("execution.no-module", (len, sample, "70%"), {}),
        ("capture.arguments", (module, {"x": sample[0]}, "70%"), {}),
        ("capture.arguments", (module, 5, "70%"), {}),
        ("problem.step-setting", (module, sample, "70%"), {"engine": "steam"}),
        ("problem.step-setting", (module, sample, "70%"), {"tme_limit": 3}),
    ):
        with refused(kind):
            rematerialize(*given, **options)
    with pytest.raises(ProblemError, match="budget 'some' is not bytes"):
        rematerialize(module, None, "some")
    monkeypatch.setattr(planner, "capture", lambda *_, **__: model.captured)
    with pytest.raises(ProblemError, match=r"bytes .* known to suffice"):
        rematerialize(module, sample, "1KiB", **QUICK)


def test_verification_finds_differences(state) -> None:
    """In gradients, statistics and peak."""
    module, model = state

    def scaled(x, target):
        out = model(x, target)
        return {"y": out["y"], "loss": out["loss"] + 1e-3 * (module.first.bias - module.first.bias.detach()).sum()}

    def twice(x, target):
        with torch.no_grad():
            module.norm(x)
        return model(x, target)

    for wrong, words in (
        (scaled, "gradient of 'first.bias' differs from eager by"),
        (twice, "buffer 'norm.running_mean' differs"),
    ):
        args, before = data(), record(module)
        with pytest.raises(VerificationError, match=words):
            verify(module, wrong, args, {}, Expected(10**9))
        assert_equal(record(module), before)
    with refused("verification.peak", hide={f"{model.report.verification.measured_peak:,}": "<peak>"}):
        verify(module, model, data(), {}, Expected(10))


def test_verification_compares_imaginary_parts() -> None:
    module = nn.Linear(4, 4, dtype=torch.complex64)
    x = torch.ones(2, 4, dtype=torch.complex64)
    for wrong, words in (
        (lambda y: y + 0.5j * y.real.detach(), "output 0"),
        (lambda y: torch.complex(y.real, y.imag * 0.5 + y.imag.detach() * 0.5), "gradient of"),
    ):
        with pytest.raises(VerificationError, match=f"{words}.* differs from eager by"):
            verify(module, lambda x, wrong=wrong: wrong(module(x)), (x,), {}, Expected(10**9))


@pytest.mark.slow
def test_concurrent_verification() -> None:
    """Dropout: verification must not see numbers drawn by other threads."""

    def made(width: int):
        module = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(width, width), nn.Tanh(), nn.Dropout())))
        return rematerialize(module, (torch.randn(64, width),), "80%", verify=True, costs="flops", **QUICK)

    with ThreadPoolExecutor(3) as pool:
        assert all(each.report.verification.bitwise for each in pool.map(made, (16, 24, 32)))


@slow
def test_counted_workspaces() -> None:
    """The allocator's peak, which includes workspaces of convolutions, stays within the predicted one."""
    layers = [part for k in range(6) for part in (nn.Conv2d(16 if k else 3, 16, 3, padding=1), nn.ReLU())]
    module, x = nn.Sequential(*layers), torch.randn(4, 3, 48, 48)
    model = rematerialize(module, (x,), "85%", workspaces="measured", verify=True, **QUICK)
    report, found = model.report, model.report.verification
    assert report.workspace > 0.01 * report.predicted_peak and "of a kernel at most, counted" in str(report)
    assert found.bitwise and found.measured_peak < found.allocator_peak <= 1.01 * report.predicted_peak + 4096
    assert found.allocator_peak > 0.9 * report.predicted_peak
    plain = rematerialize(module, (x,), schedule=model.schedule).report
    assert plain.workspace is None and plain.predicted_peak < report.predicted_peak
    with pytest.raises(VerificationError, match=r"above the [0-9,]+ bytes that were predicted"):
        verify(module, model, (x,), {}, Expected(plain.predicted_peak, allocator=0))


@slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor_compiles_both_graphs() -> None:
    """Values up to rounding, equal random numbers in repeated dropout, one update of statistics."""
    torch.manual_seed(0)
    module, args = models.Net(), data()
    captured = capture(module, args)
    schedule = wild_schedule(captured.graph, 0.1, seed=2)
    assert set(captured.random_ops) & {name for name, number in Counter(schedule.computes()).items() if number > 1}
    model = rematerialize(module, args, schedule=schedule, engine="inductor", verify=True)
    assert model.report.verification.difference < 1e-3 and model.report.verification.buffers == 3
    model(*args)["loss"].backward()


@slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor_draws_equal_numbers_without_recomputation() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout()), torch.randn(4, 8)
    found = rematerialize(module, x, "100%", engine="inductor", verify=True, costs="flops").report
    assert found.recomputations == 0 and found.verification.difference < 1e-3


def test_importing_a_folder_does_not_hide_a_function() -> None:
    import sys

    import remat.torch

    remat.torch.capture = sys.modules["remat.torch.capture"]  # as an import of the folder does
    assert callable(remat.torch.capture)
