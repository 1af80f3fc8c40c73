"""Names from files of others, made such as a graph may have."""

from __future__ import annotations

from remat.graphs.graph import MAX_NAME_LENGTH
from remat.io.limits import draw
from remat.io.text import printable


class UniqueNames:
    """Names that a graph may have: printable, not too long, each once.

    Examples
    --------
    >>> names = UniqueNames()
    >>> [names.name(wanted) for wanted in ("a", "a", "", "a")]
    ['a', 'a#2', 'unnamed', 'a#3']
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def name(self, wanted: str) -> str:
        """`wanted`, or what is nearest to it and still free."""
        draw(4 * min(len(wanted), MAX_NAME_LENGTH))
        base = printable(wanted)[: MAX_NAME_LENGTH - 20] or "unnamed"
        result = base
        while result in self._taken:
            self._next[base] = self._next.get(base, 1) + 1
            result = f"{base}#{self._next[base]}"
        self._taken.add(result)
        return result
