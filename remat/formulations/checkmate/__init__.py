"""Checkmate's mixed integer programme and its options."""

from remat.formulations.checkmate.formulation import Checkmate
from remat.formulations.checkmate.layout import CheckmateOptions

__all__ = ["Checkmate", "CheckmateOptions"]
