"""Scheduling neural computation graphs under a memory budget, with any solver and a certificate."""

from remat.runtime.lazy import import_lazily

__version__ = "0.1.0"

import_lazily(__name__)
