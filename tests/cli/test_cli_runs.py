"""``remat solve --config``, ``config``, ``compare`` and ``improve`` through the real entry point."""

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.schedule import Schedule
from remat.schedule.io import read_schedule, write_schedule

Capture = pytest.CaptureFixture[str]
RUN = """
problem = {graph = "chain.json", budget = 5}
solve = {backend = "highs", method = "checkmate", threads = 1, time_limit = 60}
output = {schedule = "out.json", quiet = true, json = true}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a training chain of 9 ops (reference peak 6) and a configuration."""
    monkeypatch.chdir(tmp_path)
    write_graph(unit_chain(4), "chain.json")
    Path("run.toml").write_text(RUN, encoding="utf-8")
    Path("wrong.toml").write_text(RUN.replace("backend", "backnd"), encoding="utf-8")
    return tmp_path


def steps(*ops: str) -> Schedule:
    return Schedule.from_steps([("compute", op) for op in ops])


#: Valid in 5 bytes, and one recomputation dearer than needed.
DEAR = ("f0", "f1", "f2", "f3", "loss", "g3", "f0", "f1", "g2", "g1", "f0", "g0")


def ok(*arguments: object, code: int = 0) -> None:
    assert main([str(argument) for argument in arguments]) == code


# -- solve --config ----------------------------------------------------------------------------------------------------


def test_solve_by_a_file(folder: Path, capsys: Capture) -> None:
    ok("solve", "--config", "run.toml")
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert (facts["method"], facts["backend"], facts["objective"]) == ("checkmate", "highs", 10)
    assert err == ""
    assert read_schedule("out.json").num_computes == 10


def test_options_go_before_the_file(folder: Path, capsys: Capture) -> None:
    ok("solve", "chain.json", "-c", "run.toml", "--backend", "cp-sat", "-b", 6, "-o", "else.json", "--seed", 3)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["method"], facts["seed"], facts["threads"], facts["objective"]) == ("checkmate", 3, 1, 9)
    assert facts["budget"] == 6
    assert Path("else.json").exists()
    assert not Path("out.json").exists()


def test_paths_of_the_file_and_of_the_shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Those in the file are relative to it, those of options to the current folder."""
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    ok("solve", "-c", "../run.toml")
    assert (folder / "out.json").exists()
    ok("solve", "-c", "../run.toml", "-o", "here.json")
    assert (folder / "elsewhere/here.json").exists()
    capsys.readouterr()


# -- config ------------------------------------------------------------------------------------------------------------


def test_config_example_can_be_used(folder: Path, capsys: Capture) -> None:
    ok("config", "--example")
    text = capsys.readouterr().out
    assert tomllib.loads(text)["solve"]["backend"] == "cp-sat"
    Path("example.toml").write_text(text, encoding="utf-8")
    ok("solve", "chain.json", "-c", "example.toml", "-q")
    assert capsys.readouterr().out.startswith("status    optimal")


# -- compare -----------------------------------------------------------------------------------------------------------


def test_compare(folder: Path, capsys: Capture) -> None:
    ok(
        "compare", "chain.json", "--budget", "90%,2", "-m", "checkmate/highs", "-m", "greedy", "--threads", 1,
        "-t", 60, "--json", "c.json", "--csv", "c.csv", "--plot", "c.png",
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert "unit-chain-4, budget 90%: 5 bytes" in out
    (row,) = (line for line in out.splitlines() if line.strip().startswith("checkmate/highs ") and "optimal" in line)
    assert row.split()[2:6] == ["11.11", "%", "11.11", "%"]
    assert "budget 2 bytes is below the 3 bytes" in out
    assert "limits of each run: time limit 60" in out
    assert "highspy" in out
    assert [line for line in err.splitlines() if line.startswith("[")] == [
        "[1/4] budget 90%, checkmate/highs", "[2/4] budget 90%, greedy",
        "[3/4] budget 2, checkmate/highs", "[4/4] budget 2, greedy",
    ]  # fmt: skip
    runs = json.loads(Path("c.json").read_text(encoding="utf-8"))["runs"]
    assert [run["cost"] for run in runs] == [10, 10, None, None]
    with Path("c.csv").open(encoding="utf-8", newline="") as file:
        assert [row["cost"] for row in csv.DictReader(file)] == ["10", "10", "", ""]
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")


def test_compare_by_a_file(folder: Path, capsys: Capture) -> None:
    """Graph, limits, rules and options of the file; its method and backend where none are given."""
    Path("run.toml").write_text(RUN + "[formulations.retention-intervals]\ncopies = 1\n", encoding="utf-8")
    ok("compare", "-c", "run.toml", "--json", "c.json")
    ok("compare", "-c", "run.toml", "--json", "d.json", "-b", "5,6", "-m", "checkmate,retention-intervals/cp-sat")
    assert capsys.readouterr().err == "", "the file says quiet"
    (run,) = json.loads(Path("c.json").read_text(encoding="utf-8"))["runs"]
    assert (run["method"], run["budget"], run["cost"]) == ("checkmate/highs", "5", 10)
    runs = json.loads(Path("d.json").read_text(encoding="utf-8"))["runs"]
    assert [run["method"] for run in runs] == ["checkmate/highs", "retention-intervals/cp-sat"] * 2
    assert not Path("out.json").exists()


def test_compare_says_why_a_method_failed_and_goes_on(folder: Path, capsys: Capture) -> None:
    ok("compare", "chain.json", "-b", 5, "--order", "free", "-m", "checkmate/highs", "-m", "greedy", "-q")
    out = " ".join(capsys.readouterr().out.split())
    assert "failed: the checkmate formulation with frontier-advancing stages keeps" in out
    assert "greedy feasible" in out


def test_compare_with_schedules_of_files(folder: Path, capsys: Capture) -> None:
    """Files stand beside the methods, or alone; one that is not valid says why."""
    write_schedule(steps(*DEAR), "dear.json")
    write_schedule(steps("f1"), "wrong.json")
    ok("compare", "chain.json", "dear.json", "wrong.json", "--json", "s.json", "--csv", "s.csv")
    out = capsys.readouterr().out
    assert "peak against extra time" in out
    assert "wrong: step 0: op 'f1' reads tensor 'f0', which was never produced" in out
    rows = json.loads(Path("s.json").read_text(encoding="utf-8"))["schedules"]
    assert [(row["who"], row["certified"], row["peak"], row["cost"]) for row in rows] == [
        ("dear", True, 4, 12), ("wrong", False, None, None),
    ]  # fmt: skip
    with Path("s.csv").open(encoding="utf-8") as file:
        assert [row["who"] for row in csv.DictReader(file)] == ["dear", "wrong"]
    ok("compare", "chain.json", "dear.json", "-b", 5, "-m", "greedy", "-q", "--trade-off", "t.svg", "--json", "s.json")
    out = capsys.readouterr().out
    assert "greedy" in out.split("peak against extra time")[1]
    assert Path("t.svg").exists()
    facts = json.loads(Path("s.json").read_text(encoding="utf-8"))
    assert (facts["schedules"][0]["cost"], facts["runs"][0]["cost"]) == (12, 10)
    ok("compare", "chain.json", "wrong.json", code=1)


def test_auto_in_comparisons(folder: Path, capsys: Capture) -> None:
    limits = ["-b", "90%", "--time-limit", 20, "--threads", 1, "-q"]
    ok("compare", "chain.json", "-m", "auto", "-m", "auto/highs", *limits)
    said = capsys.readouterr().out
    assert "auto/highs" in said and said.count("11.11 %") >= 2
    ok("frontier", "chain.json", "--methods", "auto", *limits)
    assert "11.11 %" in capsys.readouterr().out


def test_compare_without_any_schedule_and_with_a_name_that_is_no_markup(tmp_path: Path, capsys: Capture) -> None:
    write_graph(replace(unit_chain(4), name="[bold]g[/bold]"), tmp_path / "g.json")
    ok("compare", tmp_path / "g.json", "-b", 2, "-m", "greedy", "-q", code=1)
    out = capsys.readouterr().out
    assert "infeasible" in out and "[bold]g[/bold], budget 2: 2 bytes" in out


# -- improve -----------------------------------------------------------------------------------------------------------


def test_improve(folder: Path, capsys: Capture) -> None:
    write_schedule(steps(*DEAR), "dear.json")
    ok("validate", "chain.json", "dear.json", "--order", "fixed", "-b", 5)
    capsys.readouterr()
    ok("improve", "chain.json", "dear.json", "-b", 5, "--threads", 1, "-q", "-o", "better.json")
    out = capsys.readouterr().out
    assert "improved  overhead 33.33 % -> 11.11 %, cost 12 -> 10, 16.67 % less\n" in out
    assert read_schedule("better.json").num_computes == 10
    ok("improve", "chain.json", "better.json", "-b", 5, "--threads", 1, "-q", "-o", "best.json")
    assert "improved  nothing better was found, and within the scope nothing is\n" in capsys.readouterr().out
    assert read_schedule("best.json") == read_schedule("better.json")


def test_improve_reads_any_format_and_prints_json(folder: Path, capsys: Capture) -> None:
    Path("dear.txt").write_text("\n".join(DEAR), encoding="utf-8")
    ok("improve", "chain.json", "dear.txt", "-c", "run.toml", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["given"]["cost"], facts["objective"], facts["backend"]) == (12, 10, "highs")


def test_improve_what_is_over_the_budget(folder: Path, capsys: Capture) -> None:
    write_schedule(steps("f0", "f1", "f2", "f3", "loss", "g3", "g2", "g1", "g0"), "plain.json")
    ok("improve", "chain.json", "plain.json", "-b", 5, "--threads", 1, "-q")
    expected = "the schedule given is over the budget (peak 6 bytes); one within it costs 10 instead of 9"
    assert f"improved  {expected}\n" in capsys.readouterr().out
    ok("improve", "chain.json", "plain.json", "-b", 2, "-q", code=1)
    assert "over the budget (peak 6 bytes), and none within it was found" in capsys.readouterr().out
