"""Valid graph names for names from foreign files."""

from __future__ import annotations

from remat.graphs.graph import MAX_NAME_LENGTH
from remat.io.limits import draw
from remat.runtime.text import printable


class UniqueNames:
    """Generator of valid graph names: printable, of limited length, unique.

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
        """Return `wanted`, or the nearest free valid name."""
        draw(4 * min(len(wanted), MAX_NAME_LENGTH))
        base = printable(wanted)[: MAX_NAME_LENGTH - 20] or "unnamed"
        result = base
        while result in self._taken:
            self._next[base] = self._next.get(base, 1) + 1
            result = f"{base}#{self._next[base]}"
        self._taken.add(result)
        return result
