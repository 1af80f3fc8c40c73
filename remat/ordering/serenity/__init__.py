"""Serenity: the order of least peak by dynamic programming (Ahn et al., MLSys 2020)."""

from remat.ordering.serenity.search import Serenity, SerenityOptions

__all__ = ["Serenity", "SerenityOptions"]
