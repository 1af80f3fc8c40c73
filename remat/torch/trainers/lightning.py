"""Callback for Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Unpack

from lightning.pytorch import Callback, LightningModule

from remat.errors import CaptureRemark, ExecutionError
from remat.torch.blocks.finding import BlocksLike
from remat.torch.blocks.report import BlocksReport
from remat.torch.rematerialized.planning import StepOptions
from remat.torch.rematerialized.report import Report
from remat.torch.trainers.conversion import Conversion


class RematCallback(Callback):
    """Callback of Lightning's ``Trainer``: calls of a module in training keep a memory budget by recomputation.

    The module is rematerialized while the Trainer fits it, and the plain one before and after. The first batch is the
    sample; each other kind of batch is captured and solved when it first occurs. Validation uses the plain module.

    Parameters
    ----------
    budget : str, int or float
    module : str
        Name of the submodule that ``training_step`` calls, such as ``"net"``; empty for the LightningModule's own
        ``forward``.
    blocks : bool, str, class or several
        True: each repeated block gets a schedule of its own, as by :func:`remat.torch.rematerialize_blocks`, for models
        of many layers. Names or classes: these blocks.
    **options
        As in :func:`remat.torch.rematerialize`, which says what the budget counts.

    Raises
    ------
    ProblemError
        If an option is unknown.
    ExecutionError
        When fitting begins, if there is no submodule of this name.

    Examples
    --------
    ::

        trainer = lightning.Trainer(callbacks=[RematCallback("24GiB", "net")], precision="bf16-mixed")
    """

    def __init__(
        self,
        budget: str | int | float,
        module: str = "",
        *,
        blocks: bool | BlocksLike = False,
        **options: Unpack[StepOptions],
    ) -> None:
        self._conversion, self._name = Conversion(budget, options, blocks), module

    @property
    def reports(self) -> Sequence[Report | BlocksReport]:
        """Prediction and certificate of each kind of batch in the last fit."""
        return self._conversion.reports

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Convert the module."""
        try:
            module = pl_module.get_submodule(self._name)
        except AttributeError:
            raise ExecutionError(
                f"{type(pl_module).__name__} has no submodule {self._name!r}; it has "
                f"{', '.join(name for name, _ in pl_module.named_children()) or 'none'}",
                "no-submodule",
            ) from None
        self._conversion.begin(module)

    def on_train_batch_end(self, *state: Any) -> None:
        """Warn if the first step did not call the module."""
        batch = state[-1]
        if batch == 0 and not self.reports:
            warnings.warn(
                CaptureRemark(
                    f"training_step did not call {self._name or 'forward'!r}, so no memory is saved: name the module "
                    "that it calls, RematCallback(budget, module=NAME)"
                ),
                stacklevel=2,
            )

    def on_fit_end(self, *state: Any) -> None:
        """Restore the module."""
        self._conversion.end()

    def on_exception(self, *state: Any) -> None:
        """Restore the module."""
        self._conversion.end()
