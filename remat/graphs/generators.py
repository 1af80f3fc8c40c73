"""All generators of graphs by name: the model zoo, random layered graphs, and families with known optima."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.roofline import with_times
from remat.runtime.text import either, short

#: Most ops of a generated graph: larger ones exhaust the memory of common machines.
MOST_OPS = 10_000_000


def generators() -> dict[str, Callable[..., ComputeGraph]]:
    """Return all generators by name."""
    from remat.graphs import families
    from remat.graphs.layered import layered
    from remat.graphs.zoo import ZOO

    members = (families.unit_chain, families.path, families.u_chain, families.pyramid, families.in_tree)
    return {**ZOO, "layered": layered, **{member.__name__.replace("_", "-"): member for member in members}}


def generate(name: str, options: Mapping[str, Any], shown: Callable[[str], str] = repr) -> ComputeGraph:
    """Return the graph `name`.

    Parameters
    ----------
    options : mapping
        Parameters of the generator; ``n`` is also the size of a member of a family. ``device``: costs of a training
        step of the zoo are times on that device (:func:`remat.graphs.roofline.with_times`).
    shown : callable
        Returns an option as the user writes it, for messages.

    Raises
    ------
    GraphError
        If there is no such generator, an option does not apply to it, or its size is missing.

    Examples
    --------
    >>> len(generate("unit-chain", {"n": 4}).ops)
    9
    """
    from remat.graphs.zoo import ZOO

    known, given = generators(), dict(options)
    device = given.pop("device", None)
    if name not in known:
        near = get_close_matches(name.lower(), known, n=3)
        families = sorted(name for name in known if name not in ZOO)
        hint = f"did you mean {either(near)}?" if near else f"families are {', '.join(families)};"
        raise GraphError(f"there is no generator {name!r}; {hint} `remat zoo` lists networks")
    parameters = inspect.signature(known[name]).parameters
    first = next(iter(parameters))
    if "n" in given and parameters[first].default is inspect.Parameter.empty:  # depth or height of a family
        given[first] = given.pop("n")
    for option in given:
        if option not in parameters:
            takes = [shown("n" if each == first and name not in ZOO else each) for each in parameters]
            shows = ", ".join(filter(None, takes)) or "none"
            raise GraphError(f"option {shown(option)} does not apply to {name!r}, which takes {shows}")
    if parameters[first].default is inspect.Parameter.empty and first not in given:
        raise GraphError(f"{name!r} needs a size: {shown('n')}")
    if name not in ZOO:
        _check_size(name, given[first], shown("n"))
    width = given.get("width")
    if name in ZOO and isinstance(width, float) and width.is_integer():  # number of features, not a factor
        given["width"] = int(width)
    graph = known[name](**given)
    return graph if device is None else with_times(graph, device)


def _check_size(name: str, size: int, option: str) -> None:
    """Require a member of a family that fits in memory; the ops of some grow with a power of the size."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{option} of {name!r} must be a whole number, not {short(size)}")
    largest = {"pyramid": math.isqrt(2 * MOST_OPS) - 1, "in-tree": MOST_OPS.bit_length() - 2, "u-chain": 60}
    most = largest.get(name, MOST_OPS)
    if size > most:
        raise GraphError(f"{option} is at most {most:,} for {name!r}, not {size:,}")
