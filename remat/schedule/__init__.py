"""Schedules: simulation, validation, file formats and plots."""

from remat.schedule.addresses import AddressCertificate, Addresses, Memory, check_addresses
from remat.schedule.buffers import Buffers, schedule_buffers
from remat.schedule.certificate import Certificate, Rule, Transfers, Verdict, Violation
from remat.schedule.host import HostUse
from remat.schedule.io import read_schedule, write_schedule
from remat.schedule.machine import Machine
from remat.schedule.rules import OrderRule, Rules
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import Intervals, Simulation, simulate, with_frees
from remat.schedule.timing import Timing, time_schedule
from remat.schedule.validate import validate

__all__ = [
    "AddressCertificate",
    "Addresses",
    "Buffers",
    "Certificate",
    "HostUse",
    "Intervals",
    "Machine",
    "Memory",
    "OrderRule",
    "Rule",
    "Rules",
    "Schedule",
    "Simulation",
    "StepKind",
    "Timing",
    "Transfers",
    "Verdict",
    "Violation",
    "check_addresses",
    "read_schedule",
    "schedule_buffers",
    "simulate",
    "time_schedule",
    "validate",
    "with_frees",
    "write_schedule",
]
