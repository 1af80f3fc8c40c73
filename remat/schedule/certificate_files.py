"""Certificate file, version 1: certificates with the digests of the files that they describe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from remat._version import __version__
from remat.errors import FormatError
from remat.io.documents import Document, Lines, canonical, check_header, decoded
from remat.io.files import file_digest, is_special, is_standard_stream, read_json, size_of_file
from remat.io.limits import MAX_BYTES
from remat.schedule.machine import Machine
from remat.schedule.rules import OrderRule, Rules

NAME = "remat-certificate"
VERSION = 1
#: Most certificates of a file, or lines of a manifest, and most bytes of the files that it names, each counted once.
MAX_CHECKS, MAX_TOTAL_BYTES = 10_000, 8 * MAX_BYTES


class FileRecord(Document):
    """File that a certificate describes."""

    file: str = ""
    """Path, relative to the certificate's folder unless absolute; or the name of a zoo graph; empty if unknown."""
    sha256: str = ""
    """SHA-256 (hex) of its bytes; empty for zoo graphs, standard input and unknown files."""
    format: str = ""
    """Format that it was read as; ``zoo`` for zoo graphs; empty if unknown."""

    def relative_to(self, folder: Path) -> FileRecord:
        """Return the record for a certificate in `folder`; `file` is relative to the current folder."""
        path = Path(self.file)
        if not self.sha256 or path.is_absolute():
            return self
        return self.model_copy(update={"file": os.path.relpath(path, folder)})

    def path(self, folder: Path) -> str:
        """Return the path of the file of a certificate in `folder`."""
        return self.file if self.format == "zoo" else os.path.normpath(folder / self.file)


class MachineRecord(Document):
    """Machine of a certificate's rules; see :class:`remat.schedule.machine.Machine`."""

    write_rate: int | None
    read_rate: int | None
    host: int | None
    latency: int
    full_duplex: bool
    compute_rate: int | None


class RulesRecord(Document):
    """Rules of a certificate."""

    budget: int | None = None
    order: Literal["fixed", "free"] = "free"
    max_computes: int | dict[str, int] | None = None
    keep: list[str] = []
    count_constant_memory: bool = False
    machine: MachineRecord | None = None

    def rules(self) -> Rules:
        """Return the rules."""
        machine = None if self.machine is None else Machine(**self.machine.model_dump())
        return Rules(self.budget, OrderRule(self.order), self.max_computes, frozenset(self.keep),
                     self.count_constant_memory, machine)  # fmt: skip


class CheckRecord(Document):
    """A certificate, and the files that it describes."""

    graph: FileRecord = FileRecord()
    schedule: FileRecord = FileRecord()
    costs: FileRecord | None = None
    """Profile whose costs replace those of the graph."""
    device: str | None = None
    """Device of the profile."""
    error: str = ""
    """Reason why there is no certificate."""
    certificate: dict[str, Any] | None = None
    """As from ``Certificate.as_dict``."""

    @property
    def rules(self) -> Rules:
        """Rules of the certificate; raises FormatError if they are ill-formed."""
        return decoded(RulesRecord, (self.certificate or {}).get("rules", {}), "rules").rules()

    def moved(self, folder: Path) -> CheckRecord:
        """Return the record for a certificate in `folder`; its paths are relative to the current folder."""
        files = {key: getattr(self, key) for key in ("graph", "schedule", "costs")}
        return self.model_copy(update={key: each and each.relative_to(folder) for key, each in files.items()})


class CertificateDocument(Document):
    """Certificates of schedules."""

    format: Literal["remat-certificate"]
    version: Literal[1]
    remat: str
    """Version of the program that checked."""
    time: str
    """Time of the check (ISO 8601, UTC); that of ``SOURCE_DATE_EPOCH`` if set."""
    certificates: list[CheckRecord]


def check_named_files(path: str | os.PathLike[str], count: int, files: Iterable[str]) -> None:
    """Check how many schedules and which files a file at `path` names, before any is read.

    Raise FormatError for too many schedules or bytes, a pipe, a device or a standard stream.
    """
    if not 0 < count <= MAX_CHECKS:
        raise FormatError(f"{path}: names {count:,} schedules; 1 to {MAX_CHECKS:,} are possible", "named-files")
    total = 0
    for name in dict.fromkeys(files):
        if is_special(name):
            raise FormatError(f"{path}: names {name!r}; only plain files are read", "named-files")
        total += size_of_file(name)
    if total > MAX_TOTAL_BYTES:
        raise FormatError(
            f"{path}: its files have {total:,} bytes, more than {MAX_TOTAL_BYTES:,}: split it", "named-files"
        )


def file_record(path: str | os.PathLike[str] | None, format_name: str = "") -> FileRecord:
    """Return the record of a file with its digest."""
    return FileRecord() if path is None else FileRecord(file=str(path), sha256=file_digest(path), format=format_name)


def certificates_text(records: Iterable[CheckRecord], path: str | os.PathLike[str] = "-") -> str:
    """Return the text of a certificate file at `path`: equal but for the time if files, rules and version are equal."""
    folder = Path.cwd() if is_standard_stream(path) else Path(path).resolve().parent
    moment = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), UTC)
    return canonical({
        "format": NAME, "version": VERSION, "remat": __version__, "time": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "certificates": Lines(
            json.dumps(record.moved(folder).model_dump(exclude_defaults=True), allow_nan=False) for record in records
        ),
    })  # fmt: skip


def read_certificates(path: str | os.PathLike[str]) -> CertificateDocument:
    """Read a certificate file.

    Raise FormatError with the path, if it is not one.
    """
    document = read_json(path)
    try:
        check_header(document, NAME, VERSION, "; `remat validate GRAPH SCHEDULE -o FILE.json` writes one")
        return decoded(CertificateDocument, document)
    except FormatError as error:
        raise FormatError(f"{path}: {error}", "certificate") from None


def differences(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return a line for each field of two certificates that differs, as ``field: recorded -> found``.

    Examples
    --------
    >>> differences({"verdict": "valid", "peak": 5}, {"verdict": "over budget", "peak": 5})
    ['verdict: valid -> over budget']
    """
    lines = []
    for key in dict.fromkeys([*recorded, *found]):
        before, after = recorded.get(key), found.get(key)
        if before != after:
            shown = [_shown(value) for value in (before, after)]
            lines.append(f"{key.replace('_', ' ')}: {' -> '.join(shown) if shown[0] != shown[1] else 'differs'}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{len(value):,} entries"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)[:60]
