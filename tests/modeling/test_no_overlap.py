"""Rectangles that do not overlap: through the bridge they have the solutions that the record has."""

import itertools

import numpy as np
import pytest

from remat.modeling import ALWAYS, Clauses, Linear, Model, NoOverlap2D, PlainLinear, lower, violations


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("native", [{Linear, Clauses}, {PlainLinear}], ids=["literals", "rows"])
def test_the_bridge_keeps_the_solutions(seed: int, native: set) -> None:
    rng = np.random.default_rng(seed)
    model = Model("boxes")
    b = model.booleans("b", 1).index
    fixed = model.integers("step", 3, [0, 1, 1], [0, 1, 1]).index if seed % 2 else model.integers("x", 3, 0, 1).index
    y = model.integers("y", 3, 0, 2).index
    presence = np.array([ALWAYS, ALWAYS, rng.choice([ALWAYS, b[0], ~b[0]])])
    model.add(NoOverlap2D("apart", fixed, y, rng.integers(0, 3, 3), rng.integers(1, 3, 3), presence))
    lowered = lower(model, native)
    right = 0
    for values in itertools.product(
        *(range(int(a), int(z) + 1) for a, z in zip(model.lower, model.upper, strict=True))
    ):
        point = np.array(values, dtype=float)
        fits = not violations(model, point)
        right += fits
        assert fits == (not violations(lowered.model, lowered.extend(point)))
    assert right or seed


def test_fixed_steps_need_one_boolean_for_each_pair() -> None:
    model = Model("buffers")
    step = model.integers("step", 4, [0, 1, 2, 9], [0, 1, 2, 9]).index
    offset = model.integers("offset", 4, 0, 6).index
    everywhere = np.full(4, ALWAYS)
    model.add(NoOverlap2D("apart", step, offset, np.array([3, 3, 3, 1]), np.array([2, 3, 1, 5]), everywhere))
    lowered = lower(model, {Linear, Clauses}).model
    assert lowered.num_vars == model.num_vars + 3  # the fourth lives later
    assert [type(record) for record in lowered.records] == [Linear]
