"""Conversion of a model's blocks, in place: :func:`rematerialize_blocks`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack
from unittest.mock import patch

import torch
from torch import nn

from remat.errors import ExecutionError
from remat.schedule import Schedule
from remat.solving.method import MethodLike
from remat.solving.training_steps import check_options
from remat.torch.blocks.finding import BlocksLike, find_blocks
from remat.torch.blocks.planning import BlockPlans, plan_blocks
from remat.torch.blocks.report import BlocksReport
from remat.torch.blocks.sharded import gathered
from remat.torch.capture.fakes import sample_tuple
from remat.torch.lock import in_turn
from remat.torch.modes import apart_from_step, in_training
from remat.torch.rematerialized.arguments import Sample
from remat.torch.rematerialized.module import Rematerialized, add_plans, as_before, convert, restore
from remat.torch.rematerialized.plan import Plan, modes_of
from remat.torch.rematerialized.planner import OTHER_SHAPES
from remat.torch.rematerialized.planning import Settings, check_setting

_log = logging.getLogger("remat.torch")


class BlockOptions(TypedDict, total=False):
    """Further options of :func:`rematerialize_blocks`."""

    method: MethodLike
    time_limit: float | None
    costs: Any
    constants: str
    engine: str
    workspaces: str | None


class RematerializedBlocks:
    """A model whose blocks are rematerialized; made by :func:`rematerialize_blocks`.

    Attributes
    ----------
    model : torch.nn.Module
    blocks : mapping of str to torch.nn.Module
        Blocks by path.
    reports : list of BlocksReport
        Of all kinds of calls so far.
    """

    def __init__(
        self, model: nn.Module, blocks: Mapping[str, nn.Module], settings: Settings, other_shapes: str
    ) -> None:
        self.model, self.blocks = model, dict(blocks)
        self.reports: list[BlocksReport] = []
        self._settings, self._other_calls = settings, other_shapes == "capture"
        self._steps: list[BlockPlans] = []
        self._samples: list[Sample] = []
        self._current: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._capturing = False
        self._hooks = (
            model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        )

    @property
    def report(self) -> BlocksReport:
        """Report of the sample; raise ExecutionError if there is none and the model has not been called."""
        if not self.reports:
            raise ExecutionError("no step is captured yet: the first call in training mode is the sample", "no-step")
        return self.reports[0]

    @property
    def schedule(self) -> Schedule:
        """Schedule of the whole step of the sample; its graph is :attr:`graph`."""
        return self._first.schedule

    @property
    def graph(self) -> Any:
        """Graph of the whole step of the sample, a :class:`~remat.graphs.ComputeGraph`."""
        return self._first.composed.graph

    @property
    def _first(self) -> BlockPlans:
        assert self.report
        return self._steps[0]

    def restore(self) -> nn.Module:
        """Give the blocks their own classes again; return the model."""
        for block in self.blocks.values():
            if isinstance(block, Rematerialized):
                restore(block)
        for hook in self._hooks:
            hook.remove()
        return self.model

    @in_turn
    def capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BlocksReport:
        """Capture and divide for calls with these arguments; convert the blocks."""
        sample = Sample(self.model.forward, args, kwargs)
        self._capturing = True  # which calls the model
        try:
            with apart_from_step(), gathered(self.model), as_before(self.blocks.values()):
                made = plan_blocks(self.model, self.blocks, args, kwargs, self._settings)
        finally:
            self._capturing = False
        self._steps.append(made)
        for block, plans in made.plans.items():
            if isinstance(block, Rematerialized):
                add_plans(block, plans)
            else:
                convert(block, _OtherCalls(self, block, self._other_calls), plans)
        self._samples.append(sample)
        self.reports.append(made.report)
        self._settings = dataclasses.replace(self._settings, budget=made.report.budget)
        _log.info("rematerialized blocks of %s", made.report)
        return made.report

    def other_call(self, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Plan:
        """Capture the model's current call, in which a block is called as in no earlier one; return the block's step.

        Values of the model's arguments decide this, such as those of a mask with or without padding. So does
        compilation: models of transformers then make a mask in any case.

        Raise ExecutionError if the captured call does not call the block so.
        """
        if self._current is None:
            raise ExecutionError(
                f"block {type(block).__name__!r} is called as in no sample, and outside of model "
                f"{type(self.model).__name__!r}: call restore() first, or rematerialize_blocks on what calls it",
                "outside-model",
            )
        refused: ExecutionError | None = None
        for compiling in (False, True):  # here is_compiling() is False, also under torch.compile
            with patch.object(torch.compiler, "is_compiling", lambda now=compiling: now):
                self.capture(*self._current)
            for plan in self._steps[-1].plans.get(block, ()):
                try:
                    plan.leaves(block, modes_of(block), args, kwargs)
                except ExecutionError as error:
                    refused = error
                else:
                    return plan
        raise refused or ExecutionError("the model calls a block that it did not call when captured", "unlike-sample")

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _leave(self, *_: Any) -> None:
        if not self._capturing:
            self._current = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Capture a call of a new kind before the model runs it."""
        if self._capturing:
            return
        self._current = args, kwargs
        if not (model.training and torch.is_grad_enabled()):
            return
        fits = _fits if self._other_calls else Sample.has_names_of
        if not any(fits(sample, args, kwargs) for sample in self._samples):
            self.capture(args, kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class _OtherCalls:
    """Maker of the steps of one block."""

    owner: RematerializedBlocks
    block: nn.Module
    other_calls: bool

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Plan:
        return self.owner.other_call(self.block, args, kwargs)


def _fits(sample: Sample, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        sample.leaves(args, kwargs)
    except ExecutionError:
        return False
    return True


@in_turn
def rematerialize_blocks(
    model: nn.Module,
    budget: str | int | float,
    sample_args: Sequence[Any] | torch.Tensor | None = None,
    *,
    sample_kwargs: Mapping[str, Any] | None = None,
    blocks: BlocksLike | None = None,
    other_shapes: str = "error",
    **options: Unpack[BlockOptions],
) -> RematerializedBlocks:
    """Rematerialize the repeated blocks of a model in place, each by its own schedule, within one budget.

    Blocks that do the same are captured once. The budget is divided by an exact model: one of several schedules for
    each block, so that the cost of the whole step is least. The schedule of the whole step, with the embedding, the
    head and whatever else is outside the blocks, is certified on the graph of the whole step. The remainder runs as it
    is. Results are those of the plain model, as for :func:`~remat.torch.rematerialize`.

    Parameters
    ----------
    model : torch.nn.Module
        Stays the same object; its blocks become instances of subclasses of their classes.
    budget : str, int or float
        Bytes or a share of the peak of the whole step without recomputation, as for
        :func:`~remat.torch.rematerialize`.
    sample_args : sequence, a single tensor, or None
        Arguments of a typical call of the model. None, also for `sample_kwargs`: the first call in training mode is the
        sample. It may be called before or after ``parallelize_module``, and before or after ``fully_shard``, of the
        blocks and the model.
    sample_kwargs : mapping, optional
    blocks : str, class or several, optional
        Names of classes (``"LlamaDecoderLayer"``), patterns of module paths (``"layers.*"``), or classes. Default: the
        outermost modules that the model repeats.
    other_shapes : {"error", "capture"}
        Response to a call unlike the sample: refuse it, or capture and divide once for each kind of call. One with
        further arguments is captured in any case.
    method, time_limit, costs, constants, engine, workspaces
        As for :func:`~remat.torch.rematerialize`. `method` finds the schedules of a block, ``"drops"`` by default;
        `time_limit` is for the whole search.

    Raises
    ------
    CaptureError
        If the model repeats nothing or lacks the named blocks, if the model or a block cannot be captured, or if
        parameters are sharded unevenly. In tensor parallelism, also if the processes capture different steps.
    ProblemError
        If the budget is below the least peak of any choice; with that peak.

    Examples
    --------
    >>> parts = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()) for _ in range(6)]
    >>> model, x = nn.Sequential(*parts, nn.Linear(64, 1)), torch.randn(512, 64)
    >>> found = rematerialize_blocks(model, "75%", (x,))
    >>> model(x).sum().backward()
    >>> len(found.report.blocks), found.report.predicted_peak <= 0.75 * found.report.reference_peak
    (6, True)
    """
    check_options("rematerialize_blocks", options, BlockOptions)
    if not isinstance(model, nn.Module):
        raise ExecutionError(f"rematerialize_blocks takes a torch.nn.Module, not a {type(model).__name__}", "no-module")
    done = next((path for path, part in model.named_modules() if isinstance(part, Rematerialized)), None)
    if done is not None:
        raise ExecutionError(f"module {done!r} of the model is rematerialized already", "no-module")
    check_setting("other_shapes", other_shapes, OTHER_SHAPES)
    settings = Settings(budget, **options)
    made = RematerializedBlocks(model, find_blocks(model, blocks), settings, other_shapes)
    if sample_args is not None or sample_kwargs is not None:
        args = sample_tuple(sample_args)
        try:
            with in_training(model):
                made.capture(args, dict(sample_kwargs or {}))
        except BaseException:
            made.restore()
            raise
    return made
