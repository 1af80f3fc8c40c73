"""Checkpointing and offloading of chains: a dynamic programme over both, with a price of link time."""

from remat.heuristics.pofo.heuristic import Pofo, PofoOptions

__all__ = ["Pofo", "PofoOptions"]
