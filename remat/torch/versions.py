"""Tested versions of torch: some names that this package uses are private there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from remat.errors import CaptureError

#: Keep equal to the extra ``torch`` of this package.
TESTED = SpecifierSet(">=2.13,<2.14")


def check_version() -> None:
    """Require an installed torch of a version within :data:`TESTED`.

    Raise CaptureError with the installed version and the tested ones.
    """
    try:
        installed = version("torch")
    except PackageNotFoundError:
        raise CaptureError("torch is not installed: pip install 'remat[torch]'", "not-installed") from None
    if not TESTED.contains(installed, prereleases=True):
        raise CaptureError(
            f"torch {installed} is installed, but remat.torch is made for torch{TESTED} only", "torch-version"
        )
