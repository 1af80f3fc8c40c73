"""Parser of FlatZinc: contents, errors, bounds."""

import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minizinc_solvers.bounds import tighten
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import IntSet, VarKind
from minizinc_solvers.parser import parse

MODEL = """% a comment; with a semicolon
predicate my_own(var int: x, array [int] of var bool: bs);
array [1..3] of int: weights = [2,-3,0x10]; int: five = 5; bool: yes = true;
set of int: S = {3,1,2,7}; array [1..2] of set of int: sets = [1..3,{5}];
float: half = 0.5;
var 1..5: x :: output_var;
var {1,3,4}: gap; var int: free; var bool: b :: is_defined_var :: output_var; var -1.5..2e1: f;
var 0..9: fixed :: mzn_path("a;b%c\\"d") = five;
array [1..4] of var int: grid :: output_array([1..2,1..2]) = [x,gap,3,-4];
array [1..0] of var bool: none :: output_array([1..0]) = [];
constraint int_lin_le(weights,[x,gap,free],five) :: domain :: defines_var(free);
constraint set_in(x, S); constraint
  bool_clause([b,true],[false]); constraint my_own(grid[2], []);
solve :: int_search(grid, input_order, indomain_min, complete) :: seq_search([a([b]), c]) maximize x;
"""


def test_model_is_parsed():
    m = parse(MODEL)
    names = {v.name: v for v in m.variables}
    assert list(names) == ["x", "gap", "free", "b", "f", "fixed"]
    assert [v.index for v in m.variables] == list(range(6))
    assert names["gap"].domain == IntSet(((1, 1), (3, 4))) and names["gap"].kind is VarKind.INT
    assert names["free"].domain is None and names["b"].kind is VarKind.BOOL
    assert names["f"].kind is VarKind.FLOAT and names["f"].domain == (-1.5, 20.0)
    fixed, linear, member, clause, own = m.constraints
    assert (fixed.name, fixed.arguments) == ("int_eq", [names["fixed"], 5])
    assert linear.arguments == [[2, -3, 16], [names["x"], names["gap"], names["free"]], 5] and linear.line == 11
    assert member.arguments == [names["x"], IntSet(((1, 3), (7, 7)))]
    assert (clause.name, clause.arguments, clause.line) == ("bool_clause", [[names["b"], True], [False]], 12)
    assert own.arguments == [names["gap"], []]
    assert (m.goal, m.objective) == ("maximize", names["x"])
    assert [(o.name, o.shape) for o in m.outputs] == [
        ("x", None), ("b", None), ("grid", ((1, 2), (1, 2))), ("none", ((1, 0),)),
    ]  # fmt: skip
    assert m.outputs[2].values == (names["x"], names["gap"], 3, -4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: there is no solve item"),
        ("var 1..3: x;\n", "line 2: there is no solve item"),
        ("var 1..3: x;\nsolve satisfy", "line 2: an item does not end with ';'"),
        ('var 1..3: x :: a("b;\nsolve satisfy;', "line 1: an item does not end with ';'"),
        ("var 1..3: x;\n\nvar bool: x;", "line 3: name 'x' is declared twice"),
        ("% hi\nvar 1..: x;", "line 2: expected a number, not ':'"),
        ("var set of 1..3: s;", "line 1: set variables are not supported"),
        ("var bool: b = 1.0..2.0;", "line 1: sets of reals are not supported"),
        ("constraint f(y);", "line 1: unknown name 'y'"),
        ("constraint f([1,2);", "line 1: '[' is not closed"),
        ("constraint f([1 2]);", "line 1: expected ',', not '2'"),
        ("constraint f([1,,2]);", "line 1: expected a number, not ','"),
        ("constraint f(1;", "line 1: expected ',', not ';'"),
        ('constraint f("text");', "line 1: a text has no place here"),
        ("constraint f(1) junk;", "line 1: expected ';', not 'junk'"),
        ("constraint f(1) :: a(b;", "line 1: an annotation is not closed"),
        ("constraint var(1);", "line 1: expected a name, not 'var'"),
        ("hello;", "line 1: expected an item, not 'hello'"),
        (";", "line 1: expected an item, not ';'"),
        ("int: x = 99999999999999999999;", "line 1: number '99999999999999999999' is too large"),
        ("float: x = 1e999;", "line 1: number '1e999' is too large"),
        (f"int: x = {'9' * 5000};", "line 1: a number of 5000 characters is too long"),
        ("array [1..3] of int: a = [1,2];", "line 1: array 'a' does not have the elements 1..3"),
        ("array [0..1] of int: a = [1,2];", "line 1: array 'a' does not have the elements 0..1"),
        ("array [1..2] of var int: a;", "line 1: expected '=', not ';'"),
        ("array [1..1] of int: a = [1]; constraint f(a[2]);", "line 1: there is no element 2"),
        ("array [1..2] of int: a :: output_array([1..3]) = [1,2];", "line 1: an output_array annotation does not fit"),
        ("array [1..2] of int: a :: output_array = [1,2];", "line 1: expected '(', not the end"),
        ("solve satisfy; solve satisfy;", "line 1: there is a second solve item"),
        ("solve find x;", "line 1: expected satisfy, minimize or maximize, not 'find'"),
        ("solve minimize true;", "line 1: the objective is not a number"),
        ("var int: " + "x" * 100 + "; var int: " + "x" * 100 + ";", f"line 1: name '{'x' * 37}...' is declared twice"),
    ],
)
def test_errors_are_one_line(text, problem):
    with pytest.raises(FlatZincError) as caught:
        parse(text, "model.fzn")
    message = str(caught.value)
    assert message.startswith(f"model.fzn: {problem}") and "\n" not in message


PIECES = MODEL.replace("\n", " ").split(" ") + list('()[]{};:,.="%\\\n-') + ["::", "..", "'", "é", "\0"]


@given(st.lists(st.sampled_from(PIECES), max_size=60), st.sampled_from(["", " "]))
def test_random_text_is_parsed_or_refused(pieces, between):
    """Only FlatZincError with one line is raised."""
    try:
        parse(between.join(pieces))
    except FlatZincError as error:
        assert "\n" not in str(error)


@given(st.integers(0, len(MODEL)), st.integers(0, len(MODEL)), st.sampled_from(PIECES))
def test_mutated_model_is_parsed_or_refused(first, last, piece):
    try:
        parse(MODEL[: min(first, last)] + piece + MODEL[max(first, last) :])
    except FlatZincError as error:
        assert "\n" not in str(error)


@given(st.lists(st.integers(-20, 20)))
def test_ranges_of_sets(values):
    ranges = IntSet.of(values).ranges
    assert [value for low, high in ranges for value in range(low, high + 1)] == sorted(set(values))
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))


def test_hostile_text_is_refused_quickly():
    started = time.monotonic()
    for text in (
        "(" * 300_000,
        "[" * 300_000 + ";",
        '"' * 300_001,
        "%" * 300_000,
        "a" * 300_000 + ";",
        ":: " * 100_000,
    ):
        with pytest.raises(FlatZincError):
            parse(text)
        with pytest.raises(FlatZincError):
            parse("constraint f(" + text + ");")
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_hundred_thousand_constraints():
    rng = random.Random(1)
    lines = [f"var 0..100: x{k};" for k in range(10_000)]
    for _ in range(100_000):
        terms = ",".join(f"x{rng.randrange(10_000)}" for _ in range(4))
        lines.append(f"constraint int_lin_le([1,-2,3,4],[{terms}],{rng.randrange(10**6)}) :: defines_var(x1);")
    text = "\n".join(lines) + "\nsolve satisfy;\n"
    started = time.process_time()
    assert len(parse(text).constraints) == 100_000
    assert time.process_time() - started < 8  # 2 s on an idle machine


def test_missing_bounds_follow_from_linear_constraints():
    m = parse(
        "var 0..3: x; var int: y; var int: z; var int: w; var int: v; var int: u; var bool: b;"
        "constraint int_lin_eq([2,-3],[x,y],1); constraint int_plus(y, x, z); constraint int_le(w, 7);"
        "constraint int_le(z, w); constraint bool2int(b, u); constraint int_lin_le([1,-1],[v,v],3);"
        "solve satisfy;"
    )
    tighten(m)
    domain = {v.name: v.domain for v in m.variables}
    assert domain["y"] == IntSet(((0, 1),))  # 3 y = 2 x - 1 in -1..5
    assert domain["z"] == IntSet(((0, 4),))
    assert domain["w"] == IntSet(((0, 7),))
    assert domain["u"] == IntSet(((0, 1),))
    assert domain["v"] is None


def test_diverging_bounds_terminate():
    m = parse(
        "var int: x; var int: y; constraint int_le(0, x); constraint int_lin_le([1,-1],[x,y],-1);"
        "constraint int_lin_le([1,-1],[y,x],-1); constraint int_le(y, 1000000000); solve satisfy;"
    )
    started = time.monotonic()
    tighten(m)
    assert time.monotonic() - started < 1
    assert m.variables[0].domain is not None


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9), st.booleans()),
             min_size=1, max_size=4)
)  # fmt: skip
def test_bounds_keep_all_solutions(rows):
    """Every solution of random rows within a box lies within the tightened bounds."""
    text = "var -3..3: x; var int: y; var int: z;" + "".join(
        f"constraint int_lin_{'eq' if equal else 'le'}([{a},{b},{c}],[x,y,z],{d});" for a, b, c, d, equal in rows
    )
    m = parse(text + "solve satisfy;")
    tighten(m)
    ranges = [v.domain.ranges if v.domain else ((-20, 20),) for v in m.variables]
    for x in range(-3, 4):
        for y in range(-6, 7):
            for z in range(-6, 7):
                sums = [(a * x + b * y + c * z, d, equal) for a, b, c, d, equal in rows]
                if all(s == d if equal else s <= d for s, d, equal in sums):
                    point = (x, y, z)
                    assert all(
                        any(low <= v <= high for low, high in r) for v, r in zip(point, ranges, strict=True)
                    ), point  # fmt: skip
