"""``remat fit``: memory of a PyTorch training step, and the price of fitting it into less."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.capture import CostModel, Factory, LossItem, loss_item, made
from remat.cli.common import print_json, print_rows
from remat.cli.options import Json, Quiet, Seed, Threads, size_option, time_option
from remat.cli.saving import Outputs
from remat.cli.terminal import NO, OK
from remat.io.files import check_outputs


def command(
    factory: Factory,
    *,
    memory: Annotated[int | None, size_option("Memory of the device", "--memory")] = None,
    optimizer: str = typer.Option(
        "adamw", metavar="NAME", help="Class of torch.optim in lower case (adamw, sgd, ...), momentum, or none."
    ),
    loss: LossItem = None,
    costs: CostModel = "roofline",
    sizes: bool = typer.Option(
        True, "--sizes/--no-sizes", help="With --memory: search the largest batch and the longest sequence."
    ),
    time_limit: Annotated[float, time_option("Time for all searches together")] = 60.0,
    threads: Threads = None,
    seed: Seed = None,
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw extra cost by memory to this file (.png, .svg, .pdf)."
    ),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Estimate the memory of a PyTorch training step, and the least extra cost of fitting it into less.

    Parameters, gradients, the state of the optimizer, activations and temporaries count, to the byte. No GPU and no
    memory is needed. Schedules with recomputation are certified.

    Exit code 0: the step fits --memory, as it is or with recomputation, or no memory is given; 1: no way was found;
    2: an error.

    Examples
    --------
    remat fit train.py:step --memory 24GiB
    """
    from remat.io.figures import SUFFIXES

    check_outputs((plot, SUFFIXES))
    from remat.torch.versions import check_version

    check_version()
    module, args, kwargs = made(factory)
    from remat.cli.reporter import Reporter
    from remat.runtime.solve_options import SolveOptions
    from remat.torch import estimate

    found = estimate(
        module, args, sample_kwargs=kwargs, optimizer=optimizer, memory=memory, sizes=sizes, loss=loss_item(loss),
        costs=costs, time_limit=time_limit, watch=lambda label: Reporter(quiet, label=label),
        solver=SolveOptions(threads=threads, seed=seed or 0),
    )  # fmt: skip
    outputs = Outputs()
    if plot is not None:
        outputs.plot(plot, found.plot)
    print_json(found.as_dict()) if as_json else print_rows(found.lines())
    outputs.leave(NO if found.verdict in {"no", "unknown"} else OK)
