"""Problems: a graph, a budget, rules and an objective."""

from remat.runtime.lazy import import_lazily

import_lazily(__name__)  # the help of commands lists objectives, and loads neither graphs nor NumPy
