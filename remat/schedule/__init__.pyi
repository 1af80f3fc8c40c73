"""Public names of ``remat.schedule``; ``__init__.py`` imports them on first use."""

from remat.schedule.addresses import AddressCertificate as AddressCertificate
from remat.schedule.addresses import Addresses as Addresses
from remat.schedule.addresses import Memory as Memory
from remat.schedule.addresses import check_addresses as check_addresses
from remat.schedule.buffers import Buffers as Buffers
from remat.schedule.buffers import schedule_buffers as schedule_buffers
from remat.schedule.certificate import Certificate as Certificate
from remat.schedule.certificate import Rule as Rule
from remat.schedule.certificate import Transfers as Transfers
from remat.schedule.certificate import Verdict as Verdict
from remat.schedule.certificate import Violation as Violation
from remat.schedule.host import HostUse as HostUse
from remat.schedule.io import read_schedule as read_schedule
from remat.schedule.io import write_schedule as write_schedule
from remat.schedule.machine import Machine as Machine
from remat.schedule.rules import OrderRule as OrderRule
from remat.schedule.rules import Rules as Rules
from remat.schedule.schedule import Schedule as Schedule
from remat.schedule.schedule import StepKind as StepKind
from remat.schedule.simulate import Intervals as Intervals
from remat.schedule.simulate import Simulation as Simulation
from remat.schedule.simulate import simulate as simulate
from remat.schedule.simulate import with_frees as with_frees
from remat.schedule.timing import Timing as Timing
from remat.schedule.timing import time_schedule as time_schedule
from remat.schedule.validate import validate as validate
