"""Orders without recomputation for the least cost within a budget: where one fits, nothing is cheaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat.deadline import Deadline
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.rules import RULES
from remat.registry import Registered, load
from remat.schedule import OrderRule, Schedule
from remat.scope import own_scope

if TYPE_CHECKING:
    from remat.solving.session import Session

#: The search that is asked: the first one that is registered. The portfolio begins with the rules.
SEARCHES = ("order-portfolio", "valley-order")
#: Share of the time for the question whether an order fits; the rest is for the order of least peak.
FITTING_SHARE = 0.6


class OrderStart:
    """Looks for an order that fits within the budget of a session, or else for one of low peak to begin with.

    Parameters
    ----------
    session : Session
        Of a problem of least cost with a budget and a free order; for others there is nothing to do.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.problem = session, session.problem
        self.search: OrderSearch | None = None
        self.order: Schedule | None = None
        """The order of least peak that is known, where none fits."""
        if self.problem.order is OrderRule.FREE and self.problem.budget_bytes is not None:
            known = Registered("methods")
            name = next((each for each in SEARCHES if each in known), None)
            self.search = None if name is None else load("methods", name)()
        self.pending = self.search is not None
        """Whether the search has not run yet."""
        self._peak: int | None = None

    @property
    def compiled(self) -> bool:
        """Whether the code of the search was compiled before, so that it is ready in a moment."""
        return self.search is not None and self.search.compiled()

    def ready(self, deadline: Deadline) -> bool:
        """Whether the code of the search is ready by the deadline; if it is not, it is being compiled."""
        return self.search is not None and self.search.prepared(deadline)

    def run(self, deadline: Deadline, wait: Deadline | None) -> None:
        """Ask the search if it is ready in time (None: not waited for); else the rules, and it stays `pending`."""
        session, budget = self.session, self.problem.budget_bytes
        if self.search is None or not self.pending or budget is None:
            return
        with session.step("order"):
            session.enter("order")
            if wait is None or not self.ready(wait):
                for rule in RULES if self.order is None else ():
                    self._take(rule(), deadline)
                    if session.enough or deadline.expired:
                        break
                return
            self.pending = False
            fitting = deadline.earlier(FITTING_SHARE * deadline.remaining)
            found = self._take(self.search, fitting, budget + 1)
            if session.enough:
                return
            if found.bound > budget and all(limit == 1 for limit in self.problem.compute_limits):
                session.infeasible, session.scope = True, own_scope(self.problem)
                session.proof = f" (by {self.search.name})"
                return
            self._take(self.search, deadline)

    def _take(self, search: OrderSearch, deadline: Deadline, upper: int | None = None) -> Ordering:
        """Let a search look for an order, and keep the best."""
        session = self.session
        found = session.ask_order(search, deadline, upper)
        if found.order is not None and found.peak is not None and (self._peak is None or found.peak < self._peak):
            self._peak, self.order = found.peak, session.orders.schedule(self.problem, found.order, search.name)
        return found
