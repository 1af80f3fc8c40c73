"""Text of files reaches the terminal escaped: control characters, escape sequences, bidirectional overrides, markup."""

import io
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
import typer
from rich.table import Table
from shell import ok, program, shell

from remat.cli import main
from remat.cli.common import print_table
from remat.cli.console import DETAIL, NUMBER, TEXT, SafeConsole, print_columns
from remat.cli.saving import Outputs
from remat.cli.terminal import guarded, say
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.zoo import ZOO
from remat.graphs.zoo.titles import title_of
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupts, request
from remat.runtime.text import printable
from remat.schedule import Schedule, write_schedule

Capture = pytest.CaptureFixture[str]

EVIL = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e\r\x08[red]x[/red]"
ESCAPED = "\\x1b[31m"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph, a schedule, a profile and a configuration with control characters in contents and file names."""
    graph = {
        "format": "remat-graph", "version": 1, "name": "[red]g[/red]", "source": EVIL, "cost_unit": "us",
        "constant_memory": 0,
        "tensors": [{"name": "[bold]x", "size": 4}, {"name": "y[/]", "size": 2}],
        "ops": [{"name": "[blink]a", "type": EVIL, "cost": 1, "inputs": [], "outputs": ["[bold]x"],
                 "phase": "forward"},
                {"name": "b[/]", "type": "", "cost": 2, "inputs": ["[bold]x"], "outputs": ["y[/]"]}],
        "meta": {EVIL: EVIL, "batch": 1},
    }  # fmt: skip
    schedule = {
        "format": "remat-schedule", "version": 1, "graph": EVIL, "graph_digest": EVIL, "source": EVIL,
        "steps": [["compute", "[blink]a"], ["compute", "b[/]"]], "meta": {EVIL: EVIL},
    }  # fmt: skip
    (tmp_path / f"graph{EVIL.replace('/', '')}.json").write_text(json.dumps(graph))
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    (tmp_path / "schedule.json").write_text(json.dumps(schedule))
    (tmp_path / "signed.json").write_text(json.dumps({**schedule, "graph": "", "graph_digest": ""}))
    (tmp_path / "unknown.json").write_text(json.dumps({**graph, EVIL: 1}))
    (tmp_path / "other.json").write_text(json.dumps({"format": EVIL}))
    (tmp_path / "costs.csv").write_text(f"op,us\n{EVIL},1\n")
    (tmp_path / "run.toml").write_text(f"[problem]\ngraph = 'graph.json'\n{json.dumps(EVIL)} = 1\n")
    (tmp_path / "solver.toml").write_text(
        f"[problem]\ngraph = 'graph.json'\n[solve]\nbackend = {json.dumps('cp-sat:' + EVIL)}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


NAMED = f"graph{EVIL.replace('/', '')}.json"
COMMANDS = [
    ["show", "graph.json"],
    ["show", NAMED],
    ["show", "unknown.json"],
    ["show", "other.json"],
    ["show", EVIL],
    ["show", "graph.json", "--costs", "costs.csv"],
    ["show", "graph.json", "--json"],
    ["validate", "graph.json", "schedule.json"],
    ["validate", "graph.json", "signed.json"],
    ["validate", "graph.json", "signed.json", "--budget", EVIL],
    ["validate", "graph.json", "signed.json", "--keep", EVIL],
    ["validate", NAMED, "graph.json"],
    ["solve", "graph.json", "--budget", "100%"],
    ["solve", "graph.json", "--budget", "1"],
    ["solve", "graph.json", "--budget", "100%", "--method", EVIL],
    ["solve", "graph.json", "--budget", "100%", "--backend", EVIL],
    ["solve", "graph.json", "--budget", "100%", "--warm-start", "signed.json"],
    ["solve", "graph.json", "--budget", "100%", "--warm-start", "schedule.json"],
    ["solve", "--config", "run.toml"],
    ["solve", "--config", "solver.toml", "--budget", "100%"],
    ["improve", "graph.json", "signed.json", "--budget", "100%"],
    ["improve", "graph.json", "schedule.json", "--budget", "100%"],
    ["minimize", "graph.json", "--time-limit", "20"],
    ["bounds", "graph.json", "--budget", "100%"],
    ["compare", "graph.json", "--budget", "100%", "-m", "greedy", "-o", "out.json", "-o", "out.csv"],
    ["compare", "graph.json", "--budget", "100%", "-m", EVIL],
    ["frontier", "graph.json", "--budget", "100%", "-m", "greedy", "-o", "out.csv"],
    ["batch", "graph.json", "--memory", "10", "-m", "greedy", "-t", "20"],
    ["plot", "graph.json", "signed.json", "-o", "out.png"],
    ["plot", "graph.json", "schedule.json", "-o", f"{NAMED}.png"],
    ["generate", EVIL, "-o", "out.json"],
    ["convert", "graph.json", f"out{EVIL}"],
    ["convert", "schedule.json", "out.json", "--graph", "graph.json"],
    [EVIL],
    ["solve", EVIL + "=", "--" + EVIL],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).encode("ascii", "replace").decode())
def test_commands_print_no_raw_control_characters(words: list[str], folder: Path, capsys: Capture) -> None:
    code = main(words)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        raw = {character for character in text if not character.isprintable()} - {"\n"}
        assert not raw, f"{raw} in {text!r}"
    assert code in (0, 1, 2)
    if code == 2:
        assert shown.err.splitlines()[-1].startswith("remat: error: ")
        assert shown.err.count("remat: error: ") == 1
        assert "internal error" not in shown.err


@pytest.mark.usefixtures("folder")
def test_escaped_names_are_shown() -> None:
    shown = ok("show graph.json").out
    assert "[red]g[/red]" in shown and ESCAPED in shown
    ok("show", NAMED)
    assert ESCAPED in ok("show unknown.json", code=2).err


def test_tables_and_live_lines_are_printable_on_a_terminal() -> None:
    """Only styles of rich emit escape sequences."""
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=True, width=200, markup=False, color_system="standard")
    table = Table("method")
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, style="bold")
    assert "\x1b[1m" in stream.getvalue()
    for raw in ("\x1b[31m", "\x1b]", "\x07", "\x9b", "\u202e", "\r", "\x08"):
        assert raw not in stream.getvalue()
    assert "\\x1b[31m" in stream.getvalue()


@pytest.mark.parametrize(
    ("width", "gone"), [(60, ""), (59, "build"), (50, "build, peak"), (30, "overhead, build, peak")]
)
def test_narrow_terminals_omit_columns(width: int, gone: str) -> None:
    """Details go first, then columns from the right; no cell is truncated, and the first two columns stay."""
    stream = io.StringIO()
    columns = [("method", TEXT), ("status", TEXT), ("overhead", NUMBER), ("build", DETAIL), ("peak", NUMBER)]
    row = ["checkmate/highs", "optimal", "11.11 %", "0.02 s", "1,234,567"]
    print_columns(SafeConsole(file=stream, width=width), "title", columns, [row, ["greedy", "failed"]])
    shown = stream.getvalue()
    assert ("left out" in shown) == bool(gone) and " ".join(shown.split()).endswith(gone)
    if width > 30:
        kept = [word for (heading, _), word in zip(columns, row, strict=True) if heading not in gone]
        assert all(word in shown for word in kept) and "…" not in shown


def test_long_names_stay_whole_on_a_narrow_screen() -> None:
    """Names of files stand above the other cells; omitted columns are listed."""
    columns = [("schedule", TEXT), ("verdict", TEXT), ("peak", NUMBER), ("read as", TEXT)]
    name = "schedules/resnet_gn__rotor64k_hiremate__hiremate_50_raw.json"
    stream = io.StringIO()
    print_columns(SafeConsole(file=stream, width=40), "net", columns, [[name, "invalid", "12", "rockmate " * 3]])
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert lines[:7] == ["net", "", "schedule", "verdict   peak", "\u2500" * 16, name, "invalid     12"]
    assert lines[-1] == "left out at this width: read as"


def test_stacked_columns_stay_in_their_groups() -> None:
    """A bound never stands in a table without the method that it belongs to."""
    names = ["budget", "bytes", "greedy", "bound", "eviction", "bound"]
    columns = [(name, NUMBER) for name in names]
    for width in range(40, 70):
        stream = io.StringIO()
        print_columns(SafeConsole(file=stream, width=width), "t", columns, [["80 %", *["0.125 %"] * 5]], stacked=2)
        tables, _, _ = stream.getvalue().partition("left out")
        heads = [line.split() for line in tables.splitlines() if "budget" in line]
        assert all("bound" not in head or {"greedy", "eviction"} & set(head) for head in heads), heads
        assert [word for head in heads for word in head] in (names, [*names[:4], *names[:2], *names[4:]])


def test_names_in_lists_stay_whole(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """One blank between columns is enough if two would break a name."""
    monkeypatch.setenv("COLUMNS", "40")
    print_table([("amoebanet-a-folded-x", "inference", "1,114", "1"), ("darts", "inference", "709", "1")], right=(2, 3))
    assert "amoebanet-a-folded-x inference 1,114 1" in capsys.readouterr().out.splitlines()


def test_every_network_of_the_zoo_says_what_it_is() -> None:
    assert all(title_of(name) for name in ZOO)


def test_guard_ends_with_its_context(capsys: Capture) -> None:
    with guarded():
        print(EVIL)
    shown = capsys.readouterr().out
    assert shown.isprintable() is False and shown.rstrip("\n").isprintable()
    print("\x1b[0m")
    assert capsys.readouterr().out == "\x1b[0m\n"


@pytest.mark.usefixtures("folder")
def test_unexpected_errors_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError(EVIL)

    monkeypatch.setattr("remat.cli.show.graph_facts", fail)
    shown = ok("show graph.json", code=2).err
    assert shown.startswith("remat: error: internal error, ZeroDivisionError: ")
    assert "remat.show_versions()" in shown
    assert "REMAT_TRACEBACK=1" in shown and shown.count("\n") == 1
    monkeypatch.setenv("REMAT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        ok("show graph.json")
    monkeypatch.delenv("REMAT_TRACEBACK")
    # OverdueError is an OSError, but no fault of a disk.
    monkeypatch.setattr("remat.cli.show.graph_facts", lambda *_: Deadline.after(0).check())
    assert ok("show graph.json", code=2).err.startswith("remat: error: internal error, OverdueError: no time is left")


def test_printable_text_is_returned_unchanged() -> None:
    """Results in JSON have megabytes; a copy by character would be slow."""
    text = '{\n "name": "value"\n}\n'
    assert printable(text, "\n") is text
    assert printable(text + "\x07", "\n") == text + "\\x07"


def test_no_escape_sequence_at_exit(folder: Path) -> None:
    """numba imports colorama, which resets the colours of a terminal at exit."""
    ours, theirs = pty.openpty()
    words = program("solve graph.json --budget 100% --method annealing --quiet")
    assert subprocess.run(words, check=False, stdout=theirs, stderr=subprocess.STDOUT).returncode == 0
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert shown.startswith("status") and "x1b[0m" not in shown


SCREENS = [
    "show unet", "show unet --bytes", "zoo swift", "backends", "bounds vgg16 -b 90%", "solve unet -b 50% -m greedy -q",
    "compare unet -b 50% -m greedy,chen-sqrt -q", "frontier unet -b 50%:60%:10% -m greedy,chen-sqrt,ap-all -q",
    "order swiftnet -m kahn -q", "layers unet s.json", "validate unet s.json -b 50%",
    "validate unet s.json s.json -b 50%",
    "improve unet s.json -b 60% -m greedy -q",
    "traffic unet s.json --on-chip 1GiB,2GiB", "partition unet", "allocate unet s.json -q -t 2",
    "library show unet", "library show unet/fixed-70", "arenas swiftnet-c -m first-fit --order reference",
    "batch unet --memory 8GiB -m greedy -q -t 1",
]  # fmt: skip


#: Lines whose output comes from a solver; the other lines are quick.
SOLVED = ("bounds", "compare", "frontier", "improve", "allocate", "batch")


@pytest.mark.parametrize(
    ("line", "width"),
    [pytest.param(line, width, marks=[pytest.mark.slow] * (width == 120 and line.startswith(SOLVED)))
     for line in SCREENS for width in (60, 120)],
)  # fmt: skip
def test_output_fits_the_screen(line: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_schedule(Schedule.reference(ZOO["unet"]()), folder / "s.json")
    monkeypatch.setenv("COLUMNS", str(width))
    shown = shell(*line.split())
    assert shown.code in (0, 1), shown
    assert not [row for row in shown.out.splitlines() if len(row.rstrip()) > width]
    assert "…" not in shown.out


def test_sizes_have_units_on_a_screen_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "20,959,461,376" in ok("show unet").out
    monkeypatch.setenv("COLUMNS", "60")
    assert "19.52 GiB" in ok("show unet").out
    assert "20,959,461,376" in ok("show unet --bytes").out


def test_digests_and_paths_stay_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest is whole or shortened with a remark; a path is shown from here, and breaks at no hyphen."""
    name = f"{'long-' * 9}s.json"
    write_schedule(Schedule.reference(ZOO["unet"]()), folder / name)
    ok(f"validate unet {name} -o cert.json")
    digest = ZOO["unet"]().digest
    for width, shown in ((60, f"{digest[:12]} (the first 12"), (120, digest)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert shown in ok("show unet").out
        assert name in ok("verify cert.json").out


def test_messages_are_wrapped_between_words_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stream)
    say("error", "no such file, and no graph of the zoo has that name either; `remat zoo` lists them")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and all(len(line) <= 60 for line in lines)


def test_ctrl_c_skips_a_picture_and_sets_the_exit_code(capsys: Capture) -> None:
    outputs = Outputs()
    with interrupts():
        request()
        outputs.draw("x.png", lambda _: Deadline.after(9).check())
    with pytest.raises(typer.Exit) as done:
        outputs.leave(0)
    assert done.value.exit_code == 130
    assert capsys.readouterr().err == "remat: interrupted: x.png was not drawn\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "code", "end"),
    [
        ("validate chain.json s.json -b 6", 0, "The schedule is valid and needs 6 bytes without recomputation."),
        ("validate chain.json s.json -b 5", 1,
         "The schedule can be executed but needs 6 bytes without recomputation, more than the budget."),
        ("validate chain.json s.json s.json -b 5", 1, "0 of 2 schedules are accepted."),
        ("allocate chain.json -q", 0, "The buffers fit in 6 bytes. No arena is smaller."),
        ("allocate chain.json -q --capacity 5", 1, "No addresses exist."),
        ("frontier chain.json -b 2,5,6 -m greedy -q", 0,
         "The smallest of these budgets with a schedule is 5 bytes, by greedy for 11.1 % more compute. No method found "
         "a schedule for a smaller one."),
        ("solve chain.json -b 5", 0, "Fits in 5 bytes for 11.1 % more compute. No schedule in this order is cheaper."),
        ("solve chain.json -b 6", 0, "Fits in 6 bytes without recomputation. No schedule is cheaper."),
        ("solve chain.json -b 5 --order free", 0, "Fits in 5 bytes for 11.1 % more compute. No schedule is cheaper."),
        ("solve chain.json -b 5 -m greedy", 0,
         "Fits in 5 bytes for 11.1 % more compute. Another schedule could be at most 10 % cheaper."),
        ("solve chain.json -b 2", 1, "No schedule fits in 2 bytes. The smallest budget known to suffice: 3 bytes."),
        ("solve chain.json -b 5 --max-computes 1", 1, "The smallest budget known to suffice: 6 bytes."),
        ("minimize chain.json", 0, "No schedule in this order needs less memory."),
        ("order chain.json", 0,
         "Fits in 6 bytes without recomputation. No schedule without recomputation needs less memory."),
    ],
)  # fmt: skip
def test_closing_sentences(line: str, code: int, end: str) -> None:
    """They claim what status, bound and scope prove, and no more."""
    write_graph(unit_chain(4), "chain.json")
    write_schedule(Schedule.reference(unit_chain(4)), "s.json")
    line += "" if line.startswith(("validate", "allocate")) else " -q"
    assert ok(line, code=code).out.rstrip("\n").endswith(end)


@pytest.mark.usefixtures("folder")
def test_closing_sentence_of_a_comparison() -> None:
    write_graph(unit_chain(4), "chain.json")
    shown = ok("compare chain.json -b 5,2 -m greedy,retention-intervals -t 30 -q").out
    assert "\nAt 5, greedy is cheapest: 11.1 % more compute." in shown
    assert "\nAt 2, no method found a schedule, and greedy proved that there is none.\n" in shown
