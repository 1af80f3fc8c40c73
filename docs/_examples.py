"""Examples of pages: fenced blocks, what their Python prints, and the pictures that it draws."""

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
#: Picture of a page that one of its Python blocks writes; it exists only in the built site.
DRAWN = re.compile(r"\]\((?:\.\./)*drawn/([\w.-]+)\)")


@dataclass(frozen=True)
class Block:
    """Fenced block of a page; `line` is that of its first line."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, without indentation."""
    content = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(content):
        indent, language, body = match.groups()
        yield Block(
            language, re.sub(f"^{indent}", "", body, flags=re.MULTILINE), content.count("\n", 0, match.start()) + 2
        )


def run_python(page: Path, block: Block, namespace: dict[str, Any]) -> str:
    """Run a block in `namespace`, with the line numbers of its page, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
    return printed.getvalue()


def drawn_names(page: Path) -> list[str]:
    """Return the names of the pictures that a page shows and its Python blocks write."""
    sources = [block.text for block in blocks(page) if block.language == "python"]
    shown = set(DRAWN.findall(page.read_text(encoding="utf-8")))
    return sorted(name for name in shown if any(f'"{name}"' in text for text in sources))


def drawn_pictures(page: Path) -> dict[str, bytes]:
    """Run the Python blocks of a page if they write pictures that it shows; return these by name."""
    names = drawn_names(page)
    if not names:
        return {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        namespace: dict[str, Any] = {"__name__": page.stem}
        for block in blocks(page):
            if block.language == "python":
                run_python(page, block, namespace)
        return {name: Path(name).read_bytes() for name in names}
