"""Buckets of sizes: a schedule for larger sizes also serves smaller ones, as the same ops hold fewer bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remat.errors import ProblemError
from remat.problem import Problem
from remat.schedule import Schedule
from remat.torch.capture.fakes import fake_tensors
from remat.torch.private import pytree

#: Shapes of the tensors of a call, in order; None for other values.
Sizes = tuple[tuple[int, ...] | None, ...]


def sizes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sizes:
    """Return the shapes of a call's tensors."""
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)


@dataclass(frozen=True)
class Buckets:
    """Sizes to which those of a call are rounded up for planning; none given: powers of two."""

    given: tuple[int, ...] = ()

    @classmethod
    def of(cls, shapes: str | Sequence[int]) -> Buckets:
        """Return the buckets of a setting.

        Raise ProblemError unless it is ``"bucket"`` or positive whole numbers.
        """
        if shapes == "bucket":
            return cls()
        known = () if isinstance(shapes, str) else tuple(shapes)
        if not known or any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in known):
            raise ProblemError(f"shapes {shapes!r} is neither 'bucket' nor a list of sizes", "step-setting")
        return cls(tuple(sorted(known)))

    def round(self, size: int) -> int:
        """Return the size of the bucket; a size above all given ones is its own.

        Examples
        --------
        >>> Buckets().round(33), Buckets((48, 96)).round(33), Buckets((48, 96)).round(100)
        (64, 48, 100)
        """
        if not self.given:
            return 1 << max(size - 1, 0).bit_length()
        place = bisect_left(self.given, size)
        return self.given[place] if place < len(self.given) else size

    def sample(
        self, first: Sizes, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the call with the sizes that differ from the first call rounded up, as fake tensors.

        None if the calls have different arguments, or no size changes.
        """
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        if len(leaves) != len(first):
            return None
        changed = False
        with fake_tensors():
            for number, (leaf, shape) in enumerate(zip(leaves, first, strict=True)):
                if isinstance(leaf, torch.Tensor) and shape is not None and len(shape) == leaf.dim():
                    rounded = [
                        own if own == then else self.round(own) for own, then in zip(leaf.shape, shape, strict=True)
                    ]
                    changed |= rounded != list(leaf.shape)
                    made = torch.empty(rounded, dtype=leaf.dtype, device=leaf.device)
                    leaves[number] = made.requires_grad_(leaf.requires_grad)
        found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, spec)
        return found if changed else None


def cheapest(problem: Problem, schedules: Iterable[Schedule]) -> Schedule | None:
    """Return the cheapest schedule within the budget among those of graphs with the same ops, certified here."""
    best: Schedule | None = None
    least = 0
    names = set(problem.graph.op_names)
    for each in schedules:
        if set(each.computes()) != names:
            continue
        translated = each.signed_for(problem.graph)
        certificate = problem.validate(translated)
        if certificate.accepted and (best is None or problem.value(certificate) < least):
            best, least = translated, problem.value(certificate)
    return best
