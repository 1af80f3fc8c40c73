"""Pages in a headless Chromium, if it is installed."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--virtual-time-budget=2000", "--dump-dom",
]  # fmt: skip


def embedded(page: str) -> Any:
    """Return the data of a page, read as a browser does."""

    class Reader(HTMLParser):
        inside, text, scripts = False, "", 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.scripts += tag == "script"
            self.inside = ("id", "data") in attrs

        def handle_data(self, data: str) -> None:
            self.text += data if self.inside else ""

        def handle_endtag(self, tag: str) -> None:
            self.inside = False

    reader = Reader()
    reader.feed(page)
    assert reader.scripts == 2
    return json.loads(reader.text)


def browse(page: str, script: str, folder: Path) -> dict[str, str]:
    """Run `script` in a page in Chromium; return the texts of elements by their ids, and of ``title`` and ``body``."""
    changed = re.sub(r'content="default-src[^"]*"', 'content=""', page)  # admits the script of the test
    (folder / "page.html").write_text(changed.replace("</body>", f"<script>{script}</script></body>"))
    command = [str(CHROMIUM), *FLAGS, "--window-size=900,800", f"--user-data-dir={folder / 'profile'}"]
    ran = subprocess.run(
        [*command, f"file://{folder}/page.html"], capture_output=True, text=True, check=True, timeout=60
    )
    found = dict(re.findall(r'<\w+[^>]*\bid="(\w+)"[^>]*>(.*?)</(?:h1|div|span|dl|ul|p)>', ran.stdout, re.DOTALL))
    found["title"] = re.findall(r"<title>(.*?)</title>", ran.stdout)[0]
    found["body"] = re.findall(r"<body[^>]*>", ran.stdout)[0]
    return {key: unescape(re.sub("<[^>]*>", " ", text) if key != "body" else text) for key, text in found.items()}


needs_browser = pytest.mark.skipif(CHROMIUM is None or os.name != "posix", reason="no Chromium")
