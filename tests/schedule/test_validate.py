"""Validator: rules by hand, order of violations, certificates."""

import json
from dataclasses import replace

import pytest
from helpers import steps
from refusals import refused

from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.schedule import OrderRule, Rule, Rules, Verdict, schedule_buffers, validate
from remat.schedule.early_frees import with_early_frees
from remat.schedule.plan import ExecutionPlan
from remat.schedule.traces import chrome_trace, layer_table, memory_snapshot

RIGHT = ["f1", "f2", "-a", "loss", "g1", "-b", "f1", "g2", "-a", "-l", "up", "-g"]
PEAK = 21  # at step 1: x 4, a 8, b 6, workspace 3


@pytest.fixture
def graph():
    """Return a training step with graph input x, graph output w, accumulation buffer g; f2 must run once."""
    b = GraphBuilder("train")
    b.input("x", 4)
    b.tensor("g", 8)
    b.op("f1", inputs=["x"], outputs={"a": 8}, cost=2)
    b.op("f2", inputs=["a"], outputs={"b": 6}, workspace=3, cost=3, recomputable=False)
    b.op("loss", inputs=["b"], outputs={"l": 1}, cost=1)
    b.op("g1", inputs=["l", "b"], outputs=["g"], cost=4)
    b.op("g2", inputs=["l", "a"], outputs=["g"], cost=5)
    b.op("up", inputs=["g", "x"], outputs={"w": 4}, cost=1)
    b.output("w")
    return b.build()


def test_valid_schedule(graph):
    c = validate(graph, steps(RIGHT), Rules(budget=PEAK, order=OrderRule.FIXED, max_computes=2))
    assert c.accepted, c
    assert c.verdict is Verdict.VALID
    assert (c.peak, c.peak_step, c.peak_op, c.workspace_at_peak) == (PEAK, 1, "f2", 3)
    assert c.live_at_peak == (("a", 8), ("b", 6), ("x", 4))
    assert (c.cost, c.base_cost, c.overhead) == (18, 16, 12.5)
    assert (c.steps, c.computes, c.recomputations) == (12, 7, 1)
    assert (c.first, c.violations, c.more_violations) == (None, (), 0)
    assert (c.graph, c.graph_digest, c.schedule_digest) == ("train", graph.digest, steps(RIGHT).digest)


EARLY = ["f1", "f2", "loss", "g2", "g1", "up"]
AGAIN = ["f1", "f2", "loss", "g1", "f1", "loss", "g2", "up"]
THREE = [*RIGHT[:7], "f1", *RIGHT[7:]]


@pytest.mark.parametrize(
    ("words", "rules", "found", "message"),
    [
        (RIGHT, {"budget": PEAK - 1}, (1, Rule.BUDGET, "f2", None),
         "step 1: op 'f2' needs 21 bytes, 1 more than the budget; 3 steps are over it"),
        (EARLY, {}, None, ""),
        (EARLY, {"order": OrderRule.FIXED}, (3, Rule.ORDER, "g2", None), "before op 'g1'"),
        (AGAIN, {"order": OrderRule.FIXED}, None, ""),  # recomputations may come anywhere
        (THREE, {"max_computes": 2}, (7, Rule.COMPUTES_PER_OP, "f1", None), "at most 2 times"),
        (THREE, {"max_computes": {"f1": 1}}, (6, Rule.COMPUTES_PER_OP, "f1", None), "at most 1 times"),
        (RIGHT, {"keep": frozenset({"g"})}, (None, Rule.OUTPUT_NOT_LIVE, None, "g"),
         "at the end kept tensor 'g' is not live: it was freed at step 11"),
    ],
)  # fmt: skip
def test_rules_by_hand(graph, words, rules, found, message):
    certificate = validate(graph, steps(words), Rules(**rules))
    v = certificate.first
    assert certificate.accepted is (v is None)
    assert (certificate.verdict is Verdict.OVER_BUDGET) is ("budget" in rules)
    assert (v and (v.step, v.rule, v.op, v.tensor)) == found
    assert v is None or message in v.message


def test_limits_and_contributions_by_name(graph):
    with refused("problem.limited-op", culprit="missing"):
        validate(graph, steps(RIGHT), Rules(max_computes={"missing": 1}))
    b = GraphBuilder("half")
    b.tensor("s", 1)
    b.op("p", outputs=["s"])
    b.op("q", outputs=["s"])
    b.output("s")
    v = validate(b.build(), steps(["p", "q", "-s", "p"])).first
    assert (v.step, v.rule, v.tensor) == (None, Rule.OUTPUT_INCOMPLETE, "s")
    assert "'q'" in v.message


def test_invalid_precedes_over_budget(graph):
    certificate = validate(graph, steps([*RIGHT[:10], "-g"]), Rules(budget=PEAK - 1))
    assert certificate.verdict is Verdict.INVALID
    assert (certificate.pruned_peak, certificate.overhead) == (None, None)
    over = validate(graph, steps(RIGHT), Rules(budget=PEAK - 1))
    assert (over.pruned_peak, over.overhead, over.budget) == (PEAK, 12.5, PEAK - 1)
    assert [v.rule for v in certificate.violations] == [Rule.BUDGET, Rule.OP_NOT_COMPUTED, Rule.OUTPUT_NOT_LIVE]


def test_constant_memory_counts_if_requested(graph):
    heavy = replace(graph, constant_memory=100)
    assert validate(heavy, steps(RIGHT), Rules(budget=PEAK)).accepted
    assert not validate(heavy, steps(RIGHT), Rules(budget=PEAK, count_constant_memory=True)).accepted
    assert validate(heavy, steps(RIGHT), Rules(budget=PEAK + 100, count_constant_memory=True)).accepted


def test_schedule_of_another_graph(graph):
    assert validate(graph, steps(RIGHT, graph_digest=graph.digest)).accepted
    assert validate(graph, steps(RIGHT, graph="another name")).accepted
    other = replace(graph, order=("f1", "f2", "loss", "g2", "g1", "up"))
    v = validate(other, steps(RIGHT, graph_digest=graph.digest)).first
    assert (v.step, v.rule) == (None, Rule.GRAPH_DIGEST)
    assert graph.digest[:12] in v.message
    assert other.digest[:12] in v.message
    assert "at step 0\n" in str(validate(graph, steps("elsewhere")))  # a peak without an op
    certificate = validate(other, steps(["g1"], graph_digest=graph.digest))
    assert len(certificate.violations) > 2 and str(certificate).count("\n") == 3, "further violations are only counted"


def test_violations_are_in_the_order_of_steps(graph):
    words = ["f1", "-x", "f2", "f2", "loss", "g2", "g1", "up", "f3", "up"]
    rules = Rules(budget=20, order=OrderRule.FIXED, max_computes=1, keep=frozenset({"g"}))
    found = [(v.step, v.rule) for v in validate(graph, steps([*words, "-g"], graph_digest="0"), rules).violations]
    assert found == [
        (None, Rule.GRAPH_DIGEST),
        (1, Rule.FREE_GRAPH_INPUT),
        (2, Rule.BUDGET),
        (3, Rule.NOT_RECOMPUTABLE),
        (5, Rule.ORDER),
        (8, Rule.UNKNOWN_OP),
        (9, Rule.COMPUTES_PER_OP),
        (None, Rule.OUTPUT_NOT_LIVE),
    ]


def test_overhead_is_unknown_without_costs():
    b = GraphBuilder("free of cost")
    b.op("a", size=1)
    g = b.build()
    c = validate(g, steps(["a", "a"]))
    assert (c.cost, c.base_cost, c.overhead, c.recomputations) == (0, 0, None, 1)
    assert "overhead" not in str(c)


@pytest.mark.parametrize("make", [
    memory_snapshot, chrome_trace, layer_table, with_early_frees, ExecutionPlan.of_schedule, schedule_buffers,
])  # fmt: skip
def test_invalid_schedules_are_not_converted(make):
    with refused("schedule.not-valid", culprit="f1"):
        make(unit_chain(2), steps("f1"))


def test_text_of_certificates(graph):
    rules = Rules(budget=20, max_computes={"f1": 2}, keep=frozenset({"g"}))
    certificate = validate(graph, steps(RIGHT), rules, max_violations=1)
    text = str(certificate)
    assert text.startswith("verdict       invalid\ngraph         train (")
    assert "peak          21 bytes at step 1 (f2)" in text
    assert "budget        20 bytes" in text
    assert "violation     step 1: op 'f2' needs 21 bytes" in text
    assert "and 1 more violations" in text
    assert all(line[13] == " " and line[14] != " " for line in text.splitlines())  # values are aligned
    document = json.loads(json.dumps(certificate.as_dict()))
    assert document["verdict"] == "invalid"
    assert document["violations"][0]["rule"] == "budget"
    assert document["rules"] == {
        "budget": 20,
        "order": "free",
        "max_computes": {"f1": 2},
        "keep": ["g"],
        "count_constant_memory": False,
    }


def test_picture_names_large_tensors_even_if_others_hold_more() -> None:
    """Of 101 values live at the peak ten have bars; if they are equal, the others would take 91 of 101 parts."""
    builder = GraphBuilder("wide")
    values = [builder.op(f"a{k}", size=1024, cost=1) for k in range(100)]
    builder.op("sum", inputs=values, size=1024, cost=1)
    graph = builder.build()
    (axes,) = validate(graph, steps(" ".join(graph.order))).plot().axes
    assert axes.get_xlabel() == "largest tensors at the peak (KiB); all others hold 91.00 KiB"
    assert [bar.get_width() for bar in axes.patches] == [1.0] * 10
