"""Measured memory: known bytes of small programs for each way of measuring."""

import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402

from remat.torch.memory import measure_peak, profiled_memory, track_storages  # noqa: E402
from remat.torch.memory.measure import AllocatorRecord, fill  # noqa: E402


def test_storages_live_until_their_last_view() -> None:
    with track_storages(timeline=True) as tracker:
        x = torch.zeros(100)
        row = x.view(10, 10)[3]
        assert tracker.live == 400
        del x
        gc.collect()
        assert tracker.live == 400, "a view holds the whole storage"
        y = row + 1
        del row
        assert tracker.live == 40
        y.add_(1)
    assert (tracker.peak, tracker.peak_op) == (440, "aten.add.Tensor")
    assert [(sample.live, sample.allocated) for sample in tracker.timeline] == [
        (400, 400), (400, 0), (400, 0), (440, 40), (40, 0),
    ]  # fmt: skip
    del y
    assert tracker.live == 0, "freed after the context"


def test_earlier_tensors_and_constants_are_not_counted() -> None:
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


def test_training_step_to_the_byte() -> None:
    """Saved tensors, gradients and unread outputs such as batch norm's statistics."""
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    x = torch.randn(8, 2, 16, 16)
    image = 8 * 4 * 16 * 16 * 4
    with track_storages() as tracker:
        out = model(x)
        # outputs of convolution and ReLU, mean and 1/std; batch norm's own output is unread
        assert tracker.live == 2 * image + 2 * 16
        out.sum().backward()
    assert tracker.live == image + sum(p.numel() * 4 for p in model.parameters())
    assert tracker.peak > 3 * image


def test_resized_and_sparse_storages() -> None:
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


def test_fake_tensors_count_as_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def step() -> None:
        x = torch.ones(10, 100, requires_grad=True)
        (x.exp() * 2).sum().backward()

    real = measure_peak(step)
    with FakeTensorMode():
        assert measure_peak(step) == real
    assert (real.peak, real.live) == (16000 + 4 + 4, 0)  # x, exp(x), both gradients, the sum and its gradient


def test_allocator_includes_workspaces() -> None:
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
        del held  # allocated earlier: neither counted nor freed
        y = x.softmax(1)
    assert (record.peak, record.live, record.timeline) == (y.nbytes, y.nbytes, [y.nbytes])
    assert record.peak_op == "aten::_softmax"


def test_events_are_summed_in_order() -> None:
    def event(index: int, address: int, size: int, device: int = 0) -> dict:
        numbers = {"Ev Idx": index, "Addr": address, "Bytes": size, "Device Type": device}
        return {"name": "[memory]", "ph": "i", "ts": 5.0, "tid": 1, "args": numbers}

    record = AllocatorRecord()
    inner = {"name": "inner", "cat": "cpu_op", "ph": "X", "ts": 4.0, "dur": 2.0, "tid": 1}
    outer = {"name": "outer", "cat": "cpu_op", "ph": "X", "ts": 1.0, "dur": 9.0, "tid": 1}
    events = [event(3, 7, 50), event(1, 7, 100), event(2, 7, -100), event(4, 9, -30), event(5, 8, 9, device=1)]
    fill(record, [*events, inner, outer, {**inner, "name": "elsewhere", "tid": 2}])
    assert (record.peak, record.live, record.timeline, record.peak_op) == (100, 50, [100, 0, 50], "inner")


def test_unknown_ways_of_measuring_are_refused() -> None:
    with refused("measurement.way", culprit="guessing"):
        measure_peak(lambda: None, by="guessing")
    if not torch.cuda.is_available():
        with refused("measurement.no-gpu"):
            measure_peak(lambda: None, by="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_counters() -> None:
    x = torch.ones(1024, device="cuda")
    step = lambda: x.neg().exp()  # noqa: E731
    use = measure_peak(step, by="cuda")
    assert (use.peak, use.live) == (measure_peak(step).peak, x.nbytes) == (8192, 4096)


def test_trace_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with profiled_memory():
        torch.ones(3)
    assert not list(tmp_path.iterdir())
