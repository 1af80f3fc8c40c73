"""Folder of options from earlier runs, one JSON document per class of identical groups."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from remat.errors import FormatError, ProblemError
from remat.hierarchy.effort import Solvers
from remat.hierarchy.tasks import Answer
from remat.io.documents import Document, check_header, decoded
from remat.io.files import read_json, write_atomic

NAME = "remat-options"
VERSION = 1

Op = Annotated[int, Field(ge=0)]


class OptionDocument(Document):
    """An option: ops of the sub-problem by number, in order of computation."""

    forward: list[Op]
    backward: list[Op] | None = None
    """None: the option cannot run backward."""


class OptionsDocument(Document):
    """Options of a class of identical groups."""

    format: Literal["remat-options"]
    version: Literal[1]
    key: str
    """Hash of the sub-problem, of the options of its children, and of the methods that solve it."""
    options: list[OptionDocument]
    solvers: dict[str, dict[str, str]] = {}
    """Versions of packages and programs, by backend that solved models."""


class Store:
    """Options by key, in a folder; a run reads the options of an earlier, possibly interrupted run.

    The folder is created if it does not exist. Raise ProblemError if `folder` is not a folder and cannot be created.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder)
    ...     before = store.read("a1", 3)
    ...     store.write("a1", Answer([([0, 1], None), ([0, 1], [0, 2])]))
    ...     before, store.read("a1", 3).options
    (None, [([0, 1], None), ([0, 1], [0, 2])])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProblemError(f"{folder}: cannot be a folder of options: {error.strerror}", "bad-store") from None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def read(self, key: str, num_ops: int) -> Answer | None:
        """Return the options of a sub-problem of `num_ops` ops; None if there are none.

        Raise FormatError with the path, if the file does not have the content that :meth:`write` writes for this key.
        """
        path = self._path(key)
        if not path.exists():
            return None
        document = read_json(path)
        try:
            check_header(document, NAME, VERSION)
            found = decoded(OptionsDocument, document)
            if found.key != key:
                raise FormatError(f"key is {found.key[:80]!r}, not {key!r}")
            for number, option in enumerate(found.options):
                for op in (*option.forward, *(option.backward or ())):
                    if op >= num_ops:
                        raise FormatError(f"options[{number}] computes op {op}, and there are {num_ops}")
        except FormatError as error:
            raise FormatError(f"{path}: {error}", "bad-options") from None
        return Answer([(option.forward, option.backward) for option in found.options], Solvers(found.solvers))

    def write(self, key: str, answer: Answer) -> None:
        """Write the options atomically."""
        document = {
            "format": NAME,
            "version": VERSION,
            "key": key,
            "options": [{"forward": forward, "backward": backward} for forward, backward in answer.options],
            "solvers": answer.solvers.versions,
        }
        with contextlib.suppress(FileExistsError):
            write_atomic(self._path(key), json.dumps(document, separators=(",", ":")) + "\n")
