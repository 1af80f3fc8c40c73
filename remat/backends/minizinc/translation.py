"""Translation of a model into files for MiniZinc, and of its output into values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from remat.errors import ModelError
from remat.modeling import ALWAYS, AllDifferent, Clauses, Cumulative, Domain, Kind, Linear, Model, Record, Reservoir
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline

HERE = Path(__file__).parent
#: Line that includes another text.
INCLUDE = re.compile(r'^include "([^"]+)";$', re.MULTILINE)

#: Integers beyond this are refused: a sum of two would not fit into 64 bits.
LARGEST = 2**62
#: Elements written at a time: of an array, and of a list of sets with thousands of members each.
PIECE, SETS = 100_000, 16


#: Comment on the parameters `value_unit` and `value_offset` at the end of an exported text.
SCALE = "% The cost of a schedule (or its peak in bytes) is value_unit * objective + value_offset."


@dataclass(frozen=True)
class Program:
    """A MiniZinc text, its data, and the decoder of its output."""

    text: Path
    """A ``.mzn`` file of the package."""
    data: Mapping[str, Any]
    """Parameters; see :func:`to_json`."""
    values: Callable[[Mapping[str, Any]], Float]
    """Maps output arrays by name to values of the model's variables."""
    cost_unit: float = 1
    """The model's objective is ``cost_unit * objective of the text + cost_offset``."""
    cost_offset: float = 0
    """See `cost_unit`."""

    def exported(self, switches: Mapping[str, bool]) -> tuple[str, str]:
        """Return text and data as files: without includes of the package, and with the scale of the objective.

        `switches`: further parameters, for those that the text declares.
        """
        text = self.whole_text()
        scale = {"value_unit": _number(self.cost_unit), "value_offset": _number(self.cost_offset)}
        declared = "".join(f"{type(value).__name__}: {name};\n" for name, value in scale.items())
        used = {name: value for name, value in switches.items() if name in text}
        return f"{text}\n{SCALE}\n{declared}", to_dzn({**self.data, **used, **scale})

    def whole_text(self) -> str:
        """Return the text with the texts of the package that it includes in their place."""

        def included(name: str, folder: Path) -> str:
            if not (folder / name).exists() and not (HERE / name).exists():
                return f'include "{name}";'  # of MiniZinc's library
            path = folder / name if (folder / name).exists() else HERE / name
            text = path.read_text(encoding="utf-8")
            return INCLUDE.sub(lambda match: included(match[1], path.parent), text)

        return included(self.text.name, self.text.parent)


def to_json(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield `data` in MiniZinc's JSON, in pieces of bounded length; sets of ints become ``{"set": [...]}`` in ranges.

    Examples
    --------
    >>> "".join(to_json({"n": 2, "values": [{1, 2, 3, 5}, set()]}))
    '{"n": 2, "values": [{"set": [[1, 3], [5, 5]]}, {"set": []}]}'
    """
    for k, (name, value) in enumerate(data.items()):
        yield f"{', ' if k else '{'}{json.dumps(name)}: "
        if not isinstance(value, np.ndarray | list):
            yield json.dumps(value, default=_encode, allow_nan=False)
            continue
        yield "["
        piece = PIECE if isinstance(value, np.ndarray) else SETS
        for first in range(0, len(value), piece):
            part = value[first : first + piece]
            yield ", " if first else ""
            if isinstance(part, np.ndarray) and part.dtype == np.float64:
                yield ", ".join(map(_decimal, part.tolist()))
            else:
                yield json.dumps(part, default=_encode, allow_nan=False)[1:-1]
        yield "]"
    yield "}"


def to_dzn(data: Mapping[str, Any]) -> str:
    """Return `data` as a MiniZinc data file, a parameter per line.

    Examples
    --------
    >>> print(to_dzn({"n": 2, "free": False, "values": [{1, 2, 4}, range(3)], "cost": np.array([0.5])}), end="")
    n = 2;
    free = false;
    values = [{1,2,4}, 0..2];
    cost = [0.5];
    """

    def text(value: Any) -> str:
        if isinstance(value, np.ndarray) and value.ndim == 2:
            rows = "\n  | ".join(", ".join(map(text, row)) for row in value.tolist())
            return f"[| {rows} |]"
        if isinstance(value, np.ndarray | list | tuple):
            return f"[{', '.join(map(text, value.tolist() if isinstance(value, np.ndarray) else value))}]"
        if isinstance(value, range):
            return f"{value.start}..{value.stop - 1}"
        if isinstance(value, set | frozenset):
            return f"{{{','.join(map(str, sorted(value)))}}}"
        if isinstance(value, bool | np.bool_):
            return str(bool(value)).lower()
        return _decimal(value) if isinstance(value, float) else str(int(value))

    return "".join(f"{name} = {text(value)};\n" for name, value in data.items())


def _number(value: float) -> int | float:
    """Return a number as an int if it is whole."""
    return int(value) if value == int(value) else value


def _decimal(value: float) -> str:
    """Format `value` exactly, with a point and without an exponent, which MiniZinc 2.6 does not read in JSON."""
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else text + ".0"


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, range):
        return {"set": [[value.start, value.stop - 1]] if len(value) else []}
    if isinstance(value, set | frozenset):
        members = np.array(sorted(value), dtype=np.int64)
        breaks = np.flatnonzero(np.diff(members) > 1)
        firsts, lasts = (
            members[np.append(0, breaks + 1)[: len(members)]],
            members[np.append(breaks, -1)[: len(members)]],
        )
        return {"set": np.stack([firsts, lasts], axis=1).tolist() if len(members) else []}
    raise TypeError(f"{type(value).__name__} is no MiniZinc data")


class RecordProgram:
    """Translation of a model's records into data for ``records.mzn``, whose text is fixed.

    Variables are renumbered: Booleans, then integers, then reals, each in the order of the model.

    With `reals`, variables that are only implied to be integral stay real numbers, as MIP solvers prefer. Raise
    ModelError, naming the record, for a kind of record or a number that cannot be expressed, and OverdueError if the
    deadline passes.
    """

    def __init__(self, model: Model, *, reals: bool, deadline: Deadline | None = None) -> None:
        self.model, self._clock = model, deadline or Deadline()
        kind = model.kind
        real = (kind == Kind.CONTINUOUS.value) | (reals & (kind == Kind.IMPLIED.value))
        boolean = kind == Kind.BOOLEAN.value
        self.real = np.flatnonzero(real)
        self.boolean = np.flatnonzero(boolean)
        self.integer = np.flatnonzero(~real & ~boolean)
        self.is_real = real
        self.number = np.empty(model.num_vars, dtype=np.int64)
        self.number[np.concatenate([self.boolean, self.integer, self.real])] = np.arange(1, model.num_vars + 1)
        rows = ("at_most", "equal", "real_at_most", "real_equal")
        self.lists = {
            **{name: _Lists("variable", "coefficient", "bound", "where") for name in rows},
            "clause": _Lists("literal"),
            "use": _Lists("start", "end", "demand", "presence", "capacity", "capacity_variable"),
            "level": _Lists("time", "offset", "change", "active"),
            "different": _Lists("variable"),
        }
        self.domains: dict[int, set[int]] = {}
        for record in self._clock.each(model.records, 1):
            self._translate(record)

    def program(self, hint: Float | None) -> Program:
        """Return the program, with `hint` as a start."""
        unit, cost = self._cost()
        data: dict[str, Any] = {**self._variables(), **cost, **self._hint(hint)}
        for name, lists in self.lists.items():
            data |= lists.data(name)
        text = HERE / ("whole_cost.mzn" if unit else "real_cost.mzn")
        return Program(text, data, self.values, unit or 1, self.model.objective.constant)

    def values(self, output: Mapping[str, Any]) -> Float:
        """Return the values of the model's variables in `output`."""
        values = np.empty(self.model.num_vars, dtype=np.float64)
        for name, where in (("boolean", self.boolean), ("integer", self.integer), ("real", self.real)):
            values[where] = output[name]
        return values

    # -- variables and cost ------------------------------------------------------------------------------------------

    def _variables(self) -> dict[str, Any]:
        lower, upper = self.model.lower, self.model.upper
        low = _whole(np.ceil(lower[self.integer] - 1e-9), "a lower bound")
        high = _whole(np.floor(upper[self.integer] + 1e-9), "an upper bound")
        values: list[Any] = [range(a, b + 1) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        place = {v: k for k, v in enumerate(self.integer.tolist())}
        impossible = any(len(each) == 0 for each in values)
        for variable, listed in self._clock.each(self.domains.items()):
            if variable in place:
                inside = {value for value in listed if value in values[place[variable]]}
                impossible |= not inside
                values[place[variable]] = inside
            else:
                self._allow(variable, listed)
        if impossible:  # some versions reject an empty set of values; all accept an empty clause
            self._clause()
            values = [each or {0} for each in values]
        fixed = self.boolean[lower[self.boolean] > 0.5]
        never = self.boolean[upper[self.boolean] < 0.5]
        for literal in (*self.number[fixed].tolist(), *(-self.number[never]).tolist()):
            self._clause(literal)
        below, above = (np.flatnonzero(np.isfinite(bound[self.real])) for bound in (lower, upper))
        return {
            "booleans": len(self.boolean),
            "integers": len(self.integer),
            "integer_values": values,
            "reals": len(self.real),
            "bounded_below": below + 1,
            "real_lower": lower[self.real[below]],
            "bounded_above": above + 1,
            "real_upper": upper[self.real[above]],
        }

    def _allow(self, boolean: int, listed: set[int]) -> None:
        """Restrict a Boolean variable to the listed values."""
        number = int(self.number[boolean])
        for value, literal in ((0, number), (1, -number)):
            if value not in listed:
                self._clause(literal)

    def _clause(self, *literals: int) -> None:
        self.lists["clause"].add(len(literals), literal=np.array(literals, dtype=np.int64))

    def _cost(self) -> tuple[float, dict[str, Any]]:
        """Return the unit of the cost (0 for a real one) and its terms."""
        objective = self.model.objective
        index, inverse = np.unique(objective.index, return_inverse=True)
        coefficient = np.bincount(inverse, objective.coefficient, minlength=len(index))
        used = coefficient != 0
        index, coefficient = index[used], coefficient[used]
        if self.is_real[index].any() or (coefficient != np.rint(coefficient)).any():
            return 0, {"cost_variable": self.number[index], "cost_coefficient": coefficient}
        whole = _whole(coefficient, "a cost")
        unit = int(np.gcd.reduce(whole)) if len(whole) else 1  # many solvers have 32-bit integers
        return unit, {"cost_variable": self.number[index], "cost_coefficient": whole // unit}

    def _hint(self, hint: Float | None) -> dict[str, Any]:
        known = {"boolean": self.boolean, "integer": self.integer, "real": self.real}
        data: dict[str, Any] = {}
        for name, where in known.items():
            values = np.full(len(where), np.nan) if hint is None else hint[where]
            at = np.flatnonzero(np.isfinite(values))
            data[f"hint_{name}"] = at + 1
            values = values[at] if name == "real" else np.rint(values[at]).astype(np.int64)
            data[f"hint_{name}_value"] = values > 0 if name == "boolean" else values
        return data

    # -- records -----------------------------------------------------------------------------------------------------

    def _translate(self, record: Record) -> None:
        if isinstance(record, Linear):
            self._linear(record)
        elif isinstance(record, Clauses):
            self.lists["clause"].add(np.diff(record.indptr), literal=self._literals(record.literals))
        elif isinstance(record, Domain):
            self._domain(record)
        elif isinstance(record, Cumulative):
            self._cumulative(record)
        elif isinstance(record, Reservoir):
            self.lists["level"].add(
                np.diff(record.indptr), time=self._numbers(record, record.time), offset=record.offset,
                change=record.change, active=self._literals(record.active),
            )  # fmt: skip
        elif isinstance(record, AllDifferent):
            self.lists["different"].add(len(record.variable), variable=self._numbers(record, record.variable))
        else:
            raise ModelError(f"MiniZinc does not take record {record.name!r} of kind {type(record).__name__}")

    def _linear(self, record: Linear) -> None:
        """Add rows as ``<=`` and ``=``; those with a fraction or a real variable over real numbers."""
        place = record.row * self.model.num_vars + record.column
        place, inverse = np.unique(place, return_inverse=True)  # sorted by row
        value = np.bincount(inverse, record.value, minlength=len(place))
        row, column = place // self.model.num_vars, place % self.model.num_vars
        count = len(record)
        fraction = (value != np.rint(value)) | self.is_real[column]
        real = np.bincount(row, fraction, minlength=count) > 0
        for bound in (record.lower, record.upper):
            # An integer sum is at most the floor of its bound, but never equals a fraction.
            real |= np.isfinite(bound) & (bound != np.rint(bound)) & (record.lower == record.upper)
        where = np.zeros(count, dtype=np.int64)
        if record.enforce is not None:
            where = self._literals(record.enforce)
        same = record.lower == record.upper
        for name, sign, bound, chosen in (
            ("equal", 1, record.upper, same),
            ("at_most", 1, record.upper, ~same & np.isfinite(record.upper)),
            ("at_most", -1, -record.lower, ~same & np.isfinite(record.lower)),
        ):
            for prefix, kept in (("", chosen & ~real), ("real_", chosen & real)):
                inside = kept[row]
                weights: Any = sign * value[inside]
                limits: Any = bound[kept]
                if not prefix:
                    weights = _whole(weights, f"a coefficient of {record.name!r}")
                    limits = _whole(np.floor(limits + 1e-9), f"a bound of {record.name!r}")
                self.lists[prefix + name].add(
                    np.bincount(row[inside], minlength=count)[kept], variable=self.number[column[inside]],
                    coefficient=weights, bound=limits, where=where[kept],
                )  # fmt: skip
        impossible = np.isposinf(record.lower) | np.isneginf(record.upper)
        for literal in where[impossible].tolist():
            self._clause(*([-literal] if literal else []))

    def _domain(self, record: Domain) -> None:
        self._numbers(record, record.variable)
        for k, variable in enumerate(self._clock.each(record.variable.tolist())):
            self.domains[variable] = set(record.values[record.indptr[k] : record.indptr[k + 1]].tolist())

    def _cumulative(self, record: Cumulative) -> None:
        variable = record.capacity_variable
        self.lists["use"].add(
            len(record.start), start=self._numbers(record, record.start), end=self._numbers(record, record.end),
            demand=record.demand, presence=self._literals(record.presence), capacity=[record.capacity],
            capacity_variable=[0] if variable is None else self._numbers(record, np.array([variable])),
        )  # fmt: skip

    def _numbers(self, record: Record, variables: Int) -> Int:
        if self.is_real[variables].any():
            raise ModelError(f"record {record.name!r} ({type(record).__name__}) needs integer variables")
        return self.number[variables]

    def _literals(self, literals: Int) -> Int:
        """Encode literals as in the text: 0 always holds; otherwise plus or minus the variable's number."""
        known = literals != ALWAYS
        variable = np.where(known, np.where(literals < 0, ~literals, literals), 0)
        number = self.number[variable] if self.model.num_vars else variable
        return np.where(known, np.where(literals < 0, -number, number), 0)


class _Lists:
    """Lists of different lengths, concatenated, in columns with one value per member or per list."""

    def __init__(self, *columns: str) -> None:
        self.lengths: list[Any] = []
        self.columns: dict[str, list[Any]] = {column: [] for column in columns}

    def add(self, lengths: Int | int, **columns: Any) -> None:
        """Append lists of these lengths (one, for a number) with all their columns."""
        self.lengths.append(np.atleast_1d(lengths))
        for column, values in columns.items():
            self.columns[column].append(values)

    def data(self, name: str) -> dict[str, Any]:
        """Return the columns, and the first index of each list, from 1, followed by the end of the last one."""
        first = np.concatenate([[0], np.cumsum(_joined(self.lengths))]) + 1
        return {f"{name}_first": first, **{f"{name}_{key}": _joined(parts) for key, parts in self.columns.items()}}


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _whole(values: Float, what: str) -> Int:
    rounded = np.rint(values)
    if not np.array_equal(rounded, values) or (len(values) and np.abs(values).max() >= LARGEST):
        odd = values[(rounded != values) | (np.abs(values) >= LARGEST)][0]
        raise ModelError(f"MiniZinc needs whole numbers below 2^62 here, but {what} is {odd:g}")
    return rounded.astype(np.int64)
