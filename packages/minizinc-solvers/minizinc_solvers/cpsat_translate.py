"""Translation of all constraints of a FlatZinc model to CP-SAT."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

from minizinc_solvers.cpsat_builtins import BUILTINS, RELATIONS
from minizinc_solvers.cpsat_globals import GLOBALS
from minizinc_solvers.cpsat_model import CpSatBuilder
from minizinc_solvers.deadline import Deadline
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.refusals import refuse

KNOWN = BUILTINS | GLOBALS


def translate(builder: CpSatBuilder, deadline: Deadline) -> None:
    """Add the constraints of the builder's source; after the deadline stop with an incomplete model.

    Raises
    ------
    FlatZincError
        For a constraint that cannot be expressed; names it and its line.
    """
    for k, constraint in enumerate(builder.source.constraints):
        if not k % 1000 and deadline.expired:
            return
        function = KNOWN.get(constraint.name)
        if function is None:
            raise refuse(constraint, _unknown(constraint.name))
        least, most = _arity(constraint.name)
        if not least <= len(constraint.arguments) <= most:
            raise refuse(constraint, f"has {len(constraint.arguments)} arguments, which is not what it takes")
        try:
            function(builder, *constraint.arguments)
        except FlatZincError as error:
            raise refuse(constraint, str(error)) from None


@cache
def _arity(name: str) -> tuple[int, int]:
    """Return the least and largest number of arguments of a constraint."""
    function: Callable[..., object]
    stem, _, suffix = name.rpartition("_")
    if name in RELATIONS:
        function, more = RELATIONS[name], 0
    elif suffix in {"reif", "imp"} and stem in RELATIONS:
        function, more = RELATIONS[stem], 1
    else:
        function, more = KNOWN[name], 0
    parameters = list(inspect.signature(function).parameters.values())[1:]  # not counting the builder
    return sum(p.default is inspect.Parameter.empty for p in parameters) + more, len(parameters) + more


def _unknown(name: str) -> str:
    for kind in ("float", "set"):
        if name.startswith(kind) or f"_{kind}" in name:
            return f"is about {kind}s, which CP-SAT does not know"
    return "is not supported by CP-SAT"
