"""Tensor parallelism: blocks and whole models of distributed tensors, alone and with FSDP2, in several processes."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import _functional_collectives as collectives  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from remat.errors import CaptureError, ProblemError  # noqa: E402
from remat.graphs.families import unit_chain  # noqa: E402
from remat.schedule import Schedule  # noqa: E402
from remat.torch import Executor, capture, estimate, rematerialize, rematerialize_blocks, track_storages  # noqa: E402
from remat.torch.agreement import Agreement  # noqa: E402
from remat.torch.blocks.calls import record_calls  # noqa: E402
from remat.torch.blocks.finding import find_blocks  # noqa: E402
from remat.torch.capture.fakes import FakeWorld  # noqa: E402
from remat.torch.capture.lowering import refuse_offsets  # noqa: E402
from remat.torch.costs import Flops, Measured, Roofline  # noqa: E402
from remat.torch.execute.split import split  # noqa: E402
from remat.torch.rematerialized.inductor import compiled  # noqa: E402

#: A quick search.
QUICK: dict[str, Any] = {"method": "eviction", "costs": "flops"}
HEAD = 8


class Layer(nn.Module):
    """Pre-norm layer of a transformer; its heads are those of one process."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        parts = (self.query(y), self.key(y), self.value(y))
        heads = [each.unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in parts]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Embedding, layers and head of a small GPT; returns the loss."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.tokens, self.layers = nn.Embedding(24, 32), nn.ModuleList(Layer() for _ in range(count))
        self.head = nn.Linear(32, 24)

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


#: Ways to parallelize. In "sequence" tokens are split between products; in "distributed" layers exchange DTensors.
WAYS = ("heads", "sequence", "distributed")


def parallel(mesh: Any, way: str, dropout: float = 0.1, count: int = 3) -> Transformer:
    """Return a model whose products are split over a mesh."""
    torch.manual_seed(0)
    model = Transformer(count)
    between = Replicate() if way == "heads" else Shard(1)
    local = way != "distributed"
    columns = ColwiseParallel(input_layouts=between)
    rows = RowwiseParallel(output_layouts=between, use_local_output=local)
    plan: dict[str, Any] = {"up": columns, "down": rows, "out": rows}
    plan |= dict.fromkeys(("query", "key", "value"), columns)
    if way != "heads":
        plan |= dict.fromkeys(("norm", "norm2"), SequenceParallel(use_local_output=local))
        ends: dict[str, Any] = {
            "tokens": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=local
            ),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }  # fmt: skip
        parallelize_module(model, mesh, ends)
    for layer in model.layers:
        layer.drop.p = dropout
        parallelize_module(layer, mesh, plan)
        if way == "distributed":
            parallelize_module(
                layer, mesh, PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),))
            )  # fmt: skip
    return model


def batch(rows: int = 8, length: int = 32) -> tuple[Any, Any]:
    ids = torch.randint(24, (rows, length + 1), generator=torch.Generator().manual_seed(rows))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def trained(call: Any, model: nn.Module, data: Sequence[Any], seed: int = 7, *, half: bool = False) -> list[Any]:
    """Return losses, accumulated gradients with placements, and parameters; each second step updates."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=0.01), []
    torch.manual_seed(seed)
    for number, each in enumerate(data):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = call(*each)
        loss.backward()
        found.append(loss.detach())
        if number % 2:
            for parameter in model.parameters():
                found += parts(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
    return found + [part for each in model.parameters() for part in parts(each.detach())]


def parts(tensor: Any) -> list[Any]:
    """Return a copy of the local part, and the placements of a distributed tensor."""
    if isinstance(tensor, DTensor):
        return [tensor.to_local().clone(), tensor.placements]
    return [tensor.clone()]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


# -- several processes -------------------------------------------------------------------------------------------------


def _processes(tmp_path: Path, run: Any, count: int = 2) -> None:
    torch.multiprocessing.spawn(_process, (str(tmp_path / "store"), run, count), nprocs=count)


def _process(rank: int, store: str, run: Any, count: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        run(rank)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_blocks_equal_eager(tmp_path: Path) -> None:
    """With a sample, without one, and converted before; in bf16; a state is saved, loaded, and runs plain."""
    _processes(tmp_path, _blocks)


def _blocks(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    data = [batch(rows) for rows in (8, 8, 4, 8)]
    collectives = []
    for way in WAYS:
        plain = parallel(mesh, way)
        expected = trained(plain, plain, data)
        for sample in (data[0], None):
            model = parallel(mesh, way)
            found = rematerialize_blocks(model, "50%", sample, other_shapes="capture", **QUICK)
            assert_same(trained(model, model, data), expected)
            assert found.report.recomputations and len(found.report.options) == 1 and len(found.reports) == 2
        collectives += _recomputed(model)
        _check_memory(model, data[0], found.report.predicted_peak)
        saved = io.BytesIO()
        torch.save(model.state_dict(), saved)
        loaded = parallel(mesh, way)
        loaded.load_state_dict(torch.load(io.BytesIO(saved.getvalue()), weights_only=False))
        assert found.restore() is model and all(type(layer) is Layer for layer in model.layers)
        assert_same(trained(model, model, data), trained(loaded, loaded, data))
    assert any(name.startswith("all_gather") for name in collectives)
    for way in WAYS[:2]:
        plain, model = (parallel(mesh, way, dropout=0.0) for _ in range(2))
        rematerialize_blocks(model, "50%", other_shapes="capture", **QUICK)
        assert_same(trained(model, model, data, half=True), trained(plain, plain, data, half=True))


def _recomputed(model: Any) -> list[str]:
    return [name for layer in model.layers for name in layer._first.program.split.recomputed]


def _check_memory(model: nn.Module, given: Any, predicted: int) -> None:
    """Compare the least of some measured peaks: a thread of gloo may release tensors late."""
    peaks = []
    for _ in range(3):
        model.zero_grad()
        tracker = track_storages(constants=(model, given))
        with tracker:
            model(*given).backward()
        peaks.append(tracker.peak)
    assert min(peaks) <= predicted + 64  # the gradient of the loss
    model.zero_grad()


@pytest.mark.slow
def test_whole_models_equal_eager(tmp_path: Path) -> None:
    _processes(tmp_path, _whole)


def _whole(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    data = [batch(rows) for rows in (8, 8, 4)]
    for way in WAYS:
        plain, module = parallel(mesh, way), parallel(mesh, way)
        model = rematerialize(module, data[0], "60%", other_shapes="capture", verify=True, **QUICK)
        assert model.report.verification.bitwise and model.report.recomputations
        assert_same(trained(model, module, data), trained(plain, plain, data))


@pytest.mark.slow
def test_fsdp_around_tensor_parallel_blocks(tmp_path: Path) -> None:
    """A mesh of two by two processes, whole and in mixed precision, blocks converted before and after."""
    _processes(tmp_path, _sharded, 4)


def _sharded(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    row = mesh.get_local_rank("data")
    data = [tuple(each[row::2].contiguous() for each in batch(rows)) for rows in (8, 8, 6)]
    for way in WAYS[:2]:
        for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
            found = {}
            for when in ("never", "before", "after"):
                model = parallel(mesh["tensor"], way, dropout=0.0 if policy.param_dtype else 0.1)
                made = []
                if when == "before":
                    made.append(rematerialize_blocks(model, "60%", data[0], other_shapes="capture", **QUICK))
                for part in (*model.layers, model):
                    fully_shard(part, mesh=mesh["data"], mp_policy=policy)
                if when == "after":
                    made.append(rematerialize_blocks(model, "60%", other_shapes="capture", **QUICK))
                found[when] = trained(model, model, data, seed=row)
                assert all(each.report.recomputations for each in made)
            assert_same(found["before"], found["never"])
            assert_same(found["after"], found["never"])


@pytest.mark.slow
def test_processes_agree_on_one_schedule(tmp_path: Path) -> None:
    """The first one decides, whatever the others measure; unequal steps are an error in all of them."""
    _processes(tmp_path, _agreeing)


class Skewed(Flops):
    """Costs that differ between processes."""

    def costs(self, nodes: Any) -> list[int]:
        rank = torch.distributed.get_rank()
        return [cost * (1 + (7 * number * rank) % 5) for number, cost in enumerate(super().costs(nodes))]


def _agreeing(rank: int) -> None:
    mesh, data = init_device_mesh("cpu", (2,)), batch()
    how: dict[str, Any] = {"method": "eviction", "costs": Skewed(), "time_limit": 60.0 if rank == 0 else 1e-3}
    certificates = [
        rematerialize_blocks(parallel(mesh, "sequence"), "60%", data, **how).report.certificate,
        rematerialize(parallel(mesh, "sequence"), data, "60%", **how).report.certificate,
    ]
    found = [None, None]
    torch.distributed.all_gather_object(found, [(each.graph_digest, each.schedule_digest) for each in certificates])
    assert found[0] == found[1] and found[0] is not None
    with pytest.raises(CaptureError, match="process 1 captured another step of 'Transformer' than process 0"):
        rematerialize_blocks(parallel(mesh, "heads"), "60%", batch(8 + rank), **QUICK)
    with pytest.raises(ProblemError, match=r"needs .* bytes"):
        rematerialize_blocks(parallel(mesh, "heads"), "10%", data, **QUICK)


@pytest.mark.slow
def test_llama_with_its_own_plan(tmp_path: Path) -> None:
    """``tp_plan="auto"`` of transformers; one batch has padding, the last one is shorter."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    torch.multiprocessing.spawn(_llama, (str(tmp_path),), nprocs=2)


def _llama(rank: int, folder: str) -> None:
    import os

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    _process(rank, f"{folder}/store", lambda rank: _train_llama(f"{folder}/llama"), 2)


def _train_llama(folder: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    generator = torch.Generator().manual_seed(3)
    data = []
    for length in (32, 32, 16, 16):
        ids = torch.randint(64, (4, length), generator=generator)
        data.append({"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)})
    data[1]["attention_mask"][0, :5] = 0
    found = []
    for budget in (None, "60%"):
        model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"))
        model.train()
        if budget is not None:
            blocks = rematerialize_blocks(model, budget, sample_kwargs=data[0], other_shapes="capture", **QUICK)
        found.append(trained(lambda *given, model=model: model(**dict(given)).loss, model, [d.items() for d in data]))
    assert blocks.report.recomputations and len(blocks.report.options) == 1
    assert_same(*found)


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Mesh of two processes, of which the second does not exist: nothing is communicated."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("way", ["heads", pytest.param("sequence", marks=pytest.mark.slow), "distributed"])
def test_calls_of_one_kind(mesh: Any, way: str) -> None:
    """Shapes that PyTorch derives once for each op make no new kind."""
    model = parallel(mesh, way, count=2)
    calls = record_calls(FakeWorld.of(model, batch(), {}, distributed=True), find_blocks(model))
    assert len(calls) == 2 and len({call.kind for call in calls}) == 1


def test_collectives_in_the_graph(mesh: Any) -> None:
    """A collective is one op with the memory of its result, has a cost in each model, and is never run to measure."""
    step = capture(parallel(mesh, "heads", count=1), batch(), costs="flops")
    reduced = [op for op in step.graph.ops if "all_reduce" in op.type]
    sizes = {each.name: each.size for each in step.graph.tensors}
    assert len(reduced) == 6 and {sizes[op.outputs[0]] for op in reduced} == {8 * 32 * 32 * 4}
    assert not [op for op in step.graph.ops if "wait" in op.type] and not step.graph.meta.get("fallback")
    nodes = [step.node_of(op.name) for op in reduced[:1]]
    moved, roofline = 2 * 8 * 32 * 32 * 4, Roofline("A100")
    assert Flops().costs(nodes) == [moved // 4]
    assert roofline.costs(nodes) == [round(moved / 2039e8 * 1e9) + roofline._device.launch]  # type: ignore[union-attr]
    assert Measured().costs(nodes) == Roofline().costs(nodes)


class Reduced(torch.autograd.Function):
    """Sum over all processes by functional collectives, awaited twice."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = collectives.wait_tensor(collectives.all_reduce(x, "sum", torch.distributed.group.WORLD))
        return collectives.wait_tensor(y)

    @staticmethod
    def backward(ctx: Any, y: Any) -> Any:
        return y


def test_functional_collectives_without_distributed_tensors(mesh: Any) -> None:
    class Sum(nn.Linear):
        def forward(self, x: Any) -> Any:
            return Reduced.apply(super().forward(x)).square()

    steps = [capture(Sum(8, 8), (torch.ones(2, 8),), costs="flops", route=route) for route in ("joint", "make_fx")]
    for step in steps:
        assert [op.type for op in step.graph.ops if "c10d" in op.type] == ["_c10d_functional.all_reduce.default"]
        assert Agreement.of([step]).groups == (torch.distributed.group.WORLD,)
        made = split(step, Schedule.reference(step.graph)).forward.graph
        assert next(node for node in made.nodes if "all_reduce" in node.name).next.name.startswith("wait_tensor")


def test_modules_that_are_refused(mesh: Any) -> None:
    model, data = parallel(mesh, "heads", count=1), batch()
    step = capture(model, data, costs="flops")
    with refused("execution.distributed", culprit="layers.0"):
        Executor(step, None)  # type: ignore[arg-type]
    with refused("execution.inductor-collectives", culprit="Transformer"):
        compiled(split(step, Schedule.reference(step.graph)))
    with refused("capture.distributed", culprit="layers.0"):
        estimate(model, data)
    with refused("capture.route", culprit="make_fx"):
        capture(model, data, route="joint")
    uneven = parallelize_module(nn.Sequential(nn.Linear(8, 5)), mesh, {"0": ColwiseParallel()})
    with refused("capture.uneven-shards", culprit="0.weight"):
        rematerialize(uneven, torch.ones(2, 8), "100%")

    class Hooked(nn.Linear):
        def forward(self, x: Any) -> Any:
            self.weight.register_post_accumulate_grad_hook(print)
            return super().forward(x)

    class InPlace(nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            torch.distributed.all_reduce(y)
            return y

    with refused("capture.in-place-collective", culprit="all_reduce"):
        rematerialize(InPlace(8, 8), torch.ones(2, 8), "100%")
    with refused("capture.forward-hook", culprit="hook"):
        rematerialize(Hooked(8, 8), torch.ones(2, 8), "100%")
    embedding = nn.Sequential(nn.Sequential(nn.Embedding(24, 8)), nn.Linear(8, 8))
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize_module(embedding, mesh, {"0.0": style})
    with refused("capture.gradient-placement", culprit="0.weight"):
        rematerialize_blocks(embedding, "100%", data[:1], blocks="0")


def test_random_ops_with_offsets_are_refused() -> None:
    """Ops on distributed tensors of a GPU; on a CPU they are plain."""
    node = torch.fx.Graph().call_function(torch._prims.rng_prims.run_dtensor_rng_op)
    with refused("capture.distributed-random", culprit="run_dtensor_rng_op"):
        refuse_offsets(node)


class Group:
    """Two processes, of which this is the first."""

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0


def test_unlike_processes_are_named(monkeypatch: Any) -> None:
    def gathered(into: list[Any], own: Any, group: Any) -> None:
        into[:] = [own, {3: (("other", "None"), 0)}]

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    with refused("capture.unlike-processes", culprit="process 3"):
        Agreement((Group(),)).graph(unit_chain(3))


def test_others_learn_that_the_first_process_stopped(monkeypatch: Any) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda shared, **_: sent.extend(shared))

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Agreement((Group(),)).once(stopped)
    with refused("execution.stopped", culprit="KeyboardInterrupt"):
        raise sent[0][1]
