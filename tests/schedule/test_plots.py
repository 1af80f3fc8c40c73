"""Plots: simulated values, complete and repeatable files."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers import steps
from matplotlib.collections import PolyCollection
from matplotlib.patches import StepPatch
from refusals import refused

from remat.errors import FormatError
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.zoo.transformers import gpt
from remat.schedule import Schedule
from remat.schedule.drawing import Picture
from remat.schedule.plots import plot_intervals, plot_memory, plot_schedule, save_plot
from remat.schedule.simulate import simulate
from remat.schedule.step_lines import StepLines


@pytest.fixture
def graph() -> ComputeGraph:
    builder = GraphBuilder("small", constant_memory=1024)
    builder.input("x", 1024)
    builder.op("a", inputs=["x"], size=4096, cost=1)
    builder.op("b", inputs=["a"], size=8192, cost=2, workspace=512)
    builder.op("c", inputs=["b"], size=1024, cost=2)
    builder.op("d", inputs=["a", "c"], size=2048, cost=1)
    builder.output("d")
    return builder.build()


@pytest.fixture
def schedule() -> Schedule:
    return steps("a b c a d")


#: Memory in bytes at each step of `schedule`, by hand: x + a; x + a + b + 512; x + b + c; x + c + a; x + a + c + d.
MEMORY = [5120, 13824, 10240, 6144, 8192]


def step_values(axes) -> list[list[float]]:
    return [list(patch.get_data().values) for patch in axes.patches if isinstance(patch, StepPatch)]


def bars(axes) -> dict[str, list[tuple[float, float, int]]]:
    """Return bars by label: (from, to, row)."""
    return {
        collection.get_label(): [
            (float(box[:, 0].min()), float(box[:, 0].max()), int(box[:, 1].min()))
            for box in (path.vertices for path in collection.get_paths())
        ]
        for collection in axes.collections
        if isinstance(collection, PolyCollection)
    }


def labels(axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def test_memory_plot_equals_simulation(graph: ComputeGraph, schedule: Schedule) -> None:
    axes = plot_memory(graph, schedule, budget=14336)
    filled, again, outline, base = step_values(axes)
    assert np.array_equal(np.array(filled) * 1024, MEMORY)
    assert np.array_equal(np.array(again) * 1024, [0, 0, 0, 6144, 0])
    assert outline == filled
    # the reference order holds a until d, so that c has 4096 more; the recomputation keeps the value before it
    assert np.array_equal(np.array(base) * 1024, [5120, 13824, 14336, 14336, 8192])
    assert axes.get_ylabel() == "memory (KiB)"
    assert labels(axes) == [
        "first compute", "recomputation", "without recomputation, peak 14.00 KiB", "budget 14.00 KiB",
        "peak 13.50 KiB (step 1, b)",
    ]  # fmt: skip
    assert axes.get_title() == "small: 5 computes, 1 of them recomputations, overhead 16.67 %"
    assert max(MEMORY) / 1024 < axes.get_ylim()[1] and axes.get_ylim()[1] > 14
    more = plot_memory(graph, schedule, keep=["b"], count_constant_memory=True)
    assert np.array_equal(
        np.array(step_values(more)[0]) * 1024, np.array(MEMORY) + 1024 + np.array([0, 0, 0, 8192, 8192])
    )


def test_frees_are_no_steps_of_the_picture(graph: ComputeGraph) -> None:
    late = steps("a b c -b d -a")
    axes = plot_memory(graph, late)
    assert np.array_equal(np.array(step_values(axes)[0]) * 1024, [5120, 13824, 14336, 8192])
    found = bars(plot_intervals(graph, late, axis="step"))
    assert found["first compute"] == [
        (0, 4, 1),
        (1, 3, 2),
        (2, 4, 3),
        (3, 4, 4),
    ]


def test_interval_plot_equals_simulation(graph: ComputeGraph, schedule: Schedule) -> None:
    axes = plot_intervals(graph, schedule, axis="step")
    assert bars(axes) == {
        "graph input": [(0, 5, 0)],
        "first compute": [(0, 2, 1), (1, 3, 2), (2, 5, 3), (4, 5, 4)],
        "recomputation": [(3, 5, 1)],
    }
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "a", "b", "c", "d"]


def test_max_tensors_selects_the_largest(graph: ComputeGraph, schedule: Schedule) -> None:
    axes = plot_intervals(graph, schedule, max_tensors=2, axis="step")
    assert bars(axes) == {"first compute": [(0, 2, 0), (1, 3, 1)], "recomputation": [(3, 5, 0)]}
    assert axes.get_ylabel() == "the 2 largest of 5 tensors"


def test_many_tensors_have_no_labels() -> None:
    graph = unit_chain(50)
    axes = plot_intervals(graph, Schedule.reference(graph))
    assert len(bars(axes)["first compute"]) == 101
    assert axes.get_ylabel() == "tensors in order of first allocation"
    assert axes.figure.get_size_inches()[1] < 10


def test_shared_steps_and_given_axes(graph: ComputeGraph, schedule: Schedule) -> None:
    figure = plot_schedule(graph, schedule, budget=14336, axis="step")
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, 5)
    below.set_xlim(1, 2)
    assert above.get_xlim() == (1, 2)
    assert "budget 14.00 KiB" in labels(above)
    assert [plot_memory(graph, schedule, ax=above), plot_intervals(graph, schedule, ax=below)] == figure.axes


def test_violations_are_marked_with_the_numbers_of_the_schedule(graph: ComputeGraph) -> None:
    """Title, marks and axis count frees, as messages and files do; the lines are where the computes are."""
    broken = steps("a b -a -b d")
    axes = plot_memory(graph, broken, axis="step")
    title = axes.get_title()
    assert title.startswith("small: not a valid schedule\nstep 4: op 'd' reads tensor 'a'")
    assert title.endswith("; 2 more violations")
    assert axes.title.get_color() == "#A00020"
    assert "violation" in labels(axes)
    assert [line.get_xdata() for line in axes.lines if line.get_label() == "violation"] == [[2.0, 2.0]]
    assert "step 4" in [text.get_text() for text in axes.texts]
    lined = Picture.of(graph, broken, "step", StepLines("s.txt", [11, 12, 13, 14, 15]))
    assert "(line 15 of s.txt); 2 more violations" in lined.title(None)
    assert lined.faults[0] == (2.0, "step 4, line 15")
    ticks = dict(zip([text.get_text() for text in axes.get_xticklabels()], axes.get_xticks(), strict=True))
    assert ticks["1"] == 1 and ticks["4"] == 2
    rows = plot_intervals(graph, broken)
    assert [text.get_text() for text in rows.get_yticklabels() if text.get_color() == "#A00020"] == ["a"]


def test_time_is_the_default_axis(graph: ComputeGraph, schedule: Schedule) -> None:
    axes = plot_memory(graph, schedule)
    assert (axes.get_xlabel(), axes.get_xlim()) == ("time (cost)", (0, 7))
    assert plot_memory(graph, schedule, axis="step").get_xlim() == (0, 5)
    with refused("problem.axis"):
        plot_memory(graph, schedule, axis="hours")  # type: ignore[arg-type]


def test_schedules_over_budget_say_so_in_the_title(graph: ComputeGraph, schedule: Schedule) -> None:
    axes = plot_memory(graph, schedule, budget=8192)
    assert axes.get_title().endswith("over budget: peak 13.50 KiB, budget 8.00 KiB")
    assert axes.title.get_color() != plot_memory(graph, schedule, budget=16384).title.get_color()


def test_graphs_with_modules_have_a_strip_and_rows_of_layers() -> None:
    network = gpt(layers=3)
    turn = next(op for op in network.order if network.ops[network.op_index[op]].phase == "backward")
    figure = plot_schedule(network, Schedule.reference(network), axis="step")
    above, strip, below = figure.axes
    assert {"0", "1", "2"} <= {text.get_text().rsplit(".")[-1] for text in strip.texts}
    assert above.lines[-1].get_xdata()[0] == network.order.index(turn)
    assert [text.get_text() for text in below.get_yticklabels()][:2] == ["embedding", "layers.0"]
    assert any("head.logits" in text.get_text() for text in below.texts)


def test_long_schedules_keep_their_peak_in_few_bins() -> None:
    graph = unit_chain(600)
    again = Schedule.from_steps(
        [("compute", name) for name in (*graph.order[:300], *graph.order[:300], *graph.order[300:])]
    )
    filled, share, *_ = step_values(plot_memory(graph, again))
    assert len(filled) == len(share) == 500
    assert max(filled) == simulate(graph, again).peak
    assert sum(value > 0 for value in share) == pytest.approx(100, abs=2)
    assert len(step_values(plot_intervals(graph, again))) <= 80


def test_recomputations_too_short_to_see_have_bars_and_visible_marks() -> None:
    """By hand: 'a' takes 1 of 1003, and writes 4096 bytes again; 'b' takes 500, so its recomputation is an area."""
    builder = GraphBuilder("brief")
    builder.op("a", size=4096, cost=1)
    builder.op("b", inputs=["a"], size=8192, cost=500)
    builder.op("c", inputs=["a", "b"], size=1024, cost=1)
    graph = builder.build()
    above, bars_of_bytes, below = plot_schedule(graph, steps("a b a c")).axes
    (bytes_again,) = step_values(bars_of_bytes)
    assert bars_of_bytes.get_ylabel() == "recomputed\n(KiB)"
    assert (max(bytes_again), sum(value > 0 for value in bytes_again)) == (4, 1)
    assert bytes_again.index(4) == int(501 / 503 * 250)
    ((left, right, row),) = bars(below)["recomputation"]
    assert (right - left, row) == (pytest.approx(503 / 250), 0)
    assert right <= above.get_xlim()[1]
    figure = plot_schedule(graph, steps("a b b c"))
    assert len(figure.axes) == 2


@pytest.mark.parametrize("words", ["", "missing"])
def test_schedules_without_valid_steps_are_drawn(graph: ComputeGraph, words: str, tmp_path: Path) -> None:
    save_plot(graph, steps(words), tmp_path / "nothing.png")
    assert (tmp_path / "nothing.png").stat().st_size > 0


def test_names_are_not_parsed_as_formulas(tmp_path: Path) -> None:
    builder = GraphBuilder(r"costs $\frac$ 1")
    builder.op(r"a$\nonsense{$", size=1, cost=0)
    graph = builder.build()
    axes = plot_memory(graph, Schedule.reference(graph))
    assert (axes.get_ylabel(), "overhead" in axes.get_title()) == ("memory (bytes)", False)
    save_plot(graph, Schedule.reference(graph), tmp_path / "dollars.svg")
    assert (tmp_path / "dollars.svg").stat().st_size > 0


@pytest.mark.parametrize("suffix", [pytest.param(".png", marks=pytest.mark.slow), ".SVG"])
def test_files_are_repeatable(graph: ComputeGraph, schedule: Schedule, tmp_path: Path, suffix: str) -> None:
    for name in ("first", "second"):
        save_plot(graph, schedule, tmp_path / f"{name}{suffix}", budget=14336)
    first = (tmp_path / f"first{suffix}").read_bytes()
    assert first == (tmp_path / f"second{suffix}").read_bytes()
    if suffix == ".png":
        assert first.startswith(b"\x89PNG")
    else:
        assert ElementTree.fromstring(first).tag.endswith("svg")
        assert b"<dc:date>" not in first
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"first{suffix}", f"second{suffix}"]


def test_unwritable_files_are_refused(graph: ComputeGraph, schedule: Schedule, tmp_path: Path) -> None:
    for name in ("plot.gif", "plot"):
        with refused("format.picture", culprit=name):
            save_plot(graph, schedule, tmp_path / name)
    with pytest.raises(FormatError, match=r"missing/plot\.png: cannot be written"):
        save_plot(graph, schedule, tmp_path / "missing" / "plot.png")
    assert not list(tmp_path.iterdir())


def test_figures_have_a_png_for_notebooks(graph: ComputeGraph, schedule: Schedule) -> None:
    """IPython calls ``_repr_png_``; figures outside pyplot lack one."""
    assert plot_schedule(graph, schedule)._repr_png_().startswith(b"\x89PNG")
