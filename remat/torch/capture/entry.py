"""Capture a module: :func:`capture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.capture.costs import costs_by_name
from remat.torch.capture.fakes import FakeWorld
from remat.torch.capture.joint import trace_joint
from remat.torch.capture.loss import WITHOUT, WithLoss, names_without
from remat.torch.capture.lowering import lower
from remat.torch.capture.traced import Traced
from remat.torch.captured import Captured

ROUTES: dict[str, Callable[[FakeWorld], Traced]] = {"joint": trace_joint}
MODES = ("training", "inference")


def capture(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    route: str = "auto",
    loss: str | int | Callable[[Any], torch.Tensor] | None = None,
    mode: str = "training",
    costs: Any = "roofline",
    name: str | None = None,
) -> Captured:
    """The training step, or the forward pass alone, of a module as a computation graph, tied to its fx nodes.

    Everything runs on fake tensors: nothing is computed, and neither weights nor activations need memory. The module
    stays as it is.

    Parameters
    ----------
    module : torch.nn.Module
        In training mode or not: what dropout and batch norm do is captured as it is.
    args, kwargs
        Sample arguments; real or fake tensors, of the shapes and types of the real ones.
    route : {"auto", "joint", "make_fx"}
        ``"joint"``: the graph that torch.compile's partitioner sees. ``"make_fx"``: what runs is recorded, without
        Dynamo. ``"auto"``: the first, and the other where that fails, with the reason in ``graph.meta["fallback"]``.
    loss : str, int or callable, optional
        What the backward pass begins with: an item of what the module returns, by its key, attribute or position, or a
        function of what it returns; it must be one number. Other items are returned detached; with a function the loss
        alone is returned. Default: all outputs of the module, with tangents that come from outside.
    mode : {"training", "inference"}
    costs : str or CostModel
        Costs of ops; see :mod:`remat.torch.costs`.
    name : str, optional
        Name of the graph; default: that of the module's class.

    Returns
    -------
    Captured

    Raises
    ------
    CaptureError
        If the module refuses the sample arguments, returns no tensor, has no parameter that needs a gradient, or cannot
        be traced; in one line that says where.
    """
    if mode not in MODES:
        raise CaptureError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if route != "auto" and route not in ROUTES:
        raise CaptureError(f"route {route!r} is not one of auto, {', '.join(ROUTES)}")
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(f"capture takes a torch.nn.Module, not a {type(module).__name__}")
    whole = module if loss is None else WithLoss(module, loss)
    world = FakeWorld.of(whole, args, kwargs)
    model = costs_by_name(costs)
    traced = ROUTES["joint" if route == "auto" else route](world)
    return lower(
        traced if loss is None else names_without(WITHOUT, traced),
        name=name or type(module).__name__,
        mode=mode,
        unread=world.unread(each.name for each in traced.inputs),
        costs=model.costs,
        cost_unit=model.unit,
        prefix="" if loss is None else WITHOUT,
        meta={},
    )
