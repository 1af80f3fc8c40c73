"""``remat partition``, ``solve --config``, ``config``, ``compare`` and ``improve`` through the entry point."""

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from generators import jittered
from shell import RUN, facts, ok

from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.zoo.transformers import gpt
from remat.schedule import Schedule
from remat.schedule.io import read_schedule, write_schedule

#: Valid in 5 bytes, with two recomputations more than the optimum.
COSTLY = ("f0", "f1", "f2", "f3", "loss", "g3", "f0", "f1", "g2", "g1", "f0", "g0")


@pytest.fixture(autouse=True)
def run(folder: Path) -> None:
    """Configuration ``run.toml``, and three schedules."""
    Path("run.toml").write_text(RUN, encoding="utf-8")
    plain = ("f0", "f1", "f2", "f3", "loss", "g3", "g2", "g1", "g0")
    for name, ops in {"costly": COSTLY, "plain": plain, "wrong": ("f1",)}.items():
        write_schedule(Schedule.from_steps([("compute", op) for op in ops]), f"{name}.json")


def runs_of(name: str) -> list[dict]:
    return json.loads(Path(name).read_text(encoding="utf-8"))["runs"]


def column(name: str, heading: str) -> list[str]:
    with Path(name).open(encoding="utf-8", newline="") as file:
        return [row[heading] for row in csv.DictReader(file)]


def test_partition_prints_statistics_of_groups() -> None:
    found = facts("partition gpt -p h-partition -p modules --outline")["partitioners"]
    assert list(found) == ["h-partition", "modules"]
    outline = found["modules"].pop("outline")
    assert found["modules"] == {"depth": 4, "groups": 39, "unique_groups": 6, "largest_group": 12}
    assert "layers.0 × 12" in outline
    few = ok("partition gpt -p h-partition --option max_top=10 --option max_group=10").out.splitlines()
    assert few[0].split() == ["partitioner", "depth", "groups", "unique", "groups", "largest", "group"]
    assert int(few[1].split()[-1]) <= 10 < found["h-partition"]["largest_group"]
    assert "no 'modules'" in ok("partition chain.json -p modules", code=1).out


def test_partition_merges_groups_within_the_cost_tolerance() -> None:
    write_graph(jittered(gpt(layers=4)), "profiled.json")
    line, found = "partition profiled.json -p modules --outline --cost-tolerance", {}
    for tolerance in ("5%", "0"):
        found[tolerance] = facts(f"{line} {tolerance}")["partitioners"]["modules"]
    assert [each["unique_groups"] for each in found.values()] == [6, 15]
    assert ["layers.0 × 4" in each["outline"] for each in found.values()] == [True, False]
    assert "0 or more, not" in ok(f"{line} -1", code=2).err


def test_solve_options_of_a_method_and_its_parts() -> None:
    line = (
        "solve chain.json -b 5 --method hierarchical -t 20 -q --option polish=false --option top_methods='[\"h-ilp\"]'"
    )
    given = "--option partitioners='[\"h-partition\"]' --option h-partition.max_top=2 --option h-partition.min_group=2"
    found = facts(f"{line} {given} --option leaf_methods='[\"checkmate\"]' --option leaf_backend=highs")
    assert found["objective"] == 10 and "h-partition: 1 groups" in found["message"]


# -- solve --config ----------------------------------------------------------------------------------------------------


def test_solve_with_configuration() -> None:
    ran = ok("solve --config run.toml")
    found = json.loads(ran.out)
    assert (found["method"], found["backend"], found["objective"], ran.err) == ("checkmate", "highs", 10, "")
    assert read_schedule("out.json").num_computes == 10


def test_options_override_the_configuration() -> None:
    found = facts("solve chain.json -c run.toml --backend cp-sat -b 6 -o else.json --seed 3")
    assert (found["method"], found["seed"], found["threads"], found["objective"]) == ("checkmate", 3, 1, 9)
    assert found["budget"] == 6
    assert Path("else.json").exists()
    assert not Path("out.json").exists()


def test_relative_paths_of_configuration_and_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in a configuration are relative to it, those of options to the current folder."""
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    ok("solve -c ../run.toml")
    assert (folder / "out.json").exists()
    ok("solve -c ../run.toml -o here.json")
    assert (folder / "elsewhere/here.json").exists()


def test_example_configuration_solves() -> None:
    text = ok("config --example").out
    assert tomllib.loads(text)["solve"]["backend"] == "cp-sat"
    Path("example.toml").write_text(text, encoding="utf-8")
    assert ok("solve chain.json -c example.toml -q").out.startswith("status    optimal")


# -- compare -----------------------------------------------------------------------------------------------------------


def test_compare_prints_and_writes() -> None:
    ran = ok(
        "compare chain.json --budget 90%,2 -m checkmate/highs -m greedy --threads 1 -t 60",
        *("-o", "c.json", "-o", "c.csv", "--plot", "c.png"),
    )
    assert "unit-chain-4, budget 90%: 5 bytes" in ran.out
    lines = [line.strip() for line in ran.out.splitlines()]
    (row,) = (line for line in lines if line.startswith("checkmate/highs ") and "optimal" in line)
    assert row.split()[2:6] == ["11.11", "%", "11.11", "%"]
    for words in ("budget 2 bytes is below the 3 bytes", "limits of each run: time limit 60", "highspy"):
        assert words in ran.out
    assert [line for line in ran.err.splitlines() if line.startswith("[")] == [
        "[1/4] checkmate/highs at 90%", "[2/4] greedy at 90%",
        "[3/4] checkmate/highs at 2", "[4/4] greedy at 2",
    ]  # fmt: skip
    assert [run["cost"] for run in runs_of("c.json")] == [10, 10, None, None]
    assert column("c.csv", "cost") == ["10", "10", "", ""]
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")


def test_compare_with_configuration() -> None:
    """The configuration gives graph, limits, rules and options, and the method unless the command line does."""
    Path("run.toml").write_text(RUN + "[formulations.retention-intervals]\ncopies = 1\n", encoding="utf-8")
    assert not ok("compare -c run.toml -o c.json").err, "the file says quiet"
    ok("compare -c run.toml -o d.json -b 5,6 -m checkmate,retention-intervals/cp-sat")
    (run,) = runs_of("c.json")
    assert (run["method"], run["budget"], run["cost"]) == ("checkmate/highs", "5", 10)
    assert [run["method"] for run in runs_of("d.json")] == ["checkmate/highs", "retention-intervals/cp-sat"] * 2
    assert not Path("out.json").exists()


def test_compare_continues_after_a_failed_method() -> None:
    out = " ".join(ok("compare chain.json -b 5 --order free -m checkmate/highs -m greedy -q").out.split())
    assert "failed: the checkmate formulation with frontier-advancing stages keeps" in out
    assert "greedy feasible" in out


def test_compare_schedule_files() -> None:
    """Schedule files join the methods, or stand alone; an invalid one gives the reason."""
    out = ok("compare chain.json costly.json wrong.json -o s.json -o s.csv").out
    assert "peak against extra time" in out
    assert "wrong: step 0: op 'f1' reads tensor 'f0', which was never produced" in out
    rows = json.loads(Path("s.json").read_text(encoding="utf-8"))["schedules"]
    assert [(row["who"], row["certified"], row["peak"], row["cost"]) for row in rows] == [
        ("costly", True, 4, 12), ("wrong", False, None, None),
    ]  # fmt: skip
    assert column("s.csv", "who") == ["costly", "wrong"]
    out = ok("compare chain.json costly.json -b 5 -m greedy -q --trade-off t.svg -o s.json").out
    assert "greedy" in out.split("peak against extra time")[1]
    assert Path("t.svg").exists()
    found = json.loads(Path("s.json").read_text(encoding="utf-8"))
    assert (found["schedules"][0]["cost"], found["runs"][0]["cost"]) == (12, 10)
    ok("compare chain.json wrong.json", code=1)


def test_compare_auto() -> None:
    """Comparisons of costs, and of least peaks without a budget."""
    limits = "-b 90% --time-limit 20 --threads 1 -q"
    ok("compare chain.json -m auto -q --objective least-peak -o c.json")
    assert [(run["peak"], run["budget"]) for run in runs_of("c.json")] == [(3, "no budget")]
    shown = ok(f"compare chain.json -m auto -m auto/highs {limits}").out
    assert "auto/highs" in shown and shown.count("11.11 %") >= 2
    assert "11.11 %" in ok(f"frontier chain.json --methods auto {limits}").out


def test_compare_without_schedules_prints_markup_literally() -> None:
    write_graph(replace(unit_chain(4), name="[bold]g[/bold]"), "g.json")
    out = ok("compare g.json -b 2 -m greedy -q", code=1).out
    assert "infeasible" in out and "[bold]g[/bold], budget 2: 2 bytes" in out


# -- improve -----------------------------------------------------------------------------------------------------------


def test_improve() -> None:
    ok("validate chain.json costly.json --order fixed -b 5")
    out = ok("improve chain.json costly.json -b 5 --threads 1 -q -o better.json").out
    assert "improved  overhead 33.33 % -> 11.11 %, cost 12 -> 10, 16.67 % less\n" in out
    assert read_schedule("better.json").num_computes == 10
    out = ok("improve chain.json better.json -b 5 --threads 1 -q -o best.json").out
    assert "improved  nothing better was found, and within the scope nothing is\n" in out
    assert read_schedule("best.json") == read_schedule("better.json")


def test_improve_reads_a_plain_list() -> None:
    Path("costly.txt").write_text("\n".join(COSTLY), encoding="utf-8")
    found = facts("improve chain.json costly.txt -c run.toml")
    assert (found["given"]["cost"], found["objective"], found["backend"]) == (12, 10, "highs")


def test_improve_schedule_over_the_budget() -> None:
    expected = "the schedule given is over the budget (peak 6 bytes); one within it costs 10 instead of 9"
    assert f"improved  {expected}\n" in ok("improve chain.json plain.json -b 5 --threads 1 -q").out
    shown = ok("improve chain.json plain.json -b 2 -q", code=1).out
    assert "over the budget (peak 6 bytes), and none within it was found" in shown
