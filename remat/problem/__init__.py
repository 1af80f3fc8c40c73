"""Problems: a graph, a budget, rules and an objective."""

from remat.runtime.lazy import import_lazily

import_lazily(__name__)  # objectives have a part in the help of commands, which load neither graphs nor NumPy
