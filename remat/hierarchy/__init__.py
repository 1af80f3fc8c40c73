"""Graphs as groups within groups: partition, chains of blocks, identical groups."""

from remat.hierarchy.chain import Chain, chain_of_blocks
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.tree import Group, Hierarchy, Interface, interface

__all__ = ["Chain", "Group", "Hierarchy", "Interface", "Partitioner", "chain_of_blocks", "interface"]
