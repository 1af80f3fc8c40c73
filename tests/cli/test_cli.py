"""The shell, through its real entry point, so that exit codes and error lines are those of the process."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from shell import program, start

from remat.cli import main
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.schedule import Schedule
from remat.schedule.io import read_schedule, write_schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def chain(tmp_path: Path) -> str:
    """A training chain of 9 ops: reference peak 6, structural bound 3."""
    write_graph(unit_chain(4), tmp_path / "chain.json")
    return str(tmp_path / "chain.json")


def ok(*arguments: object, code: int = 0) -> None:
    assert main([str(argument) for argument in arguments]) == code


# -- solve -------------------------------------------------------------------------------------------------------------


def test_solve_writes_a_schedule_that_validates(chain: str, tmp_path: Path, capsys: Capture) -> None:
    out, picture = tmp_path / "s.json", tmp_path / "s.png"
    ok("solve", chain, "--budget", 5, "-o", out, "--plot", picture, "--threads", 1, "--quiet")
    shown = capsys.readouterr()
    assert shown.out.startswith("status    optimal (stopped: finished)\n")
    assert shown.err == ""
    assert picture.read_bytes().startswith(b"\x89PNG")
    ok("validate", chain, out, "--budget", 5, "--order", "fixed")
    assert capsys.readouterr().out.startswith("verdict       valid\n")
    ok("validate", chain, out, "--budget", 4, code=1)
    assert "over budget" in capsys.readouterr().out


def test_quantities_have_units(chain: str, tmp_path: Path, capsys: Capture) -> None:
    """On the command line and in a configuration; a letter alone is a power of 1024."""
    ok("solve", chain, "-b", "8g", "--time-limit", "2m", "--gap", "5%", "--threads", "all", "--json", "-q")
    assert json.loads(capsys.readouterr().out)["budget"] == 8 * 2**30
    (tmp_path / "run.toml").write_text(
        "[problem]\ngraph = 'chain.json'\nbudget = '5b'\n[solve]\ntime_limit = '2m'\ngap = '5%'\nthreads = 'all'"
    )
    ok("solve", "-c", tmp_path / "run.toml", "--json", "-q")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["budget"], facts["status"]) == (5, "optimal")


@pytest.mark.parametrize(("formulation", "backend"), [("retention-intervals", "cp-sat"), ("checkmate", "highs")])
def test_solve_with_any_pair(chain: str, formulation: str, backend: str, capsys: Capture) -> None:
    ok("solve", chain, "-b", 5, "-f", formulation, "--backend", backend, "--threads", 1, "--json", "-q")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["status"], facts["objective"], facts["gap"]) == ("optimal", 10, 0.0)
    assert facts["certificate"]["verdict"] == "valid"


def test_solve_without_a_schedule_says_why(chain: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "s.json"
    ok("solve", chain, "--budget", 2, "-o", out, code=1)
    shown = capsys.readouterr().out
    assert "budget 2 bytes is below the 3 bytes that op" in shown
    assert "3 bytes (50 %) are known to suffice" in shown
    assert not out.exists()


# -- the other commands ------------------------------------------------------------------------------------------------


def test_show(chain: str, capsys: Capture) -> None:
    ok("show", chain)
    text = capsys.readouterr().out
    assert "reference peak        6\n" in text
    assert "structural bound      3 bytes (50 %), op " in text
    ok("show", chain, "--json", "--top", 2)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ops"], facts["base_cost"], facts["structural_bound"]["peak"]) == (9, 9, 3)
    assert len(facts["largest_tensors"]) == 2


def test_show_takes_a_zoo_name_where_there_is_no_such_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    ok("show", "vgg16", "--json")
    assert json.loads(capsys.readouterr().out)["name"].startswith("vgg16")
    write_graph(unit_chain(2), tmp_path / "chain.json")
    (tmp_path / "chain.json").rename(tmp_path / "vgg16")
    ok("show", "vgg16", "--json")
    assert json.loads(capsys.readouterr().out)["name"] == "unit-chain-2"


@pytest.mark.parametrize(
    ("arguments", "ops"),
    [
        (["layered", "-n", "20", "--width", "0.3", "--seed", "5"], 20),
        (["unit-chain", "--ops", "3"], 7),
        (["pyramid", "-n", "2"], 6),
        (["u-chain", "-n", "3"], 6),
        (["in-tree", "-n", "2"], 7),
        (["path", "-n", "4"], 4),
        (["randwire-cifar10-coarse", "--seed", "3"], 74),
        (["gpt", "--layers", "2", "--heads", "2", "--width", "8", "--sequence", "3", "--batch", "1"], 75),
        (["uno", "--batch", "1"], 267),
        (["resnet50-ops", "--batch", "1", "--image", "32x32", "--accumulation", "buffers"], 222),
    ],
)
def test_generate(arguments: list[str], ops: int, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    ok("generate", *arguments, "-o", first)
    ok("generate", *arguments, "-o", second)
    assert len(read_graph(first).ops) == ops
    assert first.read_bytes() == second.read_bytes()


def test_generate_a_zoo_graph_of_another_size(tmp_path: Path) -> None:
    ok("generate", "vgg16", "--batch", 2, "--image", "64x64", "-o", tmp_path / "small.json")
    ok("generate", "vgg16", "--batch", 4, "--image", "64x64", "-o", tmp_path / "large.json")
    small, large = read_graph(tmp_path / "small.json"), read_graph(tmp_path / "large.json")
    assert small.op_names == large.op_names
    assert small.reference_peak < large.reference_peak


def test_convert_graphs_and_schedules(chain: str, tmp_path: Path) -> None:
    graph = read_graph(chain)
    ok("convert", chain, tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_bytes() == Path(chain).read_bytes()
    ok("convert", chain, tmp_path / "chain.dot")
    assert "digraph" in (tmp_path / "chain.dot").read_text(encoding="utf-8")
    reference = Schedule.reference(graph)
    write_schedule(reference, tmp_path / "s.json")
    ok("convert", tmp_path / "s.json", tmp_path / "t.json", "--graph", chain)
    assert read_schedule(tmp_path / "t.json", graph) == reference


def test_plot(chain: str, tmp_path: Path, capsys: Capture) -> None:
    write_schedule(Schedule.reference(read_graph(chain)), tmp_path / "s.json")
    ok("plot", chain, tmp_path / "s.json", "-o", tmp_path / "s.svg", "--budget", "80%")
    assert b"<svg" in (tmp_path / "s.svg").read_bytes()
    assert not capsys.readouterr().err
    ok("plot", "unet", tmp_path / "s.json", "-o", tmp_path / "broken.svg")
    assert "s.json is not a valid schedule: the schedule is for a graph " in capsys.readouterr().err


def test_backends(capsys: Capture) -> None:
    ok("backends")
    text = capsys.readouterr().out
    assert text.startswith("backends:\n")
    assert "cp-sat" in text and "retention-intervals" in text
    ok("backends", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["backends"]["cp-sat"]["state"] == "ready"
    assert "ortools" in facts["backends"]["cp-sat"]["reason"]
    assert facts["formulations"]["checkmate"]["about"]
    assert facts["methods"]["serenity"]["about"].startswith("The dynamic programme")


def test_help_and_version(capsys: Capture) -> None:
    import remat

    ok("--version")
    assert capsys.readouterr().out == f"remat {remat.__version__}\n"
    ok()
    assert "Commands:" in capsys.readouterr().out
    for command in ("solve", "validate", "show", "plot", "generate", "convert", "backends", "warm-up"):
        ok(command, "--help")
        assert f"remat {command}" in capsys.readouterr().out


def test_names_are_never_markup(tmp_path: Path, capsys: Capture) -> None:
    from remat.graphs import GraphBuilder

    b = GraphBuilder("[bold]g[/bold]")
    b.op("[red]x[/red]", size=1, cost=1)
    write_graph(b.build(), tmp_path / "g.json")
    ok("show", tmp_path / "g.json")
    ok("solve", tmp_path / "g.json", "-b", "100%", "-q")
    text = capsys.readouterr().out
    assert "[red]x[/red]" in text
    assert text.count("[bold]g[/bold]") == 2


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a shell")
def test_closed_standard_streams_change_no_exit_code(chain: str, tmp_path: Path) -> None:
    """What would go there goes nowhere, and into no file that is opened meanwhile."""
    script = """
        "$@" convert "$chain" copy.json >&-; echo $?
        "$@" convert "$chain" - 2>&1 >&-; echo $?
        "$@" show missing.json 2>&-; echo $?
    """
    done = subprocess.run(
        ["sh", "-c", script, "sh", *program()], env={**os.environ, "chain": chain}, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["0", "remat: error: -: cannot be written: there is none", "2", "2"]
    assert (tmp_path / "copy.json").read_bytes() == Path(chain).read_bytes() and not done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("kind", "code", "line"), [("full", 2, "remat: error: cannot write: "), ("pipe", 141, "")])
def test_output_that_is_not_read(chain: str, kind: str, code: int, line: str) -> None:
    """A full disk is one line; a reader that goes away is no error."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe, Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program("show", chain), stdout={"full": full, "pipe": pipe}[kind], stderr=subprocess.PIPE, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.startswith(line) and done.stderr.count("\n") == bool(line)


def test_a_terminal_without_unicode_is_enough(tmp_path: Path) -> None:
    from remat.graphs import GraphBuilder

    b = GraphBuilder("größe")
    b.op("τ", size=1, cost=1)
    write_graph(b.build(), tmp_path / "g.json")
    process = start("show", tmp_path / "g.json", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert r"gr\xf6\xdfe" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_found_out_before_the_solve(chain: str, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    ok("solve", chain, "--budget", 2, "-o", folder / "s.json", code=2)
    assert "cannot be written" in capsys.readouterr().err
