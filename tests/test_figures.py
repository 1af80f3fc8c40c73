"""All pictures: texts that fit, the place of given axes, and few artists for long schedules."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from figures import collisions
from helpers import ONE, few
from matplotlib.figure import Figure

from remat import Problem, Schedule, compare, frontier, layered, max_batch, solve
from remat.allocation.entry import allocate
from remat.allocation.problem import AllocationProblem
from remat.experiments.arenas import Arena, plot_arenas
from remat.experiments.max_batch_result import plot_batches
from remat.experiments.trade_off import trade_off
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.zoo.transformers import gpt
from remat.io.figures import empty_figure
from remat.schedule import schedule_buffers
from remat.schedule.address_plots import figure_of_addresses
from remat.schedule.layer_plots import plot_layers
from remat.schedule.plots import plot_footprints, plot_peak_distribution, plot_schedule, plot_traffic
from remat.schedule.traces import layer_table
from remat.schedule.traffic import off_chip_traffic

SMALL, STEP, LONG = layered(16, seed=2), gpt(layers=3), gpt(layers=80)
CHAIN, METHODS = Problem(unit_chain(6)), ["few-stages", "greedy", "drops", "checkmate/highs"]
GRAPHS = {"small": SMALL, "step": STEP, "long": LONG}


@cache
def schedule(name: str) -> Schedule:
    """Return a schedule with recomputations, if the graph is a training step."""
    graph = GRAPHS[name]
    if name == "small":
        return Schedule.reference(graph)
    found = solve(Problem(graph, "80%"), "block-checkpointing", stop=60, options=ONE).schedule
    assert found is not None
    return found


@cache
def matrix() -> Any:
    return compare(CHAIN, [6, 4, 2], METHODS, stop=60, options=ONE)


def addresses(name: str) -> Any:
    return allocate(AllocationProblem(schedule_buffers(GRAPHS[name], schedule(name))), "first-fit").addresses


def batches() -> list[Any]:
    family = AffineGraph.scaled(unit_chain(6), 1)
    return [max_batch(family, 100, method, stop=60, options=ONE) for method in ("chen-sqrt", "greedy")]


def traffic() -> list[Any]:
    orders = Schedule.reference(STEP), schedule("step")
    return [off_chip_traffic(STEP, order, [2**20, 2**24]) for order in orders]


ARENAS = [Arena(order, method, 10, 12, 10, 0.1) for order in ("reference", "kahn") for method in ("auto", "best-fit")]
PICTURES: dict[str, Callable[..., Any]] = {
    **{f"schedule-{name}": lambda ax=None, name=name: plot_schedule(GRAPHS[name], schedule(name), 2**31, ax=ax)
       for name in GRAPHS},
    **{f"addresses-{name}": lambda ax=None, name=name: figure_of_addresses(addresses(name), ax) for name in GRAPHS},
    **{f"layers-{name}": lambda ax=None, name=name: plot_layers(layer_table(GRAPHS[name], schedule(name)), ax)
       for name in GRAPHS},
    "footprints": lambda ax=None: plot_footprints(
        STEP, {"reference order": Schedule.reference(STEP), "schedule": schedule("step")}, ax
    ),
    "distribution": lambda ax=None: plot_peak_distribution(np.arange(10) + 2**20, {"a": 2**20, "b": 2**20 + 5}, ax),
    "traffic": lambda ax=None: plot_traffic("step", traffic()[1], traffic()[0], ax),
    "arenas": lambda ax=None: plot_arenas(ARENAS, "orders", ax),
    "comparison": lambda ax=None: matrix().plot(ax),
    "frontier": lambda ax=None: frontier(CHAIN, [2, 4, 5, 8], METHODS[:2], stop=60, options=ONE).plot(ax),
    "trade-off": lambda ax=None: trade_off(matrix()).plot(ax),
    "batches": lambda ax=None: plot_batches(batches(), ax),
}  # fmt: skip


#: Pictures of thousands of ops.
THOUSANDS = ("schedule-long", "addresses-long", "layers-long")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in THOUSANDS else name for name in PICTURES]
)
def test_texts_of_pictures_fit_and_do_not_overlap(name: str) -> None:
    figure = PICTURES[name]()
    assert not collisions(figure if isinstance(figure, Figure) else figure.figure)


@pytest.mark.parametrize("name", few(["schedule-step", "comparison", "layers-step", "addresses-step", "traffic"], 2))
def test_pictures_take_the_place_of_given_axes(name: str) -> None:
    figure = empty_figure((14, 16))
    other, mine = figure.subplots(2, 1)
    PICTURES[name](mine)
    figure.draw_without_rendering()
    assert not other.lines and not other.patches and not other.collections
    assert all(axes is other or axes.get_position().y1 < other.get_position().y0 for axes in figure.axes)


@pytest.mark.slow  # a quick test of plots summarizes a long chain
def test_long_schedules_have_few_artists() -> None:
    """Thousands of ops are summarized; no part of the strip of layers is narrower than half a pixel."""
    assert len(schedule("long").targets) > 2000
    figure = PICTURES["schedule-long"]()
    assert sum(len(axes.patches) + len(axes.texts) for axes in figure.axes) < 400
    strip = figure.axes[-2]
    assert min(patch.get_width() for patch in strip.patches) > strip.get_xlim()[1] / 1000
