"""Modelling language: models, records and bridges; independent of graphs and solvers."""

from remat.runtime.lazy import import_lazily

import_lazily(__name__)
