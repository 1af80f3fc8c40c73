"""Instances: graphs by name, order rules, budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common import SHARED

from remat.errors import ProblemError
from remat.graphs import ComputeGraph, read_graph
from remat.graphs.layered import layered
from remat.graphs.zoo import TRAINING
from remat.problem import Problem

#: Budgets in % of the reference peak, and rules of order.
BUDGETS = (90, 80, 70, 60, 50)
ORDERS = ("fixed", "free")


@dataclass(frozen=True)
class Instance:
    """Graph by name, generated from a pinned seed or an architecture, or read from the data folder."""

    name: str
    make: Callable[[], ComputeGraph]
    path: Path | None = None

    @property
    def present(self) -> bool:
        """True if the graph is available."""
        return self.path is None or self.path.is_file()


@dataclass(frozen=True)
class Cell:
    """Cell of the scoreboard: instance, order rule and budget."""

    instance: str
    order: str
    percent: int

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.instance} {self.order} {self.percent} %"

    def problem(self, graph: ComputeGraph) -> Problem:
        """Return the problem of the cell, with any number of computes."""
        return Problem(graph, f"{self.percent}%", self.order)


#: Ops, width factor (None: random) and seed of the random layered graphs.
LAYERED = (
    (12, 0.3, 0), (30, 0.3, 1), (50, None, 7), (60, 0.35, 2), (100, 0.27, 446), (250, 0.43, 1789), (500, 0.36, 1263),
    (1000, 0.31, 2085),
)  # fmt: skip
PUBLISHED = ("rl_g1", "rl_g2", "rl_g3", "rl_g4")

INSTANCES = {
    one.name: one
    for one in (
        *(Instance(f"layered-{n}", partial(layered, n, width, seed)) for n, width, seed in LAYERED),
        *(Instance(name, make) for name, make in TRAINING.items()),
        *(Instance(name, partial(read_graph, SHARED / f"{name}.json"), SHARED / f"{name}.json") for name in PUBLISHED),
    )
}
SUITES = {
    "tiny": ("layered-12", "layered-30"),
    "quick": ("layered-12", "layered-30", "layered-50", "layered-60", "layered-100", "vgg16", "vgg19", "fcn8", "unet"),
    "published": (*PUBLISHED, "fcn8"),
    "full": tuple(INSTANCES),
}


def suite(words: str) -> list[Instance]:
    """Return the available instances of comma-separated names of suites and instances.

    Raises
    ------
    ProblemError
        For an unknown name, or if no graph is available.
    """
    names: dict[str, None] = {}
    for word in words.split(","):
        if word not in SUITES and word not in INSTANCES:
            raise ProblemError(f"there is no suite or instance {word!r}; suites are {', '.join(SUITES)}")
        names |= dict.fromkeys(SUITES.get(word, (word,)))
    found = [INSTANCES[one] for one in names if INSTANCES[one].present]
    if not found:
        raise ProblemError(f"the graph of {words!r} is not here (REMAT_SHARED names the folder it is looked for in)")
    return found
