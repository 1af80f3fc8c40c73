"""Commands with ``--machine``: times with waits, bytes moved, and sentences that claim no more than is proved."""

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from refusals import refused
from shell import facts, ok

from remat import Problem, solve
from remat.cli.completion import complete_machine
from remat.graphs.families import unit_chain
from remat.schedule import Machine, Schedule, write_schedule
from remat.solving.stop import TargetCost

MACHINE = "rate=1MB/s"


CHAIN = replace(unit_chain(4), cost_unit="us")


@cache
def fastest() -> Schedule:
    """Return the fastest schedule of the chain in 3 bytes; the exact search, which takes longer, has the same time."""
    found = solve(Problem(CHAIN, 3, machine=MACHINE), "transfers", stop=TargetCost(12))
    assert found.schedule is not None and found.objective == 12
    return found.schedule


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Current folder with a chain in microseconds, and its fastest schedule in 3 bytes: 12 us, base 9."""
    monkeypatch.chdir(tmp_path)
    CHAIN.save("chain.json")
    write_schedule(fastest(), "moved.json")


def test_results_show_the_time_and_the_host() -> None:
    line = f"chain.json -b 3 --machine {MACHINE} -t 20 -q --method greedy"
    shown = ok(f"solve {line} --warm-start moved.json -o again.json").out
    for text in ("33.33 %, time 12 us (each op once 9)", "bound     time 9 us", "3 bytes out in 3 offloads",
                 "waits     3 us", "Fits in 3 bytes and 3 on the host for 33.3 % more time.",
                 "Another schedule could be at most 25 % faster."):  # fmt: skip
        assert text in shown
    assert Path("again.json").read_text(encoding="utf-8") == Path("moved.json").read_text(encoding="utf-8")
    found = facts(f"solve {line} --warm-start moved.json")
    assert (found["aim"], found["objective"], found["certificate"]["transfers"]["stall"]) == ("least-time", 12, 3)
    assert "nothing better was found" in ok(f"improve chain.json moved.json -b 3 --machine {MACHINE} -t 0.5 -q").out


def test_tables_show_waits_and_bytes_moved() -> None:
    line = f"chain.json -b 4,5 -m greedy --machine {MACHINE} -t 20 -q"
    shown = ok(f"compare {line} -o table.csv").out
    assert "waits" in shown and "host peak" in shown and "greedy is fastest: 22.2 % more time." in shown
    rows = list(csv.DictReader(Path("table.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["time"], row["stall"], row["bytes_written"]) for row in rows] == [("11", "0", "0"), ("10", "0", "0")]
    assert "for 22.2 % more time" in ok(f"frontier {line}").out


def test_bounds_with_a_host_do_not_exclude_moving() -> None:
    found = facts(f"bounds chain.json -b 3 --machine {MACHINE}")["bounds"]
    assert all(bound["value"] <= 12 for bound in found if bound["measure"] != "peak")
    assert not any(bound["infeasible"] for bound in found)
    without = facts("bounds chain.json -b 3 --machine rate=0B/s")["bounds"]
    assert max(bound["value"] for bound in without if bound["measure"] == "cost") > 12


@pytest.mark.parametrize("suffix", ["csv", "toml"])
def test_manifests_name_machines(suffix: str) -> None:
    lines = [{}, {"machine": MACHINE}, {"machine": "rate=2MB/s,host=1"}]
    lines = [{"graph": "chain.json", "schedule": "moved.json", **line} for line in lines]
    text = "".join("[[check]]\n" + "".join(f'{key} = "{value}"\n' for key, value in line.items()) for line in lines)
    if suffix == "csv":
        cells = [[line["graph"], line["schedule"], f'"{line.get("machine", "")}"'] for line in lines]
        text = "graph,schedule,machine\n" + "".join(",".join(row) + "\n" for row in cells)
    Path(f"all.{suffix}").write_text(text, encoding="utf-8")
    found = json.loads(ok(f"validate --manifest all.{suffix} --machine pcie4 --json", code=1).out)["certificates"]
    certificates = [each["certificate"] for each in found]
    assert [each["verdict"] for each in certificates] == ["valid", "valid", "over budget"]
    assert certificates[0]["rules"]["machine"]["write_rate"] == 24 * 10**9
    assert [each["transfers"]["time"] for each in certificates[1:]] == [12, 12]


def test_picture_has_both_memories_and_the_links() -> None:
    ok(f"plot chain.json moved.json -b 3 --machine {MACHINE} -o both.svg")
    picture = Path("both.svg").read_text(encoding="utf-8")
    for text in ("33.3 % more time than each op once, 25 % of the time waiting", "device (bytes)", "host (bytes)",
                 "to host", "from host", "compute"):  # fmt: skip
        assert text in picture


def test_completion_of_machines() -> None:
    assert complete_machine("pcie") == ["pcie3", "pcie4", "pcie5"]
    assert complete_machine("pcie4,la") == ["pcie4,latency="]


def test_least_energy_and_time_limit() -> None:
    """Transfers that take no energy give the least one at once; the limit is 10 us."""
    free = f"chain.json -b 3 --machine {MACHINE},link-power=0"
    found = facts(f"solve {free} --objective least-energy --method greedy --warm-start moved.json -t 20")
    assert (found["aim"], found["objective"], found["status"]) == ("least-energy", 9, "optimal")
    assert found["certificate"]["transfers"]["energy"] == 9 < found["certificate"]["transfers"]["time"]
    shown = ok(f"validate chain.json moved.json -b 3 --machine {MACHINE},link-power=0.1,limit=120%", code=1).out
    assert "takes longer than the time limit" in shown and "violation     the schedule takes 12, 2 more than" in shown
    with refused("problem.no-energy"):
        Problem(CHAIN, 3, objective="least-energy", machine=MACHINE)
    with refused("problem.no-energy"):
        Machine().transfer_energies(CHAIN)
