"""Public names of ``remat.bounds``; ``__init__.py`` imports them on first use."""

from remat.bounds.base import Bound as Bound
from remat.bounds.base import Measure as Measure
from remat.bounds.joint import joint_bound as joint_bound
from remat.bounds.live_set_bound import live_set_bound as live_set_bound
from remat.bounds.lp import lp_relaxation as lp_relaxation
from remat.bounds.ordered_bound import ordered_bound as ordered_bound
from remat.bounds.peak_bounds import cut_bound as cut_bound
from remat.bounds.peak_bounds import structural_bound as structural_bound
from remat.bounds.selection import best_bound as best_bound
from remat.bounds.selection import bounds as bounds
from remat.bounds.selection import bounds_in_turn as bounds_in_turn
from remat.bounds.stage_bound import stage_bound as stage_bound
from remat.bounds.stage_bound import stage_bounds as stage_bounds
