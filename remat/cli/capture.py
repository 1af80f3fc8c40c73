"""``remat capture``: training step of a PyTorch module as a graph file."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli.common import import_from_here, print_json
from remat.cli.options import Json
from remat.cli.show import graph_facts, print_facts
from remat.errors import CaptureError
from remat.io.files import check_output, is_standard_stream


class Route(StrEnum):
    """Technique that records the step."""

    AUTO = "auto"
    JOINT = "joint"
    MAKE_FX = "make_fx"


class Mode(StrEnum):
    """Part of the step to capture."""

    TRAINING = "training"
    INFERENCE = "inference"


Factory = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="Function without arguments that returns a torch.nn.Module and its sample arguments: "
        "(module, args) or (module, args, kwargs); also FILE.py:FACTORY. It runs without memory for tensors.",
    ),
]
LossItem = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="ITEM", help="Item of the module's return value to use as the loss, by name or position."
    ),
]
CostModel = Annotated[
    str, typer.Option("--costs", metavar="NAME", help="Costs of ops: flops, roofline, roofline:A100, ...")
]


def command(
    factory: Factory,
    *,
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE", help="Graph file to write (-: standard output)."
    ),
    loss: LossItem = None,
    route: Route = typer.Option(Route.AUTO, metavar="auto|joint|make_fx", help="Technique that records the step."),
    mode: Mode = typer.Option(
        Mode.TRAINING, metavar="training|inference", help="The training step, or the forward pass alone."
    ),
    costs: CostModel = "roofline",
    as_json: Json = False,
) -> None:
    """Capture the training step of a PyTorch module as a graph, and show its figures.

    Examples
    --------
    remat capture my_model:training_step -o step.json
    """
    if output is not None:
        check_output(output)
    from remat.torch.versions import check_version

    check_version()
    module, args, kwargs = made(factory)
    from remat.graphs.io import write_graph
    from remat.torch import capture

    captured = capture(module, args, kwargs, route=route.value, loss=loss_item(loss), mode=mode.value, costs=costs)
    if output is not None:
        write_graph(captured.graph, output)
    if is_standard_stream(output):
        return
    facts = {**graph_facts(captured.graph, 5), "route": captured.route}
    facts |= {key: value for key, value in captured.graph.meta.items() if key == "fallback"}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def loss_item(word: str | None) -> str | int | None:
    """Return the item of a module's return value that an option names: a position if it is a number."""
    return int(word) if word is not None and word.lstrip("-").isdigit() else word


def made(factory: str) -> tuple[Any, Any, Any]:
    """Return the module, its positional and its keyword arguments from a factory, as fake tensors.

    Raise CaptureError if the factory does not exist, fails, or returns something else.
    """
    from remat.registry import attempt

    path, _, name = factory.partition(":")
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise CaptureError(f"{path}: no such file")
        file = Path(path).resolve()
        if file.is_relative_to(Path.cwd()):
            path = str(file.relative_to(Path.cwd())).removesuffix(".py").replace(os.sep, ".")
        else:  # as Python runs a file
            sys.path.insert(0, str(file.parent))
            path = file.stem
        factory = f"{path}:{name}"
    if not all(part.isidentifier() for whole in (path, name) for part in whole.split(".")):
        raise CaptureError(f"{factory!r} is not of the form MODULE:FACTORY, such as mymodel:training_step")
    import_from_here()
    call = attempt(EntryPoint(factory, factory, "").load, f"{factory!r} cannot be loaded")
    if not callable(call):
        raise CaptureError(f"{factory!r} is not a function; name one that returns (module, args)")
    with _without_memory():
        found = attempt(call, f"{factory!r} fails")
    if not isinstance(found, tuple) or len(found) not in {2, 3} or not isinstance(found[1], tuple | list):
        raise CaptureError(f"{factory!r} must return (module, args) or (module, args, kwargs), args a tuple")
    module, args, kwargs = (*found, {})[:3]
    return module, tuple(args), kwargs


def _without_memory() -> AbstractContextManager[Any]:
    """Return the context in which a factory makes fake tensors; a loss of JAX needs no PyTorch."""
    if find_spec("torch") is None:
        return nullcontext()
    from remat.torch import fake_tensors

    return fake_tensors()
