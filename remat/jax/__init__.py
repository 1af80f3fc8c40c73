"""Training steps of JAX: their graphs, and the schedules that ``jax.checkpoint`` gives them (``remat[jax]``).

Using a name raises :class:`~remat.errors.CaptureError` if jax is not installed.
"""

from importlib.util import find_spec

from remat.runtime.lazy import import_lazily


def _check_jax() -> None:
    if find_spec("jax") is None:
        from remat.errors import CaptureError

        raise CaptureError("jax is not installed: pip install 'remat[jax]'")


import_lazily(__name__, _check_jax)
