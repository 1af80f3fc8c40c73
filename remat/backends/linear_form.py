"""Solves of a formulation's own linear rows, in place of those that bridges make."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from remat.backends.results import Incumbent, OnBound, OnIncumbent, RawResult, Values
from remat.modeling import Model
from remat.modeling.alternatives import LinearForm


class Solve(Protocol):
    """Solve the form's model, as :meth:`remat.backends.base.Backend.solve` does."""

    def __call__(
        self, *, hint: Values | None, on_incumbent: OnIncumbent | None, on_bound: OnBound | None
    ) -> RawResult: ...


@dataclass
class FormSolve:
    """One solve of a linear form; results refer to the source."""

    source: Model
    form: LinearForm
    build_seconds: float
    """Time to state the form."""
    _translated: dict[float, Incumbent] = field(default_factory=dict)

    def run(
        self, solve: Solve, hint: Values | None, on_incumbent: OnIncumbent | None, on_bound: OnBound | None
    ) -> RawResult:
        """Solve the form and translate the result."""

        def take(found: Incumbent) -> object:
            return on_incumbent is not None and on_incumbent(self._of_source(found))

        raw = solve(
            hint=None if hint is None else self.form.hint(hint),
            on_incumbent=None if on_incumbent is None else take,
            on_bound=on_bound,
        )
        build = self.build_seconds + raw.build_seconds
        if not raw.incumbents:
            return replace(raw, build_seconds=build)
        incumbents = tuple(map(self._of_source, raw.incumbents))
        best = incumbents[-1]
        bound = None if raw.bound is None else min(raw.bound, best.objective)
        return replace(
            raw, objective=best.objective, values=best.values, bound=bound, incumbents=incumbents, build_seconds=build
        )

    def _of_source(self, found: Incumbent) -> Incumbent:
        """Translate an incumbent; each is better than the last, so its objective identifies it."""
        if found.objective not in self._translated:
            values = self.form.values(found.values)
            self._translated[found.objective] = replace(
                found, objective=self.source.objective.value(values), values=values
            )
        return self._translated[found.objective]
