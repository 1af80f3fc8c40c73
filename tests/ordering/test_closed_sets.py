"""Best-first and beam search over closed sets: against the search from valley to valley, which shares no code."""

import pytest

from remat import Problem
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.graphs import ComputeGraph, layered
from remat.ordering.closed_sets import BeamOptions, BeamOrder, BestFirstOptions, BestFirstOrder
from remat.ordering.instance import OrderInstance
from remat.ordering.valley import ValleySearch
from remat.testing.graphs import random_graph


def once(graph: ComputeGraph) -> OrderInstance:
    return OrderInstance.of(Problem(graph, order="free", max_computes=1))


def some_instance(seed: int) -> OrderInstance:
    if seed % 2:
        return once(random_graph(seed, 12, plain=False, buffers=seed % 4 == 1))
    whole = once(layered(10 + seed % 9, 0.4, seed))
    return whole.part(range(2, whole.num_ops - 1), range(2)) if seed % 3 == 0 else whole


def test_all_agree() -> None:
    """Proved by both, on graphs of all kinds and on parts of them; a narrow beam has an order and a bound."""
    narrow = 0
    for seed in range(24):
        instance = some_instance(seed)
        least = ValleySearch().search(instance)
        for found in (BestFirstOrder().search(instance), BeamOrder().search(instance)):
            assert (found.peak, found.bound) == (least.peak, least.peak), seed
            assert instance.peak_of(found.order) == found.peak
        for width in (1, 4):
            found = BeamOrder(BeamOptions(width=width)).search(instance)
            assert found.bound <= least.peak <= found.peak == instance.peak_of(found.order)
            assert found.proved is False or found.peak == least.peak
            narrow += not found.proved
        assert BestFirstOrder().search(instance, upper=least.peak).bound == least.peak
        assert BeamOrder().search(instance, upper=least.peak).bound == least.peak
    assert narrow > 5


def test_broken_off() -> None:
    instance = once(layered(150, 0.4, 1))
    least = ValleySearch().search(instance, deadline=Deadline.after(30))
    full = BestFirstOrder(BestFirstOptions(memory=1 << 20)).search(instance)
    late = BestFirstOrder().search(instance, deadline=Deadline.after(0.0))
    assert late.bound <= full.bound <= least.bound
    assert full.notes == ("its memory is full",)
    assert (full.order, late.order) == (None, None)
    beam = BeamOrder(BeamOptions(width=50)).search(instance)
    assert beam.bound <= least.peak <= beam.peak
    assert BeamOrder().search(instance, deadline=Deadline.after(0.0)).order is None
    for options, wrong in (
        (BeamOptions, {"width": 0}),
        (BeamOptions, {"memory": 5}),
        (BestFirstOptions, {"memory": 0}),
    ):
        with pytest.raises(ProblemError):
            options(**wrong)
