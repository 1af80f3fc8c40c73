"""Choice of rewrites: all subsets, proofs, deadlines, uncompiled kernels."""

import itertools
import random
from collections.abc import Iterable

import pytest
from refusals import refused

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.rewriting.check import check_numerics
from remat.graphs.zoo import ZOO
from remat.ordering.instance import OrderInstance
from remat.ordering.rewriting_search import all_rewrites, best_rewriting, order_graph
from remat.ordering.valley import ValleySearch
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule, Verdict, validate

TWO = RewriteOptions(min_parts=2)
WIDE = RewriteOptions(min_parts=2, accumulator_bytes=3)


def cell(seed: int) -> ComputeGraph:
    """Return a graph of convolutions, some depthwise, that read concatenated tensors."""
    rng = random.Random(seed)
    shapes, attrs = {"x": [1, 2, 2, 4]}, {}
    builder = GraphBuilder(f"cell-{seed}", cost_unit="mac", meta={"shapes": shapes, "attrs": attrs, "layout": "NHWC"})
    builder.op("x", size=16, type="Input")
    for number in range(7):
        name, some = f"n{number}", rng.sample(list(shapes), min(len(shapes), rng.randint(1, 3)))
        kind = rng.choice(["Conv", "Conv", "DepthwiseConv"])
        channels = sum(shapes[t][-1] for t in some) if kind == "DepthwiseConv" else rng.randint(1, 6)
        shapes[name] = [1, 2, 2, channels]
        attrs[name] = {"kernel": [1, 1]} | ({"concat_inputs": True, "concat_axis": 3} if len(some) > 1 else {})
        builder.op(name, inputs=some, size=4 * channels, cost=rng.randint(0, 9), type=kind)
    graph = builder.build()
    left = [t for t in graph.tensor_names if not len(graph.arrays.consumers[graph.tensor_index[t]])]
    return graph.with_outputs(left)


def least_peak(graph: ComputeGraph) -> int:
    found = order_graph(graph)
    assert found.proved
    return found.peak


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        pytest.param(TWO, range(10), marks=pytest.mark.slow, id="same bytes"),
        pytest.param(WIDE, range(10), marks=pytest.mark.slow, id="wide accumulators"),
        pytest.param(WIDE, (0, 2, 4, 7), id="wide accumulators, few graphs"),
    ],
)
def test_best_of_all_subsets(options: RewriteOptions, seeds: Iterable[int]) -> None:
    """Also checks proofs, numerics and that no rewrite is superfluous."""
    proofs = helped = 0
    for seed in seeds:
        graph = cell(seed)
        keys = [rewrite.key for rewrite in rewrite_graph(graph, options).rewrites]
        if len(keys) > 5:
            continue
        subsets = [only for count in range(len(keys) + 1) for only in itertools.combinations(keys, count)]
        wanted = min(least_peak(rewrite_graph(graph, options, only).graph) for only in subsets)
        found = best_rewriting(graph, options)
        assert found.after.peak == wanted
        assert found.after.graph.reference_peak == wanted
        assert found.bound is None or found.bound == wanted
        assert validate(found.after.graph, Schedule.reference(found.after.graph)).verdict is Verdict.VALID
        check_numerics(graph, found.after.graph)
        proofs += found.proved
        helped += wanted < found.before.peak
        for rewrite in found.after.rewrites:  # every rewrite is needed
            fewer = rewrite_graph(graph, options, found.after.keys - {rewrite.key}).graph
            assert least_peak(fewer) > wanted
    assert proofs > 3
    assert helped > 1


@pytest.mark.parametrize(
    ("name", "options", "peak"),
    [
        ("swiftnet-cells-folded", RewriteOptions(), 188160),
        ("swiftnet-b", TWO, 53312),
        ("swiftnet-c", TWO, 16856),
        ("darts-cell", RewriteOptions(), 752640),
    ],
)
def test_least_peaks_of_published_cells(name: str, options: RewriteOptions, peak: int) -> None:
    found = best_rewriting(ZOO[name](), options)
    assert (found.after.peak, found.bound, found.proved, found.complete) == (peak, peak, True, True)
    assert len(found.after.rewrites) <= len(all_rewrites(ZOO[name](), options).after.rewrites)


def test_wide_accumulators_do_not_lower_the_peak() -> None:
    """In int32, four times the bytes, rewriting cell A gains nothing."""
    found = best_rewriting(ZOO["swiftnet-a-folded"](), RewriteOptions(accumulator_bytes=4))
    assert found.after.peak == found.before.peak == 200704
    assert all_rewrites(ZOO["swiftnet-a-folded"](), RewriteOptions(accumulator_bytes=4)).after.peak > 200704


def test_expired_deadline_gives_a_result() -> None:
    graph = ZOO["swiftnet-a"]()
    for method in (best_rewriting, all_rewrites):
        found = method(graph, deadline=Deadline.after(0))
        assert found.after.peak <= graph.reference_peak
        assert found.after.graph.reference_peak == found.after.peak
        assert not found.complete


def test_graph_without_rewrites_gets_an_order() -> None:
    graph = ZOO["swiftnet-a-folded"]()
    bare = ComputeGraph(graph.name, graph.tensors, graph.ops, outputs=graph.outputs)
    found = best_rewriting(bare)
    assert (found.after.rewrites, found.after.peak, found.bound) == ((), 200704, 200704)
    assert found.after.graph.reference_peak == 200704


def test_uncompiled_search_is_not_used() -> None:
    class NotReady(ValleySearch):
        def prepared(self, deadline=None, on_wait=None) -> bool:
            return False

        def search(self, *arguments, **options):
            raise AssertionError

    graph = ZOO["swiftnet-b"]()
    found = best_rewriting(graph, search=NotReady())
    assert found.after.peak < found.before.peak < graph.reference_peak
    assert found.bound is None or found.bound <= 56448  # the least


def test_wrong_peak_of_a_search_is_an_error() -> None:
    from dataclasses import replace

    class Wrong(ValleySearch):
        name = "wrong"

        def prepared(self, deadline=None, on_wait=None) -> bool:
            return True

        def search(self, instance: OrderInstance, **options):
            return replace(ValleySearch().search(instance, **options), peak=1)

    with refused("backend.order-peak"):
        best_rewriting(ZOO["swiftnet-b"](), search=Wrong())
