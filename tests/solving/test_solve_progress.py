"""Progress reporter: a live line on terminals, plain lines elsewhere, silence when quiet."""

import io
import re
import time

import pytest

from remat.cli.reporter import Reporter, fitted
from remat.solving.progress import Progress, describe, parts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_at(**facts: object) -> Progress:
    return Progress(**({"phase": "solve", "elapsed": 2.0, "base_cost": 100} | facts))  # type: ignore[arg-type]


def test_plain_lines_continue_without_news() -> None:
    stream = io.StringIO()
    with Reporter(stream=stream, interval=0.1) as report:
        report(progress_at(elapsed=5.0))
        time.sleep(0.5)
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 6
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)
    assert times[-1] >= 5.2, "time of the news plus time since"
    assert all("  solve  no schedule yet  memory " in line for line in lines)


def test_number_of_plain_lines_is_limited() -> None:
    stream = io.StringIO()
    with Reporter(stream=stream, interval=1.0) as report:
        for number in range(2000):
            report(progress_at(objective=3000 - number))
        time.sleep(0.25)
    assert 1 <= len(stream.getvalue().splitlines()) <= 4


def test_equal_reports_print_one_line_per_interval() -> None:
    stream = io.StringIO()
    with Reporter(stream=stream, interval=3.0) as report:  # shows changes after 0.3 s
        for number in range(10):
            report(progress_at(elapsed=number / 10))
            time.sleep(0.1)
    assert len(stream.getvalue().splitlines()) == 1


def test_terminal_shows_one_updating_line() -> None:
    stream = Terminal()
    with Reporter(stream=stream) as report:
        report(progress_at(elapsed=1.0, objective=105, bound=102))
        time.sleep(1.2)
    drawn = re.findall(r"(\d\.\d) s {2}solve {2}overhead 5 % {2}gap 2\.8571 % {2}bound 2 %", stream.getvalue())
    assert float(drawn[-1]) >= 1.7
    assert "\n\n" not in stream.getvalue()


def test_quiet_prints_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        with Reporter(quiet=True, stream=stream, interval=0.05) as report:
            report(progress_at())
            time.sleep(0.2)
        assert stream.getvalue() == ""


def test_silence_before_the_first_report() -> None:
    stream = io.StringIO()
    with Reporter(stream=stream, interval=0.05):
        time.sleep(0.2)
    assert stream.getvalue() == ""


def test_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    with Reporter(stream=stream, interval=0.05) as report:
        stream.close()
        report(progress_at())
        time.sleep(0.2)


def test_unknown_values_are_not_shown() -> None:
    assert "bound" not in describe(progress_at(bound=100))
    free = progress_at(base_cost=0, objective=0, bound=0)
    assert (free.overhead, free.gap) == (None, 0.0)
    assert describe(free) == "2.0 s  solve  cost 0  gap 0 %"
    assert progress_at(objective=5).gap is None


def test_lines_fit_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last facts are left out whole, and small steps of the gap show."""
    monkeypatch.setenv("COLUMNS", "60")
    facts = {"objective": 1_000_210, "bound": 1_000_100, "base_cost": 1_000_000, "source": "lower-sets", "limit": 60.0}
    shown = fitted(parts(progress_at(**facts, peak=9_663_676_416)), Terminal())
    assert shown == "2.0/60 s  overhead 0.021 %  gap 0.010998 %  by lower-sets"
    monkeypatch.setenv("COLUMNS", "120")
    shown = fitted(parts(progress_at(**facts, peak=9_663_676_416)), Terminal())
    assert "  solve  " in shown and shown.endswith("gap 0.010998 %  by lower-sets  bound 0.01 %  peak 9.00 GiB")


def test_labels_and_news_of_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes receive plain lines; a terminal has one line, whose label yields to the time and the first fact."""
    pipe, terminal = io.StringIO(), Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    for stream in (pipe, terminal):
        with Reporter(stream=stream, label="[2/6] retention-intervals/minizinc:gecode at 80%", limit=30) as report:
            report.news("batch 3: fits (0.1 s)", "batch 3: fits", "more that does not fit next to the label")
            time.sleep(0.6)
    assert pipe.getvalue().splitlines() == [
        "[2/6] retention-intervals/minizinc:gecode at 80%", "batch 3: fits (0.1 s)",
    ]  # fmt: skip
    assert re.search(r"0\.\d/30 s  \[2/6\] retention-intervals/[\w:]*\.\.\.  batch 3: fits", terminal.getvalue())
    assert "(0.1 s)" not in terminal.getvalue()
    assert fitted(["1/4 s", "[3/6] checkmate/highs at 80.125%", "overhead 0.0021431 %"], terminal, labelled=True) == (
        "1/4 s  [3/6] checkmate/highs  overhead 0.0021431 %"
    )


def test_immediate_failures_print_no_line() -> None:
    stream = io.StringIO()
    with Reporter(stream=stream, interval=1.0) as report:
        report(progress_at(phase="start", elapsed=2.0))
        time.sleep(0.4)
    assert stream.getvalue() == ""
