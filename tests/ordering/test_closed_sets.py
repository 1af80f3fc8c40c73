"""Best-first and beam search over closed sets of ops."""

import pytest

from remat import Problem
from remat.errors import ProblemError
from remat.graphs import layered
from remat.ordering.closed_sets import BeamOptions, BeamOrder, BestFirstOptions, BestFirstOrder
from remat.ordering.instance import OrderInstance
from remat.ordering.valley import ValleySearch
from remat.runtime.deadline import Deadline


def test_narrow_beam_gives_order_and_bound() -> None:
    narrow = 0
    for seed in range(12):
        instance = OrderInstance.of(Problem(layered(10 + seed % 9, 0.4, seed)))
        least = ValleySearch().search(instance)
        for width in (1, 4):
            found = BeamOrder(BeamOptions(width=width)).search(instance)
            assert found.bound <= least.peak <= found.peak == instance.peak_of(found.order)
            narrow += not found.proved
    assert narrow > 5


def test_full_memory_gives_a_bound() -> None:
    instance = OrderInstance.of(Problem(layered(150, 0.4, 1)))
    least = ValleySearch().search(instance, deadline=Deadline.after(30))
    full = BestFirstOrder(BestFirstOptions(memory=1 << 20)).search(instance)
    late = BestFirstOrder().search(instance, deadline=Deadline.after(0.0))
    assert late.bound <= full.bound <= least.bound
    assert (full.order, full.notes) == (None, ("its memory is full",))
    beam = BeamOrder(BeamOptions(width=50)).search(instance)
    assert beam.bound <= least.peak <= beam.peak


@pytest.mark.parametrize(
    ("options", "wrong"), [(BeamOptions, {"width": 0}), (BeamOptions, {"memory": 5}), (BestFirstOptions, {"memory": 0})]
)
def test_options_out_of_range(options: type, wrong: dict[str, int]) -> None:
    with pytest.raises(ProblemError):
        options(**wrong)
