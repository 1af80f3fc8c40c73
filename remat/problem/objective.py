"""Objectives: criteria by which schedules are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Protocol

from remat.errors import ProblemError

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph


class Measured(Protocol):
    """Figures of a schedule: a certificate, a simulation, or an optimum."""

    @property
    def cost(self) -> int:
        """Cost of all compute steps, in the cost unit of the graph."""

    @property
    def peak(self) -> int:
        """Largest memory in bytes."""

    @property
    def time(self) -> int | None:
        """Time with stalls, in the cost unit of the graph: the cost, if nothing is moved; None if it is not known."""

    @property
    def energy(self) -> int | None:
        """Energy in units of that of a cost unit of computing: the cost, if nothing is moved; None if not known."""


_KNOWN: dict[str, Objective] = {}


class _Registry(type):
    """Class that iterates over its registered objects."""

    def __iter__(cls) -> Iterator[Objective]:
        return iter(_KNOWN.values())


class Objective(str, metaclass=_Registry):
    """Criterion by which schedules are compared; a string equal to its name.

    All code that depends on the objective of a problem calls it. A subclass is one objective. Its definition
    registers its only object, which ``Objective(name)`` returns; iterating over the class yields all of them.

    Attributes
    ----------
    about : str
        Explanation that follows the name in help texts.
    key : str
        Key of the value in files.
    word : str
        Noun for the value in texts.
    verb : str
        Verb before the value: a schedule "costs" 5 or "holds" 5.
    resource : str
        What a larger value takes more of: "compute".
    comparative, superlative : str
        Adjectives of lower values: "cheaper", "cheapest".
    unit : str
        Unit of the value; empty: the cost unit of the graph.
    lower_is_better : bool
    is_memory : bool
        True if the value is what a budget limits. Searches then lower the budget step by step, models have no budget,
        and a bound above the budget proves that no schedule exists.
    includes_cost : bool
        True if bounds on the cost bound the value. Not so for the time: bounds on the cost hold for schedules that move
        nothing.
    includes_time : bool
        True if bounds on the time bound the value.
    needs_machine : bool
        True if the value depends on the machine of the problem.
    needs_power : bool
        True if it depends on the power of transfers.

    Raises
    ------
    ValueError
        For an unknown name.

    Examples
    --------
    >>> Objective("least-peak") is Objective.LEAST_PEAK, Objective.LEAST_PEAK == "least-peak"
    (True, True)
    >>> ", ".join(Objective)
    'least-cost, least-peak, least-time, least-energy'
    """

    LEAST_COST: ClassVar[Objective]
    """The least cost within the budget; of equal costs the lower peak."""
    LEAST_PEAK: ClassVar[Objective]
    """The least peak, and of schedules with that peak the cheapest; a budget is an upper limit."""
    LEAST_TIME: ClassVar[Objective]
    """The least time on a machine within the budget; of equal times the lower peak."""
    LEAST_ENERGY: ClassVar[Objective]
    """The least energy on a machine within budget and time limit; of equal energies the lower peak."""
    DEFAULT: ClassVar[Objective]
    """Objective of problems without a machine that name none."""

    about: ClassVar[str]
    key: ClassVar[str]
    word: ClassVar[str]
    verb: ClassVar[str]
    resource: ClassVar[str] = "compute"
    comparative: ClassVar[str] = "better"
    superlative: ClassVar[str] = "best"
    unit: ClassVar[str] = ""
    lower_is_better: ClassVar[bool] = True
    is_memory: ClassVar[bool] = False
    includes_cost: ClassVar[bool] = False
    includes_time: ClassVar[bool] = False
    needs_machine: ClassVar[bool] = False
    needs_power: ClassVar[bool] = False

    def __init_subclass__(cls, name: str) -> None:
        _KNOWN[name] = str.__new__(cls, name)

    def __new__(cls, name: str) -> Objective:
        if not isinstance(name, str) or name not in _KNOWN:
            raise ValueError(f"{name!r} is not one of {', '.join(_KNOWN)}")
        return _KNOWN[name]

    def __reduce__(self) -> tuple[type[Objective], tuple[str]]:
        return Objective, (str(self),)

    @classmethod
    def described(cls) -> str:
        """Return all objectives with their explanations, for help texts."""
        return ", or ".join(f'"{each}" {each.about}' for each in cls)

    def value(self, certificate: Measured) -> int:
        """Return the objective of a schedule."""
        raise NotImplementedError

    def base(self, graph: ComputeGraph) -> int:
        """Return the value of computing each op once, to which overheads are relative; 0: unknown.

        No schedule may beat it.
        """
        return graph.base_cost

    @property
    def other(self) -> Objective:
        """Objective that decides between schedules of equal value."""
        return Objective.LEAST_PEAK

    def rank(self, certificate: Measured) -> tuple[int, int]:
        """Return a sort key, smaller is better: the value, then that of the other objective."""
        value = self.value(certificate)
        return (value if self.lower_is_better else -value), self.other.value(certificate)

    def reaches(self, value: float, goal: float) -> bool:
        """Return True if `value` is at least as good as `goal`."""
        return value <= goal if self.lower_is_better else value >= goal

    def text(self, value: int) -> str:
        """Format a value with its unit.

        Examples
        --------
        >>> Objective.LEAST_PEAK.text(4096), Objective.LEAST_COST.text(4096)
        ('4,096 bytes', '4,096')
        """
        return f"{value:,} {self.unit}".rstrip()


class _LeastCost(Objective, name="least-cost"):
    about = "within the budget"
    key = word = "cost"
    verb = "costs"
    comparative, superlative = "cheaper", "cheapest"
    includes_cost = True

    def value(self, certificate: Measured) -> int:
        return certificate.cost


class _LeastPeak(Objective, name="least-peak"):
    about = "(of equal peaks the cheapest), which needs no budget"
    key = word = "peak"
    verb = "holds"
    unit = "bytes"
    is_memory = True

    @property
    def other(self) -> Objective:
        return Objective.LEAST_COST

    def value(self, certificate: Measured) -> int:
        return certificate.peak

    def base(self, graph: ComputeGraph) -> int:
        return 0


class _LeastTime(Objective, name="least-time"):
    about = "with transfers to the host of a machine, within the budget"
    key = word = "time"
    verb = "takes"
    resource = "time"
    comparative, superlative = "faster", "fastest"
    includes_time = needs_machine = True

    def value(self, certificate: Measured) -> int:
        if certificate.time is None:
            raise ProblemError(
                "a schedule has no time if it is not valid, or moves tensors without a machine", "no-time"
            )
        return certificate.time


class _LeastEnergy(Objective, name="least-energy"):
    about = "of computes and transfers on a machine with link-power, within the budget and its time limit"
    key = word = "energy"
    verb = "takes"
    resource = "energy"
    needs_machine = needs_power = True

    def value(self, certificate: Measured) -> int:
        if certificate.energy is None:
            raise ProblemError(
                "a schedule has no energy if it is not valid, or on a machine without power of transfers", "no-energy"
            )
        return certificate.energy


Objective.DEFAULT = Objective.LEAST_COST = Objective("least-cost")
Objective.LEAST_PEAK = Objective("least-peak")
Objective.LEAST_TIME = Objective("least-time")
Objective.LEAST_ENERGY = Objective("least-energy")
