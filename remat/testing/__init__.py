"""Conformance kit for formulations, backends, heuristics, order searches, allocators and file formats.

Every check is a plain function. It returns None, raises an ``AssertionError`` that describes the fault, or raises
``unittest.SkipTest`` with the reason why it does not apply. With pytest::

    import pytest
    from remat.testing import (
        ALLOCATOR_CHECKS, BACKEND_CHECKS, FORMAT_CHECKS, FORMULATION_CHECKS, HEURISTIC_CHECKS, MACHINE_CHECKS,
        ORDER_CHECKS, PAIR_CHECKS,
    )

    @pytest.mark.parametrize("check", BACKEND_CHECKS)
    def test_my_solver(check):
        check(MySolver())

    @pytest.mark.parametrize("check", FORMULATION_CHECKS)
    def test_my_formulation(check):
        check(MyFormulation)

    @pytest.mark.parametrize("check", PAIR_CHECKS)
    def test_both(check):
        check(MyFormulation, MySolver())

    @pytest.mark.parametrize("check", MACHINE_CHECKS)
    def test_my_formulation_with_transfers(check):
        check(MyFormulationWithTransfers, MySolver())

    @pytest.mark.parametrize("check", HEURISTIC_CHECKS)
    def test_my_heuristic(check):
        check(MyHeuristic)

    @pytest.mark.parametrize("check", ORDER_CHECKS)
    def test_my_search_for_an_order(check):
        check(MySearch)

    @pytest.mark.parametrize("check", ALLOCATOR_CHECKS)
    def test_my_allocator(check):
        check(MyAllocator)

    @pytest.mark.parametrize("check", FORMAT_CHECKS)
    def test_my_format(check):
        check(MY_FORMAT)
"""

from remat.testing.allocator_checks import ALLOCATOR_CHECKS
from remat.testing.backend_checks import BACKEND_CHECKS
from remat.testing.exhaustive import Optimum, least_peak, optimum
from remat.testing.format_checks import FORMAT_CHECKS, Sample
from remat.testing.formulation_checks import FORMULATION_CHECKS
from remat.testing.graphs import random_budget, random_graph
from remat.testing.heuristic_checks import HEURISTIC_CHECKS
from remat.testing.kit import ConformanceError, Effort
from remat.testing.machine_checks import MACHINE_CHECKS
from remat.testing.order_checks import ORDER_CHECKS
from remat.testing.pair_checks import PAIR_CHECKS

__all__ = [
    "ALLOCATOR_CHECKS",
    "BACKEND_CHECKS",
    "FORMAT_CHECKS",
    "FORMULATION_CHECKS",
    "HEURISTIC_CHECKS",
    "MACHINE_CHECKS",
    "ORDER_CHECKS",
    "PAIR_CHECKS",
    "ConformanceError",
    "Effort",
    "Optimum",
    "Sample",
    "least_peak",
    "optimum",
    "random_budget",
    "random_graph",
]
