"""Conversion of a module while a trainer runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import nn

from remat.solving.training_steps import check_options
from remat.torch.blocks.finding import BlocksLike
from remat.torch.blocks.rematerialize import BlockOptions, rematerialize_blocks
from remat.torch.blocks.report import BlocksReport
from remat.torch.rematerialized.module import Rematerialized, convert, restore
from remat.torch.rematerialized.planner import Planner
from remat.torch.rematerialized.planning import Settings, StepOptions
from remat.torch.rematerialized.report import Report


class Conversion:
    """A module that is rematerialized from :meth:`begin` to :meth:`end`.

    `blocks`: True or blocks, to convert each block of the module as :func:`remat.torch.rematerialize_blocks` does.
    `options`: as in :func:`remat.torch.rematerialize`. Raise ProblemError if one is unknown.
    """

    def __init__(self, budget: str | int | float, options: StepOptions, blocks: bool | BlocksLike = False) -> None:
        function, known = ("rematerialize_blocks", BlockOptions) if blocks else ("rematerialize", StepOptions)
        check_options(function, options, known)
        self._settings, self._options = Settings(budget, **options), options
        self._blocks = blocks
        self.reports: Sequence[Report | BlocksReport] = []
        """Reports of the steps captured since the last beginning."""
        self._restore: Callable[[], Any] = _nothing

    def begin(self, module: nn.Module) -> None:
        """Make a module rematerialized in place."""
        if self._blocks:
            found = rematerialize_blocks(
                module, cast("str", self._settings.budget), blocks=None if self._blocks is True else self._blocks,
                other_shapes="capture", **cast("BlockOptions", self._options),
            )  # fmt: skip
            self.reports, self._restore = found.reports, found.restore
            return
        planner = Planner(self._settings, "capture")
        made: Rematerialized = convert(module, planner)
        self.reports, self._restore = planner.reports, lambda: restore(made)

    def end(self) -> None:
        """Give the module, or its blocks, their own classes again."""
        self._restore()
        self._restore = _nothing


def _nothing() -> None:
    """Restore nothing: no module is converted."""
