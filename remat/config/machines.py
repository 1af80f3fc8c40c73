"""Machines as users write them: also with rates that are measured here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat.schedule.machine import MEASURED, Machine


def read_machine(given: str | Mapping[str, Any]) -> Machine:
    """Return the machine of a text or a table of settings; ``measured`` stands for this machine's GPU and host.

    Raises
    ------
    ProblemError
        If it cannot be read.
    MeasurementError
        If it is to be measured, and there is no GPU.
    """
    text = given if isinstance(given, str) else Machine.text_of(given)
    if text.partition(",")[0].strip() != MEASURED:
        return Machine.parse(text)
    from remat.torch.links import machine_here

    return machine_here(text)
