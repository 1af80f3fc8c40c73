"""Kinds of errors: all in the source have recorded messages, and all recorded ones are tested."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import refusals

from remat.errors import RematError
from remat.solving.backend_call import SolverFailedError

PACKAGE = Path(__file__).resolve().parent.parent / "remat"
AREAS = {kind.__name__: kind.area for kind in (*RematError.__subclasses__(), RematError, SolverFailedError)}
#: Start of the call of an error, and letters of the longest call.
CALL, MOST = re.compile(rf"\b(?:{'|'.join(AREAS)})\("), 3000


def kinds_in_source() -> set[str]:
    """Return the kinds in calls ``SomeError(message, kind, ...)`` of the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for call in calls(path.read_text(encoding="utf-8")):
            given = call.args[1:2] + [keyword.value for keyword in call.keywords if keyword.arg == "kind"]
            area = AREAS[call.func.id]  # type: ignore[attr-defined]
            found |= {f"{area}.{kind.value}" for kind in given if isinstance(kind, ast.Constant)}
    return found


def calls(source: str) -> Iterator[ast.Call]:
    """Yield the calls of errors in a source; parsing all of it would take seconds for the package."""
    source = re.sub(r"^ *>>> .*", "", source, flags=re.MULTILINE)  # examples in docstrings
    for match in CALL.finditer(source):
        for end in re.finditer(r"\)", source[match.start() : match.start() + MOST]):
            with suppress(SyntaxError):
                yield ast.parse(source[match.start() :][: end.end()], mode="eval").body  # type: ignore[misc]
                break


def recorded_kinds() -> set[str]:
    return {kind for path in refusals.MESSAGES.glob("*.txt") for kind in refusals.read_texts(path.stem)}


def test_all_kinds_have_recorded_messages() -> None:
    assert kinds_in_source() <= recorded_kinds()


def test_all_recorded_kinds_are_tested() -> None:
    tests = Path(__file__).parent.rglob("test_*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    kinds = {kind for kind in recorded_kinds() if f'f"{kind.partition(".")[0]}.{{' not in text}  # composed in a test
    assert not {kind for kind in kinds if f'"{kind}"' not in text}
