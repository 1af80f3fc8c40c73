"""Rotor: the dynamic programme over chains of blocks, each with several options, and schedules from it."""

from remat.heuristics.rotor.heuristic import Rotor, RotorOptions

__all__ = ["Rotor", "RotorOptions"]
