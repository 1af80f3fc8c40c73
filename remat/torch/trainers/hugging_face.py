"""Callback for the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn
from transformers import TrainerCallback

from remat.torch.blocks.finding import BlocksLike
from remat.torch.blocks.report import BlocksReport
from remat.torch.rematerialized.planning import StepOptions
from remat.torch.rematerialized.report import Report
from remat.torch.trainers.conversion import Conversion


class RematCallback(TrainerCallback):
    """Callback of ``transformers.Trainer``: training steps keep a memory budget by recomputation.

    The model is rematerialized while the Trainer trains it, and the plain one before and after. The first batch is the
    sample; each other kind of batch (length, last batch) is captured and solved when it first occurs. Evaluation and
    saving use the plain model. Meanwhile no configuration of the model or a part of it asks for a cache.

    Parameters
    ----------
    budget : str, int or float
    blocks : bool, str, class or several
        True: each repeated block gets a schedule of its own, as by :func:`remat.torch.rematerialize_blocks`, for models
        of many layers. Names or classes: these blocks.
    **options
        As in :func:`remat.torch.rematerialize`, which says what the budget counts. `time_limit` is for each kind of
        batch.

    Raises
    ------
    ProblemError
        If an option is unknown.

    Examples
    --------
    ::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[RematCallback("24GiB", time_limit=20)])
    """

    def __init__(
        self, budget: str | int | float, *, blocks: bool | BlocksLike = False, **options: Unpack[StepOptions]
    ) -> None:
        self._conversion = Conversion(budget, options, blocks)
        self._cached: list[Any] = []
        """Configurations that asked for a cache; the Trainer only changes that of the whole model."""

    @property
    def reports(self) -> Sequence[Report | BlocksReport]:
        """Prediction and certificate of each kind of batch in the last training."""
        return self._conversion.reports

    def on_train_begin(self, *state: Any, model: nn.Module, **_: Any) -> None:
        """Convert the model."""
        self._cached = [each for each in _configurations(model) if getattr(each, "use_cache", False)]
        for each in self._cached:
            each.use_cache = False
        self._conversion.begin(model)

    def on_train_end(self, *state: Any, **_: Any) -> None:
        """Restore the model."""
        self._conversion.end()
        for each in self._cached:
            each.use_cache = True


def _configurations(model: nn.Module) -> list[Any]:
    """Return the configurations of a model and its parts."""
    found = (part.__dict__.get("config") for part in model.modules())
    return list({id(each): each for each in found if each is not None}.values())
