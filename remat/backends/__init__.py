"""Solvers behind one interface: one file or small folder each. They depend on the modelling layer, not on graphs."""
