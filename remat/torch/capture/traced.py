"""What a route hands over: a functional fx graph whose inputs and outputs are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.captured import Input, ResultValue


@dataclass(frozen=True, eq=False)
class Traced:
    """A functional fx graph: every node has ``meta["val"]``, and nothing is changed in place.

    Attributes
    ----------
    module : torch.fx.GraphModule
    inputs : tuple of Input
        The placeholders, in order.
    results : tuple of ResultValue
        The outputs, in order.
    outputs_spec : torch.utils._pytree.TreeSpec
        How the results of kind ``"output"`` make up what the module returns.
    route : str
    facts : mapping
        See :attr:`remat.torch.captured.Captured.partitioner_facts`.
    constants : mapping of str to torch.Tensor
        See :attr:`remat.torch.captured.Captured.constants`.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    results: tuple[ResultValue, ...]
    outputs_spec: Any
    route: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)


class RouteError(CaptureError):
    """A route cannot capture this module; another one may."""


def storage_bytes(value: Any) -> int:
    """Bytes of the storage of a tensor; 0 for anything else."""
    return int(value.untyped_storage().nbytes()) if isinstance(value, torch.Tensor) else 0
