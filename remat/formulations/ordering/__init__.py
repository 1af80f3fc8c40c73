"""Orders of the ops, each computed once: which order holds the least, or fits within the budget."""

from remat.formulations.ordering.intervals import OrderIntervals
from remat.formulations.ordering.linear import LinearOrder
from remat.formulations.ordering.positions import OrderPositions

__all__ = ["LinearOrder", "OrderIntervals", "OrderPositions"]
