"""Comparisons of methods and budgets: cells, files, failures, interruption, plots."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from helpers import ONE

from remat import Problem
from remat.experiments.compare import compare
from remat.experiments.contestant import Contestant
from remat.formulations.retention_intervals import RetentionIntervalsOptions
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.io.figures import write_figure
from remat.runtime.solve_options import SolveOptions

METHODS = ["retention-intervals/cp-sat", "checkmate/highs", "greedy"]


@pytest.fixture(scope="module")
def chain():
    """Reference peak 6, optimum 10 at 5 bytes."""
    return Problem(unit_chain(4))


@pytest.fixture(scope="module")
def matrix(chain):
    return compare(chain, ["90%", 2, None], METHODS, stop=60, options=ONE)


def test_every_method_runs_at_every_budget(matrix):
    cells = [(run.budget, run.method.label, run.row()["status"], run.row()["cost"]) for run in matrix.runs]
    assert cells == [
        ("90%", "retention-intervals/cp-sat", "optimal", 10),
        ("90%", "checkmate/highs", "optimal", 10),
        ("90%", "greedy", "feasible", 10),
        *[("2", method, "infeasible", None) for method in METHODS],
        *[("no budget", method, "optimal", 9) for method in METHODS],
    ]
    assert [len(runs) for runs in matrix.by_budget()] == [3, 3, 3]
    assert not matrix.interrupted


def test_rows_agree_with_results(matrix):
    for run in matrix.runs:
        row, result = run.row(), run.result
        assert row["budget_bytes"] == run.problem.budget_bytes == result.problem.budget_bytes
        assert (row["bound"], row["gap"], row["variables"], row["constraints"]) == (
            result.bound, result.gap, result.variables, result.constraints,
        )  # fmt: skip
        assert row["scope"] == str(result.scope)
        assert (result.seed, result.threads) == (0, 1)
        if result.schedule is None:
            assert row["peak"] is row["overhead_percent"] is row["to_best_seconds"] is None
            assert "no schedule exists" in row["message"]
        else:
            assert row["peak"] == result.certificate.peak
            assert 0 <= row["to_best_seconds"] <= row["total_seconds"]
    assert matrix.runs[1].row()["versions"]["highspy"]
    assert matrix.to_csv().count(",remat=") == len(matrix.to_csv().splitlines()) - 1 == len(matrix.runs)


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if not key.endswith("seconds")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_files_are_reproducible_except_for_times(chain):
    texts = []
    for _ in range(2):
        done = compare(chain, ["90%"], METHODS, stop=60, options=ONE)
        facts = json.loads(done.to_json())
        for run in facts["runs"]:
            run["incumbents"] = run["incumbents"][-1:]  # the number of bounds depends on the clock
        texts.append((list(facts), without_times(facts)))
    assert texts[0] == texts[1]
    facts = texts[0][1]
    assert facts["limits"] == {
        "time_limit": 60, "threads": 1, "seed": 0, "gap": 1e-6, "isolate": False, "memory_limit": None,
    }  # fmt: skip
    assert facts["graph"]["digest"] == chain.graph.digest
    assert [run["incumbents"][0]["cost"] for run in facts["runs"]] == [10, 10, 10]


def test_failed_run_does_not_stop_the_others(chain, faulty):
    done = compare(
        chain,
        ["90%"],
        ["checkmate/faulty:crash", "checkmate/faulty:absent", "checkmate/highs"],
        options=ONE,
    )
    crash, absent, good = done.runs
    assert crash.result is not None  # the heuristic's schedule survives
    assert "ZeroDivisionError" in crash.row()["message"]
    assert absent.result is None
    assert absent.row()["status"] == "failed"
    assert absent.error == "backend 'faulty:absent' cannot be used: pip install faulty"
    assert good.result.status == "optimal"
    free = compare(Problem(chain.graph, order="free"), ["90%"], ["checkmate/highs", "greedy"], options=ONE)
    assert "reference order" in free.runs[0].error
    assert free.runs[1].result.schedule is not None
    assert json.loads(free.to_json())["runs"][0]["incumbents"] == []


@pytest.mark.parametrize("variant", ["ctrl-c", "stopped"])
def test_ctrl_c_keeps_started_runs(chain, faulty, variant):
    seen = []
    done = compare(
        chain,
        ["90%", "100%"],
        ["greedy", f"checkmate/faulty:{variant}", "checkmate/highs"],
        on_run=lambda so_far: seen.append(len(so_far.runs)),
        options=ONE,
    )
    assert done.interrupted
    assert [run.method.label for run in done.runs] == ["greedy", f"checkmate/faulty:{variant}"]
    assert done.runs[1].result.stop == "interrupted"
    assert done.runs[1].result.objective == 10
    assert seen == [1, 2]
    assert json.loads(done.to_json())["interrupted"] is True


def test_options_of_a_method(chain):
    methods = [
        Contestant("retention-intervals", "cp-sat", RetentionIntervalsOptions(copies=c), label=f"C = {c}")
        for c in (1, 2)
    ]
    done = compare(chain, [5], methods, stop=60, options=ONE)
    assert [run.result.schedule is None or run.result.source == "greedy" for run in done.runs] == [True, True]
    assert done.runs[0].result.variables < done.runs[1].result.variables
    assert [run.method.label for run in done.runs] == ["C = 1", "C = 2"]


def test_ctrl_c_in_the_watch_keeps_earlier_runs(chain):
    lines = []

    @contextmanager
    def watch(line):
        if "[3/" in line:
            raise KeyboardInterrupt
        moments = []
        yield moments.append
        lines.append((line, len(moments) > 0))

    done = compare(chain, [5, None, 6], ["greedy"], watch=watch)
    assert lines == [("[1/3] greedy at 5", True), ("[2/3] greedy without budget", True)]
    assert done.interrupted
    assert [run.budget for run in done.runs] == ["5", "no budget"]


# -- plots -----------------------------------------------------------------------------------------------------------


def test_plot_has_a_panel_for_each_budget(matrix):
    """Gaps to the best bound, with labels of objectives; equal curves lie next to each other."""
    figure = matrix.plot()
    above, middle, below = figure.axes
    assert above.get_title() == "unit-chain-4, budget 90% (5 bytes)"
    assert middle.get_title().endswith(f"\ninfeasible: {', '.join(METHODS)}")
    assert [text.get_text() for text in middle.texts] == ["no schedule exists within 2 bytes: proved"]
    labels = [text.get_text() for text in above.texts][1:]
    assert labels == [
        "retention-intervals/cp-sat: 11.11 %, optimal in its scope, by greedy",
        "checkmate/highs: 11.11 %, optimal in its scope, by greedy",
        "greedy: 11.11 %",
    ]
    steps = [line for line in above.lines if line.get_label() in labels]
    assert all(list(line.get_ydata()) == pytest.approx([100 / 9] * len(line.get_ydata())) for line in steps)
    assert len(steps) == 3
    heights = [line.get_transform().transform((1, 0))[1] for line in steps]
    assert heights == sorted(set(heights))
    dashed = [line for line in above.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [0.0] * 3
    # proved in narrower scopes; greedy has the bound of all schedules
    assert [line.get_ydata()[-1] for line in dashed] == pytest.approx([100 / 9, 100 / 9, 0])
    assert (above.get_xscale(), above.get_yscale()) == ("log", "symlog")
    assert "best bound 0 %" in below.texts[0].get_text()


def test_bounds_rise_from_below_to_the_best_one(chain):
    """A bound of all schedules is the zero line; the bounds before it are below."""
    (axes,) = compare(chain, ["90%"], ["auto", "greedy"], stop=60, options=ONE).plot().axes
    dashed = [line.get_ydata() for line in axes.lines if line.get_linestyle() == "--"]
    assert [(ys[0], ys[-1]) for ys in dashed] == [(pytest.approx(-10), 0), (pytest.approx(-10), pytest.approx(-10))]
    assert "best bound 11.11 %" in axes.texts[0].get_text()
    first, second = [text.get_text() for text in axes.texts[1:]]
    assert first.startswith("auto: 11.11 %, optimal, by ") and second == "greedy: 11.11 %"


def test_plot_of_a_graph_without_costs(tmp_path):
    b = GraphBuilder("free of $charge$")
    b.op("a", size=1, cost=0)
    done = compare(Problem(b.build()), [None], ["greedy"])
    figure = done.plot()
    assert "best bound 0:" in figure.axes[0].texts[0].get_text()
    write_figure(tmp_path / "x.svg", done.plot)
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()


def test_compare_least_peaks(chain, capsys):
    """Rows, table and plot have peaks and bounds in bytes; a method that lacks the objective fails alone."""
    methods = ["auto", "retention-intervals/cp-sat", "checkmate/highs"]
    done = compare(replace(chain, objective="least-peak"), [None], methods, stop=60, options=ONE)
    rows = [run.row() for run in done.runs]
    assert [row["status"] for row in rows] == ["optimal", "optimal", "failed"]
    assert "least peak" in rows[2]["message"]
    # two computes per op are too few for 3 bytes
    assert [(row["peak"], row["bound"], row["gap"]) for row in rows[:2]] == [(3, 3, 0.0), (4, 4, 0.0)]
    facts = json.loads(done.to_json())
    assert facts["rules"]["objective"] == "least-peak"
    assert [run["incumbents"][-1]["peak"] for run in facts["runs"][:2]] == [3, 4]
    from remat.cli.compare import print_comparison

    print_comparison(done)
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.strip().startswith("auto "))
    assert line.split()[1:8] == ["optimal", f"{rows[0]['overhead_percent']:.4g}", "%", "3", "0", "%", "3"]
    (axes,) = done.plot().axes
    assert axes.get_ylabel() == "peak above the best bound" and axes.get_title().endswith("\nfailed: checkmate/highs")
    assert [text.get_text().partition(", ")[0] for text in axes.texts[1:]] == [
        "auto: 3 bytes", "retention-intervals/cp-sat: 4 bytes",
    ]  # fmt: skip
    assert max(axes.lines[-1].get_ydata()) == pytest.approx(100 / 3), "4 bytes, bound 3"


def test_source_of_a_schedule_is_reported(chain, capsys):
    """Regression: a schedule of greedy appeared as one of the formulation."""
    from remat.cli.compare import print_comparison

    assisted = compare(chain, ["90%"], ["checkmate/highs"], stop=60, options=ONE)
    alone = compare(chain, ["90%"], ["checkmate/highs"], stop=60, options=SolveOptions(threads=1, start="none"))
    assert [run.result.source for run in (*assisted.runs, *alone.runs)] == ["greedy", "checkmate by highs"]
    assert (assisted.limits.get("start"), alone.limits["start"]) == (None, "none")
    print_comparison(assisted)
    shown = capsys.readouterr().out
    assert "schedule by" in shown
    assert "phase 1" in shown
    assert any(line.rstrip().endswith("greedy") for line in shown.splitlines())
    assert alone.plot().axes[0].texts[-1].get_text() == "checkmate/highs: 11.11 %, optimal in its scope"
