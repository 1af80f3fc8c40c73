"""The answer: schedules, their simulation and validation, other tools' formats, plots."""

from remat.schedule.certificate import Certificate, Rule, Verdict, Violation
from remat.schedule.io import read_schedule, write_schedule
from remat.schedule.rules import OrderRule, Rules
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import Intervals, Simulation, simulate, with_frees
from remat.schedule.validate import validate

__all__ = [
    "Certificate",
    "Intervals",
    "OrderRule",
    "Rule",
    "Rules",
    "Schedule",
    "Simulation",
    "StepKind",
    "Verdict",
    "Violation",
    "read_schedule",
    "simulate",
    "validate",
    "with_frees",
    "write_schedule",
]
