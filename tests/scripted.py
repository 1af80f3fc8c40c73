"""Backend with scripted answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from remat import registry
from remat.backends.base import Availability, AvailabilityState, Backend
from remat.backends.results import OnBound, OnIncumbent, RawResult, Values
from remat.modeling import Linear, Model
from remat.runtime.solve_options import SolveOptions

Script = Callable[[Model, SolveOptions, Values | None, OnIncumbent], RawResult]
#: Answer, error to raise, reason why the backend is unavailable, or function that answers.
Reply = RawResult | BaseException | Availability | Script
ABSENT = AvailabilityState.NOT_INSTALLED


class Scripted(Backend):
    """Backend that gives one reply to every model and records its calls.

    Parameters
    ----------
    reply : Reply or str
        A str selects one of `replies`, the variants of the backend.
    """

    name = "scripted"
    native = frozenset({Linear})
    state = Availability(AvailabilityState.READY, "of the imagination")
    replies: ClassVar[Mapping[str, Reply]] = {}

    def __init__(self, reply: Reply | str) -> None:
        super().__init__(reply if isinstance(reply, str) else "")
        self.reply = self.replies[reply] if isinstance(reply, str) else reply
        self.calls: list[tuple[Model, SolveOptions, Values | None]] = []

    @classmethod
    def availability(cls) -> Availability:
        return cls.state

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        return tuple(cls.replies)

    def ready(self) -> Availability:
        return self.reply if isinstance(self.reply, Availability) else self.state

    def solve(
        self,
        model: Model,
        options: SolveOptions,
        hint: Values | None = None,
        on_incumbent: OnIncumbent | None = None,
        on_bound: OnBound | None = None,
    ) -> RawResult:
        self.calls.append((model, options, hint))
        assert on_incumbent is not None and not isinstance(self.reply, Availability)
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply if isinstance(self.reply, RawResult) else self.reply(model, options, hint, on_incumbent)


def register(patch: pytest.MonkeyPatch, name: str, **replies: Reply) -> None:
    """Register a backend `name` with a variant for each reply."""
    kind = type("Registered", (Scripted,), {"name": name, "native": frozenset(), "replies": replies})
    genuine = registry.load
    patch.setattr(registry, "load", lambda group, wanted: kind if wanted == name else genuine(group, wanted))
