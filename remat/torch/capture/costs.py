"""The cost model of a capture, by its name."""

from __future__ import annotations

from typing import Any

from remat.torch.costs import cost_model


def costs_by_name(model: Any) -> Any:
    """A cost model (see :mod:`remat.torch.costs`) for its name, or the model itself."""
    return cost_model(model)
