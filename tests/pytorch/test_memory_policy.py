"""Tags for torchtitan's graph trainer: torch's own pass carries them out as predicted."""

import copy
import re
from collections import Counter
from functools import cache
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from refusals import check_text, refused  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.traceback import annotate, preserve_node_meta  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy  # noqa: E402

from remat.errors import ProblemError  # noqa: E402
from remat.torch import memory_policy, track_storages  # noqa: E402

functional = torch.nn.functional


def step(weights: list[Any], x: Any) -> tuple[Any, ...]:
    """Return loss and gradients of a few layers."""
    for number, weight in enumerate(weights):
        with annotate({"module_fqn": f"layers.{number}"}):
            x = functional.gelu(functional.layer_norm(x, (64,)) @ weight) + x
    with annotate({"module_fqn": "loss"}):
        loss = x.square().mean()
    return loss, *torch.autograd.grad(loss, weights)


@cache
def traced() -> tuple[Any, list[Any]]:
    """Trace as torchtitan does, with marks on nodes of the backward pass and names of modules."""
    torch.manual_seed(0)
    weights = [(torch.randn(64, 64) / 8).requires_grad_() for _ in range(4)]
    x = torch.randn(256, 64)
    compiler = torch.compiler
    with (
        preserve_node_meta(), compiler._non_strict_tracing_context(), compiler._patch_engine_backward(),
        torch.autograd.set_multithreading_enabled(False),
    ):  # fmt: skip
        graph = make_fx(step, tracing_mode="fake", record_stack_traces=True)(weights, x)
    return graph, [*weights, x]


def tags_of(graph: Any) -> dict[str, Any]:
    return {node.name: node.meta["recompute"] for node in graph.graph.nodes if "recompute" in node.meta}


@pytest.mark.parametrize("budget", ["80%", "60%"])
def test_torch_recomputes_what_the_tags_predict(budget: str) -> None:
    passes = "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass"
    carry_out = import_module(passes)
    graph, given = copy.deepcopy(traced()[0]), traced()[1]
    policy = memory_policy(budget, method="greedy", costs="flops", time_limit=20)
    assert policy(graph, config=None) is graph
    (report,) = policy.reports
    tags = tags_of(graph)
    assert set(tags.values()) == {CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE}
    assert not any(name.startswith(("pow", "mean")) for name in tags)  # of the loss
    done = carry_out.remat_using_tags_for_fwd_loss_bwd_graph(graph)
    again = {node.name for node in done.graph.nodes if node.name.endswith("_recomputed")}
    counts = Counter(report.schedule.computes())
    predicted = {f"{name}_recomputed" for name, count in counts.items() if count > 1}
    assert predicted and {name for name in again if not name.startswith("getitem")} == predicted
    with torch.no_grad(), track_storages(constants=given) as tracker:
        found = torch.fx.Interpreter(done).run(*given)
    assert tracker.peak == report.predicted_peak <= report.budget
    assert all(map(torch.equal, found, step(given[:-1], given[-1])))


def test_tensors_are_tagged_to_move() -> None:
    graph = copy.deepcopy(traced()[0])
    policy = memory_policy("80%", offload="1GiB", machine="pcie5,compute=1Mflop/s", method="greedy", costs="flops")
    policy(graph, config=None)
    (report,) = policy.reports
    moved = {name for name, tag in tags_of(graph).items() if tag is CheckpointPolicy.MUST_CPU_OFFLOAD}
    steps = list(report.schedule.steps())
    assert moved == {name.split(".")[0] for kind, name in steps if kind == "offload"} and moved
    assert "tensors to the host" in str(report) and report.certificate.transfers.host_peak > 0


def test_graphs_without_a_policy() -> None:
    with refused("capture.no-backward"):
        memory_policy("80%")(make_fx(lambda x: x.sin())(torch.ones(3)), config=None)
    with pytest.raises(ProblemError) as caught:
        memory_policy("35%", method="greedy", costs="flops", time_limit=4)(copy.deepcopy(traced()[0]), config=None)
    least = re.findall("[0-9,]+ bytes", str(caught.value))[1]  # of a search that a clock ends
    check_text("problem.tags", f"ProblemError: {caught.value}", {least: "<least> bytes"})
