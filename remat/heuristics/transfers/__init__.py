"""Searches for schedules of least time on machines with a host: recompute, keep or move."""

from remat.heuristics.transfers.heuristic import Transfers, TransfersOptions
from remat.heuristics.transfers.references import best_of_layers, move_everything, move_layers

__all__ = ["Transfers", "TransfersOptions", "best_of_layers", "move_everything", "move_layers"]
