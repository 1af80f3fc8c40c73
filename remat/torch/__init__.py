"""Real models in, real training steps out: PyTorch (``pip install remat[torch]``).

Using a name raises :class:`~remat.errors.CaptureError` if torch is not installed, or is a version that this package is
not tested with.
"""

from remat.runtime.lazy import import_lazily


def _check_torch() -> None:
    from remat.torch.versions import check_version

    check_version()


import_lazily(__name__, _check_torch)
