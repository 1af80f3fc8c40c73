"""Solvers behind one interface: one file or small folder each. Knows the modelling layer, not graphs."""
