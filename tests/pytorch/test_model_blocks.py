"""Models of repeated blocks: found, captured once for each kind, divided, certified, run; also in two processes."""

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eager import assert_equal, record, step  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

from remat.errors import CaptureError  # noqa: E402
from remat.torch import Rematerialized, capture, rematerialize, rematerialize_blocks, track_storages  # noqa: E402
from remat.torch.blocks.calls import record_calls  # noqa: E402
from remat.torch.blocks.finding import find_blocks  # noqa: E402
from remat.torch.capture.concrete import Concrete  # noqa: E402
from remat.torch.capture.fakes import FakeWorld  # noqa: E402
from remat.torch.private import FakeTensor, FakeTensorMode  # noqa: E402

#: A quick search.
QUICK: dict[str, Any] = {"method": "eviction", "costs": "flops"}


class Block(nn.Module):
    """Pre-norm layer with dropout; `shift` changes its ops, `number` does not."""

    def __init__(self, width: int, number: int, shift: int = 0) -> None:
        super().__init__()
        self.number, self.shift = number, shift
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any, mask: Any = None, scale: float = 1.0) -> Any:
        y = self.norm(x).roll(self.shift, 1) if self.shift else self.norm(x)
        return x + self.drop(self.down(nn.functional.gelu(self.up(y)))) * mask * scale


class Model(nn.Module):
    """Embedding, blocks that share a mask, and a head; returns the loss."""

    def __init__(self, width: int = 16, count: int = 4, shifts: tuple[int, ...] = (0,)) -> None:
        super().__init__()
        self.tokens = nn.Embedding(24, width)
        self.layers = nn.ModuleList(Block(width, k, shifts[k % len(shifts)]) for k in range(count))
        self.head = nn.Linear(width, 24)

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.tokens(ids)
        mask = torch.linspace(0.5, 1.0, x.shape[-1])
        for layer in self.layers:
            x = layer(x, mask=mask, scale=0.5)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def made(**sizes: Any) -> Model:
    torch.manual_seed(0)
    return Model(**sizes)


def batch(rows: int = 8, length: int = 32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(24, (rows, length + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@pytest.mark.parametrize("shifts", [pytest.param((0,), marks=pytest.mark.slow), (0, 1)])
def test_whole_step_is_certified_and_runs_as_predicted(shifts: tuple[int, ...]) -> None:
    """The composed graph has peak and cost of a capture of the whole; results and measured bytes agree."""
    plain, data = made(shifts=shifts), batch()
    model = copy.deepcopy(plain)
    whole = capture(plain, data, costs="flops").graph
    found = rematerialize_blocks(model, "60%", data, **QUICK)
    report = found.report
    assert (report.reference_peak, found.graph.base_cost) == (whole.reference_peak, whole.base_cost)
    assert report.certificate.accepted and report.predicted_peak <= 0.6 * whole.reference_peak
    assert report.bound is not None and report.bound <= report.certificate.cost and report.recomputations
    assert len(report.options) == len(shifts) and [each.path for each in report.blocks] == list(found.blocks)
    assert all(isinstance(block, Rematerialized) and isinstance(block, Block) for block in model.layers)
    tracker = track_storages(constants=(model, data))
    with tracker:
        step(model, model, data)
    assert tracker.peak <= report.predicted_peak + 64  # the gradient of the loss, and its copy
    assert_equal(step(model, model, data), step(plain, plain, data))
    assert found.restore() is model and all(type(block) is Block for block in model.layers)
    assert_equal(step(model, model, data), step(plain, plain, data))


def test_first_call_and_other_shapes() -> None:
    """The first call is the sample, a shorter batch is captured, evaluation uses the plain blocks."""
    plain = made(count=2)
    model = copy.deepcopy(plain)
    found = rematerialize_blocks(model, "70%", other_shapes="capture", **QUICK)
    with refused("execution.no-step"):
        found.report  # noqa: B018 (a property)
    for data in (batch(), batch(6), batch()):
        assert_equal(step(model, model, data), step(plain, plain, data))
    assert [each.budget for each in found.reports] == [found.report.budget] * 2
    model.eval(), plain.eval()
    assert_equal(record(model, model(*batch(3))), record(plain, plain(*batch(3))))
    found = rematerialize_blocks(found.restore().train(), found.report.budget, batch(), **QUICK)
    with refused("execution.unlike-sample", culprit="'x'"):
        model(*batch(7))


def test_blocks_are_found_by_repetition_or_name() -> None:
    model = nn.ModuleDict({"encoder": made(), "decoder": made(count=3, shifts=(0, 2)), "twice": nn.Linear(4, 4)})
    paths = [f"encoder.layers.{k}" for k in range(4)] + [f"decoder.layers.{k}" for k in range(3)]
    # the whole encoder and decoder differ, so their layers are the outermost that repeat
    assert list(find_blocks(model)) == paths
    assert list(find_blocks(model, "Block")) == list(find_blocks(model, Block)) == paths
    assert list(find_blocks(model, ["decoder.layers.*", "encoder"])) == ["encoder", *paths[4:]]
    with refused("capture.no-block", culprit="Bloc"):
        find_blocks(model, "Bloc")
    with refused("capture.no-repetition"):
        rematerialize_blocks(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), "60%")
    with refused("capture.no-call", culprit="spare"):
        record_calls(FakeWorld.of(made(), batch(), {}), {"spare": nn.Linear(4, 4)})


def test_calls_are_alike_only_if_their_ops_are() -> None:
    """An attribute without effect makes no kind of its own; one that changes ops, a frozen layer, a mode do."""
    model = made(count=6, shifts=(0, 1))
    model.layers[2].up.requires_grad_(False)
    model.layers[4].drop.eval()
    calls = record_calls(FakeWorld.of(model, batch(), {}), find_blocks(model, "Block"))
    kinds = [call.kind for call in calls]
    assert kinds[1] == kinds[3] == kinds[5] and len({kinds[0], *kinds[1:3], kinds[4]}) == 4


class Hooked(Block):
    """Block whose backward pass does more than its ops say: a hook on a node of autograd doubles gradients."""

    def forward(self, x: Any, mask: Any = None, scale: float = 1.0) -> Any:
        y = super().forward(x, mask, scale)
        if self.number == 1:
            y.grad_fn.register_hook(lambda given, _: tuple(None if each is None else 2 * each for each in given))
        return y


def hooked() -> Model:
    torch.manual_seed(0)
    model = Model(count=3)
    model.layers = nn.ModuleList(Hooked(16, number) for number in range(3))
    return model


def test_hooks_on_autograd_nodes_are_part_of_a_call() -> None:
    model = hooked()
    calls = record_calls(FakeWorld.of(model, batch(), {}), find_blocks(model))
    assert calls[0].kind == calls[2].kind != calls[1].kind


@pytest.mark.slow
def test_hooks_on_autograd_nodes_run() -> None:
    plain, data = hooked(), batch()
    model = copy.deepcopy(plain)
    found = rematerialize_blocks(model, "75%", data, **QUICK)
    assert_equal(step(model, model, data), step(plain, plain, data))
    assert found.report.recomputations


def test_budget_below_the_least_names_it() -> None:
    model, data = made(count=2), batch()
    with refused("problem.blocks-budget", culprit="Model") as caught:
        rematerialize_blocks(model, "20%", data, **QUICK)
    assert not any(isinstance(block, Rematerialized) for block in model.layers)
    least = int(str(caught.value).split("needs ")[1].split(" bytes")[0].replace(",", ""))
    assert rematerialize_blocks(model, least, data, **QUICK).report.predicted_peak <= least
    with refused("problem.step-setting", culprit="'backend'"):
        rematerialize_blocks(model, least, data, backend="highs")
    with refused("execution.no-module", culprit="layers.0"):
        rematerialize_blocks(model, "60%", data, **QUICK)


class Tied(nn.Module):
    """One block called twice, statistics of batch norm, a tensor that is no buffer, and a tuple of results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (self._block() for _ in range(2))
        for number, block in enumerate((self.first, self.second)):
            block[0].factor = torch.full((16,), 1.0 + number)

    @staticmethod
    def _block() -> nn.Module:
        class Scaled(nn.Module):
            factor: Any

            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 16))

            def forward(self, x: Any) -> Any:
                return self.inner(x) * self.factor, x

        return nn.Sequential(Scaled())

    def forward(self, x: Any) -> Any:
        for block in (self.first, self.first, self.second):
            y, x = block(x)
            x = x + y
        return x


def test_block_called_twice_with_state() -> None:
    torch.manual_seed(0)
    plain, x = Tied(), torch.randn(64, 16)
    model = copy.deepcopy(plain)
    found = rematerialize_blocks(model, "75%", (x,), blocks=["first", "second"], **QUICK)
    assert [each.path for each in found.report.blocks] == ["first", "first", "second"]
    assert_equal(*(step(each, each, (x,), loss=lambda y: y.square().sum()) for each in (model, plain)))
    assert found.report.recomputations


def test_autocast_within_the_model_is_that_of_the_blocks() -> None:
    """accelerate wraps forward, so autocast is off when the model's hooks run."""
    plain, data = made(count=2), batch()
    for layer in plain.layers:
        layer.drop = nn.Identity()  # eager dropout rounds its mask in half precision
    model = copy.deepcopy(plain)
    for each in (model, plain):
        each.forward = torch.autocast("cpu", torch.bfloat16)(each.forward)
    found = rematerialize_blocks(model, "75%", other_shapes="capture", **QUICK)
    for each in (model, plain):
        torch.manual_seed(3)
        each(*data).backward()
    assert len(found.reports) == 1 and found.report.recomputations
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


class Padded(Model):
    """Masks only a batch with padding, and packs only positions that restart, as models of transformers do."""

    places: Any

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.register_buffer("places", torch.arange(64))

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.tokens(ids)
        causal = torch.arange(ids.shape[1])[None] > 0
        # plain Python numbers stand in for the checks that transformers skips for fake tensors
        padded = isinstance(ids, FakeTensor) or not bool((ids != 0).all())
        packed = isinstance(self.places, FakeTensor) or not bool((self.places.diff() == 1).all())
        mask = (causal & (ids != 0))[..., None].float() if padded or packed else 1.0
        for layer in self.layers:
            x = layer(x, mask=mask)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def test_blocks_are_captured_with_the_masks_of_real_calls() -> None:
    """Values of ids and buffers decide on a mask; a batch with padding is a call of another kind."""
    torch.manual_seed(0)
    plain, (ids, targets) = Padded(count=2), batch()
    model = copy.deepcopy(plain)
    full, padded = ids.clamp(1), ids.clamp(1)
    padded[1, -3:] = 0
    found = rematerialize_blocks(model, "75%", (full, targets), other_shapes="capture", **QUICK)
    for number, each in enumerate((full, padded, full, padded)):
        assert_equal(step(model, model, (each, targets)), step(plain, plain, (each, targets)))
        assert len(found.reports) == min(number + 1, 2)
    assert all(each.recomputations and each.predicted_peak <= each.budget for each in found.reports)


@pytest.mark.slow
def test_masks_unlike_the_sample_are_refused() -> None:
    torch.manual_seed(0)
    model, (ids, targets) = Padded(count=2), batch()
    full, padded = ids.clamp(1), ids.clamp(1)
    padded[1, -3:] = 0
    rematerialize_blocks(model, "75%", (full, targets), **QUICK)
    with refused("execution.unlike-sample", culprit="'mask'"):
        model(padded, targets)


class Optional(Block):
    """Block with optional, nested and plain arguments."""

    def forward(self, x: Any, mask: Any = None, size: Any = (), *, more: Any = None) -> Any:  # type: ignore[override]
        y = self.norm(x) if more is None else self.norm(x) * more["scales"][0]
        return self.down(torch.tanh(self.up(y if mask is None else y * mask[..., None]))).unflatten(1, size[:1])


class Residual(nn.Module):
    """Adds to results of its blocks in place, and leaves out a mask of ones."""

    def __init__(self, *, changes_argument: bool = False) -> None:
        super().__init__()
        self.start, self.layers = nn.Linear(16, 16), nn.ModuleList(Optional(16, k) for k in range(3))
        if changes_argument:
            self.layers[0].norm = nn.ReLU(inplace=True)
        self.calls = torch.zeros(1)

    def forward(self, x: Any, mask: Any = None) -> Any:
        self.calls += 1
        mask = torch.ones(x.shape[:2]) if mask is None else mask
        if not isinstance(mask, FakeTensor) and bool(mask.all()):
            mask = None
        x = self.start(x)
        scale = torch.zeros(16)
        scale[:8] = x[0, 0, :8]
        for number, layer in enumerate(self.layers):
            y = layer(x, mask, x.shape[1:], more={"scales": (scale, 2)} if number % 2 else None)
            y += x
            x = y
        return x.square().mean()


def test_values_that_fake_tensors_change_are_lost() -> None:
    fake = FakeTensorMode()
    with Concrete(fake) as mode:
        zeros, ones = torch.zeros(4), torch.ones(4)
        zeros[:2].add_(mode.fake(torch.ones(2)))
        sums = ones.sum() == 4, torch.zeros(4).uniform_().sum(), zeros.sum()
    assert [isinstance(each, FakeTensor) for each in sums] == [False, True, True] and bool(sums[0])


def test_optional_and_nested_arguments_and_results_changed_in_place() -> None:
    """Values of floats decide on a mask; only a block that changes its own argument is refused, with the line."""
    torch.manual_seed(0)
    plain, x = Residual(), torch.randn(8, 32, 16)
    model = copy.deepcopy(plain)
    found = rematerialize_blocks(model, "80%", (x,), **QUICK)
    assert len(found.report.options) == 2 and found.report.recomputations and found.report.certificate.accepted
    assert model.calls == 0
    tracker = track_storages(constants=(model, x))
    with tracker:
        step(model, model, (x,))
    assert tracker.peak <= found.report.predicted_peak + 64  # the gradient of the loss, and its copy
    assert_equal(step(model, model, (x,)), step(plain, plain, (x,)))
    place = f"{__file__}, line {inspect.getsourcelines(Optional)[1] + 4}"
    with refused("capture.fails", culprit=place, hide={place: "<place>"}):
        rematerialize_blocks(Residual(changes_argument=True), "80%", (x,), **QUICK)


@pytest.mark.slow
def test_float_mask_makes_a_call_of_another_kind() -> None:
    torch.manual_seed(0)
    plain, x = Residual(), torch.randn(8, 32, 16)
    model, mask = copy.deepcopy(plain), torch.ones(8, 32)
    mask[1, -3:] = 0
    found = rematerialize_blocks(model, "80%", (x,), other_shapes="capture", **QUICK)
    for given in ((x,), (x, mask)):
        assert_equal(step(model, model, given), step(plain, plain, given))
    assert len(found.reports) == 2


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fsdp", "stages"])
def test_two_processes(tmp_path: Path, how: str) -> None:
    """FSDP2 around each block, and pipeline stages with budgets of their own."""
    run = {"fsdp": _sharded, "stages": _stages}[how]
    torch.multiprocessing.spawn(_process, (str(tmp_path / "store"), run), nprocs=2)


def _process(rank: int, store: str, run: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        run(rank, torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
    finally:
        torch.distributed.destroy_process_group()


def _sharded(rank: int, mesh: Any) -> None:
    """FSDP2 around blocks equals that around plain ones, bit by bit, with a sample, without one, and if sharded before.

    The last batch is smaller. In mixed precision there is no dropout, whose mask eager mode rounds.
    """
    data = [tuple(each[rank::2].contiguous() for each in batch(rows)) for rows in (16, 16, 12)]
    for precise in (True, False):
        how = (
            {} if precise else {"mp_policy": torch.distributed.fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
        )
        plain = _states(rank, mesh, data, "plain", how)
        for kind in ("sample", "lazy", "after"):
            for one, other in zip(_states(rank, mesh, data, kind, how), plain, strict=True):
                assert torch.equal(one, other)


def _states(rank: int, mesh: Any, data: list[Any], kind: str, how: dict[str, Any]) -> list[Any]:
    """Return losses and parameters of three steps."""
    model = made()
    for layer in model.layers:
        layer.drop.p = 0.0 if how else 0.1
    options: dict[str, Any] = {"other_shapes": "capture", **QUICK}
    if kind in {"sample", "lazy"}:
        found = rematerialize_blocks(model, "60%", data[0] if kind == "sample" else None, **options)
    for layer in model.layers:
        torch.distributed.fsdp.fully_shard(layer, mesh=mesh, **how)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh, **how)
    if kind == "after":
        found = rematerialize_blocks(model, "60%", **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(7 + rank)
    losses = []
    for each in data:
        loss = model(*each)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    assert all(hasattr(each, "full_tensor") for each in model.parameters())
    assert all(isinstance(layer, torch.distributed.fsdp.FSDPModule) for layer in model.layers)
    if kind == "plain":
        with pytest.raises(CaptureError, match=r"sharded .DTensor, Shard.dim=0. on 2 devices"):
            rematerialize(model, data[0], "60%", **QUICK)
    else:
        assert found.report.recomputations
        assert len(found.reports) == (3 if kind == "sample" and how else 2)
    return [*losses, *(each.full_tensor().detach() for each in model.parameters())]


class Stage(nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any) -> Any:
        mask = torch.linspace(0.5, 1.0, x.shape[-1])
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


def _stages(rank: int, mesh: Any) -> None:
    """Two stages of a pipeline, one in each process, each with a budget; gradients equal those of plain stages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    x = torch.randn(16, 32, 16, generator=torch.Generator().manual_seed(1))
    gradients = []
    for rematerialized in (True, False):
        layers = made().layers
        stage: nn.Module = Stage(nn.ModuleList(layers[2 * rank : 2 * rank + 2]))
        micro = x[:4].clone().requires_grad_(rank == 1)
        if rematerialized:
            found = rematerialize_blocks(stage, ("70%", "80%")[rank], (micro,), **QUICK)
            assert found.report.recomputations
        torch.manual_seed(rank)
        pipe = PipelineStage(
            stage, rank, 2, torch.device("cpu"), input_args=(micro,), output_args=(x[:4].clone().requires_grad_(),)
        )
        schedule = ScheduleGPipe(pipe, 4, loss_fn=lambda y, target: (y - target).square().mean())
        schedule.step(x) if rank == 0 else schedule.step(target=x)
        gradients.append([each.grad for each in stage.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
