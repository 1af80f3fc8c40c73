"""Costs from profiles: reading, invalid files, and use in commands and configurations."""

import json

import pytest
from refusals import refused
from shell import facts, ok

from remat.config import Config
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.graphs.profiles import CostSet, Profile, read_profile, with_costs
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.schedule import OrderRule
from remat.testing import optimum


def graph_of(*names):
    b = GraphBuilder("g")
    for name in names:
        b.op(name, size=1, cost=1)
    return b.build()


def profile(tmp_path, text, name="costs.csv"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return read_profile(path)


def document(**changes):
    sets = [
        {"device": "gpu", "unit": "ns", "costs": {"a": 1200, "b": 30}},
        {"device": "cpu", "unit": "us", "costs": {}},
    ]
    return {"format": "remat-costs", "version": 1, "sets": sets} | changes


def test_profile_of_one_set(tmp_path):
    found = profile(tmp_path, '\ufeffop,us\r\na,12\r\n\r\nb, 3e2 \r\n"c,""d""",0\r\n')
    assert found.sets == (CostSet("", "us", {"a": 12, "b": 300, 'c,"d"': 0}),)
    graph = graph_of("b", "a", 'c,"d"')
    measured = with_costs(graph, found)
    assert [op.cost for op in measured.ops] == [300, 12, 0]
    assert (measured.base_cost, measured.cost_unit) == (312, "us")
    assert [(t.name, t.size) for t in measured.tensors] == [(t.name, t.size) for t in graph.tensors]
    assert [op.cost for op in graph.ops] == [1, 1, 1]
    assert measured.digest != graph.digest


def test_profile_of_several_devices(tmp_path):
    """As CSV and as JSON; each set has its own unit and may lack ops."""
    table = profile(tmp_path, "op,big gpu [ns],cpu[us]\na,1200,5\nb,30,\n")
    assert table.sets == (CostSet("big gpu", "ns", {"a": 1200, "b": 30}), CostSet("cpu", "us", {"a": 5}))
    same = document()
    same["sets"][0]["device"], same["sets"][1]["costs"] = "big gpu", {"a": 5.0}
    assert profile(tmp_path, same, "costs.json").sets == table.sets
    graph = graph_of("a", "b")
    assert with_costs(graph, table, "big gpu").base_cost == 1230
    with refused("graph.costs", culprit="cpu"):
        with_costs(graph, table, "cpu")
    with refused("format.device", culprit="big gpu"):
        with_costs(graph, table)
    with refused("format.device", culprit="tpu"):
        with_costs(graph, table, "tpu")


def test_profiles_that_do_not_fit_the_graph():
    graph = graph_of(*"abcdefgh")
    few = Profile("few.csv", (CostSet("", "us", {"c": 1}),))
    with refused("graph.costs", culprit="g"):
        with_costs(graph, few)
    many = Profile("many.csv", (CostSet("", "us", dict.fromkeys("abcdefghij", 1)),))
    with refused("graph.costs", culprit="g"):
        with_costs(graph, many)
    huge = Profile("huge.csv", (CostSet("", "us", dict.fromkeys("abcdefgh", 2**60)),))
    with refused("graph.sums"):
        with_costs(graph, huge)


TABLES = [
    "", "op\na\n", "name,us\na,1\n", "op,ms\na,1\n", "op,none\na,1\n", "op,gpu [s]\n", "op,us,ns\na,1,2\n",
    "op,gpu [us],gpu [ns]\na,1,2\n", "op,us\na,1\n\nb,1,2\n", "op,us\na,1\nb,2\na,1\n", 'op,us\na,"1\n',
    "op,ns\na,0.5\n",
    *(f"op,us\na,{n}\n" for n in ("-2", "nan", "-inf", "fast", "1e999999999", 2**62, "12.5", "0.1234")),
]  # fmt: skip
DOCUMENTS = [
    '{"format": "remat-costs"}', '{"sets": [NaN]}', '{"sets": [], "sets": []}', document(version=2), document(more=1),
    *(document(sets=sets) for sets in ([], [3], [{"unit": "us", "costs": [1]}], [{"costs": {}}])),
    *(document(sets=[{"unit": "us", "costs": {"a": cost}}]) for cost in ("1", True, 0.25, -1)),
]  # fmt: skip


@pytest.mark.parametrize("text", [*TABLES, *DOCUMENTS])
def test_invalid_files(text, tmp_path):
    with refused("costs-file.refused", culprit=f"{tmp_path / 'costs.csv'}: "):
        profile(tmp_path, text)


# -- commands and configurations ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Current folder with a training chain of 9 ops of cost 1, and a profile of two devices."""
    monkeypatch.chdir(tmp_path)
    graph = unit_chain(4)
    write_graph(graph, "chain.json")
    lines = [f"{name},{10 + place},{100 + place}" for place, name in enumerate(graph.op_names)]
    (tmp_path / "costs.csv").write_text("\n".join(["op,gpu [us],cpu [us]", *lines]))
    return tmp_path


def test_costs_in_commands(folder):
    gpu = ["--costs", "costs.csv", "--device", "gpu"]
    base = sum(range(10, 19))
    shown = facts("show chain.json", *gpu)
    assert (shown["base_cost"], shown["cost_unit"]) == (base, "us")
    solved = facts("solve chain.json -b 5 --threads 1 -q -o s.json", *gpu)
    measured = with_costs(read_graph("chain.json"), read_profile("costs.csv"), "gpu")
    best = optimum(Problem(measured, 5), Scope(OrderRule.FIXED, staged=True))
    assert (solved["status"], solved["objective"]) == ("optimal", best.cost)
    assert best.cost > base
    assert facts("validate chain.json s.json", *gpu)["cost"] == solved["objective"]
    ok("convert chain.json gpu.json", *gpu)
    assert read_graph("gpu.json").base_cost == base
    assert facts("validate gpu.json s.json")["cost"] == solved["objective"]
    assert any(row["value"] == base for row in facts("bounds chain.json -b 6", *gpu)["bounds"])


def test_costs_in_a_configuration(folder, tmp_path):
    (folder / "sub").mkdir()
    path = folder / "sub" / "run.toml"
    path.write_text('[problem]\ngraph = "../chain.json"\ncosts = "../costs.csv"\ndevice = "cpu"\n')
    assert Config.from_file(path).make_problem().graph.base_cost == sum(range(100, 109))


def test_invalid_options_of_commands(folder):
    for line, message in (
        ("show chain.json --costs costs.csv", "name one of them: 'gpu', 'cpu'"),
        ("solve chain.json -b 5 --device gpu", "device 'gpu' is named, but no file of costs"),
        ("convert chain.json new.json --costs missing.csv", "missing.csv: no such file"),
        ("show chain.json --costs chain.json", "chain.json: format is 'remat-graph', not 'remat-costs'"),
    ):
        err = ok(line, code=2).err
        assert message in err and err.count("\n") == 1
    assert not (folder / "new.json").exists()
