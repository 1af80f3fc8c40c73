"""Base of cost models."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from remat.errors import MeasurementError


class CostRemark(UserWarning):
    """Warning about costs that are valid but need attention; the message is one line."""


class CostModel(ABC):
    """Costs of the ops of a captured graph, from the fake tensors of their nodes."""

    name: str = ""
    """Name for :func:`cost_model`."""
    unit: ClassVar[str]
    """Cost unit of a graph: ``"flop"`` or ``"ns"``."""

    @property
    def figures(self) -> str:
        """Rates behind the last costs, as text; empty if there are none."""
        return ""

    @abstractmethod
    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        """Return the cost of each node in order: non-negative, and 0 only for ops that compute nothing, such as views.

        Parameters
        ----------
        nodes : sequence of torch.fx.Node
            Nodes of kind ``call_function``, whose ``meta["val"]``, and those of their arguments, are fake tensors.

        Raises
        ------
        MeasurementError
            If a value is unknown or cannot be measured; with the name of the node.
        """

    def checked(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        """Return the costs of nodes, checked to be one non-negative int each.

        Raises
        ------
        MeasurementError
            With the names of the model and the node, if a cost is invalid.
        """
        name, costs = self.name or type(self).__name__, list(self.costs(nodes))
        if len(costs) != len(nodes):
            raise MeasurementError(f"cost model {name!r}: {len(costs)} costs for {len(nodes)} ops", "own-costs")
        for position, (cost, node) in enumerate(zip(costs, nodes, strict=True)):
            try:
                costs[position] = operator.index(cost)
            except TypeError:
                costs[position] = -1
            if costs[position] < 0:
                raise MeasurementError(
                    f"cost model {name!r}: node {node.name!r} costs {cost!r}, not a non-negative int", "own-costs"
                )
        return costs
