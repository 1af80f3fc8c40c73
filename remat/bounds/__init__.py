"""Lower bounds on peak and cost, each with its scope."""

from remat.bounds.base import Bound, Measure
from remat.bounds.joint import joint_bound
from remat.bounds.live_set_bound import live_set_bound
from remat.bounds.lp import lp_relaxation
from remat.bounds.peak_bounds import cut_bound, structural_bound
from remat.bounds.selection import best_bound, bounds, bounds_in_turn
from remat.bounds.stage_bound import stage_bound, stage_bounds

__all__ = [
    "Bound",
    "Measure",
    "best_bound",
    "bounds",
    "bounds_in_turn",
    "cut_bound",
    "joint_bound",
    "live_set_bound",
    "lp_relaxation",
    "stage_bound",
    "stage_bounds",
    "structural_bound",
]
