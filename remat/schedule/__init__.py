"""The answer: schedules, their simulation and validation, other tools' formats, plots."""

from remat.schedule.rules import OrderRule, Rules
from remat.schedule.schedule import Schedule, StepKind

__all__ = ["OrderRule", "Rules", "Schedule", "StepKind"]
