"""Stage formulation: Checkmate's MILP without variables that cannot affect the optimum."""

from remat.formulations.stages.formulation import Stages
from remat.formulations.stages.layout import StagesOptions

__all__ = ["Stages", "StagesOptions"]
