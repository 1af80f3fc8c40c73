"""Reading untrusted text and JSON, writing files atomically."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from remat.errors import FormatError

#: Largest file that is read, in bytes, unless a caller says otherwise.
MAX_BYTES = 512 * 1024 * 1024


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file.

    Raises
    ------
    FormatError
        Naming the file, if it is missing, not a plain file, larger than `max_bytes`, or not UTF-8.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise FormatError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise FormatError(f"{path}: larger than {max_bytes:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text (byte {error.start})") from None


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text; NaN, infinities and duplicate keys are refused, whole numbers stay exact.

    Raises
    ------
    FormatError
        Naming `name`, and the line and column where there is one.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FormatError(f"{name}: key {twice!r} stands twice in one object")
        return result

    def refuse(word: str) -> Any:
        raise FormatError(f"{name}: {word} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise FormatError(f"{name}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise FormatError(f"{name}: nested too deeply") from None
    except ValueError as error:  # a number with thousands of digits
        raise FormatError(f"{name}: {error}") from None


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Any:
    """The value of a JSON file; see :func:`read_text` and :func:`parse_json` for what is refused."""
    return parse_json(read_text(path, max_bytes), str(path))


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, which then takes its name.

    Raises
    ------
    FormatError
        Naming the file, if it cannot be written; what was there before is still there.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
