"""MkDocs hooks: pictures drawn by examples, tables of the repository, equations, roles of Sphinx in docstrings."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

from _examples import drawn_pictures
from _papers import with_tables
from latex2mathml.converter import convert
from matplotlib import rc_context
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from remat.experiments.library.instances import instances
from remat.experiments.library.ledger import Ledger
from remat.experiments.library.pages import overview, page, picture

ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):<code>(~?)([\w.]+)</code>")
#: Block of equations in LaTeX, one per line; a number in brackets before an equation is that of the paper.
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EQUATION = re.compile(r"(?:\((\w+)\) )?(.*)")
ROW = "display:flex;gap:1.5em;align-items:center;overflow-x:auto;margin:.4em 0"
#: Page of the site with the file of the repository that follows it.
INCLUDED = {"changelog.md": "CHANGELOG.md"}
#: Page that ends with the tables of the reference library; its instances have pages in the same folder.
LIBRARY = "library/index.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Draw the pictures under ``drawn/`` by the Python blocks of the pages that show them."""
    for each in files.documentation_pages():
        for name, content in drawn_pictures(Path(str(each.abs_src_path))).items():
            files.append(File.generated(config, f"drawn/{name}", content=content))
    for name, content in _library_pages().items():
        files.append(File.generated(config, f"library/{name}", content=content))
    return files


def _library_pages() -> dict[str, str | bytes]:
    """Return pages and pictures of the instances of the library by file name."""
    made: dict[str, str | bytes] = {}
    for name, instance in instances().items():
        ledger = Ledger(instance)
        figure = picture(ledger)
        if figure is not None:
            drawing = BytesIO()
            with rc_context({"svg.fonttype": "none"}):
                figure.savefig(drawing, format="svg", metadata={"Date": None})
            made[f"{name}.svg"] = drawing.getvalue()
        made[f"{name}.md"] = page(ledger, f"{name}.svg" if figure is not None else "")
    return made


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Convert equations to MathML, and append the included file, without its title."""
    markdown = MATH.sub(lambda block: "\n".join(map(equation, block[1].splitlines())), markdown)
    markdown = with_tables(markdown)
    if page.file.src_uri == LIBRARY:
        return f"{markdown}\n{overview()}"
    if path := INCLUDED.get(page.file.src_uri):
        text = (Path(config.config_file_path).parent / path).read_text(encoding="utf-8")
        return f"{markdown}\n{text.partition(chr(10))[2]}".replace("](docs/", "](")
    return markdown


def equation(line: str) -> str:
    """Return an equation as MathML with its number, which is its anchor (``eq-1a``)."""
    found = EQUATION.fullmatch(line)
    assert found is not None
    number, latex = found.groups()
    anchor, label = (f' id="eq-{number}"', f"({number})") if number else ("", "")
    return f'<div{anchor} style="{ROW}"><span style="min-width:2.5em">{label}</span>{convert(latex)}</div>\n'


def on_page_content(html: str, **_: Any) -> str:
    """Drop the roles; ``~a.b.C`` becomes ``C``, as in Sphinx."""
    return ROLE.sub(lambda m: f"<code>{m[2].rsplit('.', 1)[-1] if m[1] else m[2]}</code>", html)
