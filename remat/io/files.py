"""Reading untrusted text, JSON, TOML and CSV; atomic writing of files, in-place writing of pipes and devices."""

from __future__ import annotations

import codecs
import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import selectors
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from remat.errors import FormatError
from remat.io.limits import (
    CELL_MEMORY,
    MAX_BYTES,
    MAX_STEPS,
    ReadLimitError,
    check_toml_keys,
    draw,
    draw_json,
    pipe_deadline,
)
from remat.runtime.interruption import interrupted
from remat.runtime.text import counted

#: Bytes read at a time from what states no size.
CHUNK = 2**20
#: Paths of standard input and output.
STANDARD_STREAMS = ("-", "/dev/stdin", "/dev/stdout")
#: Folders of open files by descriptor; other processes may own them, so they are never replaced.
_OPEN_FILES = ("/dev/fd/", "/dev/stderr", "/proc/")


def is_standard_stream(path: str | os.PathLike[str] | None) -> bool:
    """Return True for the path of standard input or output."""
    return path is not None and os.fspath(path) in STANDARD_STREAMS


def exists(path: str | os.PathLike[str]) -> bool:
    """Return True if the path exists; False for an empty name, and for names that the system refuses."""
    return os.fspath(path) != "" and _mode(path) is not None


def _mode(path: str | os.PathLike[str]) -> int | None:
    """Return type and permissions of the target of a path; None if it does not exist or cannot be accessed."""
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):  # ValueError: a NUL, half of a surrogate pair
        return None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


#: End of the message for a file whose name is a pattern.
PATTERN = "; the shell found none that matches the pattern"


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file or a pipe, or of standard input for ``-``.

    Raise FormatError with the path if it is missing, a folder, a device, or larger than `max_bytes`.
    """
    try:
        if is_standard_stream(path):
            data = _read_stream(_standard(sys.stdin), max_bytes + 1)
            if not data:
                raise FormatError("-: standard input is empty (it can be read once)", "no-file")
        else:
            mode = _mode(path)
            if mode is None or not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                folder = mode is not None and stat.S_ISDIR(mode)
                absent = "no such file" + PATTERN * ("*" in str(path))
                what = absent if mode is None else "it is a folder; name a file" if folder else "not a plain file"
                raise FormatError(f"{path}: {what}", "no-file")
            if stat.S_ISFIFO(mode):
                data = _read_pipe(path, max_bytes + 1)
            else:
                size = size_of_file(path)
                if size > max_bytes:
                    raise _too_large(path, max_bytes)
                with Path(path).open("rb") as file:
                    data = file.read(size + 1)
                    # The rest, of a file that grows or states no size.
                    data += _read_stream(file, max_bytes + 1 - len(data))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read: {_reason(error)}") from None
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def _too_large(path: str | os.PathLike[str], max_bytes: int) -> FormatError:
    return FormatError(f"{path}: larger than {max_bytes:,} bytes", "too-large")


def _read_stream(stream: BinaryIO, most: int) -> bytes:
    """Read a stream to its end, at most `most` bytes, in parts: `read(n)` reserves memory for `n` bytes at once."""
    parts = bytearray()
    while part := stream.read(min(CHUNK, most - len(parts))):
        parts += part
    return bytes(parts)


def _read_pipe(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a named pipe to its end without blocking; a blocking open would wait for a writer past any deadline."""
    deadline, parts = pipe_deadline(), bytearray()
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb", buffering=0) as pipe, selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while len(parts) < most:
            if interrupted():
                raise KeyboardInterrupt
            if deadline.expired:
                raise FormatError(f"{path}: nothing was written to this pipe within {deadline.seconds:g} s", "pipe")
            if ready.select(0.1):
                part = pipe.read(min(CHUNK, most - len(parts)))
                if part == b"":
                    break
                parts += part or b""
    return bytes(parts)


def size_of_file(path: str | os.PathLike[str]) -> int:
    """Return the bytes of a plain file; 0 if it does not exist."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 (hex) of a plain file; empty for standard input, pipes, and names that are no file."""
    mode = _mode(path)
    if is_standard_stream(path) or mode is None or not stat.S_ISREG(mode):
        return ""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {_reason(error)}") from None


def read_stream(path: str | os.PathLike[str], read: Callable[[BinaryIO], bytes]) -> bytes:
    """Return the result of `read` on the stream of a plain file of any size.

    Raise FormatError with the path, if it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return read(file)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read: {_reason(error)}") from None


def _standard(stream: Any) -> BinaryIO:
    """Return the binary stream of a standard stream."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        raise ValueError("there is none")
    return cast(BinaryIO, buffer)


def decode_text(data: bytes, name: str) -> str:
    """Decode UTF-8 bytes without a byte order mark; raise :class:`FormatError` with `name` for other bytes."""
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: not UTF-8 text (byte {error.start})") from None


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 file; refuse as :func:`read_bytes` and :func:`decode_text` do."""
    return decode_text(read_bytes(path, max_bytes), str(path))


def parse_json(text: str, name: str) -> Any:
    """Parse a JSON text; refuse NaN, infinities (also 1e999) and duplicate keys; keep whole numbers exact.

    Raise FormatError with `name`, and line and column if known; also for a text that would exceed the memory budget.
    """
    try:
        draw_json(text)
    except ReadLimitError as error:
        raise ReadLimitError(f"{name}: {error}", error.kind.rpartition(".")[2]) from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FormatError(f"{name}: key {repr(twice)[:60]} appears twice in one object", "json")
        return result

    def refuse(word: str) -> Any:
        found = re.search(rf"[:,\[]\s*{re.escape(word)}", text)
        line = "" if found is None else f"line {text.count(chr(10), 0, found.end()) + 1}: "
        raise FormatError(f"{name}: {line}{word} is not JSON", "json")

    def finite(word: str) -> float:
        value = float(word)
        if math.isinf(value):
            raise FormatError(f"{name}: number {word[:40]} is too large", "json")
        return value

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # the place precedes it here
        ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        line = f"line {error.lineno}, " if "\n" in text else ""
        cut = "; the file seems to be cut off" * (ended and bool(text.strip()))
        raise FormatError(f"{name}: {line}column {error.colno}: not JSON: {what}{cut}", "json") from None
    except RecursionError:
        raise FormatError(f"{name}: nested too deeply", "json") from None
    except ValueError as error:  # a number with thousands of digits
        raise FormatError(
            f"{name}: a number has more than {sys.get_int_max_str_digits():,} digits; sizes and costs are below 2^62",
            "json",
        ) from error


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file; refuse as :func:`read_text` and :func:`parse_json` do."""
    return parse_json(read_text(path, max_bytes), str(path))


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file atomically: write a temporary file in the same folder, then rename it.

    Symbolic links are followed, and an existing file keeps its permissions. Pipes and devices (``/dev/null``,
    ``/dev/stdout``) are written in place, and ``-`` is standard output. Raise FormatError with the path, if it cannot
    be written; an existing file is unchanged.
    """
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        if is_standard_stream(path):
            sys.stdout.flush()
            _standard(sys.stdout).write(data)
            _standard(sys.stdout).flush()
        elif is_special(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
                file.write(data)
        else:
            _replace(_target(path), data)
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError) and is_standard_stream(path):
            raise  # the reader of our output has exited, which is not an error
        raise _not_written(path, error) from None


def _not_written(path: str | os.PathLike[str], error: OSError | ValueError) -> FormatError:
    reason, folder = _reason(error), Path(path).parent
    if isinstance(error, FileNotFoundError) and not exists(folder):
        reason = f"there is no folder {folder}"
    if isinstance(error, NotADirectoryError):
        reason = f"{folder} is no folder"
    return FormatError(f"{path}: cannot be written: {reason}", "not-written")


def write_new(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file atomically unless it exists; of several processes, only one writes it.

    Raise FormatError with the path, if it cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(path)
    try:
        with _written(target.parent, data) as temporary:
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                pass
            except PermissionError:  # a file system without hard links
                if not target.exists():
                    temporary.replace(target)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be written: {_reason(error)}", "not-written") from None


def made_folder(path: str | os.PathLike[str]) -> Path:
    """Return a folder, created with its parents if necessary; raise FormatError with the path, if it cannot be."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file; name a folder" if isinstance(error, FileExistsError) else error.strerror
        raise FormatError(f"{path}: cannot be written: {reason}", "not-written") from None
    return folder


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return True for paths that must not be replaced: standard streams, pipes, devices, open files."""
    mode = _mode(path)
    if is_standard_stream(path):
        return True
    if mode is None or stat.S_ISDIR(mode):
        return False
    return not stat.S_ISREG(mode) or os.path.normpath(Path.cwd() / path).startswith(_OPEN_FILES)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the target of symbolic links."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def _replace(target: Path, data: bytes) -> None:
    """Replace `target` by a file with this content."""
    before = target.stat() if target.exists() else None
    if before is not None:
        if stat.S_ISDIR(before.st_mode):
            raise OSError(errno.EISDIR, "it is a folder; name a file")
        if not os.access(target, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    with _written(target.parent, data, before) as temporary:
        temporary.replace(target)


@contextlib.contextmanager
def _written(folder: Path, data: bytes, like: os.stat_result | None = None) -> Iterator[Path]:
    """Yield a new file with this content and the owner and mode of another; remove it unless it was moved."""
    temporary, handle = _temporary(folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if like is not None:
                with contextlib.suppress(OSError):  # only root may change the owner
                    os.fchown(handle, like.st_uid, like.st_gid)
                os.fchmod(handle, stat.S_IMODE(like.st_mode) & 0o777)
            os.fsync(handle)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _temporary(folder: Path) -> tuple[Path, int]:
    """Create a file in a folder, with default permissions; return its path and handle."""
    path = folder / f".remat.{secrets.token_hex(8)}.part"
    return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)


def check_output(
    path: str | os.PathLike[str] | None,
    inputs: Iterable[str | os.PathLike[str] | None] = (),
    suffixes: Iterable[str] = (),
) -> None:
    """Check in advance that `path` can be written.

    Raise FormatError if its folder is missing or not writable, its suffix is not in `suffixes` (if given), or it is one
    of the `inputs`.
    """
    if path is None:
        return
    allowed = tuple(suffixes)
    if allowed and Path(path).suffix.lower() not in allowed:
        shown = [suffix for suffix in allowed if suffix]
        raise FormatError(f"{path}: the suffix must be {'one of ' * (len(shown) > 1)}{', '.join(shown)}")
    if is_standard_stream(path):
        return
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise FormatError(f"{path}: cannot be written: it is a folder; name a file")
    if is_special(path):
        if not os.access(path, os.W_OK):
            raise FormatError(f"{path}: cannot be written: Permission denied")
        return
    try:
        for other in inputs:
            if mode is not None and other is not None and exists(other) and Path(path).samefile(other):
                raise FormatError(f"{path}: would overwrite the input", "output")
        if mode is not None and not os.access(path, os.W_OK):
            raise FormatError(f"{path}: cannot be written: Permission denied")
        with contextlib.suppress(FileNotFoundError):
            os.lstat(path)  # raises if the name is too long
        probe, handle = _temporary(_target(path).parent)
        os.close(handle)
        probe.unlink()
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from None


def check_outputs(
    *outputs: tuple[str | os.PathLike[str] | None, Iterable[str]], inputs: Iterable[str | os.PathLike[str] | None] = ()
) -> None:
    """Apply :func:`check_output` to several pairs of path and suffixes; no two may be the same file.

    Raise FormatError as :func:`check_output` does, and if two paths lead to one file.
    """
    inputs = tuple(inputs)
    places: dict[str, str] = {}
    for path, suffixes in outputs:
        check_output(path, inputs, suffixes)
        if path is None or (is_special(path) and not is_standard_stream(path)):
            continue
        place = "-" if is_standard_stream(path) else os.path.realpath(path)
        if place in places:
            also = "" if places[place] == str(path) else f" (it is also {places[place]})"
            raise FormatError(f"{path}: names two outputs{also}; each needs a file of its own", "output")
        places[place] = str(path)


#: Largest configuration file, in bytes.
MAX_CONFIG_BYTES = 1024 * 1024


def _not_toml(path: str | os.PathLike[str], text: str) -> str:
    """Return what a file with another suffix, or with JSON, should be."""
    toml = Path(path).suffix.lower() == ".toml" and not text.lstrip().startswith("{")
    return "" if toml else "; `remat config --example` prints a configuration"


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raise FormatError with the path, and the line if known.
    """
    import tomllib

    text = read_text(path, MAX_CONFIG_BYTES)
    check_toml_keys(text, str(path))
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FormatError(f"{path}: nested too deeply") from None
    except ValueError as error:  # from TOML, or a number with thousands of digits
        raise FormatError(f"{path}: not TOML: {error}{_not_toml(path, text)}") from None


def table_rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    r"""Yield the line and the cells of each row that is not blank; all rows have equal lengths.

    Raise FormatError with `name` and the line, for rows of unequal length, unclosed quotes or too many cells.

    Examples
    --------
    >>> list(table_rows("op,us\n\na,1\n", "t.csv"))
    [(1, ['op', 'us']), (3, ['a', '1'])]
    """
    cells = text.count(",") + text.count("\n")
    if cells > MAX_STEPS:
        raise FormatError(f"{name}: more than the {MAX_STEPS:,} cells that are read", "table")
    draw(CELL_MEMORY * cells)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    width = 0
    try:
        for row in rows:
            if any(cell.strip() for cell in row):
                width = width or len(row)
                if len(row) != width:
                    raise FormatError(
                        f"{name}: line {rows.line_num} has {counted(len(row), 'cell')}, the first row {width}", "table"
                    )
                yield rows.line_num, row
    except csv.Error as error:
        raise FormatError(f"{name}: line {rows.line_num}: {error}", "table") from None
