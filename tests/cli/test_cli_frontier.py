"""``remat frontier`` and ``remat batch`` through the entry point."""

import csv
import json
from pathlib import Path

import pytest
from shell import facts, interrupt, ok, shell, start

import remat.experiments.frontier
import remat.runtime.resources
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.problem import Problem
from remat.schedule.io import read_schedule
from remat.schedule.validate import validate


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Current folder with a training chain of six ops, and the same at batch sizes 1 and 3."""
    monkeypatch.chdir(tmp_path)
    family = AffineGraph.scaled(unit_chain(6), 1)
    for batch in (1, 3):
        write_graph(family.at(batch), f"chain-{batch}.json")
    write_graph(unit_chain(6), "chain.json")


def table(name: str = "table.csv") -> list[dict[str, str]]:
    with Path(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- frontier ----------------------------------------------------------------------------------------------------------


def test_frontier_writes_tables_and_plot() -> None:
    line = (
        "frontier chain.json --budgets 2:5:1B -b 100% -m checkmate/highs,greedy --threads 1 "
        "--store sqlite:///study.db -o table.csv -o table.json --plot picture.svg"
    )
    ran = ok(line)
    assert "[1/10] checkmate/highs at 2B" in ran.err
    lines = {line.split("%")[0].strip(): line for line in ran.out.splitlines() if " % " in line}
    assert "115.4 % *" in lines["37.5"]
    assert "infeasible" in lines["25"]
    assert [row["cost"] for row in table()[:5]] == ["", "28", "18", "16", "13"]
    assert len(json.loads(Path("table.json").read_text(encoding="utf-8"))["cells"]) == 10
    assert "budget (bytes)" in Path("picture.svg").read_text(encoding="utf-8")
    ran = ok(f"{line} -q")
    assert ran.err == ""
    assert "study frontier-unit-chain-6: 10 of 10 runs are from the store" in ran.out
    assert "10 of 10 cells finished (10 done)" in ok("study status").out


def test_frontier_chooses_budgets() -> None:
    ran = ok("frontier chain.json -m greedy --points 3 --threads 1 -t 20 -o table.csv")
    assert "least peak: 3 bytes, proved, by" in ran.out
    assert "[3/3] greedy at 5 bytes" in ran.err
    assert "1 of 3 budgets are proved; from the least to the largest budget, schedules are" in ran.out
    assert [row["budget_bytes"] for row in table()] == ["3", "5", "8"]


def test_frontier_and_batch_without_schedules() -> None:
    assert "infeasible" in ok("frontier chain.json -b 2 -m greedy -q", code=1).out
    assert "at 1 no schedule exists" in ok("batch chain-1.json --memory 2 -m greedy -q", code=1).out


@pytest.mark.slow
def test_ctrl_c_with_workers_keeps_finished_cells() -> None:
    """Greedy solves U-Net in a moment, Checkmate does not."""
    line = "frontier unet -b 50%,90% -m checkmate/highs,greedy --threads 1 --workers 2 --store sqlite:///study.db"
    done = interrupt(start(line), lambda line: line.startswith("[2/4] greedy"), 120)
    assert done.code == 130
    assert "interrupted: the table is not complete" in done.out
    assert "2 of 3 cells finished (1 waiting, 2 done)" in ok("study status").out


# -- batch -------------------------------------------------------------------------------------------------------------


def test_batch_writes_tables_plot_and_schedules() -> None:
    ran = ok(
        "batch chain-3.json --memory 40 -m greedy,checkmate/highs --threads 1 -t 60 "
        "-o table.csv -o table.json --plot picture.svg --schedules ."
    )
    assert "batch 14: infeasible by greedy" in ran.err
    assert "40 bytes; without recomputation the batch is 5" in ran.out
    greedy, exact = table()
    assert (exact["batch"], exact["upper"], exact["proved"], exact["reason"]) == ("10", "10", "True", "too expensive")
    assert 5 < int(greedy["batch"]) <= 10
    assert len(json.loads(Path("table.json").read_text(encoding="utf-8"))[1]["tried"]) == int(exact["probes"])
    assert "without recomputation" in Path("picture.svg").read_text(encoding="utf-8")
    graph = read_graph("unit-chain-6-b10.json")
    schedule = read_schedule("unit-chain-6-b10.checkmate-highs.schedule.json", graph)
    certificate = validate(graph, schedule, Problem(graph, 40).rules)
    assert certificate.accepted
    assert certificate.cost <= 190


@pytest.mark.parametrize("source", ["chain-1.json --with chain-3.json", "chain.json --batch-size 1"])
def test_batch_family_of_two_files_or_one(source: str) -> None:
    ok(f"batch {source} --memory 40 -m greedy -q -o table.csv")
    (row,) = table()
    assert (row["plain_batch"], row["upper"]) == ("5", "13")


# -- configurations and profiles ---------------------------------------------------------------------------------------


def test_workers_share_threads_with_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: with a configuration, each of two workers used all processors."""
    Path("run.toml").write_text('[problem]\ngraph = "chain.json"\n[solve]\nmethod = "greedy"\n', encoding="utf-8")
    threads = []

    def spy(*_: object, **named: object) -> object:
        threads.append(named["options"].threads)  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(remat.runtime.resources, "available_cpus", lambda: 8)
    monkeypatch.setattr(remat.experiments.frontier, "frontier", spy)
    for words in ((), ("--threads", "3")):
        assert shell("frontier", "--config", "run.toml", "-b", "5", "--workers", "2", "-q", *words).code == 130
    assert threads == [4, 3]


def test_profile_costs_in_frontier_minimize_and_batch() -> None:
    ops = [op.name for op in read_graph("chain.json").ops]
    Path("costs.csv").write_text("op,us\n" + "".join(f"{op},7\n" for op in ops), encoding="utf-8")
    whole = 7 * len(ops)
    ok("frontier chain.json -b 100% -m greedy -o table.json --costs costs.csv -q")
    assert json.loads(Path("table.json").read_text(encoding="utf-8"))["cells"][0]["cost"] == whole
    found = facts("minimize chain.json --backend none -t 20 --max-computes 1 --costs costs.csv -q")
    assert found["certificate"]["cost"] == whole
    Path("out").mkdir()
    ok("batch chain.json --batch-size 1 --costs costs.csv -q --memory 50 -m greedy --schedules out")
    assert {op.cost % 7 for path in Path("out").glob("chain*.json") for op in read_graph(path).ops} <= {0}
