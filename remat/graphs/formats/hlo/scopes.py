"""Module paths of operations, from the names that JAX and XLA give: ``jit(step)/jvp(Net)/layer_1/dot``."""

from __future__ import annotations

import re

_WRAPPED = re.compile(r"([\w.\-]+)\((.*)\)")
_NUMBERED = re.compile(r"_([0-9]+)(?=\.|$)")
#: Parts of a path that describe a transformation, not a position in the program.
_PLAIN = frozenset({"", "checkpoint", "rematted_computation", "remat", "while", "body", "cond", "closed_call", "pjit"})
#: Largest number of transformations to strip from a part.
_MOST = 16


def module_path(name: str) -> str:
    """Return the dotted path of the scopes in an operation's name, without the operation itself; empty at the top.

    Trailing numbers of a scope become separate parts, so that numbered layers are recognised.

    Examples
    --------
    >>> module_path("jit(step)/transpose(jvp(Net))/layers_1/checkpoint/rematted_computation/dot_general")
    'Net.layers.1'
    >>> module_path("transpose(jvp(a/b_2))/jvp(a/b_2)/rematted_computation/add"), module_path("jit(step)/jvp()/add")
    ('a.b.2', '')
    """
    parts: list[str] = []
    last = ""
    for piece in _pieces(name[:4096]):
        part = _unwrapped(piece)
        # a scope that appears under two transformations is kept once
        if part not in _PLAIN and (part != last or part == piece):
            parts.append(part)
        last = part if part != piece else last
    return _NUMBERED.sub(r".\1", ".".join(parts[:-1]).replace("/", "."))


def _pieces(name: str) -> list[str]:
    """Split at slashes outside brackets."""
    pieces, depth, start = [], 0, 0
    for found in re.finditer(r"[()/]", name):
        if found[0] == "/" and not depth:
            pieces.append(name[start : found.start()])
            start = found.end()
        else:
            depth += {"(": 1, ")": -1, "/": 0}[found[0]]
    return [*pieces, name[start:]]


def _unwrapped(piece: str) -> str:
    for _ in range(_MOST):
        found = _WRAPPED.fullmatch(piece)
        if found is None:
            break
        if found[1] in ("jit", "pjit", "shard_map"):
            return ""
        piece = found[2]
    return piece
