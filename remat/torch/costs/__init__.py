"""Costs of the ops of a captured step: operations, time by a roofline, measured time."""

from remat.graphs.devices import DEVICES, Device, find_device
from remat.torch.costs.base import CostModel, CostRemark
from remat.torch.costs.flops import Flops
from remat.torch.costs.machine import this_machine
from remat.torch.costs.measured import Measured, measured_workspaces
from remat.torch.costs.names import cost_model
from remat.torch.costs.roofline import Roofline

__all__ = [
    "DEVICES",
    "CostModel",
    "CostRemark",
    "Device",
    "Flops",
    "Measured",
    "Roofline",
    "cost_model",
    "find_device",
    "measured_workspaces",
    "this_machine",
]
