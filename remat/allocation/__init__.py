"""Addresses for the buffers of a schedule: known allocators, an exact formulation, a search, a portfolio of them."""
