"""Version of a build, read by hatchling: the last tag ``vX.Y.Z``, with ``.postN`` N commits after it."""

import re
import subprocess
from pathlib import Path

#: `git archive`, which makes the tarballs of GitHub, replaces this (`.gitattributes`).
ARCHIVED = "$Format:%(describe:tags=true,match=v[0-9]*)$"
#: Version where no tag is known: in a clone without tags, or a copy without git.
FALLBACK = "0.0.0"


def described() -> str:
    """Return the output of `git describe`; empty without git, or in the checkout of another project."""
    root = Path(__file__).resolve().parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--tags", "--match", "v[0-9]*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def version() -> str:
    """Return the version that the tag gives. An sdist does not call this: hatchling reads its ``PKG-INFO``."""
    name = described() if ARCHIVED.startswith("$") else ARCHIVED
    match = re.fullmatch(r"v(\d[\w.]*)(?:-(\d+)-g[0-9a-f]+)?", name)
    return FALLBACK if match is None else match[1] + (f".post{match[2]}" if match[2] else "")
