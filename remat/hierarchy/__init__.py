"""Graphs as groups within groups: partition, chains of blocks, identical groups."""

from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.tree import Group, Hierarchy, Interface, interface

__all__ = ["Group", "Hierarchy", "Interface", "Partitioner", "interface"]
