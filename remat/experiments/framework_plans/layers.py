"""Layers of a training graph by its module paths, and their values by the names that frameworks use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from remat.errors import ProblemError
from remat.problem import Problem
from remat.problem.regions import Region, block_of, regions_of

#: Names that MaxText gives to values of a decoder layer, and the parts of op names and module paths that mean them.
MAXTEXT_NAMES: Mapping[str, str] = {
    "qkv_proj": r"qkv(_proj)?|c_attn|query_key_value|in_proj",
    "query_proj": r"q|wq|q_proj|query",
    "key_proj": r"k|wk|k_proj|key",
    "value_proj": r"v|wv|v_proj|value",
    "out_proj": r"o|wo|o_proj|out|out_proj|attn_c_proj",
    "mlpwi_0": r"gate|gate_proj|w1",
    "mlpwi_1": r"up|up_proj|w3|fc1|c_fc|linear1|intermediate",
    "mlpwo": r"down|down_proj|w2|fc2|linear2|mlp_c_proj",
}
#: Kinds of ops that compute attention.
ATTENTION = re.compile(r"attention|sdpa|flash", re.IGNORECASE)
#: Kinds of matrix products.
PRODUCT = re.compile(r"linear|\bmm\b|addmm|matmul|bmm|conv", re.IGNORECASE)
#: Products of two matrices, of which torchtitan saves every second one; it saves all others.
ALTERNATING = re.compile(r"linear|\bmm\b|matmul", re.IGNORECASE)
NORM = re.compile(r"norm", re.IGNORECASE)


class ModulePattern(NamedTuple):
    """How the ops of a module are found in a layer: by their kind, or by their module's path within the layer."""

    kind: re.Pattern[str]
    path: re.Pattern[str] | None = None


@dataclass(frozen=True, eq=False)
class Layers:
    """Ops of the forward and backward pass of each layer.

    Raise ProblemError if the graph has no module paths, or none with a number.
    """

    problem: Problem

    def __post_init__(self) -> None:
        if not self.forward:
            graph = self.problem.graph
            missing = "module paths" if not graph.meta.get("modules") else "module paths with a number (layers.0)"
            raise ProblemError(
                f"graph {graph.name!r} has no {missing}, by which frameworks name layers; capture a PyTorch module "
                "(module:factory), or take a graph with meta['modules'], such as 'llama'",
                "no-layers",
            )

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """Module path of each op."""
        found: Mapping[str, str] = self.problem.graph.meta.get("modules", {})
        return found

    @cached_property
    def forward(self) -> dict[str, list[str]]:
        """Ops of the forward pass by layer."""
        return self._by_layer("forward")

    @cached_property
    def backward(self) -> dict[str, list[str]]:
        """Ops of the backward pass by layer."""
        return self._by_layer("backward")

    def _by_layer(self, phase: str) -> dict[str, list[str]]:
        graph, found = self.problem.graph, dict[str, list[str]]()
        for number in graph.arrays.order.tolist():
            op = graph.ops[number]
            layer = block_of(self.paths.get(op.name, ""))
            if op.phase == phase and layer is not None:
                found.setdefault(layer, []).append(op.name)
        return found

    @property
    def names(self) -> list[str]:
        """Paths of the layers, in order."""
        return list(self.forward)

    def regions(self, groups: Sequence[Sequence[str]], *, whole: bool = False) -> tuple[Region, ...]:
        """Return regions, each of some layers; with `whole`, their replays do not stop at the last value needed."""
        named = {group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}": group for group in groups}
        forward = {name: [op for layer in group for op in self.forward[layer]] for name, group in named.items()}
        backward = {
            name: [op for layer in group for op in self.backward.get(layer, ())] for name, group in named.items()
        }
        return _replayed(regions_of(self.problem, forward, backward), whole=whole)

    def parts(self, module: ModulePattern, *, whole: bool = False) -> tuple[Region, ...]:
        """Return regions of consecutive ops of a module within layers."""
        groups: dict[str, list[str]] = {}
        for layer, ops in self.forward.items():
            run = 0
            inside = False
            for op in ops:
                if self.belongs(op, layer, module):
                    run += not inside
                    groups.setdefault(f"{layer} part {run}", []).append(op)
                    inside = True
                else:
                    inside = False
        return _replayed(regions_of(self.problem, groups), whole=whole)

    def belongs(self, op: str, layer: str, module: ModulePattern) -> bool:
        """Return True if an op of a layer belongs to a module."""
        by_path = module.path is not None and module.path.search(self._inner_path(op, layer)) is not None
        return by_path or module.kind.search(self._kind(op)) is not None

    def _kind(self, op: str) -> str:
        graph = self.problem.graph
        return graph.ops[graph.op_index[op]].type

    def _inner_path(self, op: str, layer: str) -> str:
        """Return the path of an op's module within its layer."""
        return self.paths.get(op, "").removeprefix(layer)

    def kinds(self, pattern: re.Pattern[str]) -> Iterator[str]:
        """Yield ops of layers whose kind matches."""
        for ops in self.forward.values():
            yield from (op for op in ops if pattern.search(self._kind(op)))

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """Ops of all layers by MaxText's name of their value."""
        found: dict[str, list[str]] = {}
        for layer, ops in self.forward.items():
            for op in ops:
                kind = self._kind(op)
                words = {self._inner_path(op, layer).rpartition(".")[2], op.rpartition(".")[2]}
                if ATTENTION.search(kind):
                    found.setdefault("context", []).append(op)
                elif PRODUCT.search(kind):
                    name = next(
                        (name for name, words_of in MAXTEXT_NAMES.items()
                         if any(re.fullmatch(words_of, word) for word in words)),
                        None,
                    )  # fmt: skip
                    if name is not None:
                        found.setdefault(name, []).append(op)
        return found

    @cached_property
    def suffixes(self) -> dict[str, list[str]]:
        """Ops of all layers by name within the layer, if each layer has that name."""
        found: dict[str, list[str]] = {}
        for layer, ops in self.forward.items():
            counts: dict[str, int] = {}
            for op in ops:
                inner = op.removeprefix(f"{layer}.")
                if inner == op:  # fx nodes are numbered through the graph: name them by module and kind
                    kind = self._kind(op).split(".")[-2:][0]
                    inner = ".".join(filter(None, (self._inner_path(op, layer).strip("."), kind)))
                counts[inner] = counts.get(inner, 0) + 1
                found.setdefault(inner if counts[inner] == 1 else f"{inner}_{counts[inner]}", []).append(op)
        return {name: ops for name, ops in found.items() if len(ops) == len(self.forward)}


def _replayed(regions: tuple[Region, ...], *, whole: bool) -> tuple[Region, ...]:
    return tuple(replace(region, replayed=region.ops) for region in regions) if whole else regions
