"""The former place of :class:`.Rotor`, for installations whose entry points name it."""

from remat.heuristics.rotor import Rotor

__all__ = ["Rotor"]
