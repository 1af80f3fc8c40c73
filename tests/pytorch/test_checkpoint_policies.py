"""Policies of selective checkpointing: saved sets in eager and compiled runs, memory to the byte, equal gradients."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import remat.torch.policies.contexts as at_run_time
from remat.torch import Policy, policy, track_storages
from remat.torch.policies.choosing import paths_of
from remat.torch.private import FakeTensor, aot_autograd

#: Autograd holds the input of a region, and the gradient of a weight, for some ops longer than the captured step.
CLOSE = 0.02


class Block(nn.Module):
    """Block of a transformer."""

    def __init__(self, width: int = 48, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + self.dropout(self.out(attended))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Perceptron(nn.Sequential):
    """Block of few ops."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(48), nn.Linear(48, 192), nn.GELU(), nn.Linear(192, 48))


class Blocks(nn.Module):
    """Blocks with checkpoints of their own, once they have a `context_fn`."""

    def __init__(self, block: Callable[[], nn.Module], count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(count)])
        self.context_fn: Policy | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.context_fn is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False, context_fn=self.context_fn)
        return x.square().mean()


def normalized() -> nn.Module:
    """Return a block with batch norm and changes in place."""
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(),
    )  # fmt: skip


def stepped(model: nn.Module, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], int]:
    """Return gradients and buffers after a step from a fixed state of the generator, and the peak."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    with track_storages(constants=(x, model)) as tracker:
        model(x).backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return found | {name: each.clone() for name, each in model.named_buffers()}, tracker.peak


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_eager_runs_save_the_predicted_set_and_keep_the_predicted_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Blocks(Block, 3), torch.randn(16, 24, 48)
    plain = copy.deepcopy(model)
    made = policy(model, x, "65%", time_limit=20)
    report = made.report
    assert report.overhead is not None and report.best is not None and report.best.overhead is not None
    assert report.found.bound_overhead is not None
    assert 0 < report.best.overhead <= report.overhead and report.found.bound_overhead <= report.overhead
    assert report.replay_peak < report.predicted_peak <= report.budget
    modes: list[Any] = []
    original = create_selective_checkpoint_contexts

    def kept(decide: Any) -> Any:
        pair = original(decide)
        modes.append(pair[0])
        return pair

    monkeypatch.setattr(at_run_time, "create_selective_checkpoint_contexts", kept)
    model.context_fn = made
    torch.manual_seed(1)
    model(x)
    found = [
        {(str(op), k) for op, entries in mode.storage.items() for k, each in entries.items() if isinstance(each, tuple)
         or hasattr(each, "val")}
        for mode in modes
    ]  # fmt: skip
    assert found == [set(places) for places in made.saved.values()] and any(found)
    (ours, peak), (theirs, _) = stepped(model, x), stepped(plain, x)
    assert equal(ours, theirs)
    assert abs(peak / report.predicted_peak - 1) <= CLOSE
    assert equal(stepped(model, x)[0], theirs)  # again, from the first region


@pytest.mark.slow
def test_compiled_runs_save_the_predicted_set() -> None:
    torch._dynamo.reset()
    model, x = Blocks(lambda: Block(dropout=0.1), 3), torch.randn(16, 24, 48)
    made = policy(model, x, "70%", compare=False)
    model.context_fn = made
    graphs: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module

    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition

    backend = aot_autograd(
        fw_compiler=lambda module, example: make_boxed_func(keep(module, example).forward),
        bw_compiler=lambda module, _: make_boxed_func(module.forward),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.compile(model, backend=backend)(x).backward()
    (forward,) = graphs
    counts: Counter[tuple[int, str]] = Counter()
    places: dict[torch.fx.Node, tuple[int, str, int]] = {}
    regions = sorted({node.meta["ac_graph_id"] for node in forward.graph.nodes if "ac_graph_id" in node.meta})
    for node in forward.graph.nodes:
        if "ac_graph_id" in node.meta and node.target is not torch.ops.aten.detach.default:
            key = (regions.index(node.meta["ac_graph_id"]), str(node.target))
            places[node] = (*key, counts[key])
            counts[key] += 1
    saved = set()
    for node in forward.graph.output_node().args[0]:
        while node not in places or not _computes(node):
            if node.op != "call_function":
                break
            node = node.args[0]
        if node in places:
            saved.add(places[node])
    predicted = {
        (number, op, k)
        for number, region in enumerate(made.regions)
        for (op, k), kept in region.by_occurrence(traced=True).items()
        if kept
    }
    borders = {(number, "aten.add.Tensor", 1) for number in range(len(regions))}  # inputs of the next region
    assert saved - borders == predicted - borders


def _computes(node: torch.fx.Node) -> bool:
    return str(node.target).split(".")[0] == "aten" and not any(
        word in str(node.target) for word in ("view", "transpose", "split", "aten.t.", "permute", "expand")
    )


def test_replays_update_statistics_once_and_respect_changes_in_place() -> None:
    model, x = Blocks(normalized), torch.randn(8, 4, 16, 16)
    plain = copy.deepcopy(model)
    made = policy(model, x, "75%", compare=False)
    model.context_fn = made
    (ours, peak), (theirs, before) = stepped(model, x), stepped(plain, x)
    assert equal(ours, theirs)
    assert peak < before and peak - made.report.predicted_peak <= x.numel() * 4  # one value, changed in place


def test_models_without_checkpoints_get_them_and_plain_regions_stay() -> None:
    model, x = Blocks(Perceptron, 3), torch.randn(16, 24, 48)
    plain = copy.deepcopy(model)
    made = policy(model, x, "80%", plain=True, compare=False)
    assert made.report.plain and "without checkpoint" in str(made.report)
    made.checkpoint(model)
    (ours, peak), (theirs, _) = stepped(model, x), stepped(plain, x)
    assert equal(ours, theirs) and abs(peak / made.report.predicted_peak - 1) <= CLOSE
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_paths_of_regions_are_blocks_or_patterns() -> None:
    model = Blocks(Block, 3)
    assert paths_of(model, None) == ["blocks.0", "blocks.1", "blocks.2"]
    assert paths_of(model, "blocks.*.up") == ["blocks.0.up", "blocks.1.up", "blocks.2.up"]
    with refused("capture.unknown-region", culprit="block.*"):
        paths_of(model, "block.*")
    with refused("capture.nested-region", culprit="blocks.0.up"):
        paths_of(model, ["blocks.*", "blocks.0.up"])
    with refused("capture.no-blocks", culprit="Linear"):
        paths_of(nn.Linear(2, 2), None)


class Masked(Perceptron):
    """Block with a mask that the model leaves out in real calls, and with results written in parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(x.shape[1], 1)
        if isinstance(ones, FakeTensor) or not bool(ones.all()):
            x = x * ones
        parts = torch.empty_like(x)
        parts[:, :4].copy_(x[:, :4])
        parts[:, 4:].copy_(x[:, 4:])
        return super().forward(parts)


def test_masks_are_those_of_real_calls() -> None:
    """Autograd adds views where fake tensors are changed in place by parts; they make no call another one."""
    model, x = Blocks(Masked), torch.randn(16, 24, 48)
    plain = copy.deepcopy(model)
    model.context_fn = policy(model, x, "85%", compare=False, costs="flops")
    (ours, _), (theirs, _) = stepped(model, x), stepped(plain, x)
    assert equal(ours, theirs) and model.context_fn.report.saved


def test_policies_refuse_what_they_cannot_do() -> None:
    model, x = Blocks(Perceptron), torch.randn(16, 24, 48)
    with refused("capture.no-module"):
        policy(lambda x: x, x, "50%")
    with refused("problem.no-policy-fits", culprit="Blocks"):
        policy(model, x, "20%", compare=False)
    model.spare = Perceptron()
    with refused("capture.no-region", culprit="Blocks"):
        policy(model, x, "70%", regions="spare", compare=False)
    del model.spare
    made = policy(model, x, "70%", compare=False)
    with refused("execution.no-region", culprit="blocks.0"):
        made.checkpoint(nn.Linear(2, 2))
    assert copy.deepcopy(made) is made
    with refused("execution.stored-policy", culprit="Blocks"):
        pickle.loads(pickle.dumps(made))()
    other = Blocks(normalized)
    other.context_fn = made
    with refused("execution.other-call", culprit="blocks.0"):
        other(torch.randn(8, 4, 16, 16))
