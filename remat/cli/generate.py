"""``remat generate``: graphs of the model zoo, random graphs, and families with known optima."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.options import shared
from remat.errors import GraphError
from remat.io.files import check_output

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph


@dataclass(frozen=True)
class Sizes:
    """Options of generators, by the names of their parameters."""

    batch: int | None = typer.Option(None, min=1, help="Batch size of a zoo graph.")
    image: str | None = typer.Option(None, metavar="HxW", help="Image size of a zoo graph.")
    n: int | None = typer.Option(
        None, "-n", "--ops", min=1, help="Ops of a layered graph, or the size of a family's member."
    )
    width: float | None = typer.Option(None, help="Width factor of a layered graph, or features of a transformer.")
    layers: int | None = typer.Option(None, min=1, help="Layers of a transformer (gpt).")
    heads: int | None = typer.Option(None, min=1, help="Attention heads of a transformer.")
    sequence: int | None = typer.Option(None, min=1, help="Tokens of a sample.")
    accumulation: str | None = typer.Option(
        None, metavar="sums|buffers", help="Accumulation of gradients in a training graph op by op."
    )
    seed: int | None = typer.Option(None, min=0, help="Seed of a random graph.")


@shared()
def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A zoo graph (resnet50), layered, or a family.")],
    *,
    output: Path = typer.Option(..., "--output", "-o", help="Graph file to write."),
    sizes: Sizes,
) -> None:
    """Write the graph NAME to a file."""
    from remat.graphs.io import write_graph

    check_output(output)
    given: dict[str, Any] = {key: value for key, value in vars(sizes).items() if value is not None}
    if sizes.image is not None:
        given["image"] = _shape(sizes.image)
    write_graph(make(name, given), output)


def generators() -> dict[str, Callable[..., ComputeGraph]]:
    """Return all generators by name."""
    from remat.graphs import families
    from remat.graphs.layered import layered
    from remat.graphs.zoo import ZOO

    members = (families.unit_chain, families.path, families.u_chain, families.pyramid, families.in_tree)
    return {**ZOO, "layered": layered, **{member.__name__.replace("_", "-"): member for member in members}}


def make(name: str, options: dict[str, Any]) -> ComputeGraph:
    """Return the graph `name`; refuse options that do not apply to it."""
    from remat.graphs.zoo import ZOO

    known = generators()
    if name not in known:
        near = get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}" if near else f"known are {', '.join(sorted(known))}"
        raise GraphError(f"there is no generator {name!r}; {hint}; `remat zoo` lists networks")
    parameters = inspect.signature(known[name]).parameters
    first = next(iter(parameters))
    if "n" in options and parameters[first].default is inspect.Parameter.empty:  # depth or height of a family
        options[first] = options.pop("n")
    shown = {"n": "--ops"}
    for option in options:
        if option not in parameters:
            raise GraphError(f"option {shown.get(option, '--' + option)} does not apply to {name!r}")
    if parameters[first].default is inspect.Parameter.empty and first not in options:
        raise GraphError(f"{name!r} needs a size: --ops")
    width = options.get("width")
    if name in ZOO and width is not None and width.is_integer():  # number of features, not a factor
        options["width"] = int(width)
    return known[name](**options)


def _shape(image: str) -> tuple[int, int, int]:
    """Return height, width and the three channels of an image."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", image, re.ASCII)
    if match is None:
        raise GraphError(f"image size {image[:40]!r} is not of the form 224x224")
    return int(match[1]), int(match[2]), 3
