"""Check that comments, docstrings, messages and pages have none of STYLE's banned words and no long sentences.

    python tests/prose.py [PATH ...]

Without paths: all code, pages and notebooks of the repository. `make lint` runs it. Code in pages, names in
backquotes and names of documented fields (`mend : bool`) are exempt.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Banned words and their replacements.
BANNED = {
    r"anew": "again, from scratch",
    r"go(es|ing)? on|went on": "continue",
    r"at the (least|most)(?= \d| one| two|[.,;:]|$)": "at least, at most",
    r"nobody|somebody|whoever": "name the actor",
    r"is told": "receives",
    r"(is|are) asked": "is called, is queried",
    r"looks? at|looked at|looking at": "inspect, evaluate, check",
    r"of ours": "our",
    r"(?<!stand )by itself": "automatically, alone",
    r"beside(?!s)": "next to, in addition to",
    r"mend(s|ed|ing)?(?! : )": "fix, repair",
    r"pastime": "interim",
    r"so many": "a number",
    r"such as are": "that are",
    r"for the rest": "otherwise",
}
PATTERN = re.compile("|".join(rf"\b(?P<w{k}>{word})\b" for k, word in enumerate(BANNED)), re.IGNORECASE)
#: The same words, whatever precedes or follows them: a file without them is not cut into tokens.
WORDS = re.compile(re.sub(r"\(\?<?[=!][^)]*\)", "", PATTERN.pattern), re.IGNORECASE)
#: First words that summaries must not have.
SUMMARY = re.compile(r"(What|Whether|How often|Who|Return whether) ")
#: Most words of a sentence, by the suffix of the file; a semicolon or colon ends one, too.
LONGEST = {".md": 30, ".ipynb": 30, ".py": 30}
WORD = re.compile(r"[^\W\d_]{2,}[\w'-]*")
#: Parts that names of tests must not have: they state what is checked, without articles and clauses.
NAME = re.compile(r"test_(what|whether|who|how|an?|the)_|test_.*(nobody|somebody|_(said|told|asked)(_|$))")


def faults(path: Path) -> Iterator[tuple[int, str]]:
    """Yield faulty lines with their faults."""
    lines = {".py": prose, ".ipynb": notebook}.get(path.suffix, page)
    for line, text in lines(path):
        for found in PATTERN.finditer(re.sub(r"``?[^`]*``?", "", text)):
            instead = list(BANNED.values())[int(str(found.lastgroup)[1:])]
            yield line + text[: found.start()].count("\n"), f"{found.group()!r}: {instead}"
    for line, sentence in sentences(path):
        if (count := len(WORD.findall(sentence))) > LONGEST[path.suffix]:
            yield line, f"a sentence of {count} words: {sentence[:50]}"
    if path.suffix == ".py":
        for line, name, docstring in definitions(path):
            if opening := SUMMARY.match(docstring):
                yield line, f"summary begins with {opening[1]!r}"
            if NAME.match(name):
                yield line, f"name of a test: {name}"


@cache
def definitions(path: Path) -> list[tuple[int, str, str]]:
    """Return line, name and docstring of a module and of its classes and functions; empty if there is none."""
    found = []
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((getattr(node, "lineno", 1), getattr(node, "name", ""), ast.get_docstring(node) or ""))
        nodes += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr | ast.expr_context))
    return found


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield comments and strings of a module with their lines."""
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if WORDS.search(text) else ():
        if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            yield token.start[0], token.string


def page(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside code blocks."""
    code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if not code:
            yield number, line


def notebook(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a notebook's text; line numbers are those of the cells."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
        if cell["cell_type"] == "markdown":
            yield from ((number, line.rstrip("\n")) for line in [*cell["source"], ""])


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of pages and docstrings with the lines of their paragraphs; code is one word."""
    for line, paragraph in docstrings(path) if path.suffix == ".py" else paragraphs(path):
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"``?[^`]*``?", "code", paragraph))
        yield from ((line, sentence) for sentence in re.split(r"(?<=[.?!:;])\**\)?\s", plain))


def paragraphs(path: Path) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and items of lists of a page, without tables, headings and HTML."""
    begin, words = 0, ""
    for number, line in (notebook if path.suffix == ".ipynb" else page)(path):
        text = line.strip()
        if not text or re.match(r"([|#<]|!|\?\?\?|[*-] |\d+\. )", text):
            yield begin, words
            begin, words = number, ""
        if not re.match(r"([|#<]|!|\?\?\?)", text):
            words += f" {text}"
    yield begin, words


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of docstrings, without examples and parts that are indented, such as equations."""
    for line, _, docstring in definitions(path):
        for paragraph in re.split(r"\n(?: |[*-] |\n)+|\n---+\n", docstring):
            if not paragraph.lstrip().startswith((">>>", "|", "(")):
                yield line, " ".join(paragraph.split())


def main(given: list[str]) -> int:
    """Return the exit code: 1 if there is a fault."""
    folders = ("remat", "tests", "benchmarks", "packages", "examples")
    code = {path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")} - {Path(__file__)}
    everything = {*code, *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb"), *ROOT.glob("*.md")}
    paths = {Path(name).resolve() for name in given} or everything
    found = [f"{path.relative_to(ROOT)}:{line}: {fault}" for path in sorted(paths) for line, fault in faults(path)]
    print("\n".join(found), end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
