"""Reading untrusted text and JSON, writing files atomically."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remat.errors import FormatError

#: Largest file that is read, in bytes, unless a caller says otherwise.
MAX_BYTES = 512 * 1024 * 1024


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file.

    Raises
    ------
    FormatError
        Naming the file, if it is missing, not a plain file, or larger than `max_bytes`.
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
    return data


def decode_text(data: bytes, name: str) -> str:
    """The text of UTF-8 bytes; `name` stands in the :class:`FormatError` for any others."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: not UTF-8 text (byte {error.start})") from None


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file; see :func:`read_bytes` and :func:`decode_text` for what is refused."""
    return decode_text(read_bytes(path, max_bytes), str(path))


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text; NaN, infinities (1e999 too) and duplicate keys are refused, whole numbers stay exact.

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
            raise FormatError(f"{name}: key {repr(twice)[:60]} stands twice in one object")
        return result

    def refuse(word: str) -> Any:
        raise FormatError(f"{name}: {word} is not JSON")

    def finite(word: str) -> float:
        value = float(word)
        if math.isinf(value):
            raise FormatError(f"{name}: number {word[:40]} is too large")
        return value

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
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


def check_output(
    path: str | os.PathLike[str] | None,
    inputs: Iterable[str | os.PathLike[str] | None] = (),
    suffixes: Iterable[str] = (),
) -> None:
    """Find out that `path` cannot be written before the work is done, not after.

    Raises
    ------
    FormatError
        If its folder is missing or cannot be written to, its suffix is none of `suffixes` (where there are any), or it
        is one of the `inputs`.
    """
    if path is None:
        return
    path = Path(path)
    if path.is_dir():
        raise FormatError(f"{path}: cannot be written: it is a folder")
    allowed = tuple(suffixes)
    if allowed and path.suffix.lower() not in allowed:
        raise FormatError(f"{path}: the suffix must be one of {', '.join(allowed)}")
    for other in inputs:
        if other is not None and path.exists() and Path(other).exists() and path.samefile(other):
            raise FormatError(f"{path}: would overwrite the input")
    try:
        handle, probe = tempfile.mkstemp(dir=path.parent, prefix=".remat.", suffix=".part")
        os.close(handle)
        Path(probe).unlink()
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror}") from None
