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
    """Bytes of the storage of a tensor; 0 for anything else.

    Raises
    ------
    CaptureError
        If it is a sparse tensor, which has several.
    """
    if not isinstance(value, torch.Tensor):
        return 0
    if value.layout is not torch.strided:
        raise CaptureError(f"a value is of layout {value.layout} (an embedding with sparse=True?); only dense ones fit")
    return int(value.untyped_storage().nbytes())


def opaque(kind: str, output: int | str) -> str:
    """What is said where a module returns an object that torch cannot look into."""
    advice = (
        "pass use_cache=False" if kind.endswith("Cache") else "return tensors, tuples or dictionaries, or register it "
        "with torch.utils._pytree.register_dataclass"
    )  # fmt: skip
    return f"the module returns a {kind} (output {output}), whose tensors torch cannot find: {advice}"
