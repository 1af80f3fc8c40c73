"""The interface of a search for the order of least peak, in which each op is computed once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat.compiled.algorithm import Algorithm
from remat.deadline import Deadline
from remat.runtime.arrays import Int

if TYPE_CHECKING:
    from remat.ordering.instance import OrderInstance

#: Receives a better order and its peak as they are found; True means that the search may stop.
OnOrder = Callable[[Int, int], bool]


@dataclass(frozen=True, eq=False)
class Ordering:
    """What a search for an order found out.

    Attributes
    ----------
    order : int64 array or None
        Ops of the instance in the order found, shape (ops,). None: none with a peak below `upper` was found.
    peak : int or None
        Its peak in bytes, as :meth:`~remat.ordering.instance.OrderInstance.peak_of` has it.
    bound : int
        Bytes; no order in which each op is computed once has a lower peak. With an `upper` it is at most `upper`.
    states : int or None
        How many states were looked at; None for a search that has none.
    notes : tuple of str
        What else is worth knowing, for the result.
    """

    order: Int | None
    peak: int | None
    bound: int = 0
    states: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether no order has a lower peak than this one."""
        return self.peak is not None and self.bound >= self.peak


class OrderSearch(Algorithm):
    """Looks for the order of least peak: each op computed once, in any order that the data allow.

    It is a method of :func:`remat.solve` for the objective ``least-peak`` once it is registered in the entry-point
    group ``remat.methods``; its class or an object of it can be handed to :func:`remat.solve` without that.

    Parameters
    ----------
    options : optional
        Of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For anything else.

    Examples
    --------
    A search that tries a single order; the bound stays that of the instance.

    >>> from remat import Problem, solve
    >>> from remat.graphs.families import unit_chain
    >>> class AsGiven(OrderSearch):
    ...     name = "as-given"
    ...     def search(self, instance, *, deadline=None, seed=0, upper=None, on_order=None):
    ...         order = instance.reference
    ...         return Ordering(order, instance.peak_of(order), instance.structural_bound)
    >>> problem = Problem(unit_chain(4), order="free", max_computes=1, objective="least-peak")
    >>> result = solve(problem, AsGiven)
    >>> result.peak, result.method
    (6, 'as-given')
    """

    @abstractmethod
    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """The best order found before the deadline; an interruption is a deadline, too, and raises nothing.

        Parameters
        ----------
        instance : OrderInstance
        deadline : Deadline, optional
            Looked at between bounded pieces of work; None: as long as it takes.
        seed : int
            Fixes everything random.
        upper : int, optional
            Bytes. Only orders with a lower peak are wanted; where there is none, a bound of `upper` says so. None: any.
        on_order : callable, optional
            Receives better orders on the way.
        """
