"""Random orders: uniform where they can be counted."""

import itertools

import pytest

from remat import Problem, read_graph
from remat.errors import ProblemError
from remat.ordering import sampling
from remat.ordering.instance import OrderInstance
from remat.ordering.sampling import sample_peaks
from remat.runtime.deadline import Deadline
from remat.testing.graphs import random_graph


def test_every_order_is_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = OrderInstance.of(Problem(random_graph(58, 7)))
    peaks = []
    for order in itertools.permutations(range(instance.num_ops)):
        try:
            peaks.append(instance.peak_of(order))
        except ProblemError:
            continue
    sample = sample_peaks(instance, 1500, seed=1)
    assert (sample.uniform, sample.orders, len(sample.peaks)) == (True, len(peaks), 1500)
    assert len(set(peaks)) > 3
    for peak in set(peaks):
        share = sum(other <= peak for other in peaks) / len(peaks)
        assert sample.share_within(peak) == pytest.approx(share, abs=0.05)
    monkeypatch.setattr(sampling, "MOST_SETS", 3)
    other = sample_peaks(instance, 200, seed=1)
    assert (other.uniform, other.orders) == (False, None)
    assert set(other.peaks.tolist()) <= set(peaks)
    assert sample_peaks(instance, 200, seed=1).peaks.tolist() == other.peaks.tolist()
    assert len(sample_peaks(instance, 200, deadline=Deadline.after(0)).peaks) == 1


def test_orders_of_swiftnet(shared) -> None:
    """Published exact counts: 2.52 billion orders of cell A, 4.66 % of them with a peak of at most 250 KiB."""
    graph = read_graph(shared / "data" / "graphs" / "swiftnet_hpd_cell_a.json")
    sample = sample_peaks(OrderInstance.of(Problem(graph)), 500)
    assert sample.orders == 2_522_126_120
    assert sample.share_within(250 * 1024) == pytest.approx(0.0466, abs=0.03)
