"""Tables of the default method as a parameter space: which stages run, their shares and limits of time, their turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, NamedTuple

from remat.solving.portfolio import Stage

#: A share or limit of a table varies between this part of its default and this multiple of it.
FACTOR = 4.0
#: Least share of a stage or turn.
LEAST = 0.01
#: Part of the range of ``on`` that leaves a stage out: few random tables lack most of their stages.
OFF = 0.2
#: Step of the policy that a table must keep, since it takes all time left.
TURNS = "turns"


class Parameter(NamedTuple):
    """Parameter of a table.

    Attributes
    ----------
    stage : int
        Number of the stage in the default table.
    key : str
        ``on``, 0 to 1: from :data:`OFF` the stage runs; ``share``; ``limit``, a factor on its seconds; or the name of a
        method that takes turns.
    name : str
        Name in the study of Optuna.
    default, low, high : float
        Range, on a logarithmic scale except for ``on``.
    """

    stage: int
    key: str
    name: str
    default: float
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class StageSpace:
    """Parameter space around a table of stages; their order and conditions stay.

    Parameters
    ----------
    stages : sequence of Stage
        Default table.
    methods : sequence of str
        Methods whose stages vary; empty: all.

    Examples
    --------
    >>> space = StageSpace((Stage("annealing", 0.2, seconds=10.0), Stage("turns", options={"annealing": 0.6})))
    >>> [(parameter.name, parameter.default) for parameter in space.parameters()]
    [('1 annealing on', 1.0), ('1 annealing share', 0.2), ('1 annealing limit', 1.0), ('2 turns annealing', 0.6)]
    >>> space.table({"1 annealing on": 0.1, "2 turns annealing": 0.3})
    (Stage(method='turns', ..., options={'annealing': 0.3}, ...),)
    """

    stages: Sequence[Stage]
    methods: Sequence[str] = ()

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in the order of the table."""
        for number, stage in enumerate(self.stages):
            if self.methods and stage.method not in self.methods:
                continue
            place = f"{number + 1} {stage.method}"
            if stage.method == TURNS:
                for name, share in stage.options.items():
                    yield _around(Parameter(number, name, f"{place} {name}", share))
                continue
            yield Parameter(number, "on", f"{place} on", 1.0)
            yield _around(Parameter(number, "share", f"{place} share", stage.share))
            if stage.seconds is not None or stage.seconds_per_op is not None:
                yield Parameter(number, "limit", f"{place} limit", 1.0, 1 / FACTOR, FACTOR)

    def table(self, values: Mapping[str, float]) -> tuple[Stage, ...]:
        """Return the table with values by the names of parameters; others keep their defaults."""
        changed: list[Stage | None] = list(self.stages)
        for parameter in self.parameters():
            stage, value = changed[parameter.stage], values.get(parameter.name, parameter.default)
            if stage is None or value == parameter.default:
                continue
            if parameter.key == "on":
                changed[parameter.stage] = stage if value >= OFF else None
            elif parameter.key == "share":
                changed[parameter.stage] = replace(stage, share=_rounded(value))
            elif parameter.key == "limit":
                limits = {name: getattr(stage, name) for name in ("seconds", "seconds_per_op")}
                times = {name: _rounded(value * limit) for name, limit in limits.items() if limit is not None}
                changed[parameter.stage] = replace(stage, **times)  # type: ignore[arg-type]
            else:
                changed[parameter.stage] = replace(stage, options={**stage.options, parameter.key: _rounded(value)})
        return tuple(stage for stage in changed if stage is not None)


def _around(parameter: Parameter) -> Parameter:
    low, high = max(LEAST, parameter.default / FACTOR), min(1.0, parameter.default * FACTOR)
    return parameter._replace(low=low, high=high)


def _rounded(value: float) -> float:
    """Return a value with three digits, as a table shows it."""
    return float(f"{value:.3g}")


def table_values(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Return a table as JSON values, without defaults, as configurations have it."""
    return [dict(_changed(stage)) for stage in stages]


def _changed(stage: Stage) -> Iterator[tuple[str, Any]]:
    for each in fields(stage):
        value = getattr(stage, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if value != default:
            yield each.name, list(value) if isinstance(value, tuple) else value


def table_toml(stages: Sequence[Stage]) -> str:
    """Return a table as tables ``[[methods.auto.stages]]`` of a configuration."""
    parts = []
    for values in table_values(stages):
        lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
        parts.append("\n".join(["[[methods.auto.stages]]", *lines, ""]))
    return "\n".join(parts)


def _toml(value: Any) -> str:
    """Return a value of a table in TOML, whose words, numbers and lists are those of JSON."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)
