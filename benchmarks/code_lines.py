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
    """Return the number of lines with code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


for folder in map(Path, sys.argv[1:] or ["remat"]):
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        counts[path.relative_to(folder).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
    for name, count in sorted(counts.items()):
        print(f"{count:7,}  {folder / name}")
    print(f"{counts.total():7,}  {folder}, lines of code")
for name in ("tests", "benchmarks"):
    total = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in Path(name).rglob("*.py"))
    print(f"{total:7,}  {name}, all lines")
