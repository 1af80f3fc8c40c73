"""MkDocs hook: docstrings mark references with Sphinx roles, which the API pages show as plain code."""

import re
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc):<code>(~?)([\w.]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Drop the roles; ``~a.b.C`` becomes ``C``, as in Sphinx."""
    return ROLE.sub(lambda m: f"<code>{m[2].rsplit('.', 1)[-1] if m[1] else m[2]}</code>", html)
