"""Rotor: dynamic programme over chains of blocks with several options each, and schedules from it."""

from remat.heuristics.rotor.heuristic import Rotor, RotorOptions

__all__ = ["Rotor", "RotorOptions"]
