"""Graphs as groups within groups: partition, chains of blocks, identical groups."""

from remat.hierarchy.chain import Chain, chain_of_blocks
from remat.hierarchy.identical import GroupClass, identical_groups, translate
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.tree import Group, Hierarchy, Interface, interface

__all__ = [
    "Chain",
    "Group",
    "GroupClass",
    "Hierarchy",
    "Interface",
    "Partitioner",
    "chain_of_blocks",
    "identical_groups",
    "interface",
    "translate",
]
