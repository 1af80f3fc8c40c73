"""Capture of a module: :func:`capture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.capture.explaining import explained, quiet_torch
from remat.torch.capture.fakes import FakeWorld, grouped_products, whole_ops, without_onednn
from remat.torch.capture.loss import WITHOUT, WithLoss, names_without
from remat.torch.capture.lowering import lower
from remat.torch.capture.recording import trace_make_fx
from remat.torch.captured import Captured, Traced
from remat.torch.costs import CostModel, cost_model, measured_workspaces
from remat.torch.lock import in_turn
from remat.torch.modes import kept_modes
from remat.torch.private import pytree

ROUTES = ("joint", "make_fx")
MODES = ("training", "inference")


@in_turn
def capture(  # noqa: PLR0913 - independent options of users
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    route: str = "auto",
    loss: str | int | Callable[[Any], torch.Tensor] | None = None,
    mode: str = "training",
    costs: str | CostModel | type[CostModel] = "roofline",
    workspaces: str | None = None,
    name: str | None = None,
) -> Captured:
    """Capture the training step, or the forward pass alone, of a module as a computation graph, tied to its fx nodes.

    Capture uses fake tensors: it computes nothing, and neither weights nor activations need memory. The module remains
    unchanged. Calls in several threads run one at a time.

    Parameters
    ----------
    module : torch.nn.Module
        Captured in its present mode, which determines how dropout and batch norm run.
    args, kwargs
        Sample arguments: real or fake tensors, with the shapes and types of the real ones.
    route : {"auto", "joint", "make_fx"}
        ``"joint"``: the graph of torch.compile's partitioner. ``"make_fx"``: a recording of a run, without Dynamo.
        ``"auto"``: the first, or the second if the first fails, with the reason in ``graph.meta["fallback"]``.
    loss : str, int or callable, optional
        Start of the backward pass: an item of the module's return value, by key, attribute or position, or a function
        of that value; it must be one number. Other items are returned detached; with a function the step returns the
        loss alone. Default: all outputs of the module, with tangents from outside.
    mode : {"training", "inference"}
        ``"inference"``: the forward pass of the module in evaluation mode, by the route ``"make_fx"``.
    costs : str or CostModel
        Costs of ops; see :func:`remat.torch.cost_model`. ``graph.meta["cost_model"]`` has its name, and
        ``graph.meta["cost_figures"]`` the rates of a roofline.
    workspaces : {"measured"}, optional
        Workspaces of kernels: measured on this machine, one by one (:func:`remat.torch.costs.measured_workspaces`).
        Default: 0.
    name : str, optional
        Name of the graph; default: that of the module's class.

    Raises
    ------
    CaptureError
        If the module refuses the sample arguments, returns no tensor, has no parameter that needs a gradient, or cannot
        be traced; one line with the place in the source.
    MeasurementError
        If the cost model is unknown, or something cannot be measured.
    """
    if mode not in MODES:
        raise CaptureError(f"mode {mode!r} is not one of {', '.join(MODES)}", "mode")
    if route not in {"auto", *ROUTES}:
        raise CaptureError(f"route {route!r} is not one of auto, {', '.join(ROUTES)}", "route")
    if mode == "inference" and (route == "joint" or loss is not None):
        raise CaptureError(
            "mode 'inference' captures a forward pass, which has no "
            + ("loss: leave it out" if loss is not None else "joint graph: use route 'make_fx'"),
            "inference-alone",
        )
    if workspaces not in {None, "measured"}:
        raise CaptureError(f"workspaces={workspaces!r} is neither None nor 'measured'", "workspaces")
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(f"capture takes a torch.nn.Module, not a {type(module).__name__}", "no-module")
    whole = module if loss is None else WithLoss(module, loss)
    world = FakeWorld.of(whole, args, kwargs, distributed=True)
    model = cost_model(costs)
    meta: dict[str, Any] = {}
    with quiet_torch(), without_onednn(), grouped_products(), whole_ops():
        if mode == "inference":
            with kept_modes(world.module):
                world.module.eval()
                traced = _recorded(world, training=False)
        else:
            _check_gradients(module, world)
            traced = _training(world, route, meta)
            _check_results(module, traced)
    return lower(
        traced if loss is None else names_without(WITHOUT, traced),
        name=name or type(module).__name__,
        unread=world.unread(each.name for each in traced.inputs),
        costs=model,
        workspaces=measured_workspaces if workspaces == "measured" else None,
        prefix="" if loss is None else WITHOUT,
        meta=meta,
    )


def _training(world: FakeWorld, route: str, meta: dict[str, Any]) -> Traced:
    """Trace a training step; if the first of two routes fails, store the reason in `meta`."""
    if route == "joint" and world.is_distributed:
        raise CaptureError("distributed tensors (DTensor) are captured by route 'make_fx'", "route")
    if world.is_distributed:
        return _recorded(world)
    if route != "make_fx":
        from remat.torch.capture.joint import trace_joint  # imports Dynamo, which takes two seconds

        try:
            return trace_joint(world)
        except Exception as error:
            reason = explained(world.module, error)
            if route == "joint":
                raise reason from error
    traced = _recorded(world)
    if route == "auto":
        meta["fallback"] = str(reason)
    return traced


def _recorded(world: FakeWorld, *, training: bool = True) -> Traced:
    """Trace a module by the route ``"make_fx"``."""
    try:
        return trace_make_fx(world, training=training)
    except Exception as error:
        raise explained(world.module, error) from error


def _check_gradients(module: torch.nn.Module, world: FakeWorld) -> None:
    tensors = [*world.state.values(), *pytree.tree_leaves((world.args, dict(world.kwargs)))]
    if not any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors):
        raise CaptureError(
            f"module {type(module).__name__!r} has no parameter that needs a gradient; "
            "mode='inference' captures its forward pass alone",
            "no-gradient",
        )


def _check_results(module: torch.nn.Module, traced: Traced) -> None:
    name = type(module).__name__
    if not any(each.node for each in traced.results if each.kind == "output"):
        raise CaptureError(f"module {name!r} returns no tensor", "no-output")
    if not any(each.node for each in traced.results if each.kind == "gradient"):
        raise CaptureError(
            f"nothing that module {name!r} returns depends on a parameter that needs a gradient", "detached"
        )
