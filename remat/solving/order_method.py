"""A search for the order of least peak, as a method of solve()."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat.compiled import COMPILING
from remat.errors import BackendError
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.instance import Int, OrderInstance
from remat.schedule import Schedule
from remat.scope import own_scope

if TYPE_CHECKING:
    from remat.solving.session import Session


def see_order(session: Session, instance: OrderInstance, order: Int, peak: int, source: str) -> Schedule:
    """Have an order certified and kept, and tell of it; its schedule.

    Raises
    ------
    BackendError
        If it has another peak than is claimed.
    """
    schedule = instance.schedule(session.problem, order, source)
    certificate = session.incumbents.see(schedule, source).certificate
    if certificate.peak != peak:
        raise BackendError(
            f"{source} claims a peak of {peak:,} bytes for an order that has {certificate.peak:,}", "wrong-peak"
        )
    session.tell()
    return schedule


def run_search(session: Session, search: OrderSearch) -> Ordering | None:
    """Let a search look for an order with a lower peak than that of the best schedule known; all it finds is checked.

    Its bound counts where the problem allows one compute of each op; otherwise it is a remark.

    Parameters
    ----------
    session : Session
        Of a problem of free order that asks for the least peak.
    search : OrderSearch

    Returns
    -------
    Ordering or None
        What it found out; None where its compiled code was not ready in time, or nothing is left to be found.

    Raises
    ------
    BackendError
        If an order has another peak than is claimed, or one below the bound.
    """
    problem, name = session.problem, search.name
    known = session.incumbents.least_peak
    assert known is not None  # the reference order is one
    instance = OrderInstance.of(problem)
    once = all(limit == 1 for limit in problem.compute_limits)

    def see(order: Int, peak: int) -> bool:
        see_order(session, instance, order, peak, name)
        return session.enough

    if problem.structural_peak > session.bound:
        session.bound_kind = "the structural bound"
        session.raise_bound(problem.structural_peak, own_scope(problem))
    if session.enough:
        return None
    with session.timed("load"):  # compiled code; the first time on a machine it is compiled
        if not search.prepared(session.call.deadline, lambda: session.enter(f"{name}: {COMPILING}")):
            session.note(f"{name} was not compiled in time")
            return None
    with session.timed(name):
        found = search.search(
            instance, deadline=session.call.deadline, seed=session.call.seed, upper=known.certificate.peak, on_order=see
        )
        if found.order is not None:
            assert found.peak is not None
            see(found.order, found.peak)
    best = session.incumbents.least_peak
    assert best is not None
    if once:
        if found.bound > best.certificate.peak:
            raise BackendError(
                f"{name} claims that no order has a lower peak than {found.bound:,} bytes, "
                f"but that of {best.source} has {best.certificate.peak:,}"
            )
        if found.bound > session.bound:
            session.bound_kind = name
            session.raise_bound(found.bound, own_scope(problem))
    elif found.bound >= best.certificate.peak:
        session.note(f"{name} proved that no order has a lower peak without recomputation")
    if found.states is not None:
        session.states = (session.states or 0) + found.states
    for note in found.notes:
        session.note(note)
    return found
