"""PyTorch: capture models, execute training steps by a schedule (``pip install remat[torch]``).

Using a name raises :class:`~remat.errors.CaptureError` if torch is not installed or its version is not a tested one.
"""

from remat.runtime.lazy import import_lazily


def _check_torch() -> None:
    from remat.torch.versions import check_version

    check_version()


import_lazily(__name__, _check_torch)
