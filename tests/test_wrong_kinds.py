"""Arguments of the wrong kind: an error of one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import check_text

from remat.allocation.by_model import ModelOptions
from remat.allocation.fits import FitOptions
from remat.bounds import bounds
from remat.errors import FormatError, GraphError, ProblemError, RematError
from remat.graphs import ComputeGraph, GraphBuilder, Op, Tensor, read_graph
from remat.graphs.families import unit_chain
from remat.graphs.formats.dot import graph_to_dot
from remat.graphs.io import write_graph
from remat.graphs.profiles import read_profile
from remat.io.views import table_csv
from remat.problem import Problem, parse_budget
from remat.schedule import Rules, Schedule, read_schedule, simulate, validate, write_schedule

CHAIN: Any = unit_chain(2)
PLAN: Any = Schedule.reference(CHAIN)


def built(**op: Any) -> Any:
    return GraphBuilder("g").op("a", size=1, **op)


CALLS: dict[str, Callable[[], object]] = {
    "read_graph of a graph": lambda: read_graph(CHAIN),
    "read_graph of a number": lambda: read_graph(3),
    "read_schedule of a graph": lambda: read_schedule(CHAIN),
    "read_schedule, name": lambda: read_schedule("x", "unet"),
    "write_schedule of a graph": lambda: write_schedule(CHAIN, "x"),
    "write_graph of a schedule": lambda: write_graph(PLAN, "x.json"),
    "validate, swapped": lambda: validate(PLAN, CHAIN),
    "validate, a path": lambda: validate(CHAIN, "s.json"),
    "validate, a problem": lambda: validate(CHAIN, PLAN, Problem(CHAIN)),
    "validate, a budget": lambda: validate(CHAIN, PLAN, 80),
    "simulate, a list": lambda: simulate(CHAIN, ["a"]),
    "simulate, keep a name": lambda: simulate(CHAIN, PLAN, keep="loss"),
    "problem, keep a name": lambda: Problem(CHAIN, keep="f0"),
    "problem, keep a number": lambda: Problem(CHAIN, keep=5),
    "problem, keep bytes": lambda: Problem(CHAIN, keep=b"f0"),
    "problem, keep a list in a list": lambda: Problem(CHAIN, keep=[["f0"]]),
    "problem, limits for a list": lambda: Problem(CHAIN, max_computes=["f0"]),
    "bounds, relaxations a name": lambda: bounds(Problem(CHAIN, 4), relaxations="stages"),
    "allocators, a number": lambda: FitOptions(order=3),
    "allocators, a solver": lambda: ModelOptions(backend=None),
    "rules, keep a name": lambda: validate(CHAIN, PLAN, Rules(keep="loss")),
    "op, inputs a name": lambda: built(inputs="ab"),
    "op, inputs a number": lambda: built(inputs=3),
    "op, outputs a name": lambda: GraphBuilder("g").op("a", outputs="ab"),
    "op, a number": lambda: GraphBuilder("g").op(3, size=1),
    "tensor, a list": lambda: GraphBuilder("g").tensor(["a"], 1),
    "outputs, a list": lambda: GraphBuilder("g").output(["a"]),
    "order, a name": lambda: GraphBuilder("g").build("a"),
    "graph of names": lambda: ComputeGraph("g", ["x"], [Op("a")]),
    "graph of no ops": lambda: ComputeGraph("g", [], ["a"]),
    "tensors a name": lambda: ComputeGraph("g", "x", [Op("a")]),
    "budget a list": lambda: parse_budget([80], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_kind_is_one_line(name: str) -> None:
    with pytest.raises(RematError) as caught:
        CALLS[name]()
    message = str(caught.value)
    assert message.isprintable()
    check_text("arguments.wrong", f"{name} -> {caught.typename}: {message}")


def test_repeated_input_among_many_is_found_quickly() -> None:
    names = [f"t{number}" for number in range(200_000)]
    with pytest.raises(GraphError, match="reads tensor 't199999' twice"):
        ComputeGraph("g", [Tensor(name, 1) for name in names], [Op("a", (*names, names[-1]))], inputs=names)


COMMAS = ["90,5%", "1,5GiB", "1,50 MB", "1,0000", "1_0", "0,500GiB", "1,000_000", "1,,000", "12,34"]


@pytest.mark.parametrize("text", COMMAS)
def test_comma_is_no_decimal_point(text: str) -> None:
    with pytest.raises(ProblemError, match="between groups of three digits only"):
        parse_budget(text, 1000)


def test_thousands_separators() -> None:
    assert [parse_budget(text, 1000) for text in ("1,000", "1_000_000", "12,345.5 KB", "1000000", "90.5%")] == [
        1000, 1_000_000, 12_345_500, 1_000_000, 905,
    ]  # fmt: skip
    for text in ("\uff19\uff10%", "1e3", "0x10", "", "%", "1 000"):
        with pytest.raises(ProblemError):
            parse_budget(text, 1000)


@pytest.mark.parametrize("cost", ["1_000", "\uff11\uff12", "\u0661", "1,000", "0x1F", "1e", "", "--1", "1e5000000000"])
def test_costs_are_plain_digits(cost: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f'op,us\na,"{cost}"\n' if cost else "op,us\na,x\n", encoding="utf-8")
    with pytest.raises(FormatError, match=r"line 2: the cost of op 'a' is (not a number|2.62 or more)"):
        read_profile(tmp_path / "p.csv")


def test_byte_order_marks(tmp_path: Path) -> None:
    write_graph(CHAIN, tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text()
    (tmp_path / "g.json").write_text(text, encoding="utf-8-sig")
    assert read_graph(tmp_path / "g.json") == CHAIN
    (tmp_path / "s.txt").write_text("\n".join(CHAIN.order), encoding="utf-8-sig")
    assert read_schedule(tmp_path / "s.txt").computes() == list(CHAIN.order)
    (tmp_path / "p.csv").write_text("op,us\na,1\n", encoding="utf-8-sig")
    assert read_profile(tmp_path / "p.csv").on().costs == {"a": 1}
    from remat.io.files import read_toml

    (tmp_path / "c.toml").write_text("a = 1\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "c.toml") == {"a": 1}


def test_lone_surrogates_in_dot(tmp_path: Path) -> None:
    graph = ComputeGraph("g", [Tensor("x", 1)], [Op("a", outputs=("x",), type="\ud800\x1b[2J\n")])
    write_graph(graph, tmp_path / "g.dot")
    assert (tmp_path / "g.dot").read_text() == graph_to_dot(graph)
    assert "\\\\ud800\\\\x1b[2J" in graph_to_dot(graph)


def test_cells_are_not_formulas() -> None:
    row = {"method": "=1+1", "status": "@x", "cost": -5, "share": -0.5, "source": "+a", "stop": "-b", "versions": {}}
    assert table_csv([row]).splitlines()[1] == "'=1+1,'@x,-5,-0.5,'+a,'-b,"
