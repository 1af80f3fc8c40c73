"""Tables of a configuration file: problem, solver and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetPydanticSchema, model_validator
from pydantic_core.core_schema import literal_schema

from remat.errors import FormatError
from remat.problem.objective import Objective
from remat.runtime.sizes import seconds, share
from remat.runtime.solve_options import DEFAULT_GAP
from remat.runtime.text import short

_Positive = Annotated[int, Field(ge=1)]


def _text(parse: Callable[[str], float]) -> BeforeValidator:
    """Accept a number as text with a unit."""
    return BeforeValidator(
        lambda value: parse(value) if isinstance(value, str) else value, json_schema_input_type=float | str
    )


_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), _text(seconds)]
_Share = Annotated[float, Field(ge=0, lt=1), _text(share)]


class Section(BaseModel):
    """Table of the file: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ProblemSection(Section):
    """Problem: graph, budget and rules; see :class:`remat.problem.Problem`."""

    graph: str
    """Graph file, or the name of a zoo graph."""
    costs: str | None = None
    """Profile (CSV or JSON) whose costs replace the graph's own."""
    device: str | None = None
    """Device whose costs apply, if the profile has several."""
    budget: str | int | float | None = None
    """Bytes (123456, "10GiB") or a share of the reference peak ("80%", 0.8); absent: unlimited."""
    order: Literal["fixed", "free"] = "fixed"
    """Order of first computes: "fixed", the reference order; or "free"."""
    max_computes: _Positive | dict[str, _Positive] | None = None
    """Limit of computes for every op, or a table of limits by op."""
    keep: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Tensors to be alive at the end, in addition to the graph's outputs."""
    count_constant_memory: bool = False
    """Count the graph's constant memory in peak and budget."""
    objective: Annotated[
        str | None,
        GetPydanticSchema(lambda _source, _handler: literal_schema(list(map(str, Objective)))),
        Field(description=f"{Objective.described()}; absent: the time with a machine, otherwise the cost."),
    ] = None
    machine: str | dict[str, str | int | float] | None = None
    """Host to which tensors may move: "pcie4,host=64GiB", or a table of these settings (preset, host, ...)."""


class SolveSection(Section):
    """Method, solver and limits; see :func:`remat.solve`."""

    method: str = "auto"
    """"auto", a formulation, heuristic or method, or METHOD/BACKEND; MODULE:CLASS only with --allow-imports."""
    backend: str = "cp-sat"
    """Solver, as name or name:variant (MODULE:CLASS only with --allow-imports); not used by heuristics."""
    time_limit: _Seconds | None = None
    """Seconds, or a time with a unit ("5m"), for everything; absent: until optimality is proved."""
    gap: _Share = DEFAULT_GAP
    """Stop at this relative gap (0.05, "5%"); 0: prove optimality."""
    threads: _Positive | Literal["all"] | None = None
    """Absent or "all": as many as the machine has."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Random seed."""
    isolate: bool = False
    """Run the solver in its own process, which is terminated if it misses the deadline."""
    memory_limit: str | _Positive | None = None
    """Memory limit of this process, in bytes or with a unit ("4GiB"); implies isolate."""
    warm_start: str | None = None
    """Schedule file to start from, in any known format."""

    start: str = "auto"
    """Start of a formulation: "auto", a heuristic; "none"; "alone", without the reference order too; or a file."""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, values: Any) -> Any:
        """Split "checkmate/highs" into method and backend."""
        from remat.solving.method import split_backend

        method: Any = values.get("method") if isinstance(values, dict) else None
        name, backend = split_backend(method)
        if backend is None:
            return values
        if values.get("backend", backend) != backend:
            raise FormatError(
                f"method {method!r} and backend {short(values['backend'])} name two backends", "two-backends"
            )
        return {**values, "method": name, "backend": backend}


class OutputSection(Section):
    """Output files and messages."""

    schedule: str | None = None
    """Schedule file to write."""
    plot: str | None = None
    """Picture to write (.png, .svg, .pdf)."""
    json_: Annotated[bool, Field(alias="json")] = False
    """Print the result as JSON."""
    quiet: bool = False
    """Show no progress."""
