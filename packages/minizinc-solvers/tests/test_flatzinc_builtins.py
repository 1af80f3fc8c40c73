"""Every constraint of fzn-cpsat and every row of fzn-highs, against enumeration of all assignments."""

import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from minizinc_solvers.cpsat import CpSatSearch
from minizinc_solvers.cpsat_builtins import BUILTINS
from minizinc_solvers.cpsat_globals import GLOBALS
from minizinc_solvers.deadline import Deadline
from minizinc_solvers.highs import ROWS, HighsSearch
from minizinc_solvers.options import Options
from minizinc_solvers.output import Ending, Printer
from minizinc_solvers.parser import parse

WIDE, NARROW, WIDER = "-3..3", "-2..2", "-4..4"
SMALL = "0..2"


def quotient(a, b):
    """Return the quotient rounded towards 0; None for a division by 0."""
    if b == 0:
        return None
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a, b):
    if b >= 0:
        return a**b
    return None if a == 0 else quotient(1, a**-b)


def at(array, index):
    return array[index - 1] if 1 <= index <= len(array) else None


def covered(tasks, limit):
    """True when the tasks (start, size, demand) stay within the limit at all times."""
    moments = range(-10, 20)
    return limit >= 0 and all(sum(r for s, d, r in tasks if s <= t < s + d) <= limit for t in moments)


def disjoint(tasks, strict):
    pairs = itertools.combinations(tasks, 2)
    return all(
        (not strict and (d == 0 or e == 0)) or s + d <= t or t + e <= s for (s, d), (t, e) in pairs
    )  # fmt: skip


def round_trip(successors, loops):
    """True when the successors (from 1) form one cycle; with `loops`, ignore nodes that follow themselves."""
    if sorted(successors) != list(range(1, len(successors) + 1)):
        return False
    inside = [k for k, s in enumerate(successors, 1) if not loops or s != k]
    if not inside:
        return True
    seen, node = set(), inside[0]
    while node not in seen:
        seen.add(node)
        node = successors[node - 1]
    return len(seen) == len(inside) and (loops or len(inside) > 1 or len(successors) == 1)


def accepted(word):
    """True for words over 1, 2 without 22 that do not end in 2."""
    state = 1
    for symbol in word:
        state = {(1, 1): 1, (1, 2): 2, (2, 1): 1, (2, 2): 0}[state, symbol]
        if not state:
            return False
    return state == 1


# name: (domains of x0, x1, ...; arguments; condition on their values)
Case = tuple[list[str], str, Callable[..., bool]]

COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
}


def cases() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}

    def relation(name: str, domains: list[str], arguments: str, holds: Callable[..., bool]) -> None:
        """Add a relation plain, reified and half-reified."""
        last = f"x{len(domains)}"
        found.setdefault(name, []).append((domains, arguments, holds))
        found.setdefault(name + "_reif", []).append(
            ([*domains, "bool"], f"{arguments},{last}", lambda *v: holds(*v[:-1]) == v[-1])
        )
        found.setdefault(name + "_imp", []).append(
            ([*domains, "bool"], f"{arguments},{last}", lambda *v: holds(*v[:-1]) or not v[-1])
        )

    for word, compare in COMPARISONS.items():
        relation(f"int_{word}", [WIDE, NARROW], "x0,x1", compare)
        relation(f"int_{word}", [WIDE], "x0,2", lambda a, c=compare: c(a, 2))
        relation(f"int_{word}", [WIDE], "x0,x0", lambda a, c=compare: c(a, a))
        relation(f"bool_{word}", ["bool", "bool"], "x0,x1", compare)
        relation(
            f"int_lin_{word}", [WIDE, "{-2,0,1,5}", SMALL], "[2,-1,3],[x0,x1,x2],4",
            lambda a, b, d, c=compare: c(2 * a - b + 3 * d, 4),
        )  # fmt: skip
        relation(f"int_lin_{word}", [WIDE], "[2,-1,3],[x0,x0,2],4", lambda a, c=compare: c(a + 6, 4))
        relation(
            f"bool_lin_{word}", ["bool", "bool", SMALL], "[2,1],[x0,x1],x2", lambda a, b, d, c=compare: c(2 * a + b, d)
        )  # fmt: skip
    relation("set_in", [WIDE], "x0,{-2,0,1,7}", lambda a: a in {-2, 0, 1})
    relation("set_in", [WIDE], "x0,2..1", lambda a: False)
    relation("set_in", [WIDE], "x0,-1..9", lambda a: a >= -1)
    relation("bool_not", ["bool", "bool"], "x0,x1", lambda a, b: a != b)
    relation("bool2int", ["bool", "-1..2"], "x0,x1", lambda a, b: a == b)
    relation("int_plus", [WIDE, NARROW, WIDER], "x0,x1,x2", lambda a, b, c: a + b == c)
    relation("bool_clause", ["bool"] * 4, "[x0,x1],[x2,x3]", lambda a, b, c, d: a or b or not c or not d)
    relation("bool_clause", ["bool"], "[x0,false],[true]", lambda a: a)

    def gate(name: str, holds: Callable[..., bool], size: int = 3) -> None:
        """Add a gate whose last argument is its value."""
        array = name.startswith("array")
        variables = ",".join(f"x{k}" for k in range(size))
        arguments = (f"[{variables}]" if array else variables) + f",x{size}"
        domains = ["bool"] * (size + 1)
        found.setdefault(name, []).append((domains, arguments, lambda *v: holds(v[:-1]) == v[-1]))
        found.setdefault(name + "_imp", []).append((domains, arguments, lambda *v: holds(v[:-1]) or not v[-1]))

    gate("array_bool_or", any)
    gate("array_bool_and", all)
    gate("array_bool_or", any, 0)
    gate("array_bool_and", all, 0)
    gate("bool_or", any, 2)
    gate("bool_and", all, 2)
    gate("bool_xor", lambda v: v[0] != v[1], 2)
    found["bool_xor"].append((["bool", "bool"], "x0,x1", lambda a, b: a != b))
    found["bool_xor_reif"] = [(["bool"] * 3, "x0,x1,x2", lambda a, b, c: (a != b) == c)]
    found["array_bool_xor"] = [
        (["bool"] * 3, "[x0,x1,true,x2]", lambda a, b, c: (a + b + c) % 2 == 0),
        (["bool"], "[x0,x0,x0]", lambda a: a),
    ]
    found["int_times"] = [
        ([WIDE, NARROW, "-6..6"], "x0,x1,x2", lambda a, b, c: a * b == c),
        ([WIDE, "0..9"], "x0,x0,x1", lambda a, b: a * a == b),
        ([WIDE, "-9..9"], "x0,3,x1", lambda a, b: 3 * a == b),
    ]
    divisors = ["1..3", "-3..-1", "-2..2", "0..2", "{-3,0,2}"]
    found["int_div"] = [(["-7..7", d, "-8..8"], "x0,x1,x2", lambda a, b, c: quotient(a, b) == c) for d in divisors]
    found["int_div"].append((["-7..7", "-8..8"], "x0,-2,x1", lambda a, c: quotient(a, -2) == c))
    found["int_div"].append((["-3..3", "-8..8"], "7,x0,x1", lambda b, c: quotient(7, b) == c))
    found["int_mod"] = [
        (["-7..7", d, "-8..8"], "x0,x1,x2", lambda a, b, c: b != 0 and a - b * quotient(a, b) == c) for d in divisors
    ]
    found["int_mod"].append((["-7..7", WIDE], "x0,0,x1", lambda a, c: False))
    found["int_pow"] = [
        (["-3..3", "-2..3", "-9..9"], "x0,x1,x2", lambda a, b, c: power(a, b) == c),
        *[
            (["-3..3", "-27..27"], f"x0,{n},x1", lambda a, c, n=n: power(a, n) == c) for n in (-1, 0, 1, 2, 3)
        ],
    ]  # fmt: skip
    found["int_max"] = [([WIDE, NARROW, WIDER], "x0,x1,x2", lambda a, b, c: max(a, b) == c)]
    found["int_min"] = [([WIDE, NARROW, WIDER], "x0,x1,x2", lambda a, b, c: min(a, b) == c)]
    found["int_abs"] = [([WIDE, WIDER], "x0,x1", lambda a, b: abs(a) == b)]
    found["array_int_maximum"] = [([WIDER, WIDE, NARROW], "x0,[x1,x2,-1]", lambda c, a, b: max(a, b, -1) == c)]
    found["array_int_minimum"] = [([WIDER, WIDE, NARROW], "x0,[x1,x2,1]", lambda c, a, b: min(a, b, 1) == c)]
    found["array_int_element"] = [(["-1..5", WIDE], "x0,[3,-1,2],x1", lambda i, c: at([3, -1, 2], i) == c)]
    found["array_bool_element"] = [
        (["0..4", "bool"], "x0,[true,false,true],x1", lambda i, c: at([True, False, True], i) == c)
    ]
    found["array_var_int_element"] = [
        (["0..4", WIDE, NARROW, WIDE], "x0,[x1,x2,1],x3", lambda i, a, b, c: at([a, b, 1], i) == c),
        (["1..3"], "x0,[x0,1,3],3", lambda i: at([i, 1, 3], i) == 3),
    ]
    found["array_var_bool_element"] = [
        (["0..4", "bool", "bool", "bool"], "x0,[x1,x2,true],x3", lambda i, a, b, c: at([a, b, True], i) == c)
    ]
    globals_(found)
    return found


def globals_(found: dict[str, list[Case]]) -> None:
    """Add the global constraints."""
    found["fzn_all_different_int"] = [(["1..3"] * 3, "[x0,x1,x2,2]", lambda *v: len({*v, 2}) == 4)]
    found["fzn_cumulative"] = [
        (
            ["0..3", "0..3", "0..2", "0..2", "-1..3"], "[x0,x1,1],[2,x2,1],[1,2,x3],x4",
            lambda s, t, d, r, b: covered([(s, 2, 1), (t, d, 2), (1, 1, r)], b),
        ),
        (["0..1"], "[x0],[0],[5],2", lambda s: True),
        (["0..1"], "[],[],[],-1", lambda s: True),
    ]  # fmt: skip
    found["fzn_disjunctive"] = [
        (["0..3", "0..3", "0..2"], "[x0,x1,1],[2,x2,0]", lambda s, t, d: disjoint([(s, 2), (t, d), (1, 0)], False))
    ]
    found["fzn_disjunctive_strict"] = [
        (["0..3", "0..3", "0..2"], "[x0,x1,1],[2,x2,0]", lambda s, t, d: disjoint([(s, 2), (t, d), (1, 0)], True))
    ]
    optional = ["bool", "bool", "0..3", "0..3", "0..2"]
    found["remat_disjunctive_opt"] = [
        (optional, "[x0,x1,true],[x2,x3,1],[2,x4,1]", lambda p, q, s, t, d: disjoint(
            [task for here, task in ((p, (s, 2)), (q, (t, d)), (True, (1, 1))) if here], False)),
    ]  # fmt: skip
    found["remat_disjunctive_strict_opt"] = [
        (optional, "[x0,x1,true],[x2,x3,1],[2,x4,1]", lambda p, q, s, t, d: disjoint(
            [task for here, task in ((p, (s, 2)), (q, (t, d)), (True, (1, 1))) if here], True)),
    ]  # fmt: skip
    found["remat_cumulative_opt"] = [
        (optional, "[x0,x1,true],[x2,x3,1],[2,x4,1],[2,1,1],2", lambda p, q, s, t, d: covered(
            [task for here, task in ((p, (s, 2, 2)), (q, (t, d, 1)), (True, (1, 1, 1))) if here], 2)),
    ]  # fmt: skip
    found["remat_diffn"] = [
        (["0..2", "0..2", "1..2", "0..1"], "[x0,1],[x1,1],[x2,1],[2,1]", lambda x, y, w, _: (
            x + w <= 1 or x >= 2 or y + 2 <= 1 or y >= 2)),
    ]  # fmt: skip
    found["remat_circuit"] = [
        (["0..4"] * 3, "1,[x0,x1,x2]", lambda *v: round_trip(v, False)),
        (["4..8"] * 4, "5,[x0,x1,x2,x3]", lambda *v: round_trip([s - 4 for s in v], False)),
        (["1..2"], "1,[x0]", lambda s: False),
    ]
    found["remat_subcircuit"] = [
        (["0..4"] * 3, "1,[x0,x1,x2]", lambda *v: round_trip(v, True)),
        (["5..8"] * 4, "5,[x0,x1,x2,x3]", lambda *v: round_trip([s - 4 for s in v], True)),
    ]
    found["remat_inverse"] = [
        (["1..3"] * 2 + ["-1..1"] * 2, "0,[x0,x1],2,[x2,x3]", lambda a, b, c, d: (
            {a, b} == {2, 3} and (c, d) == ((0, 1) if a == 2 else (1, 0)))),
        (["1..2"] * 3, "1,[x0,x1],1,[x2]", lambda *v: False),
    ]  # fmt: skip
    rows = {(1, 2), (2, 0), (3, 2)}
    for kind, domains, text, legal in (
        ("int", ["0..3", "0..2"], "[x0,x1],[1,2,2,0,3,2]", rows),
        ("bool", ["bool", "bool"], "[x0,x1],[true,false,false,false]", {(True, False), (False, False)}),
    ):
        name = f"remat_table_{kind}"
        found[name] = [(domains, text, lambda *v, legal=legal: v in legal)]
        found[name + "_reif"] = [([*domains, "bool"], text + ",x2", lambda *v, legal=legal: (v[:2] in legal) == v[2])]
        found[name + "_imp"] = [([*domains, "bool"], text + ",x2", lambda *v, legal=legal: v[:2] in legal or not v[2])]
    found["remat_table_int"].append((["0..3"], "[x0],[]", lambda a: False))
    found["remat_table_int_reif"].append((["0..3", "bool"], "[x0],[],x1", lambda a, b: not b))
    found["remat_regular"] = [
        (["0..3"] * 3, "[x0,x1,x2],2,2,[1,2,1,0],1,{1}", lambda *v: set(v) <= {1, 2} and accepted(v))
    ]


CASES = cases()


def values_of(domain: str) -> list:
    if domain == "bool":
        return [False, True]
    if domain.startswith("{"):
        return [int(value) for value in domain[1:-1].split(",")]
    low, high = domain.split("..")
    return list(range(int(low), int(high) + 1))


def flatzinc(name: str, domains: list[str], arguments: str) -> str:
    declared = [
        f"var {domain}: x{k} :: output_var;\n" for k, domain in enumerate(domains)
    ]  # fmt: skip
    return "".join(declared) + f"constraint {name}({arguments});\nsolve satisfy;\n"


def solutions(text: str, count: int) -> tuple[Ending, set[tuple]]:
    """Return all solutions of a model with variables x0, x1, ..."""
    model = parse(text)
    options = Options(Path("-"), all_solutions=True)
    stream = io.StringIO()
    printer = Printer(model, options, Deadline(), stream)
    verdict = CpSatSearch(model, options, printer, Deadline()).run()
    found = set()
    blocks = stream.getvalue().split("----------\n")[:-1]
    for block in blocks:
        values = dict(line.rstrip(";").split(" = ") for line in block.splitlines())
        found.add(
            tuple(
                {"true": True, "false": False}.get(values[f"x{k}"]) if values[f"x{k}"] in {"true", "false"}
                else int(values[f"x{k}"]) for k in range(count)
            )
        )  # fmt: skip
    assert len(found) == len(blocks), "a solution was printed twice"
    return verdict, found


def test_all_constraints_have_cases():
    assert set(BUILTINS) | set(GLOBALS) == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_cpsat_finds_all_solutions(name):
    for domains, arguments, holds in CASES[name]:
        wanted = {values for values in itertools.product(*map(values_of, domains)) if holds(*values)}
        verdict, found = solutions(flatzinc(name, domains, arguments), len(domains))
        assert found == wanted, (domains, arguments)
        assert verdict is (Ending.COMPLETE if wanted else Ending.UNSATISFIABLE)


LINEAR_CASES = {name: CASES[name] for name in sorted(ROWS) if name in CASES}


def test_all_rows_have_cases():
    assert {name for name in ROWS if "float" not in name} == set(LINEAR_CASES)


@pytest.mark.parametrize("name", sorted(LINEAR_CASES))
def test_highs_accepts_exactly_the_solutions(name):
    """HiGHS solves the model once per assignment, with all variables fixed."""
    for domains, arguments, holds in LINEAR_CASES[name]:
        if "{" in arguments:
            continue  # MiniZinc's linear library leaves no sets with gaps
        for values in itertools.product(*map(values_of, domains)):
            declared = [
                f"var {d}: x{k} = {str(v).lower()};\n" for k, (d, v) in enumerate(zip(domains, values, strict=True))
            ]
            model = parse("".join(declared) + f"constraint {name}({arguments}); solve satisfy;")
            printer = Printer(model, Options(Path("-")), Deadline(), io.StringIO())
            verdict = HighsSearch(model, Options(Path("-")), printer, Deadline()).run()
            assert (printer.count > 0) == bool(holds(*values)), (arguments, values)
            assert (verdict is Ending.UNSATISFIABLE) == (not holds(*values))
