"""Captured modules of PyTorch: numerics of described ops, rewrites."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shell import ok  # noqa: E402
from torch import nn  # noqa: E402

from remat.graphs import write_graph  # noqa: E402
from remat.graphs.rewriting import RewriteOptions, rewrite_graph  # noqa: E402
from remat.graphs.rewriting.check import check_numerics  # noqa: E402
from remat.graphs.rewriting.draft import Draft  # noqa: E402
from remat.graphs.rewriting.numerics import run  # noqa: E402
from remat.torch import capture  # noqa: E402

F = nn.functional


class Cell(nn.Module):
    """Branches, their concatenation, and layers on it."""

    def __init__(self, groups=1):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.branches = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=n, dilation=n) for n in (1, 2, 3))
        self.depthwise = nn.Conv2d(12, 24, 3, stride=(2, 1), padding=(1, 0), groups=12)
        self.last = nn.Conv2d(24, 5, 2, groups=groups)
        self.fc = nn.Linear(5, 6)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        y = torch.cat([F.silu(branch(x)) for branch in self.branches], 1)
        y = self.last(F.leaky_relu(self.depthwise(F.gelu(y)), 0.3))
        y = F.avg_pool2d(F.hardtanh(y, -0.5, 0.7) * 2 - F.elu(y), 2, padding=1)
        return torch.softmax(self.fc(y.mean((2, 3), keepdim=True).flatten(1)), -1)


class Values(torch.fx.Interpreter):
    """Interpreter that records the values of all nodes."""

    def __init__(self, module):
        super().__init__(module)
        self.values = {}

    def run_node(self, n):
        self.values[n] = super().run_node(n)
        return self.values[n]


def test_described_ops_and_parts_match_torch() -> None:
    torch.manual_seed(0)
    module, x = Cell().double(), torch.randn(2, 3, 8, 9, dtype=torch.double)
    captured = capture(module, (x,), mode="inference", costs="flops")
    graph = captured.graph
    kinds = {attributes["kind"] for attributes in graph.meta["attrs"].values()}
    assert kinds >= {"conv", "depthwise", "concat", "element-wise", "pool", "global-pool", "softmax"}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = Values(captured.module)
    values.run(*(state[each.name] if each.kind == "parameter" else x for each in captured.inputs))
    real = {node.name: each for node, each in values.values.items() if isinstance(each, torch.Tensor)}
    opaque = [op for op in graph.ops if op.name not in graph.meta["attrs"] or not op.inputs]
    given = {tensor: real[tensor].detach().numpy() for op in opaque for tensor in op.outputs if tensor in real}

    def weights(op, entry):
        node = captured.node_of(op)
        inputs = node.args if node.target is not torch.ops.aten.addmm.default else (*node.args[1:], node.args[0])
        found = inputs[entry["input"]]
        return np.asarray(found if not isinstance(found, torch.fx.Node) else values.values[found].detach().numpy())

    done = rewrite_graph(graph, RewriteOptions(min_parts=2))
    assert [rewrite.rule for rewrite in done.rewrites] == ["parallel-parts"] * 3 + ["partial-sums"]
    check_numerics(graph, done.graph)
    for each in (graph, done.graph):
        found = run(Draft(each), lambda shape: shape, 0, inputs=given, weights=weights)
        for tensor in found.keys() & real.keys():
            assert np.allclose(found[tensor], real[tensor].detach().numpy(), rtol=1e-9, atol=1e-9), tensor


class Traps(nn.Module):
    """Concatenations of views, and ops on them without a plain description."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.conv = nn.Conv2d(12, 6, 1, groups=2)
        self.transposed = nn.ConvTranspose2d(12, 5, 2)

    def forward(self, x):
        a, b, c = (torch.tanh(x @ (self.weight * n)) for n in (1, 2, 3))
        turned = torch.cat([a.t(), b.t(), c.t()], 1) @ torch.cat([self.weight] * 3)
        image = torch.cat([torch.tanh(each.view(1, 4, 2, 2)) for each in (a, b, c)], 1)
        dynamic = F.conv2d(torch.cat([a.view(1, 4, 2, 2)] * 3, 1), turned[:1].repeat(2, 3).view(2, 12, 1, 1))
        return turned, self.conv(image), self.transposed(image), dynamic


def test_views_and_special_ops_are_not_rewritten() -> None:
    """A transposed view may have the shape of its base, but other content."""
    captured = capture(Traps(), (torch.randn(4, 4),), mode="inference", costs="flops")
    done = rewrite_graph(captured.graph, RewriteOptions(min_parts=2))
    assert not done.rewrites
    assert check_numerics(captured.graph, done.graph).difference == 0


@pytest.mark.slow
def test_rewrite_command_on_captured_steps(tmp_path, monkeypatch) -> None:
    """The backward pass has no description and reads concatenations whole."""
    monkeypatch.chdir(tmp_path)
    step = capture(Cell(), (torch.randn(2, 3, 8, 9),), costs="flops").graph
    write_graph(step, "step.json")
    shown = ok("rewrite step.json -o r.json --check --time-limit 10").out
    assert "tensors agree within" in shown
    write_graph(capture(nn.Linear(4, 4), (torch.randn(2, 4),), mode="inference", costs="flops").graph, "fc.json")
    assert (
        "none is possible; the graph has no concatenation that is plain enough" in ok("rewrite fc.json -o r.json").out
    )
    assert Path("r.json").exists()
