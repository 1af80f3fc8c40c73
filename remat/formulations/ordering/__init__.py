"""Formulations of orders that compute each op once, with the least peak or within a budget."""

from remat.formulations.ordering.intervals import OrderIntervals
from remat.formulations.ordering.linear import LinearOrder
from remat.formulations.ordering.positions import OrderPositions

__all__ = ["LinearOrder", "OrderIntervals", "OrderPositions"]
