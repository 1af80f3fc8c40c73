"""Notebooks as pages: they are executed when the site is built, and their outputs become Markdown."""

import base64
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

#: Seconds that a cell may take; a loaded machine needs more than the limits in the notebooks.
SECONDS = 300


def executed(path: Path) -> NotebookNode:
    """Execute a notebook in a kernel of its own and a folder that is removed; raise the error of a cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
        return client.execute()


def page_of(notebook: NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its pictures by their file names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for kind, content in outputs(cell):
            if kind == "image/png":
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(content)
                parts.append(f"![Picture of the cell above]({file})")
            else:
                parts.append(f'<div class="output">{content}</div>')
    parts.insert(1, f"[Download this notebook]({name}.ipynb)")
    return "\n\n".join(parts) + "\n", pictures


def outputs(cell: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield the outputs of a cell: pictures as base64, everything else as HTML."""
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "stream" and output.name == "stdout":
            yield "text/html", f"<pre><code>{escape(output.text)}</code></pre>"
        elif "image/png" in data:
            yield "image/png", data["image/png"]
        elif "text/html" in data:
            yield "text/html", data["text/html"]
        elif "text/plain" in data:
            yield "text/html", f"<pre><code>{escape(data['text/plain'])}</code></pre>"
