"""Cost models by name."""

from __future__ import annotations

import difflib

from remat.errors import MeasurementError
from remat.graphs.devices import DEVICES, THIS_MACHINE
from remat.torch.costs.base import CostModel
from remat.torch.costs.flops import Flops
from remat.torch.costs.measured import Measured
from remat.torch.costs.roofline import Roofline

#: Models other than rooflines.
NAMED: dict[str, type[CostModel]] = {"flops": Flops, "measured": Measured}


def cost_model(model: str | CostModel | type[CostModel]) -> CostModel:
    """Return the cost model of a name or class; a model is returned as it is.

    Parameters
    ----------
    model : str, CostModel or class
        ``"flops"``, ``"roofline"`` (this machine), ``"roofline:A100"`` (a device of the table),
        ``"roofline:A100:tf32"`` (32-bit products rounded to TF32), ``"measured"``; or an object, or a class whose
        constructor needs no arguments.

    Raises
    ------
    MeasurementError
        If the name is unknown; with all names.

    Examples
    --------
    >>> cost_model("roofline:a100").name
    'roofline:A100'
    """
    if isinstance(model, CostModel):
        return model
    if isinstance(model, type) and issubclass(model, CostModel):
        return model()
    if not isinstance(model, str):
        raise MeasurementError(
            f"{model!r} is not a cost model: name one ({_known()}) or give a CostModel", "no-cost-model"
        )
    kind, _, device = model.partition(":")
    if kind.lower() == "roofline":
        name, _, last = device.rpartition(":")
        tf32 = last.lower() == "tf32"
        return Roofline((name if tf32 else device) or THIS_MACHINE, tf32=tf32)
    if not device and kind.lower() in NAMED:
        return NAMED[kind.lower()]()
    near = difflib.get_close_matches(model.lower(), ["roofline", *NAMED], n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise MeasurementError(f"unknown cost model {model!r}{hint}; known: {_known()}", "unknown-cost-model")


def _known() -> str:
    devices = ", ".join(f"roofline:{name}" for name in DEVICES)
    return f"{', '.join(NAMED)}, roofline, {devices}"
