"""Interface of searches for an order of least peak, in which each op is computed once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat.runtime.arrays import Int
from remat.runtime.compiled.algorithm import Algorithm
from remat.runtime.deadline import Deadline

if TYPE_CHECKING:
    from remat.ordering.instance import OrderInstance

#: Receives each better order and its peak; returning True allows the search to stop.
OnOrder = Callable[[Int, int], bool]


@dataclass(frozen=True, eq=False)
class Ordering:
    """Result of a search for an order.

    Attributes
    ----------
    order : int64 array or None
        Ops of the instance in the order found, shape (ops,). None: no order with a peak below `upper` was found.
    peak : int or None
        Its peak in bytes, as defined by :meth:`~remat.ordering.instance.OrderInstance.peak_of`.
    bound : int
        Bytes; no order that computes each op once has a lower peak. At most `upper`, if given.
    states : int or None
        Number of states evaluated; None for a search without states.
    notes : tuple of str
        Remarks for the result.
    """

    order: Int | None
    peak: int | None
    bound: int = 0
    states: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """True when no order has a lower peak than this one."""
        return self.peak is not None and self.bound >= self.peak


class OrderSearch(Algorithm):
    """Search for the order of least peak: each op computed once, in any topological order.

    Once registered in the entry-point group ``remat.methods``, it is a method of :func:`remat.solve` for the objective
    ``least-peak``. :func:`remat.solve` also accepts the class or an instance without registration.

    Parameters
    ----------
    options : optional
        Options of the class's `options_type`; None: the defaults.

    Raises
    ------
    ProblemError
        For options of another type.

    Examples
    --------
    A search that tries a single order; the bound is that of the instance.

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
        """Return the best order found before the deadline; an interruption counts as a deadline and raises nothing.

        Parameters
        ----------
        instance : OrderInstance
        deadline : Deadline, optional
            Checked between bounded pieces of work; None: no limit.
        seed : int
            Determines all random choices.
        upper : int, optional
            Bytes. Only orders with a lower peak are accepted; a bound of `upper` proves that there is none. None: any.
        on_order : callable, optional
            Receives better orders during the search.
        """
