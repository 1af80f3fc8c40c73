"""``remat plan``: settings of a training framework within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import load_graph, print_json
from remat.cli.completion import complete_graph, one_of
from remat.cli.options import Json, time_option
from remat.cli.saving import Outputs
from remat.cli.screen import say_sentence
from remat.cli.terminal import NO, OK
from remat.errors import ProblemError
from remat.io.files import check_outputs
from remat.runtime.text import json_text

if TYPE_CHECKING:
    from remat.experiments.framework_plans import FrameworkPlan
    from remat.graphs import ComputeGraph

#: Frameworks, here for completion and help, which load nothing.
FRAMEWORKS = ("hf", "megatron", "torchtitan", "maxtext", "jax")
#: Suffixes of files to write.
SUFFIXES = (".json", ".txt", ".sh", ".toml", ".yml", ".yaml", ".py")
#: Settings shown without --all.
SHOWN = 8


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", autocompletion=complete_graph,
            help="Graph file with module paths, name of a zoo graph, or MODULE:FACTORY as for remat capture. With "
            "--for jax, a factory may return a loss of JAX instead of a module.",
        ),
    ],
    *,
    framework: str = typer.Option(
        "hf", "--for", metavar="|".join(FRAMEWORKS), autocompletion=one_of(*FRAMEWORKS), help="Training framework."
    ),
    budget: str = typer.Option("80%", "--budget", "-b", metavar="BUDGET", help="Bytes (8GiB) or a share (60%)."),
    time_limit: Annotated[float, time_option("Time for the searches")] = 30.0,
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE", help="Write the setting to paste to this file, or the plan (.json)."
    ),
    every: bool = typer.Option(False, "--all", help="Show all settings."),
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show settings of a training framework for MODEL: which layers, modules or names to checkpoint or save.

    Each setting has a certified peak, its extra time, and the gap to a bound for every schedule: within the budget, or
    within its own peak if that is above it. The best one within the budget comes with text to paste. Peaks count
    activations, returned gradients and temporaries.

    Exit code 0: a setting fits; 1: none does; 2: an error.

    Examples
    --------
    remat plan llama --for megatron -b 60%
    """
    from remat.experiments.framework_plans import framework_plan
    from remat.problem import Problem
    from remat.problem.budget import parse_budget

    check_outputs((output, SUFFIXES), inputs=(model,))
    parse_budget(budget, 0)  # refuse it before a capture that takes long
    step = _step(model)
    if framework == "jax" and step is not None and not hasattr(step[0], "named_modules"):
        _plan_function(step, budget, time_limit, output, as_json)
        return
    problem = Problem(load_graph(model) if step is None else _captured(step), budget)
    plan = framework_plan(problem, framework, time_limit=time_limit)
    outputs = Outputs()
    chosen = plan.chosen
    if output is not None:
        if output.suffix.lower() == ".json":
            outputs.save_text(output, json_text(plan.as_dict()))
        elif chosen is None:
            raise ProblemError(_none(plan))
        else:
            outputs.save_text(output, f"{chosen.code}\n")
    if as_json:
        print_json(plan.as_dict())
    else:
        _print(plan, every)
    outputs.leave(OK if chosen is not None else NO)


def _step(model: str) -> tuple[Any, Any, Any] | None:
    """Return module or function with its arguments, if MODEL is the factory of a training step."""
    if ":" not in model or Path(model).exists():
        return None
    from remat.cli.capture import made

    return made(model)


def _captured(step: tuple[Any, Any, Any]) -> ComputeGraph:
    from remat.torch import capture
    from remat.torch.versions import check_version

    check_version()
    module, args, kwargs = step
    return capture(module, args, kwargs).graph


def _plan_function(
    step: tuple[Any, Any, Any], budget: str, time_limit: float, output: Path | None, as_json: bool
) -> None:
    """Print the names that a loss of JAX saves, by :func:`remat.jax.best_policy`."""
    from remat.jax import best_policy

    function, args, kwargs = step
    try:
        policy = best_policy(function, args, budget, kwargs=kwargs, time_limit=time_limit)
    except ProblemError as error:
        if error.kind != "problem.jax-names":
            raise
        say_sentence(str(error))
        raise typer.Exit(NO) from None
    code = f"policy = jax.checkpoint_policies.{policy!r}"
    report = policy.report
    found = {
        "framework": "jax", "graph": report.name, "budget": report.budget, "reference_peak": report.reference_peak,
        "peak": report.predicted_peak, "overhead": report.overhead, "gap": report.gap, "saved": list(report.saved),
        "recomputed": list(report.recomputed), "code": code,
    }  # fmt: skip
    outputs = Outputs()
    if output is not None:
        is_json = output.suffix.lower() == ".json"
        outputs.save_text(output, json_text(found) if is_json else f"{code}\n")
    if as_json:
        print_json(found)
    else:
        print(f"{report}\n\n{code}")
    outputs.leave(OK)


def _none(plan: FrameworkPlan) -> str:
    least = min(plan.settings, key=lambda each: each.certificate.peak)
    budget = plan.problem.budget_bytes
    best = "" if plan.best.overhead is None else f"; a schedule needs +{plan.best.overhead:.2f} %: remat solve"
    return (
        f"no setting of {plan.framework} keeps {plan.problem.graph.name!r} within {budget:,} bytes; "
        f"{least.name!r} needs {least.certificate.peak:,} bytes{best}"
    )


def _print(plan: FrameworkPlan, every: bool) -> None:
    from remat.cli.console import NUMBER, TEXT, console, print_columns
    from remat.runtime.solve_options import Status

    reference, chosen = plan.problem.reference_peak, plan.chosen
    rows = [
        (
            each.name, f"{each.certificate.peak:,}", f"{100 * each.certificate.peak / reference:.1f} %",
            "" if each.certificate.overhead is None else f"+{each.certificate.overhead:.2f} %",
            "" if each.gap is None else f"{100 * each.gap:.2f} %", "yes" if each.fits else "no",
        )
        for each in plan.settings[: None if every else SHOWN]
    ]  # fmt: skip
    columns = [("setting", TEXT), *((word, NUMBER) for word in ("peak", "share", "extra time", "gap", "fits"))]
    title = f"{plan.problem.graph.name} for {plan.framework}, budget {plan.problem.budget_bytes:,} bytes"
    print_columns(console(), title, columns, rows)
    if len(rows) < len(plan.settings):
        say_sentence(f"{len(plan.settings) - len(rows)} more settings: --all")
    facts = []
    if plan.best.overhead is not None:
        facts.append(f"best schedule without the limits of {plan.framework}: +{plan.best.overhead:.2f} %")
    if plan.best.status is Status.INFEASIBLE:
        facts.append("no schedule keeps the budget")
    elif plan.bound_overhead is not None:
        facts.append(f"bound for every schedule: +{plan.bound_overhead:.2f} %")
    say_sentence("; ".join(facts))
    say_sentence(f"options as in {plan.source}")
    if chosen is None:
        say_sentence(_none(plan))
    else:
        print(f"\n{chosen.name}:\n\n{chosen.code}")
