"""Lower bounds on peak and cost, each with its scope."""

from remat.runtime.lazy import import_lazily

import_lazily(__name__)
