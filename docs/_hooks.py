"""MkDocs hooks: pictures drawn by examples, notebooks, tables of the repository, equations, roles in docstrings."""

import os
import re
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import Any

import nbformat
from _examples import drawn_names, drawn_pictures
from _notebooks import executed, page_of
from _papers import with_tables
from jinja2 import ChoiceLoader, DictLoader, Environment
from latex2mathml.converter import convert
from matplotlib import rc_context
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from remat.experiments.library.instances import instances
from remat.experiments.library.ledger import Ledger
from remat.experiments.library.pages import Overview, page, picture

#: Set by `make pages`, which checks text and links: pictures are empty, notebooks are not executed, and pages have
#: neither navigation nor search.
DRAFT = bool(os.environ.get("REMAT_DRAFT"))
ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):<code>(~?)([\w.]+)</code>")
#: Block of equations in LaTeX, one per line; a number in brackets before an equation is that of the paper.
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Fenced block or code within a line, which no formula is part of.
CODE = re.compile(r"^( *)```.*?^\1```$|``.*?``|`[^`\n]*`", re.MULTILINE | re.DOTALL)
#: Formula within a line, and a reference to a numbered equation.
INLINE = re.compile(r"(?<![\w\\$])\$([^$\n]+)\$(?![\w$])")
CITED = re.compile(r"(?<![\w\])[])\((\d+\w?|[a-z]\d)\)(?![\w(\[])")
EQUATION = re.compile(r"(?:\((\w+)\) )?(.*)")
#: Page of the site with the file of the repository that follows it.
INCLUDED = {"changelog.md": "CHANGELOG.md"}
#: Page of the reference library, whose instances have pages in the same folder, and the places of its tables.
LIBRARY = "library/index.md"
MARKER = re.compile(r"^<!-- library: (classes|values|progress) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Leave out what a draft does not need."""
    if DRAFT:
        config.plugins["material/search"].config.enabled = False
        config.plugins["mkdocstrings"].config.handlers["python"]["options"]["separate_signature"] = False


def on_env(env: Environment, **_: Any) -> None:
    """Write the pages of a draft without what the theme puts around them."""
    if DRAFT and env.loader:
        env.loader = ChoiceLoader([DictLoader({"main.html": "{{ page.content }}"}), env.loader])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Draw pictures by the Python blocks of pages, write the pages of the library, and execute notebooks."""
    for each in files.documentation_pages():
        source = Path(str(each.abs_src_path))
        drawn = dict.fromkeys(drawn_names(source), b"") if DRAFT else drawn_pictures(source)
        for name, content in drawn.items():
            files.append(File.generated(config, f"drawn/{name}", content=content))
    for name, content in _library_pages().items():
        files.append(File.generated(config, f"library/{name}", content=content))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = Path(str(notebook.abs_src_path))
        text, pictures = page_of(nbformat.read(path, as_version=4) if DRAFT else executed(path), path.stem)
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{Path(notebook.src_uri).parent}/{name}", content=content))
    return files


def _library_pages() -> dict[str, str | bytes]:
    """Return pages and pictures of the instances of the library by file name."""
    made: dict[str, str | bytes] = {}
    for name, instance in instances().items():
        ledger = Ledger(instance)
        figure = None if DRAFT else picture(ledger)
        if figure is not None:
            drawing = BytesIO()
            with rc_context({"svg.fonttype": "none"}):
                figure.savefig(drawing, format="svg", metadata={"Date": None})
            made[f"{name}.svg"] = drawing.getvalue()
        made[f"{name}.md"] = page(ledger, f"{name}.svg" if figure is not None else "")
    return made


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Convert equations to MathML, and append the included file, without its title."""
    markdown = "".join(map(with_formulas, split_code(markdown), repeat(numbers_of(markdown))))
    markdown = with_tables(markdown)
    if page.file.src_uri == LIBRARY:
        overview = Overview()
        return MARKER.sub(lambda found: getattr(overview, found[1])(), markdown)
    if path := INCLUDED.get(page.file.src_uri):
        text = (Path(config.config_file_path).parent / path).read_text(encoding="utf-8")
        return f"{markdown}\n{text.partition(chr(10))[2]}".replace("](docs/", "](")
    return markdown


def numbers_of(markdown: str) -> frozenset[str]:
    """Return the numbers of the equations of a page."""
    lines = (line for block in MATH.finditer(markdown) for line in block[1].splitlines())
    return frozenset(found[1] for line in lines if (found := EQUATION.fullmatch(line)) and found[1])


def split_code(markdown: str) -> list[str]:
    """Split a page into code and the text between, in order."""
    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [markdown[end : code.start()], code[0]]
        end = code.end()
    return [*parts, markdown[end:]]


def with_formulas(part: str, numbers: frozenset[str]) -> str:
    """Return code or text with its formulas as MathML, and with references to equations as links."""
    if block := MATH.fullmatch(part):
        return "\n".join(map(equation, block[1].splitlines()))
    if CODE.fullmatch(part):
        return part
    part = CITED.sub(lambda cited: f"[({cited[1]})](#eq-{cited[1]})" if cited[1] in numbers else cited[0], part)
    return INLINE.sub(lambda formula: convert(formula[1]), part)


def equation(line: str) -> str:
    """Return an equation as MathML with its number, which is its anchor (``eq-1a``)."""
    found = EQUATION.fullmatch(line)
    assert found is not None
    number, latex = found.groups()
    anchor, label = (f' id="eq-{number}"', f"({number})") if number else ("", "")
    return f'<div class="equation"{anchor}><span>{label}</span>{convert(latex)}</div>\n'


def on_page_content(html: str, **_: Any) -> str:
    """Drop the roles; ``~a.b.C`` becomes ``C``, as in Sphinx."""
    return ROLE.sub(lambda m: f"<code>{m[2].rsplit('.', 1)[-1] if m[1] else m[2]}</code>", html)
