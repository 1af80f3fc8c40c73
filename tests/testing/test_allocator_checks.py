"""Checks of the kit for allocators: registered allocators pass, broken ones fail."""

import numpy as np
import pytest

from remat import registry
from remat.allocation import Allocation, Allocator
from remat.errors import ProblemError
from remat.runtime.solve_options import DEFAULT_OPTIONS
from remat.testing import ALLOCATOR_CHECKS, ConformanceError, Effort
from remat.testing.allocator_checks import bounds_hold, capacities_are_kept, several_memories, the_start_is_kept

LITTLE = Effort(most_ops=5, cases=3, deadline=0.5)
#: Solve to the deadline.
SLOW = {"auto", "model"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(registry.allocators())]
)
@pytest.mark.parametrize("check", ALLOCATOR_CHECKS, ids=lambda check: check.__name__)
def test_registered_allocators(check, name: str) -> None:
    effort = LITTLE if name not in SLOW else Effort(most_ops=5, cases=3, deadline=6.0)
    check(lambda: registry.make("allocators", name, None), effort)


class Apart(Allocator):
    """Disjoint addresses; `false_proof` is a wrong proof."""

    name = "apart"
    bound, false_proof = 0, ""

    def allocate(self, problem, options=DEFAULT_OPTIONS, start=None, on_addresses=None) -> Allocation:
        offset = np.cumsum(problem.sizes) - problem.sizes
        return Allocation(problem, problem.addresses(offset), self.bound or problem.bound, self.false_proof, self.name)


class Overlapping(Apart):
    def allocate(self, problem, options=DEFAULT_OPTIONS, start=None, on_addresses=None) -> Allocation:
        return Allocation(problem, problem.addresses(np.zeros(len(problem.buffers), dtype=np.int64)), 0)


class HighBound(Apart):
    bound = 10**6


class Contradicts(Apart):
    false_proof = "no"


class Refuses(Apart):
    several_memories = True

    def allocate(self, problem, options=DEFAULT_OPTIONS, start=None, on_addresses=None) -> Allocation:
        raise ProblemError("no")


@pytest.mark.parametrize(
    ("check", "kind", "words"),
    [
        (bounds_hold, Overlapping, "overlaps"),
        (bounds_hold, HighBound, "is above"),
        (bounds_hold, Contradicts, "a proof that there are none"),
        (capacities_are_kept, Apart, "ends beyond the capacity"),
        (the_start_is_kept, Apart, "the start was better"),
        (several_memories, Refuses, "and does not"),
    ],
)
def test_broken_allocators_fail(check, kind: type[Allocator], words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check(kind, LITTLE)
