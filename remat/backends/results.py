"""Results of solvers, unchecked: statuses, incumbents, and the result of a solve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from remat.modeling import Kind, Model
from remat.runtime.arrays import Float
from remat.runtime.solve_options import Status, StopReason

Values = Float


@dataclass(frozen=True)
class Incumbent:
    """A solution found on the way.

    Attributes
    ----------
    time : float
        Seconds since the deadline's clock began.
    objective : float
    bound : float or None
        Best lower bound at that time, None when unknown.
    values : float64 array, shape (variables,)
    """

    time: float
    objective: float
    bound: float | None
    values: Values = field(repr=False)


@dataclass(frozen=True)
class RawResult:
    """Result of a solver before any of it is checked.

    Attributes
    ----------
    status : Status
    stop : StopReason
    objective, bound : float or None
        None when there is no solution, or no bound.
    values : float64 array, shape (variables of the model,), or None
    incumbents : tuple of Incumbent
        In order of time.
    build_seconds, solve_seconds : float
        Translating the model; running the solver.
    versions : mapping of str to str
    message : str
        Reason of an error, or another event: a memory limit, a process that crashed.
    """

    status: Status
    stop: StopReason
    objective: float | None = None
    bound: float | None = None
    values: Values | None = None
    incumbents: tuple[Incumbent, ...] = ()
    build_seconds: float = 0.0
    solve_seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    message: str = ""


#: Called with each new incumbent; a true return value asks the solver to stop.
OnIncumbent = Callable[[Incumbent], object]
#: Called with (seconds, bound) when the bound improves.
OnBound = Callable[[float, float], object]


#: Largest distance from an integer that counts as rounding noise.
INTEGRALITY = 1e-5


def rounded(model: Model, values: Float, solver: str) -> tuple[Float, str]:
    """Return `values` of a solver for the variables of `model`, and an error message, empty if they are valid.

    Examples
    --------
    >>> model = Model("two")
    >>> _ = model.integers("x", 2, 0, 9)
    >>> rounded(model, np.array([2.0000001, 3.0]), "HiGHS")
    (array([2., 3.]), '')
    >>> rounded(model, np.array([2.3, 3.0]), "HiGHS")[1]
    'HiGHS gives 2.3 for integer variable number 0'
    """
    values = np.array(values[: model.num_vars])
    whole = np.flatnonzero((model.kind == Kind.INTEGER.value) | (model.kind == Kind.BOOLEAN.value))
    nearest = np.rint(values[whole])
    noise = np.abs(values[whole] - nearest)
    if not (noise <= INTEGRALITY).all():
        worst = int(noise.argmax())
        return values, f"{solver} gives {values[whole[worst]]} for integer variable number {whole[worst]}"
    values[whole] = nearest
    return values, ""
