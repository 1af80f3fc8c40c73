"""``remat export`` and ``remat import``: models as files for other solvers, and their solutions as schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import option_values, print_rows
from remat.cli.options import FILE, RULES, Given, Graph, MethodOptions, OptionalGraph, shared
from remat.cli.saving import Outputs
from remat.cli.screen import say_sentence
from remat.cli.terminal import NO, OK
from remat.problem.objective import Objective

if TYPE_CHECKING:
    from remat.config import Config
    from remat.solving.exporting import ModelFile

ModelPath = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE",
        help="Model file: .lp, .mps (linear), .pb, .proto, .pbtxt (CP-SAT) or .mzn (MiniZinc, with its .dzn).",
    ),
]  # fmt: skip
#: No settings but those of the command.
NO_BASE: tuple[dict[str, Any], str] = ({}, "options")
SchedulePath = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the schedule to this file.")
]


@shared(*FILE, "budget", "machine", "objective", "method", "option", *RULES)
def command(graph: OptionalGraph = None, *, output: ModelPath, option: MethodOptions = None, given: Given) -> None:
    """Write the model of a formulation for other solvers' programs.

    Names of variables are made of stages, ops and tensors; OUTPUT with the suffix .names.json lists what they stand
    for. `remat import` reads a solution back.

    Examples
    --------
    remat export vgg16 -b 80% -m checkmate -o model.lp
    """
    from remat.io.files import check_output

    check_output(output)
    run, file = _model_file(graph, output, option, given)
    file.write(output, _settings(run))
    model, _ = file.written
    data = f" and {output.with_suffix('.dzn')}" if output.suffix.lower() == ".mzn" else ""
    print_rows([
        ("model", f"{output}{data}: {model.num_vars:,} variables, {model.num_constraints:,} constraints"),
        ("names", f"{output.with_suffix('.names.json')}: what they stand for"),
        ("scope", str(file.formulation.scope())),
    ])  # fmt: skip


@shared(*FILE, "budget", "machine", "objective", "method", "option", *RULES)
def read(
    graph: Graph,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The file that `remat export` wrote.")],
    solution: Annotated[Path, typer.Argument(metavar="SOLUTION", help="The solver's solution of it.")],
    *,
    output: SchedulePath = None,
    option: MethodOptions = None,
    given: Given,
) -> None:
    """Read another solver's SOLUTION of a model as a schedule of GRAPH, and validate it.

    The options are those of `remat export`, from the file of names next to MODEL; given ones take precedence. SOLUTION
    has lines of names and values, as HiGHS, CBC, SCIP, Gurobi and CPLEX write them, or is the output of `minizinc
    --output-mode json`, or CP-SAT's response as text.

    Exit code 0: the schedule is valid and within the budget; 1: it is not; 2: a file cannot be read.

    Examples
    --------
    remat import vgg16 model.lp model.sol -o schedule.json
    """
    from remat.cli.closing import closing_certificate
    from remat.io.files import check_output
    from remat.schedule.io import SUFFIXES
    from remat.schedule.validate import validate
    from remat.solving.exporting import names_file, written_settings

    check_output(output, inputs=(graph, model, solution), suffixes=SUFFIXES)
    base = NO_BASE if given.config is not None else (written_settings(model), str(names_file(model)))
    _, file = _model_file(graph, model, option, given, base)
    schedule = file.read(solution)
    certificate = validate(file.problem.graph, schedule, file.problem.rules)
    outputs = Outputs()
    if output is not None:
        outputs.save_schedule(output, schedule)
    print_rows(certificate.rows(), least=13)
    print()
    say_sentence(closing_certificate(certificate))
    outputs.leave(OK if certificate.accepted else NO)


def _model_file(
    graph: str | None, path: Path, option: list[str] | None, given: Given, base: tuple[dict[str, Any], str] = NO_BASE
) -> tuple[Config, ModelFile]:
    """Return the run that is given, and the model of its problem and method for files like `path`."""
    from remat.solving.exporting import ModelFile

    solving = base[0].get("solve", {}) | given.sections["solve"]
    if "method" not in solving and given.config is None:
        raise typer.BadParameter("Missing option '--method' (or '--config').")
    problem = base[0].get("problem", {}) | given.sections["problem"]
    budgeted = problem.get("objective") not in {each for each in Objective if each.is_memory}
    run = given.run(graph, *(("budget",) if budgeted else ()), base=base).with_options(option_values(option))
    method: Any = run.named(run.solve.method, "methods")
    return run, ModelFile(run.make_problem(), method, path.suffix, run.options_of(run.solve.method))


def _settings(run: Config) -> dict[str, Any]:
    """Return the tables of a run that determine its model, with absolute paths."""
    tables = ("formulations", "heuristics", "methods", "partitioners")
    found = run.model_dump(mode="json", exclude_defaults=True, include={"problem", *tables})
    found["problem"].pop("graph", None)
    if run.problem.costs is not None:
        found["problem"]["costs"] = str(Path(run.problem.costs).resolve())
    return found | {"solve": {"method": run.solve.method}}
