"""Nodes and values of an ONNX model in which the type and shape of every value are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from remat.graphs.formats.onnx.values import Value


class InnerGraph(NamedTuple):
    """Graph in an attribute of a node, and the values of enclosing graphs that it reads."""

    attribute: str
    proto: Any
    free: set[str]


@dataclass(eq=False)
class Node:
    """Node with its attributes, inputs and outputs."""

    proto: Any
    """An ``onnx.NodeProto``."""
    name: str
    type: str
    """Type, with its domain unless that is ONNX's."""
    attributes: dict[str, Any]
    inputs: list[str]
    """Values that it reads; an empty name for an absent optional one."""
    outputs: list[str]
    captured: list[str] = field(default_factory=list)
    """Further values that its inner graphs read."""
    graphs: list[InnerGraph] = field(default_factory=list)
    copies: int = 0
    """Names that ONNX's rule copies into its inner graphs."""
    bodies: list[Network] = field(default_factory=list)
    """Its inner graphs with known types and shapes; of an ``If`` with a known condition, the branch that runs."""
    trips: int | None = 1
    """Runs of a body; None if they depend on data."""
    unread: str = ""
    """Reason for inner graphs without known types and shapes."""

    @property
    def reads(self) -> list[str]:
        """All values that it requires; for some, only the type."""
        inputs = self.inputs[:1] if self.type == "CastLike" else self.inputs
        return [name for name in (*inputs, *self.captured) if name]


@dataclass(eq=False)
class Network:
    """Model in which the type and shape of every value are known."""

    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)
    """Content of small tensors that do not depend on the inputs."""
    constant: set[str] = field(default_factory=set)
    """Values that do not depend on the inputs."""
    outside: set[str] = field(default_factory=set)
    """Values of enclosing graphs that an inner graph reads."""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
