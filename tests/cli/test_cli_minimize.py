"""``remat minimize`` through the real entry point."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remat import layered
from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.schedule import Rules, validate
from remat.schedule.io import read_schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def chain(tmp_path: Path) -> str:
    path = tmp_path / "chain.json"
    write_graph(unit_chain(4), path)
    return str(path)


def test_what_is_printed_and_written(chain: str, tmp_path: Path, capsys: Capture) -> None:
    out, picture = tmp_path / "lean.json", tmp_path / "lean.svg"
    assert main(["minimize", chain, "--backend", "none", "-t", "60", "-q", "-o", str(out), "--plot", str(picture)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "status    proved least (stopped: finished)"
    assert "peak      3 bytes (50 % of the reference peak)" in lines
    assert any("cost 15 (each op once 9) (no schedule within this peak is cheaper)" in line for line in lines)
    assert not shown.err
    certificate = validate(read_graph(chain), read_schedule(out), Rules(budget=3))
    assert (certificate.accepted, certificate.cost) == (True, 15)
    assert picture.read_bytes().startswith(b"<?xml")


def test_json_and_rules(chain: str, capsys: Capture) -> None:
    words = ["--order", "free", "--max-computes", "1", "--keep", "f0"]
    assert main(["minimize", chain, "--backend", "none", "-t", "60", "-q", "--json", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["proved"], facts["cost_proved"], facts["order"]) == (True, True, "free")
    assert facts["certificate"]["rules"]["keep"] == ["f0"]
    assert facts["certificate"]["rules"]["max_computes"] == 1
    assert facts["peak"] == facts["bound"] == facts["certificate"]["rules"]["budget"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.json"], "none.json: no such file, and no zoo graph of that name either (fcn8"),
        (["{chain}", "--order", "any"], "order 'any' is not one of fixed, free"),
        (["{chain}", "--keep", "x"], "tensor 'x' to keep is not in graph"),
        (["{chain}", "--backend", "cpsat"], "there is no backend 'cpsat'; known are cp-sat"),
        (["{chain}", "-t", "-1"], "stop must be a positive number of seconds"),
        (["{chain}", "-o", "nowhere/x.json"], "nowhere/x.json: cannot be written"),
        (["{chain}", "-o", "{chain}"], "would overwrite the input"),
        (["{chain}", "--plot", "x.txt"], "the suffix must be one of"),
    ],
)
def test_one_line_for_every_mistake(words: list[str], message: str, chain: str, capsys: Capture) -> None:
    before = Path(chain).read_bytes()
    assert main(["minimize", *(word.replace("{chain}", chain) for word in words)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not shown.out
    assert Path(chain).read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_writes_the_best(tmp_path: Path) -> None:
    graph, out = tmp_path / "graph.json", tmp_path / "lean.json"
    write_graph(layered(60, 0.35, 2), graph)
    program = "import sys, remat.cli; sys.exit(remat.cli.main())"
    command = [sys.executable, "-c", program, "minimize", str(graph), "--order", "free", "--backend", "none"]
    process = subprocess.Popen(
        [*command, "-t", "300", "-o", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert any("  annealing " in line for line in process.stderr)  # the orders have been searched by then
        process.send_signal(signal.SIGINT)
        shown, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert "(stopped: interrupted)" in shown
    assert "Traceback" not in err
    peak = validate(read_graph(graph), read_schedule(out)).peak
    assert peak <= 25_340
    assert f"peak      {peak:,} bytes" in shown
