"""Schedules: simulation, validation, file formats and plots."""

from remat.runtime.lazy import import_lazily

import_lazily(__name__)
