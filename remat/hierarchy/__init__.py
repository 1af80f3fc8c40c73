"""Graphs as groups within groups: partition, chains of blocks, identical groups."""

from remat.hierarchy.groups import Group, Interface, interface
from remat.hierarchy.identical import GroupClass, identical_groups, translate
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.tree import Hierarchy

__all__ = [
    "Group",
    "GroupClass",
    "Hierarchy",
    "Interface",
    "Partitioner",
    "identical_groups",
    "interface",
    "translate",
]
