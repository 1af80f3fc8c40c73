"""``remat generate``: graphs of the model zoo, random graphs, and families with known optima."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli.completion import complete_generator
from remat.cli.options import shared
from remat.errors import GraphError
from remat.io.files import check_output


@dataclass(frozen=True)
class Sizes:
    """Options of generators, by the names of their parameters."""

    batch: int | None = typer.Option(None, min=1, metavar="N", help="Batch size of a zoo graph.")
    image: str | None = typer.Option(None, metavar="HxW", help="Image size of a zoo graph.")
    n: int | None = typer.Option(
        None, "-n", "--ops", min=1, metavar="N", help="Ops of a layered graph, or the size of a family's member."
    )
    width: float | None = typer.Option(
        None, metavar="X", help="Width factor of a layered graph, or features of a transformer."
    )
    layers: int | None = typer.Option(None, min=1, metavar="N", help="Layers of a transformer (gpt).")
    heads: int | None = typer.Option(None, min=1, metavar="N", help="Attention heads of a transformer.")
    sequence: int | None = typer.Option(None, min=1, metavar="N", help="Tokens of a sample.")
    accumulation: str | None = typer.Option(
        None, metavar="sums|buffers", help="Accumulation of gradients in a training graph op by op."
    )
    device: str | None = typer.Option(
        None, metavar="DEVICE", help="Costs of a training step as times on an A100, H100 or H200, by its data sheet."
    )
    seed: int | None = typer.Option(None, min=0, metavar="N", help="Seed of a random graph.")


@shared()
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=complete_generator, help="A zoo graph (resnet50), layered, or a family."
        ),
    ],
    *,
    output: Path = typer.Option(..., "--output", "-o", metavar="FILE", help="Graph file to write."),
    sizes: Sizes,
) -> None:
    """Write the graph NAME to a file.

    Examples
    --------
    remat generate resnet50 --batch 64 -o resnet50.json
    remat generate gpt --layers 8 --device A100 -o gpt.json
    remat generate layered -n 100 --seed 3 -o layered.json
    """
    from remat.graphs.generators import generate
    from remat.graphs.io import write_graph

    check_output(output)
    given: dict[str, Any] = {key: value for key, value in vars(sizes).items() if value is not None}
    if sizes.image is not None:
        given["image"] = _shape(sizes.image)
    shown = {field.name: f"--{field.name}" for field in fields(Sizes)} | {"n": "--ops"}
    write_graph(generate(name, given, lambda option: shown.get(option, "")), output)


def _shape(image: str) -> tuple[int, int, int]:
    """Return height, width and the three channels of an image."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", image, re.ASCII)
    if match is None:
        raise GraphError(f"image size {image[:40]!r} is not HEIGHTxWIDTH, such as 224x224")
    return int(match[1]), int(match[2]), 3
