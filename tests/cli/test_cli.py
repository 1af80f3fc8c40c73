"""Commands through the entry point: outputs, exit codes and error lines."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from refusals import check_text
from shell import facts, ok, program, start

import remat
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.io import read_graph, write_graph
from remat.schedule import Schedule
from remat.schedule.io import read_schedule, write_schedule

pytestmark = pytest.mark.usefixtures("folder")


def test_solve_writes_a_valid_schedule() -> None:
    shown = ok("solve chain.json --budget 5 -o s.json --plot s.png --threads 1 --quiet")
    assert shown.out.startswith("status    optimal (stopped: finished)\n") and not shown.err
    assert Path("s.png").read_bytes().startswith(b"\x89PNG")
    assert ok("validate chain.json s.json --budget 5 --order fixed").out.startswith("verdict       valid\n")
    assert "over budget" in ok("validate chain.json s.json --budget 4", code=1).out


def test_limits_on_reading_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.io.limits.LEAST_SECONDS", 0.1)
    Path("large.json").write_text('{"ops": [' + "[]," * 50_000 + "1]}")
    for words in ("--read-memory 2MiB show large.json", "solve large.json -b 5 --memory-limit 2MiB"):
        check_text("format.read-memory", ok(words, code=2).err)
    os.mkfifo("pipe")
    Path("run.toml").write_text(
        "[problem]\ngraph = 'chain.json'\nbudget = 5\n[solve]\ntime_limit = 0.1\nwarm_start = 'pipe'"
    )
    for words in ("--read-time 0.1 show pipe", "solve -c run.toml", "solve chain.json -b 5 --warm-start pipe -t 0.1"):
        check_text("format.pipe", ok(words, code=2).err, {"within 0.1 s": "within 1 s"})


def test_quantities_have_units() -> None:
    """On the command line and in a configuration; a single letter is a power of 1024."""
    assert facts("solve chain.json -b 8g --time-limit 2m --gap 5% --threads all -q")["budget"] == 8 * 2**30
    Path("run.toml").write_text(
        "[problem]\ngraph = 'chain.json'\nbudget = '5b'\n[solve]\ntime_limit = '2m'\ngap = '5%'\nthreads = 'all'"
    )
    found = facts("solve -c run.toml -q")
    assert (found["budget"], found["status"]) == (5, "optimal")


def test_solve_below_structural_bound_states_the_reason() -> None:
    shown = ok("solve chain.json --budget 2 -o s.json", code=1).out
    assert "budget 2 bytes is below the 3 bytes that op" in shown
    assert "3 bytes (50 %) are known to suffice" in shown
    assert not Path("s.json").exists()


def test_show() -> None:
    text = ok("show chain.json").out
    assert "reference peak        6\n" in text
    assert "structural bound      3 bytes (50 %), op " in text
    found = facts("show chain.json --top 2")
    assert (found["ops"], found["base_cost"], found["structural_bound"]["peak"]) == (9, 9, 3)
    assert len(found["largest_tensors"]) == 2


def test_files_take_precedence_over_zoo_names() -> None:
    assert facts("show vgg16")["name"].startswith("vgg16")
    Path("chain.json").rename("vgg16")
    assert facts("show vgg16")["name"] == "unit-chain-4"


@pytest.mark.parametrize(
    ("words", "ops"),
    [
        ("layered -n 20 --width 0.3 --seed 5", 20),
        ("unit-chain --ops 3", 7),
        ("pyramid -n 2", 6),
        ("u-chain -n 3", 6),
        ("in-tree -n 2", 7),
        ("path -n 4", 4),
        ("randwire-cifar10-coarse --seed 3", 74),
        ("gpt --layers 2 --heads 2 --width 8 --sequence 3 --batch 1 --device H100", 75),
        ("uno --batch 1", 267),
        ("resnet50-ops --batch 1 --image 32x32 --accumulation buffers", 222),
    ],
)
def test_generate(words: str, ops: int) -> None:
    for name in ("a.json", "b.json"):
        ok(f"generate {words} -o {name}")
    assert len(read_graph("a.json").ops) == ops
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_generate_zoo_graph_of_another_batch_size() -> None:
    for batch in (2, 4):
        ok(f"generate vgg16 --batch {batch} --image 64x64 -o {batch}.json")
    small, large = read_graph("2.json"), read_graph("4.json")
    assert small.op_names == large.op_names
    assert small.reference_peak < large.reference_peak


def test_convert_graphs_and_schedules() -> None:
    ok("convert chain.json copy.json")
    assert Path("copy.json").read_bytes() == Path("chain.json").read_bytes()
    ok("convert chain.json chain.dot")
    assert "digraph" in Path("chain.dot").read_text(encoding="utf-8")
    graph = read_graph("chain.json")
    write_schedule(Schedule.reference(graph), "s.json")
    ok("convert s.json t.json --graph chain.json")
    assert read_schedule("t.json", graph) == Schedule.reference(graph)


def test_plot() -> None:
    write_schedule(Schedule.reference(unit_chain(4)), "s.json")
    assert not ok("plot chain.json s.json -o s.svg --budget 80%").err
    assert b"<svg" in Path("s.svg").read_bytes()
    shown = ok("plot unet s.json -o broken.svg").err
    assert "s.json is not a valid schedule: the schedule is for graph " in shown


def test_backends() -> None:
    text = ok("backends").out
    assert text.startswith("backends:\n")
    assert "cp-sat" in text and "retention-intervals" in text
    found = facts("backends")
    assert found["backends"]["cp-sat"]["state"] == "ready"
    assert "ortools" in found["backends"]["cp-sat"]["reason"]
    assert found["formulations"]["checkmate"]["about"]
    assert found["methods"]["serenity"]["about"].startswith("Dynamic programme")


def test_help_and_version() -> None:
    assert ok("--version").out == f"remat {remat.__version__}\n"
    assert "Find schedules:\n  solve " in ok("").out
    assert "Commands:\n  run " in ok("study").out
    for command in ("solve", "validate", "show", "plot", "generate", "convert", "backends", "warm-up"):
        assert f"remat {command}" in ok(f"{command} --help").out


def test_names_are_never_markup() -> None:
    b = GraphBuilder("[bold]g[/bold]")
    b.op("[red]x[/red]", size=1, cost=1)
    write_graph(b.build(), "g.json")
    text = ok("show g.json").out + ok("solve g.json -b 100% -q").out
    assert "[red]x[/red]" in text
    assert text.count("[bold]g[/bold]") == 2


# -- the process -------------------------------------------------------------------------------------------------------


#: Lines and the words that complete them; each starts a process, so the quick run has the first two.
COMPLETED = {
    "solve --wa": "--warm-start", "solve unet -m checkmate/hi": "checkmate/highs", "bac": "backends",
    "solve cha": "chain.json", "solve chain.json --method greed": "greedy", "compare chain.json -m xl": "xla",
    "solve --backend high": "highs", "solve une": "unet unet-ops", "frontier unet --methods greedy,xl": "greedy,xla",
    "solve unet --order fr": "free", "convert --to plan-t": "plan-text", "generate pyr": "pyramid",
}  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_shell_completion_of_commands_options_and_registered_names(folder: Path, every: bool) -> None:
    """Installed as a user does, in a real bash; zsh and fish receive the same words in their protocols."""
    Path("remat").write_text(f'#!/bin/sh\nexec {shlex.join(program())} "$@"\n')
    Path("remat").chmod(0o755)
    chosen = COMPLETED if every else dict(list(COMPLETED.items())[:2])
    script = """
        remat --install-completion >/dev/null && source ~/.bashrc
        complete() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _remat_completion remat; echo "${COMPREPLY[@]}"; }
    """
    script += "\n".join(f"complete remat {line}" for line in chosen)
    script += """
        _REMAT_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS="remat solve --wa" remat
        _REMAT_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS="remat ba" remat
    """
    place = {**os.environ, "HOME": str(folder), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True, env=place)
    assert not done.stderr
    *found, zsh, fish, second = done.stdout.splitlines()
    assert found == list(chosen.values())
    assert '"--warm-start":"Schedule file' in zsh
    assert (fish[:6], second[:9]) == ("batch\t", "backends\t")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_completion_in_zsh(folder: Path) -> None:
    """Zsh reads the script at the first tab, which already completes; the script is installed from any shell."""
    Path("remat").write_text(f'#!/bin/sh\nexec {shlex.join(program())} "$@"\n')
    Path("remat").chmod(0o755)
    script = """
        remat --install-completion zsh > /dev/null
        fpath=(~/.zfunc); autoload -Uz _remat; compdef() { : }; _arguments() { print -r -- "$@" }
        words=(remat solve une); CURRENT=3; _remat
    """
    place = {**os.environ, "HOME": str(folder), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=120, check=True, env=place)
    assert "unet" in done.stdout and "unet-ops" in done.stdout and not done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_completion_in_fish(folder: Path) -> None:
    Path("remat").write_text(f'#!/bin/sh\nexec {shlex.join(program())} "$@"\n')
    Path("remat").chmod(0o755)
    script = "remat --install-completion fish > /dev/null; source $HOME/.config/fish/completions/remat.fish; "
    lines = ["remat solve une", "remat solve unet -m greed", "remat solve unet -m checkmate/hi"]
    script += "; ".join(f"complete -C '{line}'" for line in lines)
    place = {**os.environ, "HOME": str(folder), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, timeout=120, check=True, env=place)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [
        "unet", "unet-ops", "greedy", "checkmate/highs",
    ]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a shell")
def test_closed_standard_streams_keep_exit_codes() -> None:
    """Output to a closed stream is discarded and does not reach a file opened later."""
    script = """
        "$@" convert chain.json copy.json >&-; echo $?
        "$@" convert chain.json - 2>&1 >&-; echo $?
        "$@" show missing.json 2>&-; echo $?
    """
    done = subprocess.run(
        ["sh", "-c", script, "sh", *program()], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["0", "remat: error: -: cannot be written: there is none", "2", "2"]
    assert Path("copy.json").read_bytes() == Path("chain.json").read_bytes() and not done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("kind", "code", "line"), [("full", 2, "remat: error: cannot write: "), ("pipe", 141, "")])
def test_full_disk_and_closed_pipe(kind: str, code: int, line: str) -> None:
    """A full disk is an error of one line, a closed pipe is no error."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe, Path("/dev/full").open("w") as full:
        process = start("show chain.json", stdout={"full": full, "pipe": pipe}[kind])
        err = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert err.startswith(line) and err.count("\n") == bool(line)


def test_ascii_terminal() -> None:
    b = GraphBuilder("größe")
    b.op("τ", size=1, cost=1)
    write_graph(b.build(), "g.json")
    process = start("show g.json", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert r"gr\xf6\xdfe" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_folder_is_refused_before_the_solve() -> None:
    Path("locked").mkdir(mode=0o500)
    assert "cannot be written" in ok("solve chain.json --budget 2 -o locked/s.json", code=2).err
