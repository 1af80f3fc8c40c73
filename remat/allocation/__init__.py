"""Addresses for the buffers of a schedule: known allocators, an exact formulation, a search, a portfolio."""

from remat.allocation.base import Allocation, Allocator
from remat.allocation.entry import allocate
from remat.allocation.problem import AllocationProblem

__all__ = ["Allocation", "AllocationProblem", "Allocator", "allocate"]
