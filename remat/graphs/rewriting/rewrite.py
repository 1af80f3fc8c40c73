"""A rewrite as data, and what may be asked of rewrites."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from remat.errors import GraphError
from remat.io.text import short


class RuleName(StrEnum):
    """The rules, by the names that options and files use."""

    ZERO_COPY_CONCAT = "zero-copy-concat"
    ZERO_COPY_SPLIT = "zero-copy-split"
    PARTIAL_SUMS = "partial-sums"
    PARALLEL_PARTS = "parallel-parts"


#: What kernels can do with tensors; see :class:`RewriteOptions`.
KERNELS = ("in-place", "whole")


@dataclass(frozen=True)
class RewriteOptions:
    """Which rewrites are looked for.

    Attributes
    ----------
    rules : tuple of str
        Names of rules; see :class:`RuleName`.
    min_parts : int
        Fewest parts of a concatenation that partial sums are made of, from 2; parallel parts are made of two or more.
    parts : int or None
        Most parts that an op is split into, from 2; neighbours are merged. None: one for each tensor.
    accumulator_bytes : int or None
        Bytes of one element of an accumulation buffer (4 for quantised networks that add in int32); an op is added
        that makes the output of the full buffer. None: sums are added up in the output itself.
    split_workspace : bool
        Whether the workspace of an op shrinks with its part of the input; otherwise each part has all of it.
    kernels : {"in-place", "whole"} or None
        ``"in-place"``: kernels read slices and parts side by side, write slices, and add to their output, as Serenity
        assumes. ``"whole"``: kernels read and write whole tensors, as those of ONNX Runtime and TensorFlow Lite do.
        Concatenations and splits then stay unless their readers are split, the parts of an op that is read in one
        piece are joined by an op, and a partial sum holds its own result next to the buffer that it is added to.
        None: whole kernels for graphs whose ``meta`` says ``described``, in-place kernels for others.

    Raises
    ------
    GraphError
        Naming the option that is wrong.

    Examples
    --------
    >>> RewriteOptions(min_parts=1)
    Traceback (most recent call last):
    remat.errors.GraphError: min_parts must be a whole number from 2, not 1
    """

    rules: tuple[str, ...] = tuple(RuleName)
    min_parts: int = 3
    parts: int | None = None
    accumulator_bytes: int | None = None
    split_workspace: bool = False
    kernels: str | None = None

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule not in list(RuleName):
                raise GraphError(
                    f"there is no rewriting rule {short(rule)}; there are {', '.join(RuleName)}", "rewrite-options"
                )
        if self.kernels not in (None, *KERNELS):
            raise GraphError(
                f"kernels must be one of {', '.join(KERNELS)}, not {short(self.kernels)}", "rewrite-options"
            )
        checks = (
            ("min_parts", self.min_parts, 2),
            ("parts", self.parts, 2),
            ("accumulator_bytes", self.accumulator_bytes, 1),
        )
        for name, value, least in checks:
            if value is not None and (type(value) is not int or not least <= value < 2**31):
                raise GraphError(f"{name} must be a whole number from {least}, not {short(value)}", "rewrite-options")


@dataclass(frozen=True)
class Rewrite:
    """One change to one op, with all that it takes to make it.

    Attributes
    ----------
    rule, op : str
        Which rule, at which op.
    operand, axis : int
        The operand of the op, and the axis of it along which parts lie side by side.
    parts : tuple of (int, int)
        For each part the first element and the one after the last, along the axis.
    tensors : tuple of str
        What the op reads in parts.
    accumulator_bytes, split_workspace
        As in :class:`RewriteOptions`.
    never_worse : bool
        Whether each order of the ops before gives one of the ops after whose peak is no higher. It is not so for
        buffers with wider elements, for slices (their base stays), where a concatenation stays because of others, and
        for partial sums of kernels that cannot add to their output.
    """

    rule: str
    op: str
    operand: int
    axis: int
    parts: tuple[tuple[int, int], ...]
    tensors: tuple[str, ...]
    accumulator_bytes: int | None = None
    split_workspace: bool = False
    never_worse: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Rule and op: an op is rewritten by a rule at most once."""
        return self.rule, self.op

    def as_dict(self) -> dict[str, Any]:
        """For the ``meta`` of a graph and for reports."""
        facts: dict[str, Any] = {
            "rule": self.rule,
            "op": self.op,
            "axis": self.axis,
            "parts": [list(p) for p in self.parts],
        }
        if self.accumulator_bytes is not None:
            facts["accumulator_bytes"] = self.accumulator_bytes
        return facts

    def __str__(self) -> str:
        parts = f"{len(self.parts)} parts"
        match self.rule:
            case RuleName.PARTIAL_SUMS:
                return f"{self.op}: {parts}, added up in one buffer"
            case RuleName.PARALLEL_PARTS:
                return f"{self.op}: {parts}, each on its own"
            case RuleName.ZERO_COPY_CONCAT:
                return f"{self.op}: gone, its readers read {parts} in place"
        return f"{self.op}: gone, its readers read {parts} of its input in place"
