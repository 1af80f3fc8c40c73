"""Incumbents: validation, equal steps."""

from dataclasses import replace

import pytest
from refusals import refused

import remat.solving.incumbents
from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule
from remat.solving.incumbents import Incumbents
from remat.solving.session import Session


def test_equal_steps_are_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches report schedules again at their end; validation takes 0.2 s on 20,000 ops."""
    validations, validate = [], remat.solving.incumbents.validate
    monkeypatch.setattr(remat.solving.incumbents, "validate", lambda *given: validations.append(1) or validate(*given))
    graph = unit_chain(3)
    incumbents = Incumbents(Problem(graph, "100%"))
    first = incumbents.add(Schedule.reference(graph), "first")
    second = incumbents.add(Schedule.reference(graph), "second")
    assert (second.certificate, second.source, len(validations)) == (first.certificate, "second", 1)
    assert incumbents.best is first
    with refused("backend.invalid-schedule"):
        incumbents.add(replace(Schedule.reference(graph), graph_digest="0" * 64), "third")
    with refused("backend.invalid-schedule"):
        incumbents.add(Schedule.of_computes(graph, first.schedule.targets[::-1].copy()), "fourth")
    names = graph.op_names[::-1]
    with refused("backend.invalid-schedule"):
        incumbents.add(replace(Schedule.reference(graph), op_names=names), "fifth")
    assert len(validations) == 4


def test_part_of_a_session_shares_incumbents(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Problem(unit_chain(3), 5), SolveOptions(), "whole")
    monkeypatch.setattr(remat.solving.incumbents, "validate", None)
    part = Session(session.problem, session.call, "part", whole=session)
    assert part.reference is session.reference
    assert part.incumbents is session.incumbents
