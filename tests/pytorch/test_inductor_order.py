"""Pass that orders the fused ops of Inductor: its model of memory, what it gains, and Inductor's cache."""

import random
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402

from remat.ordering.instance import OrderInstance  # noqa: E402
from remat.ordering.valley import Portfolio  # noqa: E402
from remat.torch import inductor_order, profiled_memory  # noqa: E402
from remat.torch.inductor_order import Allocated, InductorOrder, SchedulerGraph  # noqa: E402


class Products(nn.Module):
    """Large products, each reduced to a small one: Inductor leaves the backward pass in a bad order."""

    def forward(self, x: Any) -> Any:
        wide = [torch.softmax(x @ x.T * float(k), 1) for k in range(1, 6)]
        return torch.cat([each @ x for each in wide], 1)


class Split(nn.Module):
    """An op with several results, reductions, views, and an input that is freed."""

    def forward(self, x: Any) -> Any:
        values, places = x.sort(1)
        wide = [torch.softmax(values @ x.T * k, 1) @ x for k in (1.0, 2.0, 3.0)]
        return torch.cat(wide, 1) + places.float().sum()


class Drawn(nn.Module):
    """Calls that draw random numbers."""

    def forward(self, x: Any) -> Any:
        return torch.cat([torch.bernoulli(torch.sigmoid(x * k)) @ x.T for k in (1.0, 2.0, 3.0)], 1)


class Measured(InductorOrder):
    """Compare the peaks of orders with Inductor's estimates."""

    orders = 0

    def __call__(self, nodes: list[Any]) -> list[Any]:
        graph = SchedulerGraph(nodes)
        instance = graph.instance()
        for seed in range(8):
            order = random_order(instance, seed) if seed else list(range(len(nodes)))
            assert instance.peak_of(order) == graph.estimate([nodes[op] for op in order]), seed
            self.orders += 1
        return super().__call__(nodes)


def random_order(instance: OrderInstance, seed: int) -> list[int]:
    rng, waiting = random.Random(seed), instance.predecessors.counts.tolist()
    ready, order = [op for op, count in enumerate(waiting) if not count], []
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for other in instance.successors.lists()[order[-1]]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return order


def trained(net: nn.Module, x: Any, order: InductorOrder | None) -> tuple[list[Any], int]:
    """Return result and gradient of a compiled step, and the peak of the allocator."""
    torch._dynamo.reset()
    with config.patch(_post_fusion_custom_pass=order):
        run = torch.compile(net)
        run(x).sum().backward()  # compiles
        x.grad = None
        with profiled_memory() as memory:
            y = run(x)
            y.sum().backward()
    assert memory.peak is not None
    return [y.detach(), x.grad.clone()], memory.peak


@pytest.fixture(autouse=True)
def ready(request: pytest.FixtureRequest) -> None:
    if "slow" not in request.keywords:
        return
    if not shutil.which("g++"):
        pytest.skip("Inductor needs a C++ compiler")
    assert Portfolio().prepared()


@pytest.mark.slow
def test_pass_lowers_the_peak_of_the_allocator() -> None:
    """Peaks agree with Inductor's estimates; its cache remains valid."""
    net, x = Products(), torch.randn(512, 64, requires_grad=True)
    with fresh_cache():
        before, held = trained(net, x, None)
        order = Measured(5.0)
        after, least = trained(net, x, order)
        assert order.orders == 16
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        forward, backward = order.graphs
        assert forward.already_least
        assert str(forward).endswith("kept")
        assert backward.bound <= backward.least < backward.estimate
        assert held - least >= 0.9 * (backward.allocated - backward.chosen) > 0.3 * held
        counters.clear()
        trained(net, x, Measured(5.0))
        assert counters["inductor"]["fxgraph_cache_miss"] == 0
        assert order.uuid() == Measured(5.0).uuid() != inductor_order(1.0).uuid()


@pytest.mark.parametrize("rise", [(0, 0), (1, 0), (0, 1)])
def test_calls_with_more_bytes_are_refused(rise: tuple[int, int]) -> None:
    before = Allocated(10, 12, {"convolution": (5, 6)})
    after = Allocated(9, 11, {"convolution": (5 + rise[0], 6 + rise[1])})
    assert after.improves(before) == (not any(rise))
    assert not after.improves(after)


class Shuffled(InductorOrder):
    """Collect the order of random calls in random orders of all ops."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.found: set[tuple[str, ...]] = set()

    def __call__(self, nodes: list[Any]) -> list[Any]:
        instance, kernels = (
            SchedulerGraph(nodes).instance(),
            [getattr(each.node, "python_kernel_name", "") for each in nodes],
        )
        for seed in range(9):
            order = [op for op in random_order(instance, seed) if kernels[op] == "torch.ops.aten.rand.default"]
            self.found.add(tuple(nodes[op].get_name() for op in order))
        return nodes


@pytest.mark.slow
def test_calls_that_draw_random_numbers_keep_their_order() -> None:
    """With `fallback_random`, their results depend on it; so Inductor has dependencies between them."""
    order = Shuffled()
    torch._dynamo.reset()
    with config.patch(_post_fusion_custom_pass=order, fallback_random=True, force_disable_caches=True):
        torch.compile(Drawn())(torch.randn(64, 32))
    (found,) = order.found
    assert len(found) == 3


@pytest.mark.slow
def test_peaks_with_several_results_of_one_op() -> None:
    order = Measured(1.0)
    x = torch.randn(64, 32)
    torch._dynamo.reset()
    with config.patch(_post_fusion_custom_pass=order, force_disable_caches=True), torch.no_grad():
        found = torch.compile(Split())(x)
    assert torch.allclose(found, Split()(x), atol=1e-4)
    (graph,) = order.graphs
    assert graph.bound <= graph.least <= graph.estimate
    assert graph.chosen <= graph.allocated
