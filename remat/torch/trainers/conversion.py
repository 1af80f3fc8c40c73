"""Conversion of a module while a trainer runs."""

from __future__ import annotations

from torch import nn

from remat.torch.rematerialized.module import Rematerialized, convert, restore
from remat.torch.rematerialized.planner import Planner
from remat.torch.rematerialized.planning import Settings, StepOptions
from remat.torch.rematerialized.report import Report


class Conversion:
    """A module that is rematerialized from :meth:`begin` to :meth:`end`.

    `options`: as in :func:`remat.torch.rematerialize`. Raise ProblemError if one is unknown.
    """

    def __init__(self, budget: str | int | float, options: StepOptions) -> None:
        self._settings = Settings(budget, **options)
        self.reports: list[Report] = []
        """Reports of the steps captured since the last beginning."""
        self._module: Rematerialized | None = None

    def begin(self, module: nn.Module) -> None:
        """Make a module rematerialized in place."""
        planner = Planner(self._settings, "capture")
        self.reports, self._module = planner.reports, convert(module, planner)

    def end(self) -> None:
        """Give the module its own class again."""
        if self._module is not None:
            restore(self._module)
            self._module = None
