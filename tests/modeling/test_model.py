"""What a model takes."""

import numpy as np
from refusals import refused

from remat.modeling import Domain, Model


def test_a_second_domain_of_a_variable_is_refused():
    model = Model("m")
    x = model.integers("x", 3, 0, 9).index
    model.add(Domain("first", x[:2], np.array([0, 1, 2]), np.array([1, 2])))
    model.add(Domain("other", x[2:], np.array([0, 1]), np.array([3])))
    with refused("model.second-domain", culprit="late"):
        model.add(Domain("late", x[1:2], np.array([0, 1]), np.array([2])))
    with refused("model.second-domain", culprit="twice"):
        Model("n", num_vars=2).add(Domain("twice", np.array([1, 1]), np.array([0, 1, 2]), np.array([1, 2])))
