"""A formulation and a backend for remat, found by their entry points."""
