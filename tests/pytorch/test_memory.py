"""Memory that is measured is the memory that there is: known bytes of tiny code, each way of measuring."""

import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402

from remat.torch.memory import measure_peak, profiled_memory, track_storages  # noqa: E402
from remat.torch.memory.measure import AllocatorRecord, fill  # noqa: E402


def test_storages_count_once_and_until_the_last_view_dies() -> None:
    with track_storages(timeline=True) as tracker:
        x = torch.zeros(100)
        row = x.view(10, 10)[3]
        assert tracker.live == 400
        del x
        gc.collect()
        assert tracker.live == 400, "a view holds all of it"
        y = row + 1
        del row
        assert tracker.live == 40
        y.add_(1)
    assert (tracker.peak, tracker.peak_op) == (440, "aten.add.Tensor")
    assert [(sample.live, sample.allocated) for sample in tracker.timeline] == [
        (400, 400), (400, 0), (400, 0), (440, 40), (40, 0),
    ]  # fmt: skip
    del y
    assert tracker.live == 0, "freed after the mode has ended"


def test_what_was_there_before_does_not_count_and_constants_never_do() -> None:
    layer = torch.nn.Linear(10, 10, bias=False)
    x = torch.ones(10, 10)
    kept = torch.ones(50)
    with track_storages(constants=[layer, {"kept": kept}]) as tracker:
        x.add_(1)
        t = layer.weight.t()
        y = x @ t
        assert tracker.live == 400
        torch.add(kept, 1, out=kept)
        del x, kept
    assert tracker.live == tracker.peak == 400
    del y, t
    assert tracker.live == 0
    with track_storages() as tracker:
        made = torch.tensor([1.0, 2.0])
        assert tracker.live == made.nbytes == 8


def test_a_training_step_to_the_byte() -> None:
    """Saved for the backward pass, gradients, dead outputs (the statistics of the batch norm) and all."""
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    x = torch.randn(8, 2, 16, 16)
    image = 8 * 4 * 16 * 16 * 4
    with track_storages() as tracker:
        out = model(x)
        # the convolution and ReLU's result, mean and 1/std; the norm's own result is needed by nobody
        assert tracker.live == 2 * image + 2 * 16
        out.sum().backward()
    assert tracker.live == image + sum(p.numel() * 4 for p in model.parameters())
    assert tracker.peak > 3 * image


def test_storages_that_change_their_size_and_sparse_ones() -> None:
    with track_storages() as tracker:
        x = torch.empty(10)
        x.resize_(100)
        assert tracker.live == 400
        x.untyped_storage().resize_(0)
        x.detach()
        assert tracker.live == 0
        sparse = torch.eye(4).to_sparse()
        del x
        assert tracker.live == 2 * 4 * 8 + 4 * 4
    assert sparse._nnz() == 4


def test_fake_tensors_take_what_real_ones_would() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def step() -> None:
        x = torch.ones(10, 100, requires_grad=True)
        (x.exp() * 2).sum().backward()

    real = measure_peak(step)
    with FakeTensorMode():
        assert measure_peak(step) == real
    assert (real.peak, real.live) == (16000 + 4 + 4, 0)  # x, exp(x), both gradients, the sum and its gradient


def test_the_allocator_sees_workspaces_that_storages_do_not() -> None:
    x = torch.randn(2, 8, 32, 32)
    layer = torch.nn.Conv2d(8, 8, 3, padding=1)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return layer(x)

    step()
    storages, allocator = measure_peak(step), measure_peak(step, by="profiler")
    assert storages.peak == storages.live == allocator.live == x.nbytes
    assert allocator.peak >= storages.peak
    plain = lambda: torch.exp(x).relu()  # noqa: E731
    assert measure_peak(plain, by="profiler").peak == measure_peak(plain).peak == 2 * x.nbytes
    held = torch.ones(1000)
    with profiled_memory() as record:
        del held  # from before: neither held nor freed
        y = x.softmax(1)
    assert (record.peak, record.live, record.timeline) == (y.nbytes, y.nbytes, [y.nbytes])
    assert record.peak_op == "aten::_softmax"


def test_events_are_summed_in_the_order_in_which_they_happened() -> None:
    def event(index: int, address: int, size: int, device: int = 0) -> dict:
        numbers = {"Ev Idx": index, "Addr": address, "Bytes": size, "Device Type": device}
        return {"name": "[memory]", "ph": "i", "ts": 5.0, "tid": 1, "args": numbers}

    record = AllocatorRecord()
    inner = {"name": "inner", "cat": "cpu_op", "ph": "X", "ts": 4.0, "dur": 2.0, "tid": 1}
    outer = {"name": "outer", "cat": "cpu_op", "ph": "X", "ts": 1.0, "dur": 9.0, "tid": 1}
    events = [event(3, 7, 50), event(1, 7, 100), event(2, 7, -100), event(4, 9, -30), event(5, 8, 9, device=1)]
    fill(record, [*events, inner, outer, {**inner, "name": "elsewhere", "tid": 2}])
    assert (record.peak, record.live, record.timeline, record.peak_op) == (100, 50, [100, 0, 50], "inner")


def test_ways_that_there_are_not_are_named() -> None:
    with refused("measurement.way", culprit="guessing"):
        measure_peak(lambda: None, by="guessing")
    if not torch.cuda.is_available():
        with refused("measurement.no-gpu"):
            measure_peak(lambda: None, by="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_counters_of_the_gpu() -> None:
    x = torch.ones(1024, device="cuda")
    step = lambda: x.neg().exp()  # noqa: E731
    use = measure_peak(step, by="cuda")
    assert (use.peak, use.live) == (measure_peak(step).peak, x.nbytes) == (8192, 4096)


def test_no_trace_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with profiled_memory():
        torch.ones(3)
    assert not list(tmp_path.iterdir())
