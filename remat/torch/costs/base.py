"""What a cost model is."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from remat.errors import MeasurementError


class CostRemark(UserWarning):
    """What is not wrong with costs, and yet to be known; the message is one line."""


class CostModel(ABC):
    """Costs of the ops of a captured graph, from the fake tensors of their nodes.

    Attributes
    ----------
    name : str
        As :func:`cost_model` takes it.
    unit : str
        Cost unit of a graph: ``"flop"`` or ``"ns"``.
    """

    name: str = ""
    unit: ClassVar[str]

    @property
    def figures(self) -> str:
        """The rates that the last costs came from, in words; empty where there are none."""
        return ""

    @abstractmethod
    def costs(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        """Cost of each node in order, non-negative; 0 only for what computes nothing, as a view.

        Parameters
        ----------
        nodes : sequence of torch.fx.Node
            Nodes of kind ``call_function``, whose ``meta["val"]``, and those of their arguments, are fake tensors.

        Raises
        ------
        MeasurementError
            If a value is not known, or cannot be measured; it names the node.
        """

    def checked(self, nodes: Sequence[torch.fx.Node]) -> list[int]:
        """Costs of nodes, looked at: one non-negative int for each.

        Raises
        ------
        MeasurementError
            Naming the model and the node, if they are anything else.
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
                    f"cost model {name!r}: node {node.name!r} costs {cost!r}, which is no non-negative int", "own-costs"
                )
        return costs
