"""Names of variables and rows in files for other solvers, made of what they stand for: ``R(3,conv1)``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from remat.modeling.model import Model

#: What the variables of each block stand for: a list per axis (stage, op, tensor), of one entry per variable.
Labels = Mapping[str, Mapping[str, Any]]
#: All solvers read these characters in names; ``(``, ``,``, ``)`` and ``~`` are added here.
OTHERS = re.compile(r"[^A-Za-z0-9.]+")
#: Longest part of a name. LP files allow names of 255 characters.
LONGEST = 60


def variable_names(model: Model, labels: Labels) -> list[str]:
    """Return a name for every variable: its block and labels, or its number in a block without labels.

    Names of users are cut to :data:`LONGEST` characters, others than letters, digits, dots and underscores replaced;
    those that are then equal get a number. A block whose name begins with a digit, which the LP format refuses, gets a
    letter.

    Examples
    --------
    >>> model = Model("two blocks")
    >>> run, other = model.booleans("R", 3), model.booleans("(4) covers", 2)
    >>> variable_names(model, {"R": {"stage": [0, 1, 2], "op": ["a b", "a/b", "c"]}})
    ['R(0,a_b)', 'R(1,a_b~2)', 'R(2,c)', 'v_4_covers(0)', 'v_4_covers(1)']
    """
    words = dict.fromkeys(
        word for axes in labels.values() for axis in axes.values() for word in axis if isinstance(word, str)
    )
    safe = dict(zip(words, _unique(words), strict=True))
    names: list[str] = []
    for block, name in zip(model.blocks, _unique(block.name for block in model.blocks), strict=True):
        name = f"v_{name}" if name[:1].isdigit() else name
        axes = list(labels.get(block.name, {"number": range(block.index.size)}).values())
        names += [
            f"{name}({','.join(str(safe.get(part, part)) for part in parts)})" for parts in zip(*axes, strict=True)
        ]
    return names


def row_names(model: Model) -> list[str]:
    """Return a name for every row of a linear model: record and number in it, as in ``c_1b_inputs_there(7)``."""
    records = zip(model.records, _unique(record.name for record in model.records), strict=True)
    return [f"c_{name}({row})" for record, name in records for row in range(len(record))]


def meanings(model: Model, labels: Labels) -> dict[str, dict[str, Any]]:
    """Return the block and labels of each variable that has labels, by its name."""
    found, names = {}, iter(variable_names(model, labels))
    for block in model.blocks:
        axes = labels.get(block.name)
        for number in range(block.index.size):
            name = next(names)
            if axes is not None:
                found[name] = {"block": block.name, **{axis: _plain(values[number]) for axis, values in axes.items()}}
    return found


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)


def _unique(words: Iterable[str]) -> list[str]:
    """Return safe and different words."""
    taken: Counter[str] = Counter()
    found = []
    for word in words:
        short = OTHERS.sub("_", word)[:LONGEST].strip("_") or "_"
        taken[short] += 1
        found.append(short if taken[short] == 1 else f"{short}~{taken[short]}")
    return found
