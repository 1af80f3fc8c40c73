"""Versions of torch: refused below the first tested one, used with a warning above the last."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from remat.errors import CaptureError, UntestedTorchWarning

#: First and last minor version that the tests run on. The extra ``torch`` requires the first: in 2.12 the decomposition
#: of an LSTM is wrong (pytorch #151200), and ``boxed_grads_call`` is ignored, so that a gradient is held too long.
FIRST, LAST = Version("2.13"), Version("2.15")


def check_version() -> None:
    """Require an installed torch; warn if it is newer than :data:`LAST`.

    Raise CaptureError if torch is missing or older than :data:`FIRST`.
    """
    try:
        installed = Version(version("torch"))
    except PackageNotFoundError:
        raise CaptureError("torch is not installed: pip install 'remat[torch]'", "not-installed") from None
    if installed.release < FIRST.release:
        raise CaptureError(
            f"torch {installed} is installed, with which results can be wrong; remat.torch needs torch>={FIRST}",
            "torch-version",
        )
    if installed.release[:2] > LAST.release:
        warnings.warn(
            f"torch {installed} is newer than the versions {FIRST} to {LAST} that remat.torch is tested with",
            UntestedTorchWarning,
            stacklevel=2,
        )
