"""Scheduling neural computation graphs under a memory budget, with any solver and a certificate."""

from remat.runtime.lazy import import_lazily

import_lazily(__name__)
