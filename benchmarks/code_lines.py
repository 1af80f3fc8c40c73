"""Lines of code per folder, without docstrings, comments and blank lines; and total lines of tests and benchmarks.

python benchmarks/code_lines.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> int:
    """Number of lines that hold code.

    >>> code_lines('"A docstring."\\n\\nx = 1  # a comment\\n')
    1
    """
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documentation.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    return len(lines - documentation)


def main(folders: list[str]) -> None:
    for folder in map(Path, folders or ["remat"]):
        counts: Counter[str] = Counter()
        for path in folder.rglob("*.py"):
            counts[path.relative_to(folder).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
        for name, count in sorted(counts.items()):
            print(f"{count:7,}  {folder / name}")
        print(f"{counts.total():7,}  {folder}, lines of code")
    for folder in ("tests", "benchmarks"):
        total = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in Path(folder).rglob("*.py"))
        print(f"{total:7,}  {folder}, all lines")


if __name__ == "__main__":
    main(sys.argv[1:])
