"""Conformance kit on every registered formulation, backend, heuristic and format."""

import base64
import io
import json
import os
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from remat import registry
from remat.errors import RematError
from remat.formulations.timed_h_ilp import TimedHIlp
from remat.formulations.timed_intervals import TimedIntervals
from remat.formulations.timed_stages import TimedStages
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.formats.base import graph_formats
from remat.heuristics.annealing.heuristic import AnnealingOptions
from remat.heuristics.lp_rounding import LpRoundingOptions
from remat.ordering.base import OrderSearch
from remat.schedule.formats.base import schedule_formats
from remat.testing import (
    BACKEND_CHECKS,
    FORMAT_CHECKS,
    FORMULATION_CHECKS,
    HEURISTIC_CHECKS,
    MACHINE_CHECKS,
    ORDER_CHECKS,
    PAIR_CHECKS,
    Effort,
    Sample,
)

#: Backends that continuous integration must not skip.
REQUIRED = {"cp-sat", "highs", "minizinc:gecode", "minizinc:cp-sat", "minizinc:highs", "pyomo:cbc"}
#: Variants tested per family; the others share their code.
VARIANTS = {"minizinc": ("gecode", "cp-sat", "highs"), "pyomo": ("cbc", "highs")}
#: Each call of these starts one or two programs.
SLOW_FAMILIES = ("minizinc", "pyomo")


def backend_names():
    names = []
    for family in registry.backends():
        variants = VARIANTS.get(family)
        names += [f"{family}:{variant}" for variant in variants] if variants else [family]
    return names


BACKENDS = backend_names()
FORMULATIONS = [name for name in registry.formulations() if not registry.load("formulations", name).moves]
#: Formulations that move tensors, with a backend.
MOVING = [(TimedIntervals, "cp-sat"), (TimedStages, "highs"), (TimedHIlp, "highs")]


def effort_for(backend, formulation="", *, thorough=False):
    """Return the effort, with fewer models where each starts a program.

    Quick runs have a long grace. The slow run, alone on the machine, checks the promised second after 5 s.
    """
    effort = Effort(most_ops=6, cases=20, deadline=5.0) if thorough else Effort(cases=2, deadline=0.5, grace=10.0)
    if backend.partition(":")[0] in SLOW_FAMILIES:
        return replace(effort, most_ops=4, deadline=max(effort.deadline, 1.0), cases=5 if thorough else 1)
    if formulation in {"retention-intervals", "h-intervals"} and backend != "cp-sat":
        return replace(effort, most_ops=4, cases=8 if thorough else 2)
    return effort


def made(name):
    """Return the backend; skip the test if it is unavailable, or fail if the test run requires it."""
    try:
        backend = registry.make_backend(name)
        state = backend.ready()
    except RematError as error:
        reason = str(error)
    else:
        if state.ready:
            return backend
        reason = f"{state.state}: {state.reason}"
    if os.environ.get("REMAT_CI") and name in REQUIRED:
        pytest.fail(f"backend {name} must be tested here, but is {reason}")
    pytest.skip(f"backend {name} is {reason}")


def test_required_backends_and_formulations_exist():
    assert set(BACKENDS) >= REQUIRED
    assert {"checkmate", "h-ilp", "h-intervals", "retention-intervals", "stages", *ORDERS} <= set(FORMULATIONS)


@pytest.mark.parametrize("check", FORMULATION_CHECKS)
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_formulation(formulation, check):
    check(registry.load("formulations", formulation), Effort(cases=1))


@pytest.mark.parametrize("check", MACHINE_CHECKS)
@pytest.mark.parametrize(("formulation", "backend"), MOVING)
def test_formulation_with_transfers(formulation, backend, check):
    check(formulation, made(backend), Effort(cases=2))


def test_all_formulations_with_transfers_are_tested():
    named = {name for name in registry.formulations() if registry.load("formulations", name).moves}
    assert named <= {formulation.name for formulation, _ in MOVING}


#: Checks of the quick run for backends that start programs; the slow run has all. HiGHS tests the bridges for linear
#: solvers, and HiGHS through Pyomo or MiniZinc is the same solver; Gecode reads each kind of MiniZinc's constraints.
QUICK_BACKENDS = {
    "pyomo:highs": {"linear"},
    "minizinc:highs": {"linear"},
    "minizinc:cp-sat": {"says_whether_it_is_ready", "cumulative", "takes_hints", "stops_when_asked"},
    "pyomo:cbc": {check.__name__ for check in BACKEND_CHECKS} - {
        "enforced", "clauses", "domain", "cumulative", "variable_capacity", "reservoir", "all_different", "no_overlap",
        "no_overlap_of_rectangles",
        "empty_models", "no_objective", "implied_variables",
        "stops_when_asked",  # reports solutions only at its end
    },
}  # fmt: skip
QUICK = [
    (b, check)
    for b in BACKENDS
    for check in BACKEND_CHECKS
    if check.__name__ in QUICK_BACKENDS.get(b, {check.__name__})
]


@pytest.mark.parametrize(("backend", "check"), QUICK)
def test_backend(backend, check):
    check(made(backend), effort_for(backend))


#: Checks of the quick run for pairs. `stages` and `h-ilp` have linear rows like `checkmate`; `h-intervals` without
#: composites has the records of retention intervals; orders use few kinds of records. Gecode tests MiniZinc
#: output of each kind of records, CBC each kind of rows once.
ORDERS = ("linear-order", "order-intervals", "order-positions")
BUFFERS, LEAN_BUFFERS = "accumulation_buffers", "least_peak_of_accumulation_buffers_in_any_order"
GECODE = {"full_graphs", BUFFERS, "full_graphs_in_any_order", LEAN_BUFFERS, "hints_are_taken"}
QUICK_PAIRS = {
    **{(order, "cp-sat"): {"full_graphs_in_any_order", "least_peak_of_full_graphs_in_any_order", "orders_alone",
                           LEAN_BUFFERS, "infeasible_stays_infeasible", "hints_are_taken"} for order in ORDERS},
    **{(order, "highs"): {"accumulation_buffers_in_any_order", LEAN_BUFFERS} for order in ORDERS},
    **{(order, "minizinc:gecode"): {LEAN_BUFFERS} for order in ORDERS},
    ("order-positions", "pyomo:cbc"): {LEAN_BUFFERS},
    ("checkmate", "minizinc:gecode"): GECODE - {LEAN_BUFFERS},
    ("checkmate", "minizinc:cp-sat"): {"full_graphs"},
    ("checkmate", "pyomo:cbc"): {"full_graphs", "hints_are_taken"},
    ("retention-intervals", "minizinc:gecode"): GECODE,
    ("retention-intervals", "minizinc:cp-sat"): {LEAN_BUFFERS},
    ("retention-intervals", "minizinc:highs"): {"full_graphs"},
    ("retention-intervals", "pyomo:cbc"): {BUFFERS, "limited_computes_in_any_order"},
    ("checkmate", "cp-sat"): {"full_graphs", "limited_computes", BUFFERS, "hints_are_taken"},
    ("stages", "highs"): {"full_graphs", "limited_computes", BUFFERS, "infeasible_stays_infeasible", "hints_are_taken"},
    ("retention-intervals", "highs"): {"full_graphs", BUFFERS, "full_graphs_in_any_order", LEAN_BUFFERS,
                                       "hints_are_taken"},
    ("stages", "cp-sat"): {"full_graphs", "hints_are_taken"},
    ("h-ilp", "cp-sat"): {BUFFERS},
    ("h-ilp", "highs"): {"full_graphs", "limited_computes", BUFFERS, "hints_are_taken"},
    ("h-ilp", "minizinc:gecode"): {BUFFERS},
    ("h-intervals", "cp-sat"): {"full_graphs", LEAN_BUFFERS},
    ("h-intervals", "highs"): {BUFFERS},
}  # fmt: skip
COMPLETE = {"checkmate": {"highs"}, "retention-intervals": {"cp-sat"}}


def quick_pairs():
    """Yield formulation, backend and check of all pairs of the quick run."""
    for formulation in FORMULATIONS:
        for backend in BACKENDS:
            whole = backend in COMPLETE.get(formulation, ())
            chosen = QUICK_PAIRS.get((formulation, backend), ())
            yield from ((formulation, backend, check) for check in PAIR_CHECKS if whole or check.__name__ in chosen)


@pytest.mark.parametrize(("formulation", "backend", "check"), [*quick_pairs()])
def test_pair(formulation, backend, check):
    check(registry.load("formulations", formulation), made(backend), effort_for(backend, formulation))


#: Options of heuristics that would use their whole time limit.
QUICK_OPTIONS = {
    "annealing": AnnealingOptions(moves=2000),
    "lp-rounding": LpRoundingOptions(allowances=(0.0, 0.1), thresholds=(0.5,), samples=1),
}
FEW = Effort(most_ops=4, cases=1, deadline=0.2, grace=5.0)
#: Efforts of heuristics that end on their own, but late on a busy machine.
QUICK_EFFORT = {"lp-rounding": replace(FEW, deadline=2.0)}


#: Families of the slow run alone: graphs of the others have all that these have, except for a limit of computes.
SLOW_FAMILY_CHECKS = {"plain_graphs", "plain_graphs_in_any_order", "limited_computes_in_any_order",
                      "accumulation_buffers_in_any_order"}  # fmt: skip
#: Heuristics that differ from another one in the choice of checkpoints alone, and checks of the code that they share.
SIBLINGS = {"ap-greedy", "ap-sqrt", "linearized-greedy", "linearized-sqrt", "chen-sqrt", "checkpoint-last"}
SHARED_CHECKS = {"gives_the_same_again", "leaves_the_problem_alone", "is_no_worse_than_its_start", "ends_in_time",
                 "stops_when_asked"}  # fmt: skip
QUICK_HEURISTICS = [
    (heuristic, check)
    for heuristic in registry.heuristics()
    for check in HEURISTIC_CHECKS
    if check.__name__ not in SLOW_FAMILY_CHECKS and not (heuristic in SIBLINGS and check.__name__ in SHARED_CHECKS)
    if heuristic in {"transfers", "pofo"} or check.__name__ != "moves_tensors_on_machines"
]


@pytest.mark.parametrize(("heuristic", "check"), QUICK_HEURISTICS)
def test_heuristic(heuristic, check):
    effort = FEW if check.__name__ == "ends_in_time" else QUICK_EFFORT.get(heuristic, FEW)
    check(maker(heuristic), effort)


def maker(heuristic):
    if heuristic == "torch-min-cut" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    cls = registry.load("heuristics", heuristic)
    return lambda: cls(QUICK_OPTIONS.get(heuristic))


SEARCHES = [name for name, kind in registry.Registered("methods").usable().items() if issubclass(kind, OrderSearch)]


@pytest.mark.parametrize("check", ORDER_CHECKS)
@pytest.mark.parametrize("search", SEARCHES)
def test_order_search(search, check):
    cls = registry.load("methods", search)
    check(lambda: cls(QUICK_OPTIONS.get(search)), replace(FEW, cases=2))


def training_chain():
    """Return a forward op, the loss and a backward op, with Rockmate's names of values."""
    b = GraphBuilder("chain")
    b.op("F", outputs={"x data": 2, "x phantoms": 5})
    b.op("loss", inputs=["x data"], size=1)
    b.op("B", inputs=["loss", "x phantoms"], size=1)
    return b.build()


def single_chain():
    b = GraphBuilder("pair")
    b.op("a", size=2)
    b.op("b", inputs=["a"], size=1)
    return b.build()


def saved_graph():
    b = GraphBuilder("step")
    b.op("f", size=4, phase="forward")
    b.op("g", inputs=["f"], size=4, phase="forward")
    b.op("h", inputs=["f", "g"], size=4, phase="backward")
    return b.build()


def sample(document, graph=None):
    return Sample(json.dumps(document).encode(), graph)


def archive(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


ON, OFF = {"disabled": False, "fast_forward": False}, {"disabled": False}
#: Checkmate's register operations for `single_chain`.
REGISTERS = [["alloc", 0, 0, 2], ["compute", 0, 0, {}, 0], ["alloc", 1, 1, 1], ["compute", 1, 1, {"0": 0}, 0],
             ["free", 0, 0]]  # fmt: skip
#: Sample files of read-only formats.
SAMPLES = {
    "node-link": [sample({
        "directed": True, "multigraph": False, "graph": {},
        "nodes": [{"id": 0, "cost_cpu": 4, "cost_ram": 1}, {"id": 1, "cost_cpu": 3, "cost_ram": 2}],
        "links": [{"source": 0, "target": 1}],
    })],
    "checkmate": [
        sample({"R": [[1, 0], [0, 1]], "S": [[0, 0], [1, 0]]}, single_chain()),
        sample({"producer": "Checkmate", "ops": REGISTERS}, single_chain()),
        Sample(archive(R=np.eye(2, dtype=int), S=np.eye(2, k=-1, dtype=int)), single_chain()),
    ],
    "rockmate": [sample({
        "loss_index": 1,
        "ops": [["compute", "F", ON], ["compute", "loss", ON], ["delete", "x data", OFF], ["compute", "B", ON]],
    }, training_chain())],
    "saved-set": [sample({"saved": ["f"]}, saved_graph())],
    "rotor": [Sample(b"[CF_0, Fn_1, Fe_2, L, B_2, CF_0, Fe_1, B_1, Fe_0, B_0]\n", unit_chain(3))],
    "dtr": [Sample("\n".join(map(json.dumps, (
        {"INSTRUCTION": "CONSTANT", "NAME": "w"}, {"INSTRUCTION": "MEMORY", "NAME": "w", "MEMORY": "64"},
        {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["w"], "RESULT": ["x"], "TIME": "500"},
        {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"}, {"INSTRUCTION": "ALIAS", "NAME": "x", "ALIAS": "-1"},
    ))).encode())],
}  # fmt: skip
if find_spec("onnx"):  # a ReLU
    SAMPLES["onnx"] = [
        Sample(
            b'\x08\x08:6\n\x0f\n\x01x\x12\x01y\x1a\x01r"\x04Relu\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x04b\x0f\n\x01y'
            b"\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x04B\x04\n\x00\x10\x15"
        )
    ]

if find_spec("tflite"):  # a ReLU
    SAMPLES["tflite"] = [
        Sample(
            base64.b85decode(
                b"7ytkOR7OlQ000gE6aWwa3;+lK000C44gdfE5C8xG6aWAK7ytkO0{{R30RR91`~Uy|0RR91Gynhq0RR913;+NC2mlNK3jhQF2mk;8"
                b"2mk;80000J00000000gE7yuLi5C9AS2mk~C4gdfEH~;_u5C8xG6aWAK7ytkO8~^|S0RR91FaQ7m0RR910RR910RR91000000ssI2"
                b"WB>pFFaQ7m00000000UA3;+NC2mk~C3IG5A2mk;83;+NC0RR910RR910RR9100000-"
                b"2eao7ytkO000092mk;8000000RR911ONa40RR91c>n+a3;+-"
                b"S3;+uN000C43;+NC7ytkO000092mk;8000000RR911ONa40RR91cmMzZ1ONm81ONa4"
            )
        )
    ]


@pytest.mark.parametrize("check", FORMAT_CHECKS)
@pytest.mark.parametrize("format_", [*graph_formats(), *schedule_formats()], ids=lambda each: each.name)
def test_format(format_, check):
    check(format_, Effort(most_ops=4, cases=1), SAMPLES.get(format_.name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("check", FORMAT_CHECKS)
@pytest.mark.parametrize("format_", [*graph_formats(), *schedule_formats()], ids=lambda each: each.name)
def test_format_thorough(format_, check):
    check(format_, Effort(most_ops=4, cases=3), SAMPLES.get(format_.name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("check", MACHINE_CHECKS)
@pytest.mark.parametrize(("formulation", "backend"), MOVING)
def test_formulation_with_transfers_thorough(formulation, backend, check):
    check(formulation, made(backend), Effort(cases=60))


@pytest.mark.slow
@pytest.mark.parametrize("check", FORMULATION_CHECKS)
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_formulation_thorough(formulation, check):
    check(registry.load("formulations", formulation), Effort(cases=4))


@pytest.mark.slow
@pytest.mark.parametrize("check", HEURISTIC_CHECKS)
@pytest.mark.parametrize("heuristic", list(registry.heuristics()))
def test_heuristic_thorough(heuristic, check):
    effort = replace(FEW if check.__name__ == "ends_in_time" else QUICK_EFFORT.get(heuristic, FEW), cases=3)
    check(maker(heuristic), effort)


#: Checks that measure time.
TIMED = {"deadline_keeps_the_incumbent", "stops_when_asked"}


def timed_alone(checks):
    return [pytest.param(c, marks=pytest.mark.alone) if c.__name__ in TIMED else c for c in checks]


@pytest.mark.slow
@pytest.mark.parametrize("check", timed_alone(BACKEND_CHECKS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_backend_thorough(backend, check):
    check(made(backend), effort_for(backend, thorough=True))


@pytest.mark.slow
@pytest.mark.parametrize("check", timed_alone(PAIR_CHECKS))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_pair_thorough(formulation, backend, check):
    check(registry.load("formulations", formulation), made(backend), effort_for(backend, formulation, thorough=True))
