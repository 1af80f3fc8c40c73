"""How it is asked: one file per formulation; knows nothing of solvers."""
