"""Costs from a profile: read exactly or refused with the place, and put on a graph whole or not at all."""

import json
import re

import pytest

from remat.cli import main
from remat.config import Config
from remat.errors import FormatError, GraphError
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.graphs.profiles import CostSet, Profile, read_profile, with_costs
from remat.problem import Problem
from remat.schedule import OrderRule
from remat.scope import Scope
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


def test_one_set(tmp_path):
    found = profile(tmp_path, '\ufeffop,us\r\na,12\r\n\r\nb, 3e2 \r\n"c,""d""",0\r\n')
    assert found.sets == (CostSet("", "us", {"a": 12, "b": 300, 'c,"d"': 0}),)
    graph = graph_of("b", "a", 'c,"d"')
    measured = with_costs(graph, found)
    assert [op.cost for op in measured.ops] == [300, 12, 0]
    assert (measured.base_cost, measured.cost_unit) == (312, "us")
    assert [(t.name, t.size) for t in measured.tensors] == [(t.name, t.size) for t in graph.tensors]
    assert [op.cost for op in graph.ops] == [1, 1, 1]
    assert measured.digest != graph.digest


def test_several_devices(tmp_path):
    """As CSV and as JSON; each with a unit of its own, and one may lack ops."""
    table = profile(tmp_path, "op,big gpu [ns],cpu[us]\na,1200,5\nb,30,\n")
    assert table.sets == (CostSet("big gpu", "ns", {"a": 1200, "b": 30}), CostSet("cpu", "us", {"a": 5}))
    same = document()
    same["sets"][0]["device"], same["sets"][1]["costs"] = "big gpu", {"a": 5.0}
    assert profile(tmp_path, same, "costs.json").sets == table.sets
    graph = graph_of("a", "b")
    assert with_costs(graph, table, "big gpu").base_cost == 1230
    with pytest.raises(GraphError, match=r"costs\.csv: no cost for device 'cpu' for 1 of the 2 ops of graph 'g': 'b'$"):
        with_costs(graph, table, "cpu")
    with pytest.raises(FormatError, match=r"costs\.csv: .*name one of them: 'big gpu', 'cpu'"):
        with_costs(graph, table)
    with pytest.raises(FormatError, match=r"no costs for device 'tpu', only for 'big gpu', 'cpu'"):
        with_costs(graph, table, "tpu")


def test_what_does_not_fit_the_graph():
    graph = graph_of(*"abcdefgh")
    few = Profile("few.csv", (CostSet("", "us", {"c": 1}),))
    with pytest.raises(GraphError, match=r"few\.csv: no cost for 7 of the 8 ops of graph 'g': 'a', 'b', 'd', 'e', "):
        with_costs(graph, few)
    many = Profile("many.csv", (CostSet("", "us", dict.fromkeys("abcdefghij", 1)),))
    with pytest.raises(GraphError, match=r"many\.csv: costs for 2 ops that graph 'g' does not have: 'i', 'j'"):
        with_costs(graph, many)
    huge = Profile("huge.csv", (CostSet("", "us", dict.fromkeys("abcdefgh", 2**60)),))
    with pytest.raises(GraphError, match="2\\^62"):
        with_costs(graph, huge)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must be 'op,us'"),
        ("op\na\n", "line 1 must be 'op,us'"),
        ("name,us\na,1\n", "line 1 must be 'op,us'"),
        ("op,ms\na,1\n", "line 1: unit 'ms' is not one of us, ns, mac, flop, cycle"),
        ("op,none\na,1\n", "line 1: unit 'none' is not"),
        ("op,gpu [s]\n", "line 1: unit 's' is not"),
        ("op,us,ns\na,1,2\n", "line 1: with several sets of costs, each needs the name of its device"),
        ("op,gpu [us],gpu [ns]\na,1,2\n", "line 1: device 'gpu' stands twice"),
        ("op,us\na,1\n\nb,1,2\n", "line 4 has 3 cells, the first line 2"),
        ("op,us\na,1\nb,2\na,1\n", "line 4: op 'a' stands on line 2 already"),
        ("op,us\na,1\nb,-2\n", "line 3: the cost of op 'b' is negative: -2"),
        ("op,us\na,nan\n", "line 2: the cost of op 'a' is not finite: nan"),
        ("op,us\na,-inf\n", "line 2: the cost of op 'a' is not finite: -inf"),
        ("op,us\na,fast\n", "line 2: the cost of op 'a' is not a number: 'fast'"),
        ("op,us\na,1e999999999\n", "line 2: the cost of op 'a' is 2^62 or more: 1e999999999"),
        ("op,us\na,4611686018427387904\n", "line 2: the cost of op 'a' is 2^62 or more"),
        (
            "op,us\na,12.5\n",
            "line 2: the cost of op 'a' is 12.5 us, and nothing is rounded: give the whole profile in ns, where it is "
            "12500",
        ),
        (
            "op,us\na,0.1234\n",
            "is 0.1234 us, and nothing is rounded: costs are whole numbers, so count in a finer unit",
        ),
        ("op,ns\na,0.5\n", "is 0.5 ns, and nothing is rounded: costs are whole numbers, so count in a finer unit"),
        ('op,us\na,"1\n', "line 2: unexpected end of data"),
        ('{"format": "remat-costs"}', "not a document of format 'remat-costs', version 1"),
        (document(version=2), "not a document of format"),
        (document(more=1), "unknown key 'more'"),
        (document(sets=[]), "sets must be a list of at least one set"),
        (document(sets=[3]), "sets[0] must be an object"),
        (document(sets=[{"unit": "us", "costs": [1]}]), "sets[0]: device must be a string, and costs an object"),
        (document(sets=[{"unit": "us", "costs": {"a": "1"}}]), "sets[0]: the cost of op 'a' must be a number"),
        (document(sets=[{"unit": "us", "costs": {"a": True}}]), "sets[0]: the cost of op 'a' must be a number"),
        (document(sets=[{"unit": "us", "costs": {"a": 0.25}}]), "give the whole profile in ns, where it is 250"),
        (document(sets=[{"unit": "us", "costs": {"a": -1}}]), "sets[0]: the cost of op 'a' is negative: -1"),
        (document(sets=[{"costs": {}}]), "sets[0]: unit None is not one of"),
        ('{"sets": [NaN]}', "NaN is not JSON"),
        ('{"sets": [], "sets": []}', "key 'sets' stands twice"),
    ],
)
def test_files_that_are_refused(text, message, tmp_path):
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        profile(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'costs.csv'}: ")
    assert "\n" not in str(caught.value)


# -- from the shell and the configuration ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A training chain of 9 ops that all cost 1, and what each costs on two devices."""
    monkeypatch.chdir(tmp_path)
    graph = unit_chain(4)
    write_graph(graph, "chain.json")
    lines = [f"{name},{10 + place},{100 + place}" for place, name in enumerate(graph.op_names)]
    (tmp_path / "costs.csv").write_text("\n".join(["op,gpu [us],cpu [us]", *lines]))
    return tmp_path


def facts(capsys, *words, code=0):
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_commands_take_costs(folder, capsys):
    gpu = ["--costs", "costs.csv", "--device", "gpu"]
    base = sum(range(10, 19))
    shown = facts(capsys, "show", "chain.json", *gpu)
    assert (shown["base_cost"], shown["cost_unit"]) == (base, "us")
    solved = facts(capsys, "solve", "chain.json", "-b", "5", *gpu, "--threads", "1", "-q", "-o", "s.json")
    measured = with_costs(read_graph("chain.json"), read_profile("costs.csv"), "gpu")
    best = optimum(Problem(measured, 5), Scope(OrderRule.FIXED, staged=True))
    assert (solved["status"], solved["objective"]) == ("optimal", best.cost)
    assert best.cost > base
    assert facts(capsys, "validate", "chain.json", "s.json", *gpu)["cost"] == solved["objective"]
    assert main(["convert", "chain.json", "gpu.json", *gpu]) == 0
    assert read_graph("gpu.json").base_cost == base
    assert facts(capsys, "validate", "gpu.json", "s.json")["cost"] == solved["objective"]
    assert any(row["value"] == base for row in facts(capsys, "bounds", "chain.json", "-b", "6", *gpu)["bounds"])


def test_the_configuration_takes_costs(folder, tmp_path):
    (folder / "sub").mkdir()
    path = folder / "sub" / "run.toml"
    path.write_text('[problem]\ngraph = "../chain.json"\ncosts = "../costs.csv"\ndevice = "cpu"\n')
    assert Config.from_file(path).make_problem().graph.base_cost == sum(range(100, 109))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--costs", "costs.csv"], "name one of them: 'gpu', 'cpu'"),
        (["--device", "gpu"], "device 'gpu' is named, but no file of costs"),
        (["--costs", "missing.csv"], "missing.csv: no such file"),
        (["--costs", "chain.json"], "chain.json: unknown key"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, words, message):
    for command in (["show", "chain.json"], ["solve", "chain.json", "-b", "5"], ["convert", "chain.json", "new.json"]):
        assert main([*command, *words]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    assert not (folder / "new.json").exists()
