"""Messages between a process and its own child: JSON and arrays in bulk; no object of a message is ever pickled."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from remat import errors
from remat.errors import BackendError, ModelError, RematError
from remat.modeling import Kind, Model, Record, Vars
from remat.modeling.model import Objective


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes
    ----------
    kind : str
    head : mapping
        What JSON can say.
    arrays : mapping of str to array
    """

    kind: str
    head: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray] = field(default_factory=dict)


def write(connection: Connection, message: Message) -> None:
    """Send `message`.

    Raises
    ------
    TypeError
        If the head is not JSON.
    OSError
        If nobody reads any more.

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
    """The next message; None where the other side has ended, also in the middle of one."""
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
    """The head of a message of kind ``failure``."""
    kind = error.kind.removeprefix(f"{error.area}.")
    return {"type": type(error).__name__, "text": str(error), "kind": kind, "culprit": error.culprit}


def error_of(message: Message) -> RematError:
    """The error that a message of kind ``failure`` reports."""
    head = message.head
    return _ERRORS.get(head["type"], BackendError)(head["text"], head["kind"], head["culprit"])


def path_of(kind: type[Any]) -> str:
    """Where another process finds that class: ``module:name``.

    Raises
    ------
    ModelError
        If it cannot be imported by name.
    """
    if kind.__module__ == "__main__" or "<" in kind.__qualname__:
        raise ModelError(
            f"class {kind.__qualname__} of module {kind.__module__} cannot be imported by another process",
            "not-importable",
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def class_at(path: str) -> Any:
    """The class that :func:`path_of` names."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def pack(model: Model) -> Message:
    """`model` as a message of kind ``model``.

    Raises
    ------
    ModelError
        If a record has a field that is neither an array nor plain data, or is of a class that cannot be imported.
    """
    arrays: dict[str, NDArray] = {
        "lower": model.lower,
        "upper": model.upper,
        "kind": model.kind,
        "objective index": model.objective.index,
        "objective coefficient": model.objective.coefficient,
    }
    records = []
    for number, record in enumerate(model.records):
        plain = {}
        for part in fields(cast(Any, record)):
            value = getattr(record, part.name)
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                arrays[f"{number} {part.name}"] = value
            elif value is None or isinstance(value, str | int | float):
                plain[part.name] = value
            else:
                raise ModelError(f"record {record.name!r}: its {part.name} cannot be sent to another process")
        records.append([path_of(type(record)), plain])
    head = {
        "name": model.name,
        "constant": float(model.objective.constant),
        "blocks": [(block.name, block.kind.name, block.shape) for block in model.blocks],
        "records": records,
    }
    return Message("model", head, arrays)


def unpack(message: Message) -> Model:
    """The model in a message of :func:`pack`, the same in every array."""
    head, arrays = message.head, message.arrays
    model = Model(head["name"])
    for name, kind, shape in head["blocks"]:
        size = int(np.prod(shape, dtype=np.int64))
        index = np.arange(model.num_vars, model.num_vars + size, dtype=np.int64).reshape(shape)
        model.blocks.append(Vars(name, index, Kind[kind]))
        model.num_vars += size
    model._lower, model._upper, model._kind = [arrays["lower"]], [arrays["upper"]], [arrays["kind"]]
    model.objective = Objective(arrays["objective index"], arrays["objective coefficient"], head["constant"])
    own: list[dict[str, Any]] = [dict(plain) for _, plain in head["records"]]
    for key, array in arrays.items():
        number, _, name = key.partition(" ")
        if number.isdigit():
            own[int(number)][name] = array
    for (path, _), values in zip(head["records"], own, strict=True):
        kind = class_at(path)
        if not (isinstance(kind, type) and issubclass(kind, Record)):
            raise ModelError(f"{path} is no kind of record", "no-record")
        model.records.append(kind(**values))
    return model
