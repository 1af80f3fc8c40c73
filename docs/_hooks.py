"""MkDocs hooks: pictures drawn by the examples of pages, tables of the repository, roles of Sphinx in docstrings."""

import re
from pathlib import Path
from typing import Any

from _examples import drawn_pictures
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):<code>(~?)([\w.]+)</code>")
#: Page of the site with the file of the repository that follows it.
INCLUDED = {"scoreboard.md": "benchmarks/scoreboard/table.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Draw the pictures under ``drawn/`` by the Python blocks of the pages that show them."""
    for page in files.documentation_pages():
        for name, content in drawn_pictures(Path(str(page.abs_src_path))).items():
            files.append(File.generated(config, f"drawn/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Append the included file, without its title."""
    if path := INCLUDED.get(page.file.src_uri):
        text = (Path(config.config_file_path).parent / path).read_text(encoding="utf-8")
        return f"{markdown}\n{text.partition(chr(10))[2]}".replace("](docs/", "](")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Drop the roles; ``~a.b.C`` becomes ``C``, as in Sphinx."""
    return ROLE.sub(lambda m: f"<code>{m[2].rsplit('.', 1)[-1] if m[1] else m[2]}</code>", html)
