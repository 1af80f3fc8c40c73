"""FlatZinc's constraints on integers and Booleans in CP-SAT's terms.

Source: *FlatZinc builtins*, MiniZinc 2.6 handbook, section 4.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from minizinc_solvers.cpsat_model import HIGHEST, LOWEST, Affine, CpSatBuilder, Ranges, complement, constant
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.refusals import constant_set, wholes

Translate = Callable[..., None]
#: Relation: a sum of terms lies in some ranges.
Relation = Callable[..., tuple[list[Affine], Ranges]]

#: Largest number of value pairs for which ``int_pow`` becomes a table.
MAX_POWERS = 200_000

EQUAL, UNEQUAL = ((0, 0),), ((LOWEST, -1), (1, HIGHEST))
LESS_OR_EQUAL, LESS = ((LOWEST, 0),), ((LOWEST, -1),)


# -- relations: plain, `_reif` (the last argument is their truth), `_imp` (the last argument implies them) -------------


def _weighted(ranges: Ranges) -> Relation:
    def relation(b: CpSatBuilder, weights: Any, variables: Any, right: Any) -> tuple[list[Affine], Ranges]:
        factors, terms = wholes(weights), b.affines(variables)
        if len(factors) != len(terms):
            raise FlatZincError(f"has {len(factors)} weights for {len(terms)} variables")
        left = [term.scaled(factor) for factor, term in zip(factors, terms, strict=True)]
        return [*left, b.affine(right).scaled(-1)], ranges

    return relation


def _pair(ranges: Ranges) -> Relation:
    def relation(b: CpSatBuilder, left: Any, right: Any) -> tuple[list[Affine], Ranges]:
        return [b.affine(left), b.affine(right).scaled(-1)], ranges

    return relation


def _opposite(b: CpSatBuilder, left: Any, right: Any) -> tuple[list[Affine], Ranges]:
    return [b.affine(left), b.affine(right)], [(1, 1)]


def _member(b: CpSatBuilder, left: Any, right: Any) -> tuple[list[Affine], Ranges]:
    return [b.affine(left)], constant_set(right).ranges


def _plus(b: CpSatBuilder, left: Any, right: Any, total: Any) -> tuple[list[Affine], Ranges]:
    return [b.affine(left), b.affine(right), b.affine(total).scaled(-1)], EQUAL


RELATIONS: dict[str, Relation] = {
    **{f"{kind}_eq": _pair(EQUAL) for kind in ("int", "bool")},
    **{f"{kind}_ne": _pair(UNEQUAL) for kind in ("int", "bool")},
    **{f"{kind}_le": _pair(LESS_OR_EQUAL) for kind in ("int", "bool")},
    **{f"{kind}_lt": _pair(LESS) for kind in ("int", "bool")},
    **{f"{kind}_lin_eq": _weighted(EQUAL) for kind in ("int", "bool")},
    **{f"{kind}_lin_ne": _weighted(UNEQUAL) for kind in ("int", "bool")},
    **{f"{kind}_lin_le": _weighted(LESS_OR_EQUAL) for kind in ("int", "bool")},
    **{f"{kind}_lin_lt": _weighted(LESS) for kind in ("int", "bool")},
    "bool_not": _opposite,
    "bool2int": _pair(EQUAL),
    "set_in": _member,
    "int_plus": _plus,
}


def _plain(relation: Relation) -> Translate:
    def translate(b: CpSatBuilder, *arguments: Any) -> None:
        b.linear(*relation(b, *arguments))

    return translate


def _implied(relation: Relation) -> Translate:
    def translate(b: CpSatBuilder, *arguments: Any) -> None:
        *rest, truth = arguments
        b.linear(*relation(b, *rest), b.literal(truth))

    return translate


def _reified(relation: Relation) -> Translate:
    def translate(b: CpSatBuilder, *arguments: Any) -> None:
        *rest, truth = arguments
        terms, ranges = relation(b, *rest)
        literal = b.literal(truth)
        b.linear(terms, ranges, literal)
        b.linear(terms, complement(ranges), ~literal)

    return translate


# -- logic -------------------------------------------------------------------------------------------------------------


def _some(b: CpSatBuilder, literals: list[int], truth: int) -> None:
    """`truth` is true if and only if one of `literals` is."""
    b.clause(literals, truth)
    b.all_true([~literal for literal in literals], ~truth)


def _clause(b: CpSatBuilder, positive: Any, negative: Any) -> list[int]:
    return b.literals(positive) + [~literal for literal in b.literals(negative)]


def bool_clause(b: CpSatBuilder, positive: Any, negative: Any) -> None:
    """One of `positive` is true, or one of `negative` false."""
    b.clause(_clause(b, positive, negative))


def bool_clause_reif(b: CpSatBuilder, positive: Any, negative: Any, truth: Any) -> None:
    """`truth` is true if and only if the clause holds."""
    _some(b, _clause(b, positive, negative), b.literal(truth))


def bool_clause_imp(b: CpSatBuilder, positive: Any, negative: Any, truth: Any) -> None:
    """If `truth`, the clause holds."""
    b.clause(_clause(b, positive, negative), b.literal(truth))


def array_bool_or(b: CpSatBuilder, array: Any, truth: Any) -> None:
    """`truth` is true if and only if one of `array` is."""
    _some(b, b.literals(array), b.literal(truth))


def array_bool_or_imp(b: CpSatBuilder, array: Any, truth: Any) -> None:
    """If `truth`, one of `array` is true."""
    b.clause(b.literals(array), b.literal(truth))


def array_bool_and(b: CpSatBuilder, array: Any, truth: Any) -> None:
    """`truth` is true if and only if all of `array` are."""
    _some(b, [~literal for literal in b.literals(array)], ~b.literal(truth))


def array_bool_and_imp(b: CpSatBuilder, array: Any, truth: Any) -> None:
    """If `truth`, all of `array` are true."""
    b.all_true(b.literals(array), b.literal(truth))


def bool_or(b: CpSatBuilder, left: Any, right: Any, truth: Any) -> None:
    """`truth` is true if and only if `left` or `right` is."""
    array_bool_or(b, [left, right], truth)


def bool_or_imp(b: CpSatBuilder, left: Any, right: Any, truth: Any) -> None:
    """If `truth`, `left` or `right` is true."""
    array_bool_or_imp(b, [left, right], truth)


def bool_and(b: CpSatBuilder, left: Any, right: Any, truth: Any) -> None:
    """`truth` is true if and only if `left` and `right` are."""
    array_bool_and(b, [left, right], truth)


def bool_and_imp(b: CpSatBuilder, left: Any, right: Any, truth: Any) -> None:
    """If `truth`, `left` and `right` are true."""
    array_bool_and_imp(b, [left, right], truth)


def bool_xor(b: CpSatBuilder, left: Any, right: Any, truth: Any = True) -> None:
    """`truth` is true if and only if `left` and `right` differ."""
    _reified(_opposite)(b, left, right, truth)


def bool_xor_imp(b: CpSatBuilder, left: Any, right: Any, truth: Any) -> None:
    """If `truth`, `left` and `right` differ."""
    _implied(_opposite)(b, left, right, truth)


def array_bool_xor(b: CpSatBuilder, array: Any) -> None:
    """An odd number of `array` are true."""
    b.add().bool_xor.literals.extend(b.literals(array))


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _function(b: CpSatBuilder, field: str, target: Affine, arguments: list[Affine]) -> None:
    constraint = getattr(b.add(), field)
    b.put(constraint.target, target)
    b.put_all(constraint.exprs, arguments)


def _largest(b: CpSatBuilder, target: Affine, terms: list[Affine]) -> None:
    if terms:
        _function(b, "lin_max", target, terms)
    else:
        b.impossible()


def int_max(b: CpSatBuilder, left: Any, right: Any, result: Any) -> None:
    """`result` is the larger one."""
    _largest(b, b.affine(result), [b.affine(left), b.affine(right)])


def int_min(b: CpSatBuilder, left: Any, right: Any, result: Any) -> None:
    """`result` is the smaller one."""
    array_int_minimum(b, result, [left, right])


def array_int_maximum(b: CpSatBuilder, result: Any, array: Any) -> None:
    """`result` is the largest of `array`."""
    _largest(b, b.affine(result), b.affines(array))


def array_int_minimum(b: CpSatBuilder, result: Any, array: Any) -> None:
    """`result` is the smallest of `array`."""
    _largest(b, b.affine(result).scaled(-1), [term.scaled(-1) for term in b.affines(array)])


def int_abs(b: CpSatBuilder, value: Any, result: Any) -> None:
    """`result` is the absolute value."""
    term = b.affine(value)
    _largest(b, b.affine(result), [term, term.scaled(-1)])


def int_times(b: CpSatBuilder, left: Any, right: Any, result: Any) -> None:
    """`result` is the product."""
    _function(b, "int_prod", b.affine(result), [b.affine(left), b.affine(right)])


def int_div(b: CpSatBuilder, dividend: Any, divisor: Any, result: Any) -> None:
    """Quotient rounded towards 0; infeasible for a divisor of 0."""
    top, bottom, quotient = b.affine(dividend), b.affine(divisor), b.affine(result)
    low, high = b.bounds(bottom)
    if low > 0:
        _function(b, "int_div", quotient, [top, bottom])
    elif high < 0:
        _function(b, "int_div", quotient.scaled(-1), [top, bottom.scaled(-1)])
    else:
        _divide(b, top, bottom, quotient, None)


def int_mod(b: CpSatBuilder, dividend: Any, divisor: Any, result: Any) -> None:
    """Remainder with the sign of the dividend; infeasible for a divisor of 0."""
    top, bottom, remainder = b.affine(dividend), b.affine(divisor), b.affine(result)
    low, high = b.bounds(bottom)
    if low > 0 or high < 0:
        _function(b, "int_mod", remainder, [top, bottom if low > 0 else bottom.scaled(-1)])
        return
    largest = _magnitude(b, top)
    _divide(b, top, bottom, Affine(b.new_variable(-largest, largest), 1, 0), remainder)


def _magnitude(b: CpSatBuilder, term: Affine) -> int:
    return max(map(abs, b.bounds(term)))


def _divide(b: CpSatBuilder, top: Affine, bottom: Affine, quotient: Affine, remainder: Affine | None) -> None:
    """``top = bottom * quotient + remainder`` with ``|remainder| < |bottom|`` and the sign of `top`.

    This defines division towards 0; CP-SAT's own constraint needs a divisor of one sign.
    """
    room = _magnitude(b, top)
    product = Affine(b.new_variable(-room, room), 1, 0)
    _function(b, "int_prod", product, [bottom, quotient])
    if remainder is None:
        widest = min(room, max(0, _magnitude(b, bottom) - 1))
        remainder = Affine(b.new_variable(-widest, widest), 1, 0)
    b.linear([product, remainder, top.scaled(-1)], EQUAL)
    sizes = []
    for term in (remainder, bottom):
        size = Affine(b.new_variable(0, _magnitude(b, term)), 1, 0)
        _largest(b, size, [term, term.scaled(-1)])
        sizes.append(size)
    b.linear([sizes[0], sizes[1].scaled(-1)], LESS)
    positive = b.holds([top], [(1, HIGHEST)])
    b.linear([remainder], [(0, HIGHEST)], positive)
    b.linear([remainder], [(LOWEST, 0)], ~positive)


def int_pow(b: CpSatBuilder, base: Any, exponent: Any, result: Any) -> None:
    """``base ** exponent``; with a negative exponent ``1 div base ** -exponent``."""
    bottom, top, power = b.affine(base), b.affine(exponent), b.affine(result)
    (low, high), (first, last) = b.bounds(bottom), b.bounds(top)
    if first == last and first >= 0:
        if first > 1:
            _function(b, "int_prod", power, [bottom] * first)
        else:
            b.linear([bottom if first else constant(1), power.scaled(-1)], EQUAL)
        return
    if (high - low + 1) * (last - first + 1) > MAX_POWERS:
        raise FlatZincError(f"has a base in {low}..{high} and an exponent in {first}..{last}, which is too much")
    smallest, largest = b.bounds(power)
    values: list[int] = []
    for x, y in itertools.product(range(low, high + 1), range(first, last + 1)):
        if x not in {-1, 0, 1} and y > 64:
            continue  # beyond CP-SAT's integers
        if y < 0 and not x:
            continue
        z = x**y if y >= 0 else (x ** (-y % 2) if x in {-1, 1} else 0)
        if smallest <= z <= largest:
            values += (x, y, z)
    table = b.add().table
    b.put_all(table.exprs, [bottom, top, power])
    table.values.extend(values)


# -- arrays ------------------------------------------------------------------------------------------------------------


def element(b: CpSatBuilder, index: Any, array: Any, result: Any) -> None:
    """``array[index] = result`` with indices from 1."""
    place, terms = b.affine(index), b.affines(array)
    b.linear([place], [(1, len(terms))] if terms else [])
    if terms:
        constraint = b.add().element
        b.put(constraint.linear_index, place.scaled(1, -1))
        b.put_all(constraint.exprs, terms)
        b.put(constraint.linear_target, b.affine(result))


#: Translation of each FlatZinc constraint; functions take the builder and the constraint's arguments.
BUILTINS: dict[str, Translate] = {
    **{name: _plain(relation) for name, relation in RELATIONS.items()},
    **{f"{name}_reif": _reified(relation) for name, relation in RELATIONS.items()},
    **{f"{name}_imp": _implied(relation) for name, relation in RELATIONS.items()},
    **{
        function.__name__: function
        for function in (
            bool_clause, bool_clause_reif, bool_clause_imp, array_bool_or, array_bool_or_imp, array_bool_and,
            array_bool_and_imp, bool_or, bool_or_imp, bool_and, bool_and_imp, bool_xor, bool_xor_imp, array_bool_xor,
            int_max, int_min, array_int_maximum, array_int_minimum, int_abs, int_times, int_div, int_mod, int_pow,
        )
    },
    "bool_xor_reif": bool_xor,
    **{f"array_{kind}_element": element for kind in ("int", "bool", "var_int", "var_bool")},
}  # fmt: skip
