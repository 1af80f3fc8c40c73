"""Lowering of a functional fx graph to a computation graph: one op per node that computes, one tensor per storage."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.operator_schemas import normalize_function

from remat.errors import CaptureError
from remat.graphs import ComputeGraph, Op, Tensor
from remat.torch.capture.describing import description
from remat.torch.capture.explaining import module_paths, source_line
from remat.torch.capture.traced import storage_bytes
from remat.torch.captured import BEGIN_BACKWARD, Captured, Traced
from remat.torch.costs import CostModel
from remat.torch.distributed import COLLECTIVES, is_wait

aten = torch.ops.aten
#: Losses whose kernel computes all terms, then shrinks that tensor to one number in place.
_SHRUNK = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Position of the argument *reduction*."""
_SCATTERS = {
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
}


def with_real_memory(traced: Traced) -> Traced:
    """Correct the sizes of fake values, and release early memory that real kernels retain needlessly.

    A loss reduced to one number is copied out of the memory of its terms. A value copied into a part of a tensor is
    read directly: ``aten.copy`` would first clone the memory of the whole tensor. A collective has the memory of its
    result until it has ended.
    """
    graph, moved = traced.module.graph, {}
    for node in list(graph.nodes):
        if node.target in _SHRUNK:
            position = _SHRUNK[node.target]
            if (node.args[position] if len(node.args) > position else node.kwargs.get("reduction", 1)) != 0:
                moved[node] = _copied_out(graph, node)
        elif node.target is aten.copy.default and _is_scattered(node):
            with graph.inserting_before(node):
                source = node.args[1]
                shape = list(node.meta["val"].shape)
                if list(source.meta["val"].shape) != shape:
                    meta = {**node.meta, "val": source.meta["val"].expand(shape)}
                    source = graph.call_function(aten.expand.default, (source, shape))
                    source.meta = meta
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif is_wait(node):
            _share_value(node.args[0], node.meta["val"])
        elif node.target is aten.copy.default or node.target in _SCATTERS:
            base = node.args[0].meta["val"]
            if not any(stride == 0 and length > 1 for stride, length in zip(base.stride(), base.shape, strict=True)):
                node.meta["val"].untyped_storage().resize_(base.untyped_storage().nbytes())
    traced.module.recompile()
    return replace(
        traced, results=tuple(replace(each, node=moved.get(each.node, each.node)) for each in traced.results)
    )


def _share_value(node: Any, value: torch.Tensor) -> None:
    """Give a collective the value of its wait, which returns its argument; fake kernels make two."""
    if getattr(node.target, "namespace", "") in COLLECTIVES:
        node.meta["val"] = value
        if is_wait(node):  # a second one
            _share_value(node.args[0], value)
    elif node.target is operator.getitem:
        maker, place = node.args
        values = list(maker.meta["val"])
        values[place] = node.meta["val"] = value
        maker.meta["val"] = values


def _copied_out(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """Insert a copy of a reduced loss; the loss itself has the size of its terms."""
    with graph.inserting_after(node):
        copy = graph.call_function(aten.clone.default)
    node.replace_all_uses_with(copy)
    copy.args, copy.meta = (node,), dict(node.meta)
    terms = math.prod(torch.broadcast_shapes(*(_value(each).shape for each in node.args[:2])))
    node.meta["val"] = _value(node).new_empty(terms).as_strided((), ())
    return copy


def _is_scattered(node: torch.fx.Node) -> bool:
    """Return True if a copy is read only as the source of a scatter, which copies it again."""
    source, kept = _value(node.args[1]), _value(node)
    alike = (source.dtype, source.device) == (kept.dtype, kept.device)
    return alike and all(user.target in _SCATTERS and user.args.index(node) == 1 for user in node.users)


def _value(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(eq=False)
class _Storages:
    """Tensor of the graph for each storage; None for constants."""

    homes: dict[torch.fx.Node, tuple[str | None, ...]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    constants: dict[int, tuple[str, int]] = field(default_factory=dict)
    _home: dict[int, str | None] = field(default_factory=dict)

    def constant(self, node: torch.fx.Node, kind: str) -> None:
        """Record the values of a node as constant memory of a kind."""
        values = _values(node)
        for value in values:
            if isinstance(value, torch.Tensor):
                key = _key(value)
                self._home[key] = None
                self.constants.setdefault(key, (kind, storage_bytes(value)))
        self.homes[node] = (None,) * len(values)

    def written(self, node: torch.fx.Node) -> tuple[str, ...]:
        """Return the tensors that a node writes: its values in storages that no earlier node has."""
        val = node.meta.get("val")
        several = isinstance(val, tuple | list)
        new: list[str] = []
        homes: list[str | None] = []
        made = _made(node)
        for position, value in enumerate(_values(node)):
            if isinstance(value, tuple | list):
                raise CaptureError(f"node {node.name!r} ({node.target}) has nested values")
            if not isinstance(value, torch.Tensor) or not made[position]:
                homes.append(None)
                continue
            size, key = storage_bytes(value), _key(value)
            if key not in self._home:
                name = f"{node.name}.{position}" if several else node.name
                self._home[key] = name
                self.sizes[name] = size
                new.append(name)
            homes.append(self._home[key])
        self.homes[node] = tuple(homes)
        return tuple(new)


def lower(
    traced: Traced,
    *,
    name: str,
    costs: CostModel,
    workspaces: Callable[[Sequence[torch.fx.Node]], list[int]] | None = None,
    unread: Mapping[str, int] = MappingProxyType({}),
    prefix: str = "",
    meta: Mapping[str, Any] = MappingProxyType({}),
) -> Captured:
    """Lower a traced step; `unread` has the bytes that are resident and not read, by kind.

    Raise CaptureError if a value depends on the data, or there is nothing to compute.
    """
    traced = with_real_memory(traced)
    storages = _Storages()
    results = _homes_of(traced, storages)
    ops, nodes = _ops_of(traced, storages, results)
    if not ops:
        raise CaptureError(f"module {name!r} computes nothing")
    computing = [node for node in nodes if node is not None]
    amounts = iter(costs.checked(computing))
    own = iter([0] * len(computing) if workspaces is None else workspaces(computing))
    ops = [
        op if node is None else replace(op, cost=next(amounts), workspace=next(own))
        for op, node in zip(ops, nodes, strict=True)
    ]
    changed = set(results("mutation"))
    constants = {kind: unread.get(kind, 0) for kind in ("parameter", "buffer", "input")}
    for kind, size in storages.constants.values():
        constants[kind] += size
    graph = ComputeGraph(
        name=name,
        tensors=[Tensor(tensor, size) for tensor, size in storages.sizes.items()],
        ops=ops,
        outputs=results("output", "mutation", "gradient"),
        constant_memory=sum(constants.values()),
        cost_unit=costs.unit,
        source=f"torch {torch.__version__}, route {traced.route}",
        meta={
            **_facts(computing, module_paths(traced.module.graph.nodes, prefix)),
            "effects": [op.name for op in ops if changed.intersection(op.outputs)],
            "on_device": list(results("output", "mutation")),
            "constant_bytes": {"param": constants.pop("parameter"), **constants},
            "cost_model": costs.name,
            "cost_figures": costs.figures,
            **description(ops, nodes, storages.homes),
            **meta,
        },
    )
    return Captured(**vars(traced), graph=graph, nodes=tuple(nodes), homes=storages.homes)


def _ops_of(
    traced: Traced, storages: _Storages, results: Callable[..., tuple[str, ...]]
) -> tuple[list[Op], list[torch.fx.Node | None]]:
    """Return the ops that write memory, without costs, and the node of each; None: the begin of the backward pass.

    Fills `storages`.
    """
    tangents: list[str] = []
    for each in traced.inputs:
        if each.kind == "tangent":
            tangents += storages.written(each.node)
        else:
            storages.constant(each.node, each.kind)
    behind = _behind({each.node for each in traced.inputs if each.kind == "tangent"}, traced.module.graph)
    ops: list[Op] = []
    nodes: list[torch.fx.Node | None] = []

    def begin_backward() -> None:
        if tangents and None not in nodes:
            ops.append(_begin_backward(results("output", "mutation"), tangents))
            nodes.append(None)

    for node in traced.module.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(traced.module)
            node.meta.setdefault("val", value if isinstance(value, torch.Tensor) else None)
            storages.constant(node, "buffer")
        elif node.op == "call_function":
            _refuse_symbols(node)
            refuse_offsets(node)
            written = storages.written(node)
            if not written:
                continue
            backward = node in behind or node.meta.get("partitioner_tag") == "is_backward"
            if backward:
                begin_backward()
            read = dict.fromkeys(
                home for each in node.all_input_nodes for home in storages.homes[each] if home is not None
            )
            phase = "backward" if backward else "forward"
            ops.append(Op(node.name, tuple(read), written, type=str(node.target), phase=phase))
            nodes.append(node)
    if ops:
        begin_backward()
    return ops, nodes


def is_random(node: torch.fx.Node) -> bool:
    """Return True if a node draws random numbers; attention without dropout draws none, though torch marks it."""
    target = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    named = _arguments(node)
    return "dropout_p" not in named or named["dropout_p"] != 0.0


def _values(node: torch.fx.Node) -> tuple[Any, ...]:
    val = node.meta.get("val")
    return tuple(val) if isinstance(val, tuple | list) else (val,)


def _arguments(node: torch.fx.Node) -> Mapping[str, Any]:
    """Return the arguments of an op by name, defaults included; empty if torch has no signature for it."""
    assert callable(node.target)
    found = normalize_function(node.target, node.args, dict(node.kwargs), normalize_to_only_use_kwargs=True)
    return {} if found is None else found.kwargs


def _made(node: torch.fx.Node) -> Sequence[bool]:
    """Return for each value whether the node computes it.

    The kernel of batch norm skips values by its mask, which its fake kernel ignores. Other fake kernels agree with the
    real ones, some of which (grid samplers) compute all values despite the mask.
    """
    if node.target is torch.ops.aten.native_batch_norm_backward.default:
        return _arguments(node)["output_mask"]
    return (True,) * len(_values(node))


def _key(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _behind(starts: set[torch.fx.Node], fx: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that depend on any of `starts`."""
    found = set(starts)
    for node in fx.nodes:
        if any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _homes_of(traced: Traced, storages: _Storages) -> Callable[..., tuple[str, ...]]:
    def homes(*kinds: str) -> tuple[str, ...]:
        """Return the tensors with results of these kinds, as far as they are computed."""
        nodes = [each.node for each in traced.results if each.kind in kinds and each.node is not None]
        # eager checkpointing updates buffers again in the backward pass; those results are not computed yet
        return tuple(dict.fromkeys(home for node in nodes for home in storages.homes.get(node, ()) if home is not None))

    return homes


def _begin_backward(outputs: Sequence[str], tangents: Sequence[str]) -> Op:
    return Op(BEGIN_BACKWARD, tuple(outputs), tuple(tangents), type=BEGIN_BACKWARD, phase="loss", recomputable=False)


def _refuse_symbols(node: torch.fx.Node) -> None:
    """Refuse numbers and sizes that depend on the data: they cannot be scheduled in advance."""
    for value in _values(node):
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, _SYMBOLS) for size in sizes) and node.target is not operator.getitem:
            line = source_line(node)
            where = f" ({line[0]}, line {line[1]})" if line else ""
            raise CaptureError(f"a number or a size depends on the values of tensors: {node.target}{where}")


def refuse_offsets(node: torch.fx.Node) -> None:
    """Refuse random ops on distributed tensors of a GPU: they set the generator themselves."""
    if str(node.target) == "run_dtensor_rng_op":
        raise CaptureError(
            f"random op {node.name!r} runs on a distributed tensor, with offsets of PyTorch that a recomputation would "
            "not repeat: make its input local before (use_local_output=True)",
            "distributed-random",
        )


def _facts(nodes: Sequence[torch.fx.Node], paths: dict[torch.fx.Node, str]) -> dict[str, Any]:
    lines = {node.name: source_line(node) for node in nodes}
    return {
        "family": "PyTorch",
        "modules": {node.name: paths[node] for node in nodes if node in paths},
        "source_lines": {name: line for name, line in lines.items() if line is not None},
        "random_ops": [node.name for node in nodes if is_random(node)],
    }
