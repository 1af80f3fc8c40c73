"""Classic and random MiniZinc models with equal results on Gecode, fzn-cpsat and fzn-highs."""

import os
import random
import re
import shutil
import subprocess

import pytest

from minizinc_solvers.registration import environment_folder

MINIZINC = shutil.which("minizinc")
pytestmark = pytest.mark.skipif(MINIZINC is None, reason="the minizinc program is not installed (apt install minizinc)")
SOLVERS = ("gecode", "remat-cp-sat", "remat-highs")


def minizinc(model: str, solver: str, tmp_path, *options: str) -> str:
    """Return the output of the program for a model."""
    assert MINIZINC is not None
    path = tmp_path / "model.mzn"
    path.write_text(model)
    done = subprocess.run(
        [MINIZINC, "--solver", solver, *options, path], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "MZN_SOLVER_PATH": str(environment_folder())},
    )  # fmt: skip
    output = done.stdout + done.stderr  # may include warnings
    assert done.returncode == 0 and not re.search("error", output, re.IGNORECASE), (solver, output)
    return done.stdout


def outcome(model: str, solver: str, tmp_path) -> str:
    """Return the proved objective, as printed by the model's output item, or the verdict."""
    output = minizinc(model, solver, tmp_path)
    if "UNSATISFIABLE" in output:
        return "unsatisfiable"
    assert output.rstrip().endswith("=========="), output
    return re.findall(r"objective (-?\d+)", output)[-1]


# Models and their known optima.
CLASSICS = {
    "knapsack": (
        """array[1..6] of int: w = [3,4,7,8,9,2]; array[1..6] of int: v = [4,5,10,11,13,2];
        array[1..6] of var 0..1: x; constraint sum(i in 1..6)(w[i]*x[i]) <= 17;
        var int: z = sum(i in 1..6)(v[i]*x[i]); solve maximize z; output ["objective \\(z)"];""",
        "24",
    ),
    "golomb ruler of 6 marks": (
        """include "all_different.mzn"; array[1..6] of var 0..25: m;
        constraint m[1] = 0; constraint forall(i in 1..5)(m[i] < m[i+1]);
        constraint all_different([m[j]-m[i] | i in 1..6, j in 1..6 where i < j]);
        constraint m[2]-m[1] < m[6]-m[5]; solve minimize m[6]; output ["objective \\(m[6])"];""",
        "17",
    ),
    "job shop of 3 jobs": (
        """include "cumulative.mzn"; include "disjunctive.mzn";
        array[1..3,1..3] of int: d = [|3,2,2|2,1,4|0,4,3|]; array[1..3,1..3] of int: on = [|1,2,3|1,3,2|1,2,3|];
        array[1..3,1..3] of var 0..20: s; var 0..20: end;
        constraint forall(j in 1..3)(forall(k in 1..2)(s[j,k]+d[j,k] <= s[j,k+1]) /\\ s[j,3]+d[j,3] <= end);
        constraint forall(m in 1..3)(cumulative([s[j,k] | j,k in 1..3 where on[j,k]=m],
          [d[j,k] | j,k in 1..3 where on[j,k]=m], [1 | j,k in 1..3 where on[j,k]=m], 1));
        solve minimize end; output ["objective \\(end)"];""",
        "11",
    ),
    "cumulative with a variable capacity and demands": (
        """include "cumulative.mzn"; array[1..4] of var 0..4: s; var 0..9: cap; var 1..2: r;
        array[1..4] of int: d = [3,2,2,1];
        constraint cumulative(s, d, [2,3,r,2], cap); constraint forall(i in 1..4)(s[i]+d[i] <= 4);
        constraint r >= 2 \\/ s[3] = 0; solve minimize 10*cap + r + s[4]; output ["objective \\(10*cap+r+s[4])"];""",
        None,
    ),
    "optional tasks": (
        """include "cumulative.mzn"; include "cumulative_opt.mzn"; array[1..5] of var opt 0..5: s;
        array[1..5] of int: d = [3,2,4,1,2]; array[1..5] of int: r = [2,1,2,3,1];
        array[1..5] of int: v = [5,3,8,4,2]; constraint cumulative(s, d, r, 3);
        constraint forall(i in 1..5)(occurs(s[i]) -> deopt(s[i]) + d[i] <= 6);
        var int: z = sum(i in 1..5)(v[i]*bool2int(occurs(s[i]))); solve maximize z; output ["objective \\(z)"];""",
        None,
    ),
    "element and table": (
        """include "table.mzn"; array[1..5] of int: price = [7,2,9,4,6]; var 1..5: i; array[1..3] of var 0..5: t;
        constraint table(t, [|1,2,3|3,1,4|5,0,2|0,5,5|]); constraint price[i] >= t[1] + t[2];
        array[1..3] of var 1..5: y; constraint y[t[2]+1 mod 3] = t[3] /\\ y[1] + y[2] + y[3] <= i + 4;
        var int: z = price[i] + 3*t[3] - y[3]; solve maximize z; output ["objective \\(z)"];""",
        None,
    ),
    "round trip": (
        """include "circuit.mzn"; array[1..5,1..5] of int: c = [|0,3,9,4,7|2,0,6,8,3|9,5,0,1,6|4,7,2,0,8|6,3,5,9,0|];
        array[1..5] of var 1..5: x; constraint circuit(x); array[1..5] of var 0..9: step;
        constraint forall(i in 1..5)(step[i] = c[i,x[i]]); solve minimize sum(step);
        output ["objective \\(sum(step))"];""",
        None,
    ),
    "inverse with shifted indices": (
        """include "inverse.mzn"; array[0..3] of var 2..5: f; array[2..5] of var 0..3: g; constraint inverse(f, g);
        constraint f[0] > f[2]; solve maximize sum(i in 0..3)(i*f[i]) - 2*g[2];
        output ["objective \\(sum(i in 0..3)(i*f[i]) - 2*g[2])"];""",
        None,
    ),
    "boxes": (
        """include "diffn.mzn"; array[1..4] of var 0..6: x; array[1..4] of var 0..3: y;
        array[1..4] of int: w = [2,3,2,1]; array[1..4] of int: h = [3,2,2,4]; var 0..9: end;
        constraint diffn(x, y, w, h); constraint forall(i in 1..4)(y[i]+h[i] <= 4 /\\ x[i]+w[i] <= end);
        solve minimize end; output ["objective \\(end)"];""",
        "6",
    ),
    "sets": (
        """var set of 1..6: s; var set of 1..6: t; constraint card(s) = 3; constraint s intersect t = {2};
        constraint sum(i in s)(i) <= 9; constraint 6 in t <-> 4 in s;
        solve maximize sum(i in t)(i) + max([bool2int(i in s)*i | i in 1..6]);
        output ["objective \\(sum(i in fix(t))(i) + max([bool2int(i in fix(s))*i | i in 1..6]))"];""",
        None,
    ),
    "arithmetic": (
        """var -6..6: a; var -4..4: b; var -9..9: c; var -9..9: e; var 0..60: p; var 1..4: n;
        constraint a div b = c; constraint a mod b = e; constraint p = abs(a * b); constraint max([a, b, c]) > 2;
        constraint min(a, c) < -1 \\/ n > 2; constraint p != 12;
        solve maximize p + 3*e - 2*c + n; output ["objective \\(p + 3*e - 2*c + n)"];""",
        None,
    ),
    "nothing works": (
        """include "all_different.mzn"; array[1..4] of var 1..3: x; constraint all_different(x);
        solve minimize x[1]; output ["objective \\(x[1])"];""",
        "unsatisfiable",
    ),
}


#: Classics of the quick run have the kinds of constraints that the others share.
QUICK = {"boxes", "sets"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in CLASSICS])
def test_classic_models(name, tmp_path):
    model, optimum = CLASSICS[name]
    outcomes = {solver: outcome(model, solver, tmp_path) for solver in SOLVERS}
    assert len(set(outcomes.values())) == 1, outcomes
    if optimum is not None:
        assert set(outcomes.values()) == {optimum}


QUEENS = """include "all_different.mzn"; array[1..6] of var 1..6: q; constraint all_different(q);
constraint all_different([q[i]+i | i in 1..6]); constraint all_different([q[i]-i | i in 1..6]); solve satisfy;
output ["q \\(q)\\n"];"""

MAGIC = """include "all_different.mzn"; array[1..3,1..3] of var 1..9: m; constraint all_different(array1d(m));
constraint forall(i in 1..3)(sum(j in 1..3)(m[i,j]) = 15 /\\ sum(j in 1..3)(m[j,i]) = 15);
constraint m[1,1]+m[2,2]+m[3,3] = 15 /\\ m[1,3]+m[2,2]+m[3,1] = 15; solve satisfy; output ["q \\(m)\\n"];"""

REIFIED = """include "regular.mzn"; include "table.mzn"; include "subcircuit.mzn"; include "disjunctive.mzn";
array[1..4] of var 1..4: x; var bool: b; var bool: c;
constraint regular(x, 3, 4, [|1,2,0,3|2,3,1,2|3,0,2,1|], 1, {2,3});
constraint b <-> table([x[1],x[3]], [|1,2|2,3|3,3|]); constraint c <-> x[1] > 1; constraint subcircuit(x);
constraint b xor c \\/ x[2] = 2; constraint disjunctive([x[1],x[2]], [1,x[3]-1]); solve satisfy;
output ["q \\(x) \\(b) \\(c)\\n"];"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "count"), [(QUEENS, 4), (MAGIC, 8), (REIFIED, None)], ids=["queens", "magic", "reif"]
)
def test_equal_sets_of_all_solutions(model, count, tmp_path):
    found = []
    for solver in ("gecode", "remat-cp-sat"):
        output = minizinc(model, solver, tmp_path, "-a")
        assert output.rstrip().endswith("==========")
        found.append(sorted(line for line in output.splitlines() if line.startswith("q ")))
    assert found[0] == found[1]
    assert len(found[0]) == count if count else found[0]
    assert minizinc(model, "remat-highs", tmp_path).splitlines()[0] in found[0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))])
def test_random_models(seed, tmp_path):
    model = random_model(random.Random(seed))
    outcomes = {solver: outcome(model, solver, tmp_path) for solver in SOLVERS}
    assert len(set(outcomes.values())) == 1, (outcomes, model)


def random_model(rng: random.Random) -> str:
    """Return a model of a few small integers and Booleans, nested random constraints, and a linear objective."""

    def term(depth: int = 2) -> str:
        kind = rng.randrange(9 if depth else 2)
        if kind < 2 or not depth:
            return rng.choice(["x[1]", "x[2]", "x[3]", "x[4]", str(rng.randint(-3, 4))])
        one, two = term(depth - 1), term(depth - 1)
        return {
            2: f"({one} + {two})", 3: f"({one} - {two})", 4: f"max({one}, {two})", 5: f"abs({one})",
            6: f"([3,-1,2,0][{rng.choice(['x[1]', 'x[3]'])}])", 7: f"min({one}, {two})",
            8: f"({rng.choice(['x[1]', 'x[2]'])} * {one})",
        }[kind]  # fmt: skip

    def condition(depth: int = 2) -> str:
        kind = rng.randrange(8 if depth else 3)
        if kind < 2:
            return f"({term()} {rng.choice(['=', '!=', '<=', '<', '>='])} {term()})"
        if kind == 2:
            return rng.choice(["b[1]", "b[2]", "(x[2] in {-1,0,2})", "(x[4] in 1..3)"])
        one, two = condition(depth - 1), condition(depth - 1)
        return {
            3: f"({one} \\/ {two})", 4: f"({one} /\\ {two})", 5: f"(not {one})", 6: f"({one} <-> {two})",
            7: f"({one} -> {two})",
        }[kind]  # fmt: skip

    weights = [rng.randint(-4, 5) for _ in range(5)]
    objective = " + ".join(f"{w}*x[{k}]" for k, w in enumerate(weights[:4], 1)) + f" + {weights[4]}*bool2int(b[1])"
    lines = ["var 1..4: x1; var -3..3: x2; var 1..4: x3; var {-2,0,1,4}: x4;"]
    lines += ["array[1..4] of var -3..4: x = [x1,x2,x3,x4]; array[1..2] of var bool: b;"]
    lines += [f"constraint {condition()};" for _ in range(rng.randint(2, 5))]
    lines += [f"solve {rng.choice(['minimize', 'maximize'])} {objective};", f'output ["objective \\({objective})"];']
    return "\n".join(lines)


def test_intermediate_solutions_and_bounds_are_printed(tmp_path):
    for solver in ("remat-cp-sat", "remat-highs"):
        output = minizinc(CLASSICS["knapsack"][0], solver, tmp_path, "-a", "-s")
        assert "objective 24" in output and "%%%mzn-stat: objectiveBound=24" in output


#: A constraint of each kind that CP-SAT has.
GLOBALS = """include "globals.mzn"; array[1..4] of var 1..4: x; array[1..4] of var 1..4: y;
array[1..4] of var opt 0..5: s; var 4..9: cap; constraint all_different(x);
constraint cumulative(s, [3,2,4,1], [2,1,2,3], 3); constraint cumulative(x, [3,2,2,1], [2,3,1,2], cap);
constraint table(y, [|1,2,3,4|2,1,4,3|4,3,2,1|]); constraint circuit(x); constraint inverse(x, y);
constraint diffn(x, y, [2,3,2,1], [3,2,2,4]); solve minimize cap;"""


def test_globals_are_not_decomposed_for_cp_sat(tmp_path):
    flat = tmp_path / "flat.fzn"
    minizinc(GLOBALS, "remat-cp-sat", tmp_path, "-c", "--fzn", str(flat))
    kinds = "cumulative_opt", "table_int", "circuit", "inverse", "diffn"
    for call in "fzn_all_different_int", "fzn_cumulative", *(f"remat_{kind}" for kind in kinds):
        assert f"constraint {call}(" in flat.read_text()
