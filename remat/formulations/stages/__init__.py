"""The stage formulation: Checkmate's question, stated with what can be of use only."""

from remat.formulations.stages.formulation import Stages
from remat.formulations.stages.layout import StagesOptions

__all__ = ["Stages", "StagesOptions"]
