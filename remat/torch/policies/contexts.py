"""The policy at run time: one context for each region of a forward pass, by a table of its calls."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from remat.errors import ExecutionError
from remat.torch.policies.recording import is_free
from remat.torch.private import C, TorchDispatchMode

if TYPE_CHECKING:
    from remat.torch.policies.report import PolicyReport

#: Calls of a region, with True for those whose results are saved.
Calls = Sequence[tuple[Any, bool]]


@dataclass(frozen=True)
class RegionTable:
    """Saved calls of a region.

    Attributes
    ----------
    name : str
        Path of the module.
    eager, traced : sequence of (OpOverload, bool)
        Calls in the order in which a policy sees them in eager mode, and in a trace of torch.compile.
    plain : bool
        True if the region needs no checkpoint: all of it is kept.
    """

    name: str
    eager: Calls
    traced: Calls
    plain: bool = False

    def by_occurrence(self, *, traced: bool = False) -> dict[tuple[str, int], bool]:
        """Return True for each saved op and False for the others, by name and occurrence, without views."""
        counts: Counter[str] = Counter()
        found = {}
        for function, saved in self.traced if traced else self.eager:
            found[str(function), counts[str(function)]] = saved
            counts[str(function)] += 1
        return found


@dataclass(eq=False)
class Table:
    """Tables of all regions of a forward pass, and the number of the next region."""

    regions: tuple[RegionTable, ...]
    model: weakref.ref[torch.nn.Module]
    entered: int = 0

    def restart(self, *_: Any) -> None:
        """Start a forward pass, as a hook of the model."""
        if not torch.compiler.is_compiling():
            self.entered = 0

    def next(self) -> RegionTable:
        """Return the table of the next region."""
        self.entered += 1
        return self.regions[(self.entered - 1) % len(self.regions)]


class _Statistics(TorchDispatchMode):
    """Replay of batch norm without a second update of its running statistics."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        super().__init__()
        self.buffers = set() if model is None else {id(each) for each in model.buffers()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.add_.Tensor and id(args[0]) in self.buffers:
            return args[0]  # counts batches
        if "batch_norm" in str(func):
            names = [formal.name for formal in func._schema.arguments]
            args = [
                each.clone() if name in {"running_mean", "running_var"} and each is not None else each
                for name, each in zip(names, args, strict=False)
            ]
        return func(*args, **kwargs)


class _Replay(contextlib.AbstractContextManager[None]):
    """Context of a replay: what is saved is taken, and statistics are updated once."""

    def __init__(self, saved: Any, model: torch.nn.Module | None) -> None:
        self.saved, self.statistics = saved, _Statistics(model)

    def __enter__(self) -> None:
        self.statistics.__enter__()
        self.saved.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.saved.__exit__(kind, error, trace)
        self.statistics.__exit__(kind, error, trace)


def contexts(table: Table) -> tuple[Any, Any]:
    """Return the contexts of the next region's forward pass and replay, as ``torch.utils.checkpoint`` wants them."""
    if not torch.is_grad_enabled():
        nothing = create_selective_checkpoint_contexts([])
        return nothing if _tracing() else (contextlib.nullcontext(), contextlib.nullcontext())
    region, tracing, position = table.next(), _tracing(), 0
    calls = region.traced if tracing else region.eager

    def decide(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        nonlocal position
        if is_free(function):
            return CheckpointPolicy.MUST_RECOMPUTE
        at, position = position, position + 1
        if at >= len(calls) or calls[at][0] is not function:
            expected = "ends" if at >= len(calls) else f"runs {calls[at][0]}"
            raise ExecutionError(
                f"call {at} of region {region.name!r} is {function}, where the sample {expected}: make a policy for "
                "these shapes and this mode, and use it in one model only",
                "other-call",
            )
        return CheckpointPolicy.MUST_SAVE if calls[at][1] else CheckpointPolicy.MUST_RECOMPUTE

    forward, replay = create_selective_checkpoint_contexts(decide)
    return forward, replay if tracing else _Replay(replay, table.model())


def _tracing() -> bool:
    """Return True while torch.compile runs or traces the program to compile it."""
    return bool(C._dispatch_tls_is_dispatch_key_included(C.DispatchKey.PythonDispatcher))


class Policy(functools.partial[Any]):
    """Function `context_fn` for ``torch.utils.checkpoint.checkpoint``, made by :func:`remat.torch.policy`.

    Each call belongs to the next region, in the order of the forward pass. Use it in the model that it was made for, in
    checkpoints around exactly its regions. It is a :class:`functools.partial`, which Dynamo accepts.

    Attributes
    ----------
    report : PolicyReport
        Certificate, extra cost, and the distance to the bound and to the best schedule.
    regions : tuple of RegionTable
        Tables of the regions, in the order of the forward pass, plain ones included.
    """

    report: PolicyReport
    regions: tuple[RegionTable, ...]

    @classmethod
    def of(cls, model: torch.nn.Module, regions: Sequence[RegionTable], report: PolicyReport) -> Policy:
        """Make the policy of a model. A hook of the model starts each forward pass with the first region."""
        table = Table(tuple(region for region in regions if not region.plain), weakref.ref(model))
        made = cls(contexts, table)
        made.report = report
        made.regions = tuple(regions)
        model.register_forward_pre_hook(table.restart, prepend=True)
        return made

    @property
    def saved(self) -> dict[str, list[tuple[str, int]]]:
        """Saved calls of each region: name and occurrence of the op in eager mode."""
        return {
            region.name: [place for place, kept in region.by_occurrence().items() if kept] for region in self.regions
        }

    def checkpoint(self, model: torch.nn.Module) -> None:
        """Run the regions of a model under ``torch.utils.checkpoint`` with this policy, from now on.

        For models that have no checkpoints of their own; regions that need none stay as they are. It replaces
        ``forward`` of each region's module, and nothing else: names in the state dict stay.

        Raises
        ------
        ExecutionError
            If the model lacks a region.
        """
        for name in dict.fromkeys(region.name for region in self.regions if not region.plain):
            try:
                part = model.get_submodule(name)
            except AttributeError:
                raise ExecutionError(f"the model has no module {name!r}, a region of the policy", "no-region") from None
            part.forward = functools.partial(checkpoint, part.forward, use_reentrant=False, context_fn=self)

    def __copy__(self) -> Policy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        return self  # it counts the regions of one model

    def __reduce__(self) -> Any:
        """Pickle the name alone: the Trainer of transformers stores its arguments with every checkpoint."""
        return _Stored, (self.report.name,)

    def __repr__(self) -> str:
        return f"Policy({self.report.name!r}, {len(self.regions)} regions)"


@dataclass(frozen=True)
class _Stored:
    """Remainder of a pickled policy, which belongs to a model of another process."""

    name: str

    def __call__(self) -> Any:
        raise ExecutionError(f"the policy of {self.name!r} was stored: make it again for this model", "stored-policy")
