"""Messages from a child to its parent: JSON and raw arrays, never pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat import errors
from remat.errors import BackendError, RematError


@dataclass(frozen=True)
class Message:
    """One message."""

    kind: str
    head: Mapping[str, Any] = field(default_factory=dict)
    """Content in JSON."""
    arrays: Mapping[str, NDArray] = field(default_factory=dict)


def write(connection: Connection, message: Message) -> None:
    """Send `message`.

    Raise TypeError if the head is not JSON, and OSError if the reader has closed the connection.

    Examples
    --------
    >>> from multiprocessing import Pipe
    >>> here, there = Pipe()
    >>> write(here, Message("incumbent", {"time": 1.5}, {"values": np.array([0.0, 1.0])}))
    >>> read(there)
    Message(kind='incumbent', head={'time': 1.5}, arrays={'values': array([0., 1.])})
    """
    parts = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    listed = [(name, part.dtype.str, part.shape) for name, part in parts.items()]
    connection.send_bytes(json.dumps([message.kind, message.head, listed]).encode())
    for part in parts.values():
        if part.size:
            connection.send_bytes(part.reshape(-1).view(np.uint8).data)


def read(connection: Connection) -> Message | None:
    """Return the next message; None if the other side has ended, also within a message."""
    try:
        kind, content, listed = json.loads(connection.recv_bytes())
        arrays = {}
        for name, code, shape in listed:
            arrays[name] = np.empty(shape, dtype=np.dtype(code))
            if arrays[name].size:
                connection.recv_bytes_into(arrays[name].reshape(-1).view(np.uint8).data)
    except (EOFError, OSError):
        return None
    return Message(kind, content, arrays)


_ERRORS: dict[str, type[RematError]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RematError)
}


def error_head(error: RematError) -> dict[str, str]:
    """Return the head of a message of kind ``failure``."""
    kind = error.kind.removeprefix(f"{error.area}.")
    return {"type": type(error).__name__, "text": str(error), "kind": kind, "culprit": error.culprit}


def error_of(message: Message) -> RematError:
    """Return the error that a message of kind ``failure`` reports."""
    head = message.head
    return _ERRORS.get(head["type"], BackendError)(head["text"], head["kind"], head["culprit"])
