"""Rewrites as data, and the options that select them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from remat.errors import GraphError
from remat.runtime.text import short


class RuleName(StrEnum):
    """Names of the rules in options and files."""

    ZERO_COPY_CONCAT = "zero-copy-concat"
    ZERO_COPY_SPLIT = "zero-copy-split"
    PARTIAL_SUMS = "partial-sums"
    PARALLEL_PARTS = "parallel-parts"


#: Capabilities of kernels; see :class:`RewriteOptions`.
KERNELS = ("in-place", "whole")


@dataclass(frozen=True)
class RewriteOptions:
    """Selection of rewrites.

    Attributes
    ----------
    rules : tuple of str
        Names of rules; see :class:`RuleName`.
    min_parts : int
        Fewest parts of a concatenation for partial sums, at least 2; parallel parts need two or more.
    parts : int or None
        Most parts of an op, at least 2; neighbours are merged. None: one for each tensor.
    accumulator_bytes : int or None
        Bytes of one element of an accumulation buffer (4 for quantised networks that add in int32). An additional op
        then computes the output from the full buffer. None: the output itself is the buffer.
    split_workspace : bool
        True if the workspace of an op is divided among its parts; otherwise each part has the whole workspace.
    kernels : {"in-place", "whole"} or None
        ``"in-place"``: kernels read slices and adjacent parts, write slices, and add to their output, as Serenity
        assumes. ``"whole"``: kernels read and write whole tensors, as those of ONNX Runtime and TensorFlow Lite do.
        Then concatenations and splits remain unless their readers are split. If a reader needs the result of a split
        op in one piece, an op joins the parts. A partial sum holds its own result in addition to the buffer.
        None: whole kernels for graphs whose ``meta`` says ``described``, in-place kernels for others.

    Raises
    ------
    GraphError
        Naming the invalid option.

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
    """Complete description of one change to one op."""

    rule: str
    op: str
    """Op that the rule changes."""
    operand: int
    axis: int
    """Axis of the operand of the op along which the parts are adjacent."""
    parts: tuple[tuple[int, int], ...]
    """First element and end (exclusive) of each part, along the axis."""
    tensors: tuple[str, ...]
    """Tensors that the op reads in parts."""
    accumulator_bytes: int | None = None
    """As in :class:`RewriteOptions`."""
    split_workspace: bool = False
    never_worse: bool = True
    """True if each order of the original ops corresponds to an order of the new ops with no higher peak. False for
    buffers with wider elements, slices (their base stays), concatenations that stay because of other readers, and
    partial sums of kernels that cannot add to their output."""

    @property
    def key(self) -> tuple[str, str]:
        """Rule and op: a rule rewrites an op at most once."""
        return self.rule, self.op

    def as_dict(self) -> dict[str, Any]:
        """Return the rewrite for the ``meta`` of a graph and for reports."""
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
