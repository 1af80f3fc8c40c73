"""Captured steps: a computation graph, and the fx graph that it represents node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from remat.errors import CaptureError
from remat.graphs import ComputeGraph
from remat.torch.distributed import Spread
from remat.torch.private import pytree


class Layout(NamedTuple):
    """Shape, strides, type and device of a tensor, fake or real, and the placement of a distributed one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    spread: Spread | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return the layout of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, Spread.of(tensor))

    def difference(self, other: Layout) -> str:
        """Describe the first difference of `other` from this layout; empty if both place all items alike.

        Examples
        --------
        >>> Layout.of(torch.ones(2, 1, 3)).difference(Layout.of(torch.ones(1, 2, 3).transpose(0, 1)))
        ''
        >>> Layout.of(torch.ones(2, 3)).difference(Layout.of(torch.ones(3, 2).t()))
        'strides (1, 2), not (3, 1)'
        """
        for what in ("shape", "dtype", "device"):
            mine, its = getattr(self, what), getattr(other, what)
            if mine != its:
                return f"{what} {its}, not {mine}"
        if self.spread != other.spread:
            return f"placement {_placement(other.spread)}, not {_placement(self.spread)}"
        steps = zip(self.shape, self.strides, other.strides, strict=True)
        moved = any(mine != its for size, mine, its in steps if size > 1)
        return f"strides {other.strides}, not {self.strides}" if moved else ""

    def empty(self) -> torch.Tensor:
        """Allocate an uninitialised tensor of this layout."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


def _placement(spread: Spread | None) -> str:
    return "on one device" if spread is None else f"{spread.placements} on {spread.mesh.size()} devices"


#: Op between forward and backward pass: it represents the use of the outputs, and writes the tangents.
BEGIN_BACKWARD = "begin_backward"


@dataclass(frozen=True)
class Input:
    """A placeholder of the captured graph.

    Attributes
    ----------
    node : torch.fx.Node
    kind : str
        ``"parameter"``, ``"buffer"``, ``"input"`` or ``"tangent"``.
    name : str
        Name of the parameter or buffer in the module (the first name of a shared one), or the position of an input
        among the leaves of ``(args, kwargs)`` as :mod:`torch.utils._pytree` flattens them, as text.
    size : int
        Bytes of its storage; 0 if it is not a tensor.
    output : int or None
        Of a tangent: the position of its output among the results of kind ``"output"``.
    spread : Spread or None
        Placement of a distributed tensor (DTensor), whose local part is the placeholder's value.
    """

    node: torch.fx.Node
    kind: str
    name: str
    size: int
    output: int | None = None
    spread: Spread | None = None


@dataclass(frozen=True)
class ResultValue:
    """An output of the captured graph.

    Attributes
    ----------
    node : torch.fx.Node or None
        None where the module returned no tensor, or a parameter has no gradient.
    kind : str
        ``"output"`` (return value of the module), ``"gradient"``, or ``"mutation"`` (new value of a buffer or input).
    name : str
        Position of the output as text, or the name of the parameter, buffer or input (see :class:`Input`).
    value : Any
        Return value of the module at this position if it is not a tensor.
    spread : Spread or None
        Placement of a distributed tensor (DTensor), whose local part is the node's value.
    """

    node: torch.fx.Node | None
    kind: str
    name: str
    value: Any = None
    spread: Spread | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Traced:
    """A functional fx graph with known inputs and outputs; for the attributes see :class:`Captured`.

    Every node has ``meta["val"]``, and no node changes a tensor in place.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Input, ...]
    results: tuple[ResultValue, ...]
    route: str
    outputs_spec: Any = None
    partitioner_facts: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Captured(Traced):
    """The forward pass, or the forward and backward pass, of a module as a graph, tied to its fx nodes.

    Views, items of tuples and aliases are not ops. Their values live in the storage of another node's value, their
    *home*, and are derived again at each reader, at no cost. Parameters, buffers and inputs are constant memory of the
    graph, never its tensors.

    Attributes
    ----------
    graph : ComputeGraph
        One op per fx node that computes, of the same name; in a training step also :data:`BEGIN_BACKWARD` between the
        passes. Output `i` of a node with several is the tensor ``node.i``. `meta` has ``modules`` (op to dotted module
        path), ``source_lines`` (op to file, line and function of the user), ``random_ops``, ``effects`` (ops that
        change a buffer), ``constant_bytes`` (per kind of input), and shapes and descriptions for
        :mod:`remat.graphs.rewriting`.
    module : torch.fx.GraphModule
        Functional; every node has ``meta["val"]`` (fake tensors).
    nodes : tuple of torch.fx.Node or None
        The fx node of each op; None for :data:`BEGIN_BACKWARD`.
    homes : mapping of torch.fx.Node to tuple of str or None
        For each value of every fx node (one, or one per item of a tuple), the tensor in whose storage it lives; None
        for values in a parameter, buffer or input, and for values other than tensors.
    inputs : tuple of Input
        Placeholders, in order.
    results : tuple of ResultValue
        Outputs of the fx graph, in order.
    route : str
        ``"joint"`` or ``"make_fx"``.
    outputs_spec : torch.utils._pytree.TreeSpec or None
        Structure of the module's return value, whose leaves are the results of kind ``"output"``.
    partitioner_facts : mapping
        Input of torch's partitioner for a joint graph: ``num_forward_outputs`` and ``static_lifetime_input_indices``;
        empty for other routes.
    constants : mapping of str to torch.Tensor
        Tensors that the module reads and that are neither its parameters, nor its buffers, nor arguments. They appear
        as inputs of kind ``"buffer"`` with these names.
    """

    graph: ComputeGraph
    nodes: tuple[torch.fx.Node | None, ...]
    homes: Mapping[torch.fx.Node, tuple[str | None, ...]]

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "homes", MappingProxyType(dict(self.homes)))
        put(self, "partitioner_facts", MappingProxyType(dict(self.partitioner_facts)))
        put(self, "constants", MappingProxyType(dict(self.constants)))

    @property
    def mode(self) -> str:
        """``"training"``, or ``"inference"`` if there are no gradients."""
        return "training" if any(each.kind == "gradient" for each in self.results) else "inference"

    @cached_property
    def _op_of(self) -> dict[torch.fx.Node, str]:
        return {node: op.name for node, op in zip(self.nodes, self.graph.ops, strict=True) if node is not None}

    def op_of(self, node: torch.fx.Node) -> str | None:
        """Return the op of an fx node; None for views, items, placeholders and the output."""
        return self._op_of.get(node)

    def node_of(self, op: str) -> torch.fx.Node | None:
        """Return the fx node of an op; None for :data:`BEGIN_BACKWARD`.

        Raises
        ------
        CaptureError
            If there is no such op.
        """
        try:
            return self.nodes[self.graph.op_index[op]]
        except KeyError:
            raise CaptureError(f"graph {self.graph.name!r} has no op {op!r}", "name") from None

    def inputs_of(self, kind: str) -> tuple[Input, ...]:
        """Return the inputs of one kind, in order."""
        return tuple(each for each in self.inputs if each.kind == kind)

    def results_of(self, kind: str) -> tuple[ResultValue, ...]:
        """Return the results of one kind, in order."""
        return tuple(each for each in self.results if each.kind == kind)

    @cached_property
    def gradient_spreads(self) -> Mapping[str, Spread]:
        """Placements of gradients that are distributed tensors, by the name of the parameter or input."""
        return {each.name: each.spread for each in self.results_of("gradient") if each.spread is not None}

    def homes_of(self, *kinds: str) -> frozenset[str]:
        """Return the tensors in which results of these kinds live."""
        return frozenset(
            home
            for each in self.results
            if each.kind in kinds and each.node is not None
            for home in self.homes[each.node]
            if home is not None
        )

    def placed(self) -> Iterator[tuple[str, Any]]:
        """Yield the tensor of the graph and the fake value, for each value of a node that lives in a tensor."""
        for node, homes in self.homes.items():
            for home, value in zip(homes, pytree.tree_leaves(node.meta.get("val")), strict=False):
                if home is not None:
                    yield home, value

    @property
    def random_ops(self) -> Sequence[str]:
        """Ops that draw random numbers."""
        return tuple(self.graph.meta.get("random_ops", ()))

    def __repr__(self) -> str:
        return f"Captured({self.graph!r}, route={self.route!r}, mode={self.mode!r})"
