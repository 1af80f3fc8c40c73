"""Interactive pages: one HTML file with its data, scripts and styles, which loads nothing.

The scripts draw on a canvas of their own and take 46 kB; Bokeh's inline script takes 1.27 MB (3.9), Plotly's 4.8 MB
(7.1). ``base.js`` has the canvas and its axis, ``schedule.js`` and ``chart.js`` the pictures, ``events.js`` pointer,
keyboard and search.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from remat.io import figures
from remat.runtime.text import printable

#: Suffixes of pages.
SUFFIXES = (".html", ".htm")
_FOLDER = Path(__file__).parent
#: Colours of :mod:`remat.io.figures` that pages use, by their names there.
_PALETTE = {
    name: getattr(figures, name)
    for name in ("INK", "GREY", "RULE", "RULED_OUT", "FIRST", "AGAIN", "FETCHED", "GIVEN", "FAULT")
}
_SCRIPTS = ("base.js", "schedule.js", "chart.js", "events.js")


def page_script() -> str:
    """Return the script of every page."""
    return f'"use strict";\nconst PALETTE = {json.dumps(_PALETTE)};\n' + "".join(
        (_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS
    )


def script_source(script: str) -> str:
    """Return a script's name in a content security policy, its digest."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def page_text(data: Mapping[str, Any]) -> str:
    """Return the page of some data; same data, same text.

    Names from files cannot become markup: the data is JSON without ``<``, which the scripts only show as text. A
    content security policy admits this script alone, by its digest, and no connection.

    Parameters
    ----------
    data : mapping
        JSON values. Every page has ``kind`` (``schedule`` or ``chart``), ``title`` and ``lines``, the pairs of style
        (``fault`` or empty) and text below the title.
    """
    script = page_script()
    content = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "POLICY": f"default-src 'none'; script-src {script_source(script)}; style-src 'unsafe-inline'",
        "TITLE": escape(printable(str(data["title"]))),
        "DATA": content.replace("<", "\\u003c"),
        "SCRIPT": script,
        "INK": figures.INK,
        "FAULT": figures.FAULT,
    }
    pieces = (_FOLDER / "page.html").read_text(encoding="utf-8").split("@")
    # every second piece is the name of a part, so content with such a name stays as it is
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))
