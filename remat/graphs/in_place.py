"""In-place pairs (output, input) of ops: checks, and the largest set that can take effect together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remat.errors import GraphError
from remat.runtime.text import short

#: Largest number of in-place pairs of one op.
MAX_PAIRS = 64

Pairs = tuple[tuple[str, str], ...]


def checked_pairs(pairs: Any, op: str) -> Pairs:
    """Return pairs of names as tuples, without duplicates.

    Raise GraphError, naming the op, for items that are not pairs of names, or for more than :data:`MAX_PAIRS` pairs.

    Examples
    --------
    >>> checked_pairs([["y", "x"], ("y", "x")], "add")
    (('y', 'x'),)
    """
    what = f"'in_place' of op {op!r}"
    wrong = pairs if isinstance(pairs, str) or not isinstance(pairs, Iterable) else None
    found = [] if wrong is not None else list(pairs)
    if len(found) > MAX_PAIRS:
        raise GraphError(f"{what} has {len(found):,} pairs, more than {MAX_PAIRS}", "in-place-pair")
    for pair in found:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            wrong = pair
    if wrong is not None:
        raise GraphError(f"{what} must be pairs of an output and an input, not {short(wrong)}", "in-place-pair")
    return tuple(dict.fromkeys((pair[0], pair[1]) for pair in found))


def check_places(op: str, pairs: Pairs, size: Mapping[str, int], writers: Mapping[str, int]) -> None:
    """Refuse, naming the op, pairs of different sizes and pairs with accumulation buffers.

    `size` has the bytes of each tensor, `writers` the number of its writers.
    """
    for output, source in pairs:
        where = f"op {op!r} cannot write {short(output)} in place of {short(source)}"
        if size[output] != size[source]:
            raise GraphError(f"{where}: they have {size[output]:,} and {size[source]:,} bytes", "in-place-pair")
        if max(writers[output], writers.get(source, 0)) > 1:
            raise GraphError(f"{where}: one of them is written by several ops", "in-place-pair")


def most_pairs(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a largest set of pairs (output, input) that uses each output and each input once.

    The tensors of a pair have the same size. Source: H. W. Kuhn, 1955 (augmenting paths, in the order listed).

    Examples
    --------
    >>> most_pairs([(0, 5), (1, 5), (0, 6)])
    [(1, 5), (0, 6)]
    """
    inputs: dict[int, list[int]] = {}
    for output, source in pairs:
        inputs.setdefault(output, []).append(source)
    taken: dict[int, int] = {}

    def place(output: int, tried: set[int]) -> bool:
        for source in inputs[output]:
            if source not in tried:
                tried.add(source)
                if source not in taken or place(taken[source], tried):
                    taken[source] = output
                    return True
        return False

    for output in inputs:
        place(output, set())
    return [(output, source) for source, output in taken.items()]
