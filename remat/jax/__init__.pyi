"""Public names of ``remat.jax``; ``__init__.py`` imports them on first use."""

from remat.jax.capture import capture as capture
from remat.jax.captured import Captured as Captured
