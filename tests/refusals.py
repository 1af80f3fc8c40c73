"""Comparison of messages with those recorded in ``tests/messages``.

A message is recorded under its kind, ``"graph.cycle"`` in ``messages/graph.txt``::

    graph.cycle
        GraphError: ops 'a' and 'b' form a cycle

``pytest --update-messages`` adds the texts of a run. ``--replace-messages`` removes all other texts of the kinds that
occurred, also those that only tests outside the run record, such as slow ones. Review the diff.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from remat.errors import RematError

MESSAGES = Path(__file__).with_name("messages")

Texts = dict[str, set[str]]

#: Texts of this run while recording; None while comparing.
recorded: Texts | None = None


@contextmanager
def refused(
    kind: str,
    error: type[BaseException] = RematError,
    *,
    culprit: str = "",
    hide: Mapping[str, str] | None = None,
) -> Iterator[pytest.ExceptionInfo]:
    """Assert an error of `kind` whose message is one printable line, names `culprit` and is recorded.

    `hide` maps text that differs between runs (versions, times) to its replacement in the recorded text.
    """
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    assert message.isprintable(), f"not one printable line: {message!r}"
    assert culprit in message, f"{culprit!r} is not named: {message}"
    if isinstance(caught.value, RematError):
        own = kind.startswith(f"{caught.value.area}.")  # scripts record the package's errors under their own kinds
        assert caught.value.kind == kind or not own, f"kind {caught.value.kind!r}, not {kind!r}: {message}"
        assert caught.value.culprit in message
    check_text(kind, f"{type(caught.value).__name__}: {message}", hide)


def check_text(kind: str, text: str, hide: Mapping[str, str] | None = None) -> None:
    """Compare `text` with the texts recorded under `kind`, or record it."""
    text = plain(text, hide)
    if recorded is not None:
        recorded[kind].add(text)
        return
    known = read_texts(kind.partition(".")[0]).get(kind, set())
    assert text in known, f"{kind}: not a recorded text (pytest --update-messages):\n  {text}\nrecorded:\n  " + (
        "\n  ".join(sorted(known)) or "none"
    )


def plain(text: str, hide: Mapping[str, str] | None = None) -> str:
    """Replace text that differs between runs (temporary paths, keys of `hide`), and cut long lists of names."""
    for found, shown in (hide or {}).items():
        text = text.replace(found, shown)
    text = re.sub(r"((?:known(?: are|:)|there are|name either) \(?[\w.-]+)(?:, [\w.-]+){6,}", r"\1, ...", text)
    return re.sub(r"/[^\s:'\"]*pytest-[^\s:'\"/]*/(?:popen-gw\d+/)?[^\s:'\"/]+", "<folder>", text).replace("\n", "\\n")


def read_texts(area: str) -> Texts:
    """Read the recorded texts of one area, by kind."""
    path = MESSAGES / f"{area}.txt"
    texts: Texts = defaultdict(set)
    kind = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith("    "):
            texts[kind].add(line[4:])
        elif line:
            kind = line
    return texts


def start_recording() -> None:
    global recorded  # noqa: PLW0603  (a switch of the whole run)
    recorded = defaultdict(set)


def record_texts(found_texts: Mapping[str, set[str] | list[str]], *, replace: bool) -> None:
    """Add the texts of a run to the recorded ones, or replace those of the same kinds."""
    MESSAGES.mkdir(exist_ok=True)
    for area in {kind.partition(".")[0] for kind in found_texts}:
        texts = read_texts(area)
        for kind, found in found_texts.items():
            if kind.partition(".")[0] == area:
                texts[kind] = set(found) if replace else texts[kind] | set(found)
        lines = [line for kind in sorted(texts) for line in (kind, *(f"    {text}" for text in sorted(texts[kind])))]
        (MESSAGES / f"{area}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
