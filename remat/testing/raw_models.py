"""Tiny random models whose answer depends on one record of a given kind, with optima by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from remat.modeling import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    Model,
    NoOverlap,
    NoOverlap2D,
    Record,
    Reservoir,
    violations,
)

#: Makes a random record over Boolean variables 0, 1, 2 and integer variables 3, 4, 5 with values −1..2.
MakeRecord = Callable[[np.random.Generator], Record]
BOOLEANS, INTEGERS = np.arange(3), np.arange(3, 6)


@dataclass(frozen=True)
class TinyModel:
    """A model and its optimum."""

    model: Model
    optimum: float | None
    """None: infeasible."""
    values: np.ndarray | None
    """Optimal solution, shape (variables,)."""


def _literals(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return literals of both signs, occasionally the one that is always true."""
    chosen = rng.choice(BOOLEANS, count)
    chosen = np.where(rng.random(count) < 0.5, chosen, ~chosen)
    return np.where(rng.random(count) < 0.15, ALWAYS, chosen)


def _linear(rng: np.random.Generator) -> Record:
    """Return inequalities from below, from above and from both sides; a coordinate may repeat."""
    column, value = rng.integers(0, 6, 9), rng.integers(-3, 4, 9)
    low = rng.integers(-3, 2, 3)
    upper = np.where([True, True, False], low + rng.integers(0, 4, 3), np.inf)
    return Linear.rows(
        "linear", rng.integers(0, 3, 9), column, value, lower=np.where([0, 1, 1], low, -np.inf), upper=upper
    )


def _equality(rng: np.random.Generator) -> Record:
    side = rng.integers(-2, 4, 2)
    return Linear.rows(
        "equality", [0, 0, 0, 1, 1], rng.integers(0, 6, 5), rng.choice([-2, -1, 1, 2, 3], 5), lower=side, upper=side
    )


def _enforced(rng: np.random.Generator) -> Record:
    low, sides = rng.integers(-2, 4, 3), rng.integers(0, 3, 3)
    return Linear.rows(
        "enforced", np.repeat([0, 1, 2], 2), rng.choice(INTEGERS, 6), rng.integers(-2, 3, 6),
        lower=np.where(sides < 2, low, -np.inf), upper=np.where(sides > 0, low + 1, np.inf), enforce=_literals(rng, 3),
    )  # fmt: skip


def _domain(rng: np.random.Generator) -> Record:
    sizes = rng.integers(1, 3, 2)
    values = np.concatenate([np.sort(rng.choice(np.arange(-2, 4), size, replace=False)) for size in sizes])
    return Domain("domain", rng.choice(INTEGERS, 2, replace=False), np.concatenate([[0], np.cumsum(sizes)]), values)


def _intervals(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    start = rng.choice(INTEGERS, 3)
    end = np.where(start == 5, 3, start + 1)
    return start, end, rng.integers(0, 4, 3), _literals(rng, 3)


def _reservoir(rng: np.random.Generator) -> Record:
    return Reservoir(
        "reservoir", np.array([0, 3, 5]), rng.choice(INTEGERS, 5), rng.integers(-1, 2, 5), rng.integers(-2, 3, 5),
        _literals(rng, 5),
    )  # fmt: skip


def _no_overlap(rng: np.random.Generator) -> Record:
    """Return two groups of intervals, some of no length: an end may be the start."""
    start, end = rng.choice(INTEGERS, 5), rng.choice(INTEGERS, 5)
    return NoOverlap("no overlap", np.array([0, 3, 5]), start, end, _literals(rng, 5))


def _rectangles(rng: np.random.Generator) -> Record:
    """Return rectangles that barely fit into the square of positions; occasionally one has no area."""
    first, second = rng.choice(INTEGERS, 3), rng.choice(INTEGERS, 3)
    return NoOverlap2D("no overlap", first, second, rng.integers(0, 3, 3), rng.integers(1, 3, 3), _literals(rng, 3))


#: Record makers by kind.
KINDS: dict[str, MakeRecord] = {
    "linear": _linear,
    "equality": _equality,
    "enforced": _enforced,
    "clauses": lambda rng: Clauses.grouped("clauses", [0, 0, 1, 1, 2], _literals(rng, 5), 3),
    "domain": _domain,
    "cumulative": lambda rng: Cumulative("cumulative", *_intervals(rng), int(rng.integers(1, 4))),
    "variable capacity": lambda rng: Cumulative(
        "variable capacity", *_intervals(rng), capacity_variable=int(rng.choice(INTEGERS))
    ),
    "reservoir": _reservoir,
    "all different": lambda rng: AllDifferent("all different", INTEGERS),
    "no overlap": _no_overlap,
    "no overlap of rectangles": _rectangles,
}


def _model(name: str, rng: np.random.Generator, records: list[Record]) -> Model:
    model = Model(name)
    model.booleans("b", 3)
    model.integers("x", 3, -1, 2)
    row = Linear.rows(
        "some row", [0, 0, 0, 0], [0, 1, 3, 4], rng.choice([-2, -1, 1, 2], 4), upper=[float(rng.integers(0, 4))]
    )
    weights = np.concatenate([rng.choice([-3, -2, -1, 1, 2, 3], 3), rng.choice([-7, -5, -3, 3, 5, 7], 3)])
    model.minimize(np.arange(6), weights, float(rng.integers(-3, 4)))
    model.add(row, *records)
    return model


def enumerate_model(model: Model) -> TinyModel:
    """Return the optimum over all integer values within the bounds.

    Examples
    --------
    >>> m = Model("pair")
    >>> x = m.integers("x", 2, 0, 3)
    >>> m.add(AllDifferent("different", x.index))
    >>> m.minimize(x.index, 1)
    >>> enumerate_model(m).optimum
    1.0
    """
    boxes = [np.arange(low, high + 1) for low, high in zip(model.lower, model.upper, strict=True)]
    points = np.array(list(itertools.product(*boxes)), dtype=np.float64)
    costs = points[:, model.objective.index] @ model.objective.coefficient + model.objective.constant
    for at in np.argsort(costs, kind="stable").tolist():
        if not violations(model, points[at]):
            return TinyModel(model, float(costs[at]), points[at])
    return TinyModel(model, None, None)


@lru_cache(maxsize=256)
def tiny_model(kind: str, seed: int) -> tuple[TinyModel, bool]:
    """Return a random model with a record of a kind, and whether its optimum depends on the record."""
    rng = np.random.default_rng(seed)
    record = KINDS[kind](rng)
    state = rng.bit_generator.state
    model = _model(f"{kind} {seed}", rng, [record])
    rng.bit_generator.state = state
    without = _model(f"{kind} {seed} without", rng, [])
    found = enumerate_model(model)
    return found, found.optimum != enumerate_model(without).optimum


def tiny_models(kind: str, count: int) -> Iterator[TinyModel]:
    """Yield `count` models whose optimum depends on their record; every fourth is infeasible if possible."""
    wanted = [index % 4 != 3 for index in range(count)]
    for seed in range(1000):
        found, matters = tiny_model(kind, seed)
        if matters and (found.optimum is not None) in wanted:
            wanted.remove(found.optimum is not None)
            yield found
        if not wanted or (seed > 60 and True not in wanted):
            return
