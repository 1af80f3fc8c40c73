"""From a functional fx graph to a computation graph: one op per node that computes, one tensor per storage."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from remat.errors import CaptureError
from remat.graphs import ComputeGraph, Op, Tensor
from remat.torch.capture.places import module_paths, source_line
from remat.torch.capture.traced import Traced, storage_bytes
from remat.torch.captured import BEGIN_BACKWARD, Captured

#: Costs of nodes, or bytes of their workspaces, as whole numbers.
Costs = Callable[[Sequence[torch.fx.Node]], list[int]]
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(eq=False)
class _Storages:
    """Which tensor of the graph each storage is; None for constants."""

    homes: dict[torch.fx.Node, tuple[str | None, ...]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    constants: dict[int, tuple[str, int]] = field(default_factory=dict)
    _home: dict[int, str | None] = field(default_factory=dict)

    def constant(self, node: torch.fx.Node, kind: str) -> None:
        """The values of a node are constant memory of a kind."""
        values = _values(node)
        for value in values:
            if isinstance(value, torch.Tensor):
                key = _key(value)
                self._home[key] = None
                self.constants.setdefault(key, (kind, storage_bytes(value)))
        self.homes[node] = (None,) * len(values)

    def written(self, node: torch.fx.Node) -> tuple[str, ...]:
        """The tensors that a node writes: its values in a storage that no node before it has."""
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
    mode: str,
    costs: Costs,
    workspaces: Costs | None,
    cost_unit: str,
    unread: Mapping[str, int],
    prefix: str = "",
    meta: Mapping[str, Any],
) -> Captured:
    """The captured step of a traced one; `unread` are bytes of what is resident and not read, by kind.

    Raises
    ------
    CaptureError
        Where a value depends on the data, or there is nothing to compute.
    """
    fx = traced.module.graph
    storages = _Storages()
    tangents: list[str] = []
    for each in traced.inputs:
        if each.kind == "tangent":
            tangents += storages.written(each.node)
        else:
            storages.constant(each.node, each.kind)
    behind = _behind({each.node for each in traced.inputs if each.kind == "tangent"}, fx)
    ops: list[Op] = []
    nodes: list[torch.fx.Node | None] = []
    results = _homes_of(traced, storages)
    for node in fx.nodes:
        if node.op == "get_attr":
            node.meta.setdefault("val", _attribute(traced.module, str(node.target)))
            storages.constant(node, "buffer")
        elif node.op == "call_function":
            _refuse_symbols(node)
            written = storages.written(node)
            backward = node in behind or node.meta.get("partitioner_tag") == "is_backward"
            if not written:
                continue
            if backward and tangents and None not in nodes:
                ops.append(_begin_backward(results("output", "mutation"), tangents))
                nodes.append(None)
            read = dict.fromkeys(
                home for each in node.all_input_nodes for home in storages.homes[each] if home is not None
            )
            phase = "backward" if backward else "forward"
            ops.append(Op(node.name, tuple(read), written, type=str(node.target), phase=phase))
            nodes.append(node)
    if not ops:
        raise CaptureError(f"module {name!r} computes nothing")
    if tangents and None not in nodes:
        ops.append(_begin_backward(results("output", "mutation"), tangents))
        nodes.append(None)
    computing = [node for node in nodes if node is not None]
    amounts = dict(zip(computing, costs(computing), strict=True))
    own = (
        dict.fromkeys(computing, 0) if workspaces is None else dict(zip(computing, workspaces(computing), strict=True))
    )
    ops = [
        op if node is None else Op(op.name, op.inputs, op.outputs, amounts[node], own[node], op.type, op.phase)
        for op, node in zip(ops, nodes, strict=True)
    ]
    ops = [_once(op) if op.name == BEGIN_BACKWARD else op for op in ops]
    constants = {kind: unread.get(kind, 0) for kind in ("parameter", "buffer", "input")}
    for kind, size in storages.constants.values():
        constants[kind] += size
    graph = ComputeGraph(
        name=name,
        tensors=[Tensor(tensor, size) for tensor, size in storages.sizes.items()],
        ops=ops,
        outputs=results("output", "mutation", "gradient"),
        constant_memory=sum(constants.values()),
        cost_unit=cost_unit,
        source=f"torch {torch.__version__}, route {traced.route}",
        meta={
            **_facts(computing, module_paths(fx.nodes, prefix)),
            "effects": _effects(traced, storages, ops),
            "constant_bytes": {"param": constants.pop("parameter"), **constants},
            **meta,
        },
    )
    return Captured(
        graph=graph,
        module=traced.module,
        nodes=tuple(nodes),
        homes=storages.homes,
        inputs=traced.inputs,
        results=traced.results,
        route=traced.route,
        mode=mode,
        outputs_spec=traced.outputs_spec,
        partitioner_facts=traced.facts,
        constants=traced.constants,
    )


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers; attention without dropout does not, though torch marks it."""
    target = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return "dropout_p" not in names or given.get("dropout_p", 0.0) != 0.0


def _values(node: torch.fx.Node) -> tuple[Any, ...]:
    val = node.meta.get("val")
    return tuple(val) if isinstance(val, tuple | list) else (val,)


def _argument(node: torch.fx.Node, name: str, default: Any) -> Any:
    """An argument by its name; its own default, or `default` where the op has no such argument."""
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(() if schema is None else schema.arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, given)
    return default


def _made(node: torch.fx.Node) -> Sequence[bool]:
    """Which values a node makes: the kernel of batch norm leaves out those that its mask does, its fake one does not.

    Other fake kernels agree with the real ones, some of which (grid samplers) make all values whatever the mask.
    """
    if node.target is torch.ops.aten.native_batch_norm_backward.default:
        return _argument(node, "output_mask", (True,) * 3)
    return (True,) * len(_values(node))


def _key(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _behind(starts: set[torch.fx.Node], fx: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes that depend on any of `starts`."""
    found = set(starts)
    for node in fx.nodes:
        if any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _homes_of(traced: Traced, storages: _Storages) -> Callable[..., tuple[str, ...]]:
    def homes(*kinds: str) -> tuple[str, ...]:
        """Tensors that the results of these kinds live in, as far as they are computed by now."""
        nodes = [each.node for each in traced.results if each.kind in kinds and each.node is not None]
        # eager checkpointing updates buffers once more in the backward pass: those results come later
        return tuple(dict.fromkeys(home for node in nodes for home in storages.homes.get(node, ()) if home is not None))

    return homes


def _begin_backward(outputs: Sequence[str], tangents: Sequence[str]) -> Op:
    return _once(Op(BEGIN_BACKWARD, tuple(outputs), tuple(tangents), type=BEGIN_BACKWARD, phase="loss"))


def _once(op: Op) -> Op:
    return Op(op.name, op.inputs, op.outputs, 0, 0, op.type, op.phase, recomputable=False)


def _refuse_symbols(node: torch.fx.Node) -> None:
    """Numbers that depend on the data, and sizes that depend on them, cannot be scheduled ahead."""
    for value in _values(node):
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, _SYMBOLS) for size in sizes) and node.target is not operator.getitem:
            line = source_line(node)
            where = f" ({line[0]}, line {line[1]})" if line else ""
            raise CaptureError(f"a number or a size depends on the values of tensors: {node.target}{where}")


def _attribute(module: torch.nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def _facts(nodes: Sequence[torch.fx.Node], paths: dict[torch.fx.Node, str]) -> dict[str, Any]:
    lines = {node.name: source_line(node) for node in nodes}
    return {
        "family": "PyTorch",
        "modules": {node.name: paths[node] for node in nodes if node in paths},
        "source_lines": {name: line for name, line in lines.items() if line is not None},
        "random_ops": [node.name for node in nodes if is_random(node)],
    }


def _effects(traced: Traced, storages: _Storages, ops: Sequence[Op]) -> list[str]:
    """Ops that write the new value of a buffer or an input."""
    changed = {
        home
        for each in traced.results
        if each.kind == "mutation" and each.node is not None
        for home in storages.homes[each.node]
    }
    return [op.name for op in ops if changed.intersection(op.outputs)]
