"""Graphs as nested groups: partition, identical groups, options of groups, and the method ``hierarchical``."""

from remat.hierarchy.groups import Group, Interface, interface
from remat.hierarchy.identical import GroupClass, identical_groups, translate
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.tree import Hierarchy

__all__ = ["Group", "GroupClass", "Hierarchy", "Interface", "Partitioner", "identical_groups", "interface", "translate"]
