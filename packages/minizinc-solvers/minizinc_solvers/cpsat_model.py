"""CP-SAT's protocol buffer from FlatZinc arguments: variables, literals, affine expressions, linear rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from minizinc_solvers.bounds import tighten
from minizinc_solvers.cpsat_engine import Proto
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import FlatZinc, IntSet, Variable, VarKind
from minizinc_solvers.refusals import items, unfit

#: Ends of ranges of linear rows that mean infinity.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
#: Bounds of integer variables without any.
UNBOUNDED = 2**40

Ranges = Sequence[tuple[int, int]]


class Affine(NamedTuple):
    """``coefficient * variable + offset``; a constant has coefficient 0."""

    variable: int
    coefficient: int
    offset: int

    def scaled(self, factor: int, shift: int = 0) -> Affine:
        """Return ``factor * self + shift``."""
        return Affine(self.variable, self.coefficient * factor, self.offset * factor + shift)


def constant(value: int) -> Affine:
    """Return a constant as an expression."""
    return Affine(0, 0, value)


class CpSatBuilder:
    """A CP-SAT model under construction.

    Attributes
    ----------
    number : list of int
        CP-SAT's variable for each FlatZinc variable; an integer that is ``bool2int`` of a Boolean shares its variable.
    low, high : list of int
        Bounds of CP-SAT's variables.
    clamped : str
        Name of an unbounded variable that received bounds; empty without any.

    Raises
    ------
    FlatZincError
        For anything that CP-SAT does not support; one line that names line and constraint.
    """

    def __init__(self, source: FlatZinc) -> None:
        self.source = source
        self.proto: Any = Proto()
        self.low: list[int] = []
        self.high: list[int] = []
        self.clamped = ""
        self._values: dict[tuple[int, int], int] = {}
        self._constraints, self._variables = self.proto.constraints, self.proto.variables
        self.true = self.new_variable(1, 1)
        self.number: list[int] = []
        tighten(source)
        self._add_variables()
        self._add_objective()

    # -- variables -------------------------------------------------------------------------------------------------

    def _add_variables(self) -> None:
        twins: dict[int, int] = {}
        for constraint in self.source.constraints:
            if constraint.name == "bool2int" and len(constraint.arguments) == 2:
                truth, number = constraint.arguments
                if isinstance(truth, Variable) and isinstance(number, Variable) and truth.kind is VarKind.BOOL:
                    twins.setdefault(number.index, truth.index)
        place: dict[int, int] = {}
        for variable in self.source.variables:
            if variable.index not in twins:
                place[variable.index] = self._add_variable(variable)
        for number, truth in twins.items():
            place[number] = place[truth]
            domain = self.source.variables[number].domain
            if isinstance(domain, IntSet):
                self.linear([Affine(place[number], 1, 0)], domain.ranges)
        self.number = [place[variable.index] for variable in self.source.variables]

    def _add_variable(self, variable: Variable) -> int:
        domain = variable.domain
        if variable.kind is VarKind.FLOAT:
            raise FlatZincError(f"variable {variable.name!r} is a float: CP-SAT knows integers and Booleans only")
        if variable.kind is VarKind.BOOL:
            return self.new_variable(0, 1)
        if not isinstance(domain, IntSet):
            self.clamped = self.clamped or variable.name
            return self.new_variable(-UNBOUNDED, UNBOUNDED)
        if not domain.ranges:  # CP-SAT refuses empty domains as invalid
            self.impossible()
            return self.new_variable(0, 0)
        return self.new_variable(domain.ranges[0][0], domain.ranges[-1][1], domain.ranges)

    def new_variable(self, low: int, high: int, ranges: Ranges | None = None) -> int:
        """Return the number of a new variable."""
        self._variables.add().domain.extend([end for pair in ranges for end in pair] if ranges else (low, high))
        self.low.append(low)
        self.high.append(high)
        return len(self.low) - 1

    def _add_objective(self) -> None:
        if self.source.goal == "satisfy":
            return
        term = self.affine(self.source.objective)
        if not term.coefficient:  # CP-SAT requires a variable
            term = Affine(self.new_variable(term.offset, term.offset), 1, 0)
        objective = self.proto.objective
        objective.vars.append(term.variable)
        objective.coeffs.append(term.coefficient if self.source.goal == "minimize" else -term.coefficient)

    # -- arguments -------------------------------------------------------------------------------------------------

    def affine(self, argument: Any) -> Affine:
        """Return an integer or Boolean argument as an expression."""
        if isinstance(argument, Variable):
            return Affine(self.number[argument.index], 1, 0)
        if isinstance(argument, int):
            return Affine(0, 0, int(argument))
        raise unfit("a whole number", argument)

    def affines(self, argument: Any) -> list[Affine]:
        """Return an array of integers or Booleans as expressions."""
        return [self.affine(item) for item in items(argument)]

    def literal(self, argument: Any) -> int:
        """Return a Boolean argument as a literal: ``v`` for true, ``~v`` for false."""
        if isinstance(argument, Variable):
            number = self.number[argument.index]
            if self.low[number] < 0 or self.high[number] > 1:
                raise unfit("a truth value", argument)
            return number
        if argument is True or argument is False:
            return self.true if argument else ~self.true
        raise unfit("a truth value", argument)

    def literals(self, argument: Any) -> list[int]:
        """Return an array of Booleans as literals."""
        return [self.literal(item) for item in items(argument)]

    def bounds(self, term: Affine) -> tuple[int, int]:
        """Return the bounds of an expression."""
        if not term.coefficient:
            return term.offset, term.offset
        ends = [term.coefficient * end + term.offset for end in (self.low[term.variable], self.high[term.variable])]
        return min(ends), max(ends)

    # -- constraints -----------------------------------------------------------------------------------------------

    def add(self, *enforce: int) -> Any:
        """Add a constraint to the protocol buffer, required if all literals `enforce` are true."""
        constraint = self._constraints.add()
        if enforce:
            constraint.enforcement_literal.extend(enforce)
        return constraint

    def impossible(self, *enforce: int) -> None:
        """Exclude all solutions with `enforce` true."""
        self.clause([~literal for literal in enforce])

    def clause(self, literals: Sequence[int], *enforce: int) -> None:
        """Require at least one literal."""
        self.add(*enforce).bool_or.literals.extend(literals)

    def all_true(self, literals: Sequence[int], *enforce: int) -> None:
        """Require all literals."""
        if literals:
            self.add(*enforce).bool_and.literals.extend(literals)

    def linear(self, terms: Iterable[Affine], ranges: Ranges, *enforce: int) -> None:
        """Require the sum of `terms` to lie in one of `ranges`."""
        weights: dict[int, int] = {}
        offset = 0
        for variable, coefficient, shift in terms:
            offset += shift
            if coefficient:
                weights[variable] = weights.get(variable, 0) + coefficient
        if not weights:
            if not any(low <= offset <= high for low, high in ranges):
                self.impossible(*enforce)
            return
        if not ranges:
            self.impossible(*enforce)
            return
        linear = self.add(*enforce).linear
        linear.vars.extend(list(weights))
        linear.coeffs.extend(list(weights.values()))
        linear.domain.extend([_moved(end, offset) for pair in ranges for end in pair])

    def put(self, target: Any, term: Affine) -> None:
        """Write an expression into a field of the protocol buffer."""
        if term.coefficient:
            target.vars.append(term.variable)
            target.coeffs.append(term.coefficient)
        target.offset = term.offset

    def put_all(self, target: Any, terms: Iterable[Affine]) -> None:
        """Write expressions into a repeated field."""
        for term in terms:
            self.put(target.add(), term)

    def holds(self, terms: Sequence[Affine], ranges: Ranges) -> int:
        """Return a new literal that is true if and only if the sum of `terms` lies in `ranges`."""
        literal = self.new_variable(0, 1)
        self.linear(terms, ranges, literal)
        self.linear(terms, complement(ranges), ~literal)
        return literal

    def equals(self, term: Affine, value: int) -> int:
        """Return the literal that is true if and only if an expression has this value."""
        low, high = self.bounds(term)
        if not low <= value <= high:
            return ~self.true
        if not term.coefficient:
            return self.true
        wanted, rest = divmod(value - term.offset, term.coefficient)
        if rest:
            return ~self.true
        key = term.variable, wanted
        if key not in self._values:
            if (self.low[term.variable], self.high[term.variable]) == (0, 1):
                self._values[key] = term.variable if wanted else ~term.variable
            else:
                self._values[key] = self.holds([Affine(term.variable, 1, 0)], [(wanted, wanted)])
        return self._values[key]


def complement(ranges: Ranges) -> list[tuple[int, int]]:
    """Return all integers outside ascending, disjoint `ranges`.

    Examples
    --------
    >>> complement([(1, 2), (5, HIGHEST)])
    [(-9223372036854775808, 0), (3, 4)]
    """
    result, low = [], LOWEST
    for first, last in ranges:
        if first > low:
            result.append((low, first - 1))
        low = last + 1
    if low <= HIGHEST:
        result.append((low, HIGHEST))
    return result


def _moved(end: int, offset: int) -> int:
    return end if end in {LOWEST, HIGHEST} else min(max(end - offset, LOWEST + 1), HIGHEST - 1)
